//! The view of the busiest tenants.

use operator::text::{count, plain};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use rules::report::view::Row;

use super::parts::{columns, draw_line, fit, list, name, paragraph, until};
use super::{lines, write};
use crate::commands::tenants::{HEADS, cells, gate_failure, omitted};
use crate::commands::top::clock::{left, time};
use crate::commands::top::model::Model;
use crate::commands::top::theme::{BAD, WARN};

/// Number of lines for the selected tenant.
const DETAIL: usize = 3;

pub fn draw(frame: &mut Frame, area: Rect, model: &Model) {
    let wide = usize::from(area.width);
    let Some((picture, redis_ms)) = model.picture() else {
        return draw_line(frame, area, "reading tenants from Redis ...", Style::new());
    };
    let rows = model.tenants();
    let marked = model.place().and_then(|at| rows.get(at));
    let mut detail: Vec<Line> = marked.map_or_else(Vec::new, |row| {
        paragraph(&describe(row, redis_ms), (wide, 2, DETAIL), Style::new()).collect()
    });
    let shown = picture.shown.as_ref();
    if let Some(words) = shown.and_then(gate_failure) {
        detail.push(Line::styled(fit(&words, wide), WARN));
    }
    let [sums, table, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(lines(&detail)),
    ])
    .areas(area);
    write(frame, below, detail);
    draw_line(frame, sums, &sums_of(model, rows.len()), Style::new());
    if rows.is_empty() {
        let words = match (shown.is_some(), model.search.is_empty()) {
            (false, _) => "reading from the gate ...",
            (true, true) => "no tenant has jobs at these workers; / opens a tenant by name",
            (true, false) => {
                "no busy tenant has this in its name; Enter opens the tenant with this name"
            }
        };
        return draw_line(frame, table, words, Style::new());
    }
    let is_wide = wide >= 100;
    let mut columns = columns(HEADS, [0, 6, 6, 5, 8, 8, 8, 8, 0]).to_vec();
    if !is_wide {
        columns.remove(3);
    }
    let rows = rows.iter().map(|row| {
        let mut lines = cells(row, redis_ms, left).map(Line::from).to_vec();
        if row.closed_until_ms > redis_ms {
            (lines[6].style, lines[8].style) = (BAD, BAD);
        } else if !row.waits_for.is_empty() {
            lines[8].style = WARN;
        }
        if !is_wide {
            lines.remove(3);
        }
        lines
    });
    list(frame, table, &columns, rows, model.place());
}

fn sums_of(model: &Model, listed: usize) -> String {
    let mut text = format!("by {} (s changes)", model.sort.name());
    if !model.search.is_empty() || model.is_searching {
        text += &format!(", with {:?} in the name", plain(&model.search, 40));
    }
    text += &format!(": {}", count(listed as u64, "tenant"));
    let Some((picture, _)) = model.picture() else {
        return text;
    };
    match picture.shown.as_ref().map_or(0, |shown| shown.more) {
        0 => {}
        more => text += &format!(", {more} more known"),
    }
    match omitted(&picture.fleet.view.left_out) {
        words if words.is_empty() => text,
        words => format!("{text}; {words}"),
    }
}

/// Describes the selected tenant in a sentence or two.
fn describe(row: &Row, redis_ms: u64) -> String {
    let mut text = format!("{}: ", name(row.tenant.as_str()));
    let left_of = |at_ms: u64| format!("{} ({} UTC)", until(at_ms, redis_ms), time(at_ms));
    text += &match (row.closed_until_ms > redis_ms, row.closed_by.as_str()) {
        (true, by) => {
            let by = if by.is_empty() {
                "for an unknown reason"
            } else {
                by
            };
            let opens = left_of(row.closed_until_ms);
            format!("SUSPENDED, opens in {opens}: {}", plain(by, 200))
        }
        (false, _) if !row.waits_for.is_empty() => {
            format!("waits for the limit {}", plain(&row.waits_for, 64))
        }
        _ => "open".to_owned(),
    };
    text += "; ";
    text += &match (row.waitlist_units, row.line_ends_ms > redis_ms) {
        (Some(waiting), true) => format!(
            "{waiting} in line, the last starts in {}",
            left_of(row.line_ends_ms)
        ),
        (_, true) => format!("its last job starts in {}", left_of(row.line_ends_ms)),
        (Some(0), false) => "nothing is in line".to_owned(),
        _ => count(row.waiting, "job") + " waiting in memory",
    };
    text + "; Enter shows all"
}
