//! The view of dead letters.

use operator::letters::LetterRow;
use operator::text::{count, plain};
use operator::times::at;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::Line;

use super::parts::{Column, Side, draw_line, list, name, paragraph};
use super::{lines, write};
use crate::commands::top::clock::age;
use crate::commands::top::model::Model;
use crate::commands::top::theme::WARN;

pub fn draw(frame: &mut Frame, area: Rect, model: &Model) {
    let wide = usize::from(area.width);
    let letters = &model.pipeline().letters;
    let listed = letters.answer();
    let marked = listed.and_then(|(listed, _)| listed.rows.get(model.place()?));
    let detail = marked.map_or_else(Vec::new, |row| detail(row, wide));
    let [sums, table, below] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(lines(&detail)),
    ])
    .areas(area);
    write(frame, below, detail);
    let mut text = match listed {
        None => String::new(),
        Some((listed, at_ms)) => {
            let found = count(listed.rows.len() as u64, "dead letter");
            let ago = age(model.now_ms.saturating_sub(at_ms));
            let mut text = match ago.as_str() {
                "now" => format!("{found}, newest first, as of now"),
                ago => format!("{found}, newest first, as of {ago} ago (f fetches again)"),
            };
            if listed.progress.left > 0 {
                text += &format!(
                    "; {} not read",
                    count(listed.progress.left.into(), "message")
                );
            }
            text
        }
    };
    if letters.is_in_flight() {
        text = format!("fetching dead letters from RabbitMQ ... {text}");
    } else if listed.is_none() {
        text = "dead letters were not fetched; f fetches them".to_owned();
    }
    draw_line(frame, sums, &text, Style::new());
    let rows = listed.map_or(&[][..], |(listed, _)| &listed.rows);
    if rows.is_empty() {
        return;
    }
    let columns: [Column; 4] = [
        ("DIED", Constraint::Length(12), Side::Right),
        ("TENANT", Constraint::Fill(2), Side::Left),
        ("ATTEMPTS", Constraint::Length(8), Side::Right),
        ("REASON", Constraint::Fill(5), Side::Left),
    ];
    let rows = rows.iter().map(|row| cells(row, model.now_ms));
    list(frame, table, &columns, rows, model.place());
}

fn cells(row: &LetterRow, now_ms: u64) -> Vec<Line<'static>> {
    let ago = |ms: u64| match age(now_ms.saturating_sub(ms)).as_str() {
        "now" => "now".to_owned(),
        age => format!("{age} ago"),
    };
    let [.., reason] = row.cells();
    let attempt = row.attempt.map(|number| number.to_string());
    vec![
        Line::from(row.died_ms.map_or_else(|| "-".to_owned(), ago)),
        Line::from(name(row.tenant.as_deref().unwrap_or("-"))),
        Line::from(attempt.unwrap_or_else(|| "-".to_owned())),
        Line::styled(reason, WARN),
    ]
}

/// Returns the details of the selected letter.
fn detail(row: &LetterRow, wide: usize) -> Vec<Line<'static>> {
    let [id, tenant, _, lived, reason] = row.cells();
    let died = row
        .died_ms
        .map_or_else(|| "at an unknown time".to_owned(), at);
    let first = format!("id {id}  tenant {tenant}  died {died}  {lived}");
    let why = format!("why {}", plain(&reason, 400));
    let [first, why] = [first, why].map(|text| paragraph(&text, (wide, 2, 2), Style::new()));
    first.chain(why).collect()
}
