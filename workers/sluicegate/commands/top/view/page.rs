//! A tenant's own page: its state, its clocks, its limits, and the output of `inspect`.

use operator::inspect::InspectionAnswer;
use operator::text::{count, plain};
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;

use super::limits::usage;
use super::parts::{BAD, GOOD, HEAD, List, Part, Side, WARN, name, paragraph, wrapped};
use crate::commands::top::clock::end;
use crate::commands::top::model::{Glance, Model, TenantPage};

/// Indentation of the output of `inspect`, in columns.
const INDENT: usize = 10;

pub fn parts((model, page): (&Model, &TenantPage), area: Rect) -> Vec<Part> {
    let wide = usize::from(area.width);
    let title = format!("tenant {}", name(page.tenant.as_str()));
    let mut top = vec![Line::styled(title, HEAD)];
    let Some((glance, came_ms)) = page.glance.answer() else {
        page.scroll.set(0);
        top.push(Line::from("reading from Redis ..."));
        return vec![Part::Rest(top)];
    };
    let passed_ms = model.now_ms.saturating_sub(came_ms);
    let redis_ms = glance.found.now_ms.saturating_add(passed_ms);
    top.extend(state(&glance.found, redis_ms, wide));
    let room = usize::from(area.height).saturating_sub(top.len());
    // The list has a header.
    let high = (glance.limits.len() + 1).min((room / 2).max(2));
    let all = glance.description.lines();
    let all = all.flat_map(|line| wrapped(&plain(line, 1_000), wide, INDENT));
    let all: Vec<String> = all.collect();
    let fits = room.saturating_sub(high + 1);
    let scroll = page.scroll.get().min(all.len().saturating_sub(fits));
    page.scroll.set(scroll);
    let mut head = match (glance.limits.len() + 1).saturating_sub(high) {
        0 => "output of inspect".to_owned(),
        hidden => {
            let hidden = count(hidden as u64, "more limit");
            format!("output of inspect, also on {hidden}")
        }
    };
    match (scroll, all.len().saturating_sub(scroll + fits)) {
        (0, 0) => {}
        (0, below) => head += &format!(" ({below} more lines: Down)"),
        (above, 0) => head += &format!(" ({above} lines above: Up)"),
        (above, below) => head += &format!(" ({above} lines above: Up, {below} below: Down)"),
    }
    let shown = all.into_iter().skip(scroll).map(Line::from);
    vec![
        Part::Lines(top),
        Part::List(limits(glance, area.width, passed_ms), Part::high(high)),
        Part::Lines(vec![Line::styled(head, HEAD)]),
        Part::Rest(shown.collect()),
    ]
}

fn limits(glance: &Glance, wide: u16, passed_ms: u64) -> List {
    // A shadow's text needs 100 columns.
    let gauge = if wide < 100 { 21 } else { 40 };
    let rows = glance.limits.iter().map(|limit| {
        let mut cells = vec![Line::from(plain(&limit.name, 32))];
        if limit.shadow.is_some() {
            cells.push(Line::from(limit.window.clone()));
        }
        usage(cells, limit, (passed_ms, gauge))
    });
    List {
        columns: vec![
            ("LIMIT", Constraint::Fill(1), Side::Left),
            ("WINDOW", Constraint::Length(8), Side::Left),
            ("FULL", Constraint::Length(gauge), Side::Left),
            ("USED", Constraint::Length(11), Side::Right),
            ("NEXT", Constraint::Length(9), Side::Right),
            ("WAITING", Constraint::Length(8), Side::Right),
        ],
        rows: rows.collect(),
        place: None,
    }
}

/// Returns the tenant's state, the end of its waitlist, and why its jobs wait.
fn state(found: &InspectionAnswer, redis_ms: u64, wide: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut put = |head: &str, text: &str, style| {
        lines.extend(paragraph(
            &format!("{head:INDENT$}{text}"),
            (wide, INDENT, 3),
            style,
        ));
    };
    let recovers_ms = found.recovery_noticed_ms().filter(|it| *it > redis_ms);
    if let Some(at_ms) = recovers_ms {
        let end = end(at_ms, redis_ms);
        let text = format!("WAITS after Redis may have lost data, at most {end}");
        put("state", &text, BAD);
    }
    if found.is_refused() {
        put(
            "state",
            &format!("STOPPED: {}", plain(&found.reason, 300)),
            BAD,
        );
    } else if found.suspended_until_ms > redis_ms {
        let opens = end(found.suspended_until_ms, redis_ms);
        let by = plain(&found.suspended_by, 200);
        put("state", &format!("SUSPENDED, opens in {opens}: {by}"), BAD);
    } else if recovers_ms.is_none() {
        match (&found.diverted_to, found.waiting) {
            (Some(queue), _) => put("state", &format!("DIVERTED to {}", plain(queue, 255)), WARN),
            (None, Some(1..)) => put("state", "open, jobs wait", WARN),
            (None, _) => put("state", "open", GOOD),
        }
    }
    let ends_ms = found
        .waitlist_end_in_ms
        .map(|in_ms| found.now_ms.saturating_add(in_ms));
    let line = match (found.waiting, ends_ms.filter(|it| *it > redis_ms)) {
        (None, _) => "one per value of a header or routing key".to_owned(),
        (Some(0), _) => "no job waits".to_owned(),
        (Some(waiting), Some(at_ms)) => {
            format!("{waiting} waiting, ends in {}", end(at_ms, redis_ms))
        }
        (Some(waiting), None) => count(waiting, "unit") + " waiting, the last starts now",
    };
    put("line", &line, HEAD);
    put("why", &plain(&found.reason, 600), HEAD);
    lines
}
