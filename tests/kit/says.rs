//! Checks of texts, such as a program's output, that show the whole text when they fail.

/// Checks of a text by its parts.
pub trait Says {
    /// Checks that the text contains `part`.
    fn says(&self, part: &str);
    /// Checks that the text begins with `part`.
    fn begins(&self, part: &str);
    /// Checks that the text ends with `part`.
    fn ends(&self, part: &str);
}

impl Says for str {
    #[track_caller]
    fn says(&self, part: &str) {
        assert!(self.contains(part), "no {part:?} in: {self}");
    }
    #[track_caller]
    fn begins(&self, part: &str) {
        assert!(
            self.starts_with(part),
            "no {part:?} at the beginning of: {self}"
        );
    }
    #[track_caller]
    fn ends(&self, part: &str) {
        assert!(self.ends_with(part), "no {part:?} at the end of: {self}");
    }
}
