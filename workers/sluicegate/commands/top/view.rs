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
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Color;
use ratatui::text::Line;

use self::parts::{Part, write};
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
    let heights = [
        Part::high(top.len()),
        Constraint::Min(0),
        Part::high(foot.len()),
    ];
    let [above, body, below] = Layout::vertical(heights).areas(area);
    write(frame, above, top);
    write(frame, below, foot);
    let parts = match (&model.page, model.view) {
        (Some(page), _) => page::parts((model, page), body),
        (None, TopView::Fleet) => fleet::parts(model, body),
        (None, TopView::Tenants) => tenants::parts(model, body.width),
        (None, TopView::Limits) => limits::parts(model, body.width),
        (None, TopView::DeadLetters) => letters::parts(model, body.width),
    };
    Part::draw_all(parts, frame, body);
    if let Some(prompt) = &model.prompt {
        ask::draw(frame, area, prompt);
    }
}

#[cfg(test)]
mod tests;
