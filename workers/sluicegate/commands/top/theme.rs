//! How things look: with colour, or without. Whatever a colour says is said by a word, too.

use ratatui::style::{Color, Modifier, Style};

/// Styles.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    /// Colours may be used.
    pub is_colour: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        match self.is_colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// All is well.
    pub fn good(self) -> Style {
        self.colour(Color::Green)
    }

    /// Somebody waits.
    pub fn warn(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// Something is wrong.
    pub fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Heads of columns.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What matters less.
    pub fn quiet(self) -> Style {
        match self.is_colour {
            true => Style::new().fg(Color::DarkGray),
            false => Style::new(),
        }
    }

    /// The row that is meant, and the view that is open.
    pub fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
