//! The view of dead letters.

use operator::letters::LetterRow;
use operator::text::{count, plain};
use operator::times::at;
use ratatui::layout::Constraint;
use ratatui::style::Style;
use ratatui::text::Line;

use super::parts::{Cells, List, Part, Side, WARN, name, paragraph};
use crate::commands::top::clock::ago;
use crate::commands::top::model::Model;

pub fn parts(model: &Model, wide: u16) -> Vec<Part> {
    let letters = &model.pipeline().letters;
    let (mut text, rows) = match letters.answer() {
        None => (String::new(), &[][..]),
        Some((listed, at_ms)) => {
            let found = count(listed.rows.len() as u64, "dead letter");
            let ago = ago(model.now_ms.saturating_sub(at_ms));
            let mut text = format!("{found}, newest first, as of {ago}");
            if ago != "now" {
                text += " (f fetches again)";
            }
            if listed.progress.left > 0 {
                let left = count(listed.progress.left.into(), "message");
                text += &format!("; {left} not read");
            }
            (text, listed.rows.as_slice())
        }
    };
    if letters.is_in_flight() {
        text = format!("fetching dead letters from RabbitMQ ... {text}");
    } else if text.is_empty() {
        text = "dead letters were not fetched; f fetches them".to_owned();
    }
    let mut parts = vec![Part::Lines(vec![Line::from(text)])];
    if let Some(marked) = model.place().and_then(|at| rows.get(at)) {
        let list = List {
            columns: vec![
                ("DIED", Constraint::Length(12), Side::Right),
                ("TENANT", Constraint::Fill(2), Side::Left),
                ("ATTEMPTS", Constraint::Length(8), Side::Right),
                ("REASON", Constraint::Fill(5), Side::Left),
            ],
            rows: rows.iter().map(|row| cells(row, model.now_ms)).collect(),
            place: model.place(),
        };
        parts.push(Part::List(list, Constraint::Min(0)));
        parts.push(Part::Lines(detail(marked, usize::from(wide))));
    }
    parts
}

fn cells(row: &LetterRow, now_ms: u64) -> Cells {
    let died = row.died_ms.map(|ms| ago(now_ms.saturating_sub(ms)));
    let attempt = row.attempt.map(|number| number.to_string());
    let [died, attempt] = [died, attempt].map(|text| text.unwrap_or_else(|| "-".to_owned()));
    let cells = vec![
        Line::from(died),
        Line::from(name(row.tenant.as_deref().unwrap_or("-"))),
        Line::from(attempt),
        Line::styled(row.why(), WARN),
    ];
    (cells, Vec::new())
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
