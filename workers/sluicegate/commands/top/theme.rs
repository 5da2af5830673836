//! Styles. Everything a color expresses is also in the text.

use ratatui::style::{Color, Modifier, Style};

/// Everything works.
pub const GOOD: Style = Style::new().fg(Color::Green);
/// Jobs wait.
pub const WARN: Style = Style::new().fg(Color::Yellow);
/// Something is wrong.
pub const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Column headers.
pub const HEAD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Less important text.
pub const QUIET: Style = Style::new().fg(Color::DarkGray);
/// The selected row and the open view.
pub const MARKED: Style = Style::new().add_modifier(Modifier::REVERSED);
