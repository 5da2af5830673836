//! A tenant's own page: its state, its clocks, its limits, and the output of `inspect`.

use operator::inspect::Glance;
use operator::text::{count, plain};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;

use super::limits::{describe_shadow, gauges};
use super::parts::{Cells, Column, Side, draw_line, fit, list, name, paragraph, until, wrapped};
use super::{lines, write};
use crate::commands::top::clock::time;
use crate::commands::top::model::{Model, TenantPage};
use crate::commands::top::theme::{BAD, GOOD, HEAD, WARN};

/// Indentation of the output of `inspect`, in columns.
const INDENT: usize = 10;

pub fn draw(frame: &mut Frame, area: Rect, (model, page): (&Model, &TenantPage)) {
    let wide = usize::from(area.width);
    let title = format!("tenant {}", name(page.tenant.as_str()));
    let Some((glance, came_ms)) = page.glance.answer() else {
        page.scroll.set(0);
        let lines = [
            Line::styled(title, HEAD),
            Line::from("reading from Redis ..."),
        ];
        return write(frame, area, lines.into());
    };
    let passed_ms = model.now_ms.saturating_sub(came_ms);
    let redis_ms = glance.now_ms.saturating_add(passed_ms);
    let mut top = vec![Line::styled(fit(&title, wide), HEAD)];
    top.extend(state(glance, redis_ms, wide));
    let limits = u16::try_from(glance.limits.len() + 1).unwrap_or(u16::MAX);
    let room = area.height.saturating_sub(lines(&top));
    let [above, table, gap, words] = Layout::vertical([
        Constraint::Length(lines(&top)),
        Constraint::Length(limits.min((room / 2).max(2))),
        Constraint::Length(1),
        Constraint::Min(0),
    ])
    .areas(area);
    write(frame, above, top);
    // From this width on, a shadow's text fits.
    let gauge = if wide < 100 { 21 } else { 40 };
    let columns: [Column; 6] = [
        ("LIMIT", Constraint::Fill(1), Side::Left),
        ("WINDOW", Constraint::Length(8), Side::Left),
        ("FULL", Constraint::Length(gauge), Side::Left),
        ("USED", Constraint::Length(11), Side::Right),
        ("NEXT", Constraint::Length(9), Side::Right),
        ("WAITING", Constraint::Length(8), Side::Right),
    ];
    let limits = glance.limits.iter().map(|limit| {
        let mut cells = vec![Line::from(plain(&limit.name, 32))];
        if let Some(tally) = &limit.shadow {
            cells.push(Line::from(limit.window.clone()));
            return Cells::with_words(cells, describe_shadow(limit, tally));
        }
        cells.extend(gauges(limit, passed_ms, usize::from(gauge)));
        cells.into()
    });
    list(frame, table, &columns, limits, None);
    let all = glance.description.lines();
    let all = all.flat_map(|line| wrapped(&plain(line, 1_000), wide, INDENT));
    let all: Vec<String> = all.collect();
    let fits = usize::from(words.height);
    let scroll = page.scroll.get().min(all.len().saturating_sub(fits));
    page.scroll.set(scroll);
    let below = all.len().saturating_sub(scroll + fits);
    let rows = usize::from(table.height.saturating_sub(1));
    let mut head = match glance.limits.len().saturating_sub(rows) {
        0 => "output of inspect".to_owned(),
        hidden => format!(
            "output of inspect, also on {}",
            count(hidden as u64, "more limit")
        ),
    };
    match (scroll, below) {
        (0, 0) => {}
        (0, below) => head += &format!(" ({below} more lines: Down)"),
        (above, 0) => head += &format!(" ({above} lines above: Up)"),
        (above, below) => head += &format!(" ({above} lines above: Up, {below} below: Down)"),
    }
    draw_line(frame, gap, &head, HEAD);
    let shown = all.into_iter().skip(scroll).map(Line::from);
    write(frame, words, shown.collect());
}

/// Returns the tenant's state, the end of its waitlist, and why its jobs wait.
fn state(glance: &Glance, redis_ms: u64, wide: usize) -> Vec<Line<'static>> {
    let clock = |at_ms| format!("{} ({} UTC)", until(at_ms, redis_ms), time(at_ms));
    let mut lines = Vec::new();
    let mut put = |text: String, style| {
        lines.extend(paragraph(&text, (wide, INDENT, 3), style));
    };
    if glance.recovery_until_ms > redis_ms {
        let text = format!(
            "state     WAITS after Redis may have lost data, at most {}",
            clock(glance.recovery_until_ms)
        );
        put(text, BAD);
    }
    let waiting = glance.waiting.unwrap_or(0) > 0;
    if glance.suspended_until_ms > redis_ms {
        let opens = clock(glance.suspended_until_ms);
        let by = plain(&glance.suspended_by, 200);
        let text = format!("state     SUSPENDED, opens in {opens}: {by}");
        put(text, BAD);
    } else if glance.recovery_until_ms <= redis_ms {
        match &glance.diverted_to {
            Some(queue) => {
                let text = format!("state     DIVERTED to {}", plain(queue, 255));
                put(text, WARN);
            }
            None if waiting => put("state     open, jobs wait".to_owned(), WARN),
            None => put("state     open".to_owned(), GOOD),
        }
    }
    let line = match (glance.waiting, glance.line_ends_ms > redis_ms) {
        (None, _) => "one per value of a header or routing key".to_owned(),
        (Some(0), _) => "no job waits".to_owned(),
        (Some(waiting), true) => {
            format!("{waiting} waiting, ends in {}", clock(glance.line_ends_ms))
        }
        (Some(waiting), false) => count(waiting, "unit") + " waiting, the last starts now",
    };
    put(format!("line      {line}"), HEAD);
    put(format!("why       {}", plain(&glance.why, 600)), HEAD);
    lines
}
