//! The view of the busiest tenants.

use operator::text::{count, plain};
use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::Line;
use rules::report::view::Row;

use super::parts::{BAD, Cells, List, Part, WARN, columns, name, paragraph};
use crate::commands::tenants::{HEADS, cells, gate_failure, omitted};
use crate::commands::top::clock::{end, left};
use crate::commands::top::model::Model;

/// Number of lines for the selected tenant.
const DETAIL: usize = 3;

pub fn parts(model: &Model, wide: u16) -> Vec<Part> {
    let Some((_, redis_ms)) = model.picture() else {
        return vec![Part::words("reading tenants from Redis ...")];
    };
    let rows = model.tenants();
    let mut parts = vec![Part::Lines(vec![Line::from(sums(model, rows.len()))])];
    if rows.is_empty() {
        parts.push(Part::words(match (model.shown(), model.search.as_str()) {
            (None, _) => "reading from the gate ...",
            (Some(_), "") => "no tenant has jobs at these workers; / opens a tenant by name",
            (Some(_), _) => {
                "no busy tenant has this in its name; Enter opens the tenant with this name"
            }
        }));
    } else {
        let mut columns = columns(HEADS, [0, 6, 6, 5, 8, 8, 8, 8, 0]).to_vec();
        let mut cells: Vec<Cells> = rows.iter().map(|row| styled(row, redis_ms)).collect();
        if wide < 100 {
            columns.remove(3);
            cells
                .iter_mut()
                .for_each(|(cells, _)| drop(cells.remove(3)));
        }
        let list = List {
            columns,
            rows: cells,
            place: model.place(),
        };
        parts.push(Part::List(list, Constraint::Min(0)));
    }
    let mut detail = Vec::new();
    if let Some(row) = model.place().and_then(|at| rows.get(at)) {
        let size = (usize::from(wide), 2, DETAIL);
        detail.extend(paragraph(&describe(row, redis_ms), size, Style::new()));
    }
    let failure = model.shown().and_then(gate_failure);
    detail.extend(failure.map(|words| Line::styled(words, WARN)));
    parts.push(Part::Lines(detail));
    parts
}

fn styled(row: &Row, redis_ms: u64) -> Cells {
    let mut cells = cells(row, redis_ms, left).map(Line::from);
    if row.closed_until_ms > redis_ms {
        (cells[6].style, cells[8].style) = (BAD, BAD);
    } else if !row.waits_for.is_empty() {
        cells[8].style = WARN;
    }
    (cells.into(), Vec::new())
}

fn sums(model: &Model, listed: usize) -> String {
    let mut text = format!("by {} (s changes)", model.sort.name());
    if !model.search.is_empty() || model.is_searching {
        text += &format!(", with {:?} in the name", plain(&model.search, 40));
    }
    text += &format!(": {}", count(listed as u64, "tenant"));
    let Some((picture, _)) = model.picture() else {
        return text;
    };
    match model.shown().map_or(0, |shown| shown.more) {
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
    let state = match row.closed_until_ms > redis_ms {
        true => {
            let by = match row.closed_by.as_str() {
                "" => "for an unknown reason".to_owned(),
                by => plain(by, 200),
            };
            let opens = end(row.closed_until_ms, redis_ms);
            format!("SUSPENDED, opens in {opens}: {by}")
        }
        false if row.waits_for.is_empty() => "open".to_owned(),
        false => format!("waits for the limit {}", plain(&row.waits_for, 64)),
    };
    let ends = end(row.line_ends_ms, redis_ms);
    let line = match (row.waitlist_units, row.line_ends_ms > redis_ms) {
        (Some(waiting), true) => format!("{waiting} in line, the last starts in {ends}"),
        (None, true) => format!("its last job starts in {ends}"),
        (Some(0), false) => "nothing is in line".to_owned(),
        _ => count(row.waiting, "job") + " waiting in memory",
    };
    format!(
        "{}: {state}; {line}; Enter shows all",
        name(row.tenant.as_str())
    )
}
