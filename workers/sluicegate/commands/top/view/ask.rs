//! A question on top of the current view.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use super::parts::{fit, paragraph};
use crate::commands::top::dialogs::Prompt;
use crate::commands::top::theme::{BAD, HEAD};
use operator::text::plain;

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
    let mut lines: Vec<Line> = Vec::new();
    let keys = match prompt {
        Prompt::Sure(act) => {
            lines.extend(paragraph(
                &act.describe().1,
                (inner, 0, MAX_LINES),
                Style::new(),
            ));
            lines.push(Line::styled("Do it? (y/N)", HEAD));
            " y: yes, any other key: no "
        }
        Prompt::Line(question) => {
            lines.extend(paragraph(
                &question.text,
                (inner, 0, MAX_LINES),
                Style::new(),
            ));
            if let Some(wrong) = &question.wrong {
                let wrong = format!("invalid: {}", plain(wrong, 400));
                lines.extend(paragraph(&wrong, (inner, 2, MAX_LINES), BAD));
            }
            let typed = format!("> {}_", plain(&question.typed, 64));
            lines.push(Line::styled(fit(&typed, inner), HEAD));
            " Enter: continue, Esc: cancel "
        }
    };
    let high = super::lines(&lines).saturating_add(2).min(area.height);
    let place = area.centered(Constraint::Length(wide), Constraint::Length(high));
    let block = Block::bordered().border_set(BORDER).title_bottom(keys);
    let block = block.padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
