//! The view of limits and their usage.

use operator::fullness::Fullness;
use operator::tally;
use operator::text::plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use rules::decision::Tally;
use rules::scope::Scope;

use super::parts::{Cells, Column, Side, bar, draw_line, fit, list, name};
use crate::commands::top::clock::left;
use crate::commands::top::model::{ListedLimit, Model};
use crate::commands::top::theme::{BAD, GOOD, WARN};

pub fn draw(frame: &mut Frame, area: Rect, model: &Model) {
    let wide = usize::from(area.width);
    let [sums, table] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let rows = model.limits();
    let is_known = model
        .picture()
        .is_some_and(|(picture, _)| picture.shown.is_some());
    if rows.is_empty() {
        let words = match is_known {
            true => "no tenant has jobs at these workers; / opens a tenant by name",
            false => "reading from the gate ...",
        };
        return draw_line(frame, table, words, Style::new());
    }
    let words = format!(
        "shared limits, then each tenant's limits by {} (s changes)",
        model.sort.name()
    );
    draw_line(frame, sums, &words, Style::new());
    let since_ms = model.pipeline().picture.answer().map_or(0, |(_, at)| at);
    let passed_ms = model.now_ms.saturating_sub(since_ms);
    // Next to the shortest names, a shadow's text fits into 80 columns.
    let gauge = if wide < 100 { 15 } else { 32 };
    let columns: [Column; 7] = [
        ("TENANT", Constraint::Fill(3), Side::Left),
        ("LIMIT", Constraint::Fill(2), Side::Left),
        ("WINDOW", Constraint::Length(7), Side::Left),
        ("FULL", Constraint::Length(gauge), Side::Left),
        ("USED", Constraint::Length(11), Side::Right),
        ("NEXT", Constraint::Length(8), Side::Right),
        ("WAITING", Constraint::Length(7), Side::Right),
    ];
    let rows = rows.iter().map(|ListedLimit { tenant, limit }| {
        let whose = match tenant {
            Some(tenant) => name(tenant.as_str()),
            None => "(all tenants)".to_owned(),
        };
        let mut cells = vec![Line::from(whose), Line::from(plain(&limit.name, 32))];
        if let Some(tally) = &limit.shadow {
            return Cells::with_words(cells, describe_shadow(limit, tally));
        }
        cells.extend(gauges(limit, passed_ms, usize::from(gauge)));
        cells.into()
    });
    list(frame, table, &columns, rows, model.place());
}

/// Returns what a shadow limit would have done, from the longest text to the shortest. It denies
/// nothing, so there is no wait to show.
pub fn describe_shadow(limit: &Fullness, tally: &Tally) -> Vec<String> {
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

/// Returns the window, the gauge, the usage, when the next unit is available, and the waiting
/// units.
pub fn gauges(limit: &Fullness, passed_ms: u64, columns: usize) -> [Line<'static>; 5] {
    let style = match limit.share() {
        _ if limit.is_full() => BAD,
        Some(share) if share >= 0.8 => WARN,
        Some(_) => GOOD,
        None => Style::new(),
    };
    let window = match limit.window.as_str() {
        "" => "at once".to_owned(),
        window => window.to_owned(),
    };
    let set = if limit.override_until_ms > 0 { "*" } else { "" };
    let (gauge, used) = match (limit.share(), limit.used) {
        (Some(share), Some(used)) => (bar(share, columns), format!("{used}/{}{set}", limit.max)),
        _ => (
            format!("by {}", part(limit)),
            format!("?/{}{set}", limit.max),
        ),
    };
    let next_ms = limit.next_ms.saturating_sub(passed_ms);
    [
        Line::from(window),
        Line::styled(fit(&plain(&gauge, 64), columns), style),
        Line::styled(used, style),
        Line::from(match (limit.used.is_some(), limit.next_ms) {
            (false, _) => "-".to_owned(),
            (true, 0) => "now".to_owned(),
            (true, _) => left(next_ms),
        }),
        Line::from(limit.waiting.to_string()),
    ]
}

/// Returns the value that the limit tells jobs apart by.
fn part(limit: &Fullness) -> String {
    match &limit.scope {
        Scope::Header(name) => name.clone(),
        other => other.to_string(),
    }
}
