//! A question on top of the current view.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};

use super::parts::{fit, wrapped};
use crate::commands::top::dialogs::Prompt;
use crate::commands::top::model::Model;
use crate::commands::top::theme::{BAD, HEAD};
use operator::text::plain;

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

pub fn draw(frame: &mut Frame, area: Rect, (asking, model): (&Prompt, &Model)) {
    let wide = area.width.min(100);
    let inner = usize::from(wide.saturating_sub(4));
    let mut lines: Vec<Line> = Vec::new();
    let keys = match asking {
        Prompt::Sure(act) => {
            lines.extend(
                wrapped(&act.describe(), inner, 0)
                    .into_iter()
                    .map(Line::from),
            );
            lines.push(Line::styled("Do it? (y/N)", HEAD));
            " y: yes, any other key: no "
        }
        Prompt::Line { step, text, wrong } => {
            let config = &model.pipeline().config;
            lines.extend(
                wrapped(&step.describe(config), inner, 0)
                    .into_iter()
                    .map(Line::from),
            );
            if let Some(wrong) = wrong {
                let wrong = wrapped(&format!("invalid: {wrong}"), inner, 2);
                lines.extend(wrong.into_iter().map(|line| Line::styled(line, BAD)));
            }
            lines.push(Line::styled(
                fit(&format!("> {}_", plain(text, 64)), inner),
                HEAD,
            ));
            " Enter: continue, Esc: cancel "
        }
    };
    let high = u16::try_from(lines.len() + 2)
        .unwrap_or(u16::MAX)
        .min(area.height);
    let place = Rect {
        x: area.x + (area.width - wide) / 2,
        y: area.y + (area.height - high) / 2,
        width: wide,
        height: high,
    };
    let block = Block::bordered().border_set(BORDER).title_bottom(keys);
    let block = block.padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
