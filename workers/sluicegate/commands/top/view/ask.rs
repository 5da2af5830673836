//! A question on top of the current view.

use operator::text::plain;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Padding, Paragraph};

use super::parts::{BAD, HEAD, Part, fit, paragraph};
use crate::commands::top::dialogs::Prompt;

/// Maximum number of lines of a text.
const MAX_LINES: usize = 20;

/// Border characters that every terminal has.
const BORDER: ratatui::symbols::border::Set = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

pub fn draw(frame: &mut Frame, area: Rect, prompt: &Prompt) {
    let wide = area.width.min(100);
    let inner = usize::from(wide.saturating_sub(4));
    let put = |text: &str, indent, style| paragraph(text, (inner, indent, MAX_LINES), style);
    let mut lines: Vec<Line> = Vec::new();
    let keys = match prompt {
        Prompt::Sure(act) => {
            let (_, description) = act.describe();
            lines.extend(put(&description, 0, Style::new()));
            lines.push(Line::styled("Do it? (y/N)", HEAD));
            " y: yes, any other key: no "
        }
        Prompt::Line(question) => {
            lines.extend(put(&question.text, 0, Style::new()));
            if let Some(wrong) = &question.wrong {
                lines.extend(put(&format!("invalid: {}", plain(wrong, 400)), 2, BAD));
            }
            let typed = format!("> {}_", plain(&question.typed, 64));
            lines.push(Line::styled(fit(&typed, inner), HEAD));
            " Enter: continue, Esc: cancel "
        }
    };
    let place = area.centered(Constraint::Length(wide), Part::high(lines.len() + 2));
    let block = Block::bordered().border_set(BORDER).title_bottom(keys);
    let block = block.padding(Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
