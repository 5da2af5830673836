//! The view of limits and their usage.

use operator::fullness::Fullness;
use operator::tally;
use operator::text::plain;
use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::Line;
use rules::decision::Tally;
use rules::scope::Scope;

use super::parts::{BAD, Cells, GOOD, List, Part, Side, WARN, bar, name};
use crate::commands::top::clock::left;
use crate::commands::top::model::Model;

pub fn parts(model: &Model, wide: u16) -> Vec<Part> {
    let limits = model.limits();
    if limits.is_empty() {
        let words = match model.shown() {
            Some(_) => "no tenant has jobs at these workers; / opens a tenant by name",
            None => "reading from the gate ...",
        };
        return vec![Part::Lines(vec![Line::default()]), Part::words(words)];
    }
    let since_ms = model.pipeline().picture.answer().map_or(0, |(_, at)| at);
    let passed_ms = model.now_ms.saturating_sub(since_ms);
    // Next to the shortest names, a shadow's text fits into 80 columns.
    let gauge = if wide < 100 { 15 } else { 32 };
    let rows = limits.iter().map(|(tenant, limit)| {
        let whose = tenant.map_or_else(|| "(all tenants)".to_owned(), |it| name(it.as_str()));
        let cells = vec![Line::from(whose), Line::from(plain(&limit.name, 32))];
        usage(cells, limit, (passed_ms, gauge))
    });
    let list = List {
        columns: vec![
            ("TENANT", Constraint::Fill(3), Side::Left),
            ("LIMIT", Constraint::Fill(2), Side::Left),
            ("WINDOW", Constraint::Length(7), Side::Left),
            ("FULL", Constraint::Length(gauge), Side::Left),
            ("USED", Constraint::Length(11), Side::Right),
            ("NEXT", Constraint::Length(8), Side::Right),
            ("WAITING", Constraint::Length(7), Side::Right),
        ],
        rows: rows.collect(),
        place: model.place(),
    };
    let sort = model.sort.name();
    let words = format!("shared limits, then each tenant's limits by {sort} (s changes)");
    vec![
        Part::Lines(vec![Line::from(words)]),
        Part::List(list, Constraint::Min(0)),
    ]
}

/// Returns what a shadow limit would have done, from the longest text to the shortest. It denies
/// nothing, so there is no wait to show.
fn describe_shadow(limit: &Fullness, tally: &Tally) -> Vec<String> {
    if limit.used.is_none() {
        return vec![format!("shadow, one for each {}", part(limit))];
    }
    let (words, short) = (tally::describe(tally), tally::short(tally));
    vec![
        format!("shadow, {words}"),
        words,
        format!("shadow, {short}"),
        short,
    ]
}

/// Completes the cells of a limit: the window, the gauge, the usage, when the next unit is
/// available, and the waiting units; or what a shadow limit would have done.
pub fn usage(
    mut cells: Vec<Line<'static>>,
    limit: &Fullness,
    (passed_ms, columns): (u64, u16),
) -> Cells {
    if let Some(tally) = &limit.shadow {
        return (cells, describe_shadow(limit, tally));
    }
    let style = match limit.share() {
        _ if limit.is_full() => BAD,
        Some(share) if share >= 0.8 => WARN,
        Some(_) => GOOD,
        None => Style::new(),
    };
    let window = match limit.window.as_str() {
        "" => "at once",
        window => window,
    };
    let (gauge, used) = match (limit.share(), limit.used) {
        (Some(share), Some(used)) => (bar(share, usize::from(columns)), used.to_string()),
        _ => (format!("by {}", plain(&part(limit), 64)), "?".to_owned()),
    };
    let set = if limit.override_until_ms > 0 { "*" } else { "" };
    let next = match (limit.used, limit.next_ms) {
        (None, _) => "-".to_owned(),
        (_, 0) => "now".to_owned(),
        (_, next_ms) => left(next_ms.saturating_sub(passed_ms)),
    };
    cells.extend([
        Line::from(window.to_owned()),
        Line::styled(gauge, style),
        Line::styled(format!("{used}/{}{set}", limit.max), style),
        Line::from(next),
        Line::from(limit.waiting.to_string()),
    ]);
    (cells, Vec::new())
}

/// Returns the value that the limit tells jobs apart by.
fn part(limit: &Fullness) -> String {
    match &limit.scope {
        Scope::Header(name) => name.clone(),
        other => other.to_string(),
    }
}
