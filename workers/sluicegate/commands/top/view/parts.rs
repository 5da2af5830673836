//! Building blocks of the views.

use operator::text::plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Row, Table, TableState};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub use crate::commands::table::Side;
use crate::commands::top::clock::left;
use crate::commands::top::theme::{HEAD, MARKED};

/// Maximum length of a shown tenant name in characters. The rest is omitted.
pub const NAME: usize = 40;

/// Shortens `text` to at most this many columns; wide characters take two. It must be plain
/// already.
pub fn fit(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut room = columns.saturating_sub(1);
    let fits = |c: &char| {
        let left = room.checked_sub(c.width().unwrap_or(0));
        room = left.unwrap_or(0);
        left.is_some()
    };
    let mut shown: String = text.chars().take_while(fits).collect();
    if columns > 0 {
        shown.push('…');
    }
    shown
}

/// Breaks `text` into lines of at most this many columns, at blanks if possible. Continuation lines
/// are indented by `indent`.
pub fn wrapped(text: &str, columns: usize, indent: usize) -> Vec<String> {
    let columns = columns.max(1);
    let indent = indent.min(columns - 1);
    let mut lines = vec![String::new()];
    let mut wide = 0;
    let mut put = |piece: &str, width: usize, glued: bool| {
        let is_first = lines.len() == 1;
        let gap = usize::from(!glued);
        let line = lines.last_mut().expect("there is always one");
        let begin = if is_first { 0 } else { indent };
        if wide > begin && wide + gap + width > columns {
            wide = indent + width;
            lines.push(" ".repeat(indent) + piece);
            return;
        }
        if !glued {
            line.push(' ');
            wide += 1;
        }
        line.push_str(piece);
        wide += width;
    };
    for (at, word) in text.split(' ').enumerate() {
        let glued = at == 0;
        if word.width() <= columns - indent {
            put(word, word.width(), glued);
            continue;
        }
        // A word that is wider than a line.
        for (at, c) in word.chars().enumerate() {
            let mut letter = [0; 4];
            put(
                c.encode_utf8(&mut letter),
                c.width().unwrap_or(0),
                glued || at > 0,
            );
        }
    }
    lines
}

/// Breaks `text` into at most `max` lines of this style, as [`wrapped`] does.
pub fn paragraph(
    text: &str,
    (columns, indent, max): (usize, usize, usize),
    style: Style,
) -> impl Iterator<Item = Line<'static>> + use<> {
    let lines = wrapped(text, columns, indent).into_iter().take(max);
    lines.map(move |line| Line::styled(line, style))
}

/// Draws `text` in the first line of `area`.
pub fn draw_line(frame: &mut Frame, area: Rect, text: &str, style: Style) {
    let text = fit(text, usize::from(area.width));
    frame.render_widget(Line::styled(text, style), area);
}

/// Returns a bar such as `[#####.....]` for a share, in this many columns.
// The result is between 0 and the columns of a terminal.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
pub fn bar(share: f64, columns: usize) -> String {
    let room = columns.saturating_sub(2);
    let exact = share.clamp(0.0, 1.0) * room as f64;
    // Only a full share fills the bar, and only an empty one leaves it empty.
    let full = match (share > 0.0, share < 1.0) {
        (true, true) => (exact.round() as usize).clamp(1, room.saturating_sub(1).max(1)),
        _ => exact.round() as usize,
    };
    let full = full.min(room);
    format!("[{}{}]", "#".repeat(full), ".".repeat(room - full))
}

/// Returns the time left until `at_ms`, or `-` if it is 0.
pub fn until(at_ms: u64, now_ms: u64) -> String {
    match at_ms.saturating_sub(now_ms) {
        _ if at_ms == 0 => "-".to_owned(),
        ms => left(ms),
    }
}

/// Returns a tenant's name in plain characters.
pub fn name(tenant: &str) -> String {
    plain(tenant, NAME)
}

/// A column: its header, width and alignment.
pub type Column = (&'static str, Constraint, Side);

/// Returns columns with these headers and widths. A column with width 0 takes the rest.
pub fn columns<const N: usize>(heads: [(&'static str, Side); N], widths: [u16; N]) -> [Column; N] {
    std::array::from_fn(|at| {
        let (head, side) = heads[at];
        let width = match widths[at] {
            0 => Constraint::Fill(1),
            width => Constraint::Length(width),
        };
        (head, width, side)
    })
}

/// A row of a list. Each cell has one style.
pub struct Cells<'a> {
    each: Vec<Line<'a>>,
    /// Texts for the room of all further columns. The first that fits is shown.
    rest: Vec<String>,
}

impl<'a> Cells<'a> {
    /// Creates a row in which the first fitting text of `rest` replaces the cells after `each`.
    pub fn with_words(each: Vec<Line<'a>>, rest: Vec<String>) -> Self {
        Self { each, rest }
    }
}

impl<'a> From<Vec<Line<'a>>> for Cells<'a> {
    fn from(each: Vec<Line<'a>>) -> Self {
        let rest = Vec::new();
        Self { each, rest }
    }
}

/// Draws the rows of a list with the one at `place` selected.
pub fn list<'a>(
    frame: &mut Frame,
    area: Rect,
    columns: &[Column],
    rows: impl Iterator<Item = impl Into<Cells<'a>>>,
    place: Option<usize>,
) {
    let heads = columns.iter().map(|(head, _, side)| {
        let line = Line::from(*head).style(HEAD);
        Cell::from(Text::from(aligned(line, *side)))
    });
    // Texts that don't fit end with a mark. The table itself would cut them off.
    let beside_mark = Rect {
        width: area.width.saturating_sub(1),
        ..area
    };
    let widths = columns.iter().map(|(_, wide, _)| *wide);
    let places = Layout::horizontal(widths).spacing(1).split(beside_mark);
    let widths: Vec<usize> = places.iter().map(|it| usize::from(it.width)).collect();
    let rows = rows.map(|cells| {
        let Cells { each, rest } = cells.into();
        let place = places.get(each.len()).filter(|_| !rest.is_empty());
        let cells = each.into_iter().zip(columns).zip(&widths);
        let cells = cells.map(|((line, (_, _, side)), &wide)| {
            let text = fit(&line.to_string(), wide);
            let line = Line::styled(text, line.style);
            Cell::from(Text::from(aligned(line, *side)))
        });
        let rest = place.map(|place| {
            let wide = usize::from(beside_mark.right().saturating_sub(place.x));
            let fits = rest.iter().find(|text| text.width() <= wide);
            let text = fits.or(rest.last()).map_or("", String::as_str);
            Cell::from(fit(text, wide)).column_span(u16::MAX)
        });
        Row::new(cells.chain(rest))
    });
    let rows: Vec<Row> = rows.collect();
    let widths = places.iter().map(|it| Constraint::Length(it.width));
    let table = Table::new(rows, widths)
        .header(Row::new(heads))
        .row_highlight_style(MARKED)
        .highlight_symbol(">")
        .highlight_spacing(ratatui::widgets::HighlightSpacing::Always);
    let mut state = TableState::default().with_selected(place);
    frame.render_stateful_widget(table, area, &mut state);
}

fn aligned(line: Line<'_>, side: Side) -> Line<'_> {
    match side {
        Side::Left => line,
        Side::Right => line.right_aligned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_fitted_by_columns_not_characters() {
        assert_eq!(fit("acme", 4), "acme");
        assert_eq!(fit("acme", 3), "ac…");
        assert_eq!(fit("日本語", 6), "日本語");
        assert_eq!(fit("日本語", 5), "日本…");
        assert_eq!(fit("日本語", 4), "日…");
        assert_eq!(fit("acme", 0), "");
        assert_eq!(fit("acme", 1), "…");
    }

    #[test]
    fn a_line_is_broken_at_blanks_or_anywhere() {
        assert_eq!(wrapped("one two three", 7, 2), ["one two", "  three"]);
        assert_eq!(wrapped("abcdefgh", 3, 1), ["abc", " de", " fg", " h"]);
        assert_eq!(wrapped("", 7, 2), [""]);
        assert_eq!(wrapped("日本語", 4, 0), ["日本", "語"]);
        assert_eq!(wrapped("a  b", 9, 0), ["a  b"], "columns stay");
        for columns in 0..9 {
            wrapped("日本語 abc\tdef", columns, 4);
        }
    }

    #[test]
    fn a_bar_is_full_only_at_full_usage() {
        assert_eq!(bar(0.0, 12), "[..........]");
        assert_eq!(bar(0.001, 12), "[#.........]");
        assert_eq!(bar(0.5, 12), "[#####.....]");
        assert_eq!(bar(0.999, 12), "[#########.]");
        assert_eq!(bar(1.0, 12), "[##########]");
        for columns in 0..4 {
            bar(0.5, columns);
        }
    }
}
