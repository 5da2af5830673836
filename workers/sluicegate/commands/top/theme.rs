//! Styles with or without color. Everything a color expresses is also in the text.

use ratatui::style::{Color, Modifier, Style};

/// The styles.
#[derive(Debug, Clone, Copy)]
pub struct Theme {
    /// Whether colors may be used.
    pub is_colour: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        match self.is_colour {
            true => Style::new().fg(colour),
            false => Style::new(),
        }
    }

    /// Everything works.
    pub fn good(self) -> Style {
        self.colour(Color::Green)
    }

    /// Jobs wait.
    pub fn warn(self) -> Style {
        self.colour(Color::Yellow)
    }

    /// Something is wrong.
    pub fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Column headers.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Less important text.
    pub fn quiet(self) -> Style {
        match self.is_colour {
            true => Style::new().fg(Color::DarkGray),
            false => Style::new(),
        }
    }

    /// The selected row and the open view.
    pub fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
