//! Building blocks of the views, and styles. Everything a color expresses is also in the text.

use operator::text::plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, HighlightSpacing, Row, Table, TableState};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

pub use crate::commands::table::Side;

/// Everything works.
pub const GOOD: Style = Style::new().fg(Color::Green);
/// Jobs wait.
pub const WARN: Style = Style::new().fg(Color::Yellow);
/// Something is wrong.
pub const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Column headers.
pub const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Less important text.
pub const QUIET: Style = Style::new().fg(Color::DarkGray);
/// The selected row and the open view.
pub const MARKED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Maximum length of a shown tenant name in characters. The rest is omitted.
const MAX_NAME_CHARS: usize = 40;

/// Returns a tenant's name in plain characters.
pub fn name(tenant: &str) -> String {
    plain(tenant, MAX_NAME_CHARS)
}

/// Shortens `text` to at most this many columns; wide characters take two. It must be plain
/// already.
pub fn fit(text: &str, columns: usize) -> String {
    match columns.checked_sub(1) {
        _ if text.width() <= columns => text.to_owned(),
        Some(room) => begin(text, room).to_owned() + "…",
        None => String::new(),
    }
}

/// Returns the longest beginning of `text` that fits into this many columns.
fn begin(text: &str, columns: usize) -> &str {
    let mut wide = 0;
    let end = text.char_indices().find(|(_, c)| {
        wide += c.width().unwrap_or(0);
        wide > columns
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// Breaks `text` into lines of at most this many columns, at blanks if possible. Continuation lines
/// are indented by `indent`.
pub fn wrapped(text: &str, columns: usize, indent: usize) -> Vec<String> {
    let columns = columns.max(1);
    let indent = indent.min(columns - 1);
    let mut lines = Vec::new();
    let mut line = text.to_owned();
    let mut from = 0;
    while line.width() > columns {
        // A character may be wider than the line.
        let least = line[from..].chars().next().map_or(0, char::len_utf8);
        let fits = begin(&line, columns).len().max(from + least);
        let mut blanks = line.match_indices(' ').map(|(at, _)| at);
        let end = blanks
            .rfind(|at| (from + 1..=fits).contains(at))
            .unwrap_or(fits);
        let rest = line.split_off(end);
        let rest = rest.strip_prefix(' ').unwrap_or(&rest);
        lines.push(std::mem::replace(&mut line, " ".repeat(indent) + rest));
        from = indent;
    }
    lines.push(line);
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

/// A row of a list: its cells, each with one style, and texts for the room of all further columns.
/// The first text that fits is shown.
pub type Cells = (Vec<Line<'static>>, Vec<String>);

/// A list.
pub struct List {
    pub columns: Vec<Column>,
    pub rows: Vec<Cells>,
    /// The selected row.
    pub place: Option<usize>,
}

/// A part of a view. Parts are below each other.
pub enum Part {
    /// Lines, as many as have room.
    Lines(Vec<Line<'static>>),
    /// Lines in the remaining room.
    Rest(Vec<Line<'static>>),
    /// A list of this height.
    List(List, Constraint),
}

impl Part {
    /// Returns a part with one line in the remaining room.
    pub fn words(text: &'static str) -> Self {
        Self::Rest(vec![Line::from(text)])
    }

    /// Returns the height of this many lines.
    pub fn high(lines: usize) -> Constraint {
        Constraint::Length(u16::try_from(lines).unwrap_or(u16::MAX))
    }

    /// Draws all parts.
    pub fn draw_all(parts: Vec<Self>, frame: &mut Frame, area: Rect) {
        let heights = parts.iter().map(|part| match part {
            Self::Lines(lines) => Self::high(lines.len()),
            Self::Rest(_) => Constraint::Min(0),
            Self::List(_, high) => *high,
        });
        let areas = Layout::vertical(heights).split(area);
        for (part, area) in parts.into_iter().zip(areas.iter()) {
            match part {
                Self::List(list, _) => list.draw(frame, *area),
                Self::Lines(lines) | Self::Rest(lines) => write(frame, *area, lines),
            }
        }
    }
}

/// Writes lines below each other. Lines without room are omitted, and texts that don't fit end with
/// a mark.
pub fn write(frame: &mut Frame, area: Rect, lines: Vec<Line>) {
    for (line, row) in lines.into_iter().zip(area.rows()) {
        let line = match line.spans.as_slice() {
            [_] => fitted(&line, usize::from(area.width)),
            _ => line,
        };
        frame.render_widget(line, row);
    }
}

/// Shortens a line of one style to this many columns.
fn fitted(line: &Line, columns: usize) -> Line<'static> {
    Line::styled(fit(&line.to_string(), columns), line.style)
}

impl List {
    fn draw(self, frame: &mut Frame, area: Rect) {
        let Self {
            columns,
            rows,
            place,
        } = self;
        let beside_mark = Rect {
            width: area.width.saturating_sub(1),
            ..area
        };
        let widths = columns.iter().map(|(_, wide, _)| *wide);
        let places = Layout::horizontal(widths).spacing(1).split(beside_mark);
        // Texts that don't fit end with a mark. The table itself would cut them off.
        let cell = |(at, line): (usize, Line)| {
            let line = fitted(&line, usize::from(places[at].width));
            let line = match columns[at].2 {
                Side::Left => line,
                Side::Right => line.right_aligned(),
            };
            Cell::from(Text::from(line))
        };
        let rows = rows.into_iter().map(|(cells, rest)| {
            let place = places.get(cells.len()).filter(|_| !rest.is_empty());
            let rest = place.map(|place| {
                let wide = usize::from(beside_mark.right().saturating_sub(place.x));
                let fits = rest.iter().find(|text| text.width() <= wide);
                let text = fits.or(rest.last()).map_or("", String::as_str);
                Cell::from(fit(text, wide)).column_span(u16::MAX)
            });
            Row::new(cells.into_iter().enumerate().map(&cell).chain(rest))
        });
        let heads = columns.iter().map(|(head, ..)| Line::styled(*head, HEAD));
        let heads = Row::new(heads.enumerate().map(&cell));
        let widths = places.iter().map(|it| Constraint::Length(it.width));
        let table = Table::new(rows, widths)
            .header(heads)
            .row_highlight_style(MARKED)
            .highlight_symbol(">")
            .highlight_spacing(HighlightSpacing::Always);
        let mut state = TableState::default().with_selected(place);
        frame.render_stateful_widget(table, area, &mut state);
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
