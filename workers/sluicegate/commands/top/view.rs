//! Draws the state on the screen.

mod ask;
mod fleet;
mod head;
mod help;
mod letters;
mod limits;
mod page;
pub mod parts;
mod tenants;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Color;
use ratatui::text::Line;

use super::model::{Model, TopView};

/// Minimum size of the screen. On a smaller one nothing is readable.
const MIN_SIZE: (u16, u16) = (40, 8);

/// Draws everything, with or without colors.
pub fn draw(frame: &mut Frame, model: &Model, has_color: bool) {
    draw_all(frame, model);
    if !has_color {
        for cell in &mut frame.buffer_mut().content {
            (cell.fg, cell.bg) = (Color::Reset, Color::Reset);
        }
    }
}

fn draw_all(frame: &mut Frame, model: &Model) {
    let area = frame.area();
    let (wide, high) = MIN_SIZE;
    if area.width < wide || area.height < high {
        let words = format!("too small: needs {wide}x{high}, better 80x24. q quits");
        return frame.render_widget(Line::from(words), area);
    }
    if model.is_help {
        return help::draw(frame, area);
    }
    let top = head::lines(model, area.width);
    let foot = head::foot(model, area.width);
    let [above, body, below] = Layout::vertical([
        Constraint::Length(lines(&top)),
        Constraint::Min(0),
        Constraint::Length(lines(&foot)),
    ])
    .areas(area);
    write(frame, above, top);
    write(frame, below, foot);
    match (&model.page, model.view) {
        (Some(page), _) => page::draw(frame, body, (model, page)),
        (None, TopView::Fleet) => fleet::draw(frame, body, model),
        (None, TopView::Tenants) => tenants::draw(frame, body, model),
        (None, TopView::Limits) => limits::draw(frame, body, model),
        (None, TopView::DeadLetters) => letters::draw(frame, body, model),
    }
    if let Some(prompt) = &model.prompt {
        ask::draw(frame, area, prompt);
    }
}

fn lines(of: &[Line]) -> u16 {
    u16::try_from(of.len()).unwrap_or(u16::MAX)
}

/// Writes lines below each other. Lines without room are omitted.
fn write(frame: &mut Frame, area: Rect, lines: Vec<Line>) {
    for (line, row) in lines.into_iter().zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

#[cfg(test)]
mod tests;
