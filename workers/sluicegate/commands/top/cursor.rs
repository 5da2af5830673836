//! The selected row of a list. The cursor stays on its item wherever that is in the next picture,
//! so that a key never acts on a tenant other than the one the operator looked at.

/// The selected row.
#[derive(Debug, Default, Clone)]
pub struct Cursor {
    at: usize,
    on: Option<String>,
}

impl Cursor {
    /// Returns the index of the selected row among `rows`, given by name, or `None` if there are no
    /// rows.
    pub fn place<'a>(&self, rows: impl ExactSizeIterator<Item = &'a str>) -> Option<usize> {
        let last = rows.len().checked_sub(1)?;
        let on = self.on.as_deref();
        let found = on.and_then(|on| rows.enumerate().find(|(_, name)| *name == on));
        Some(found.map_or(self.at.min(last), |(at, _)| at))
    }

    /// Moves down by this many rows, or up if negative.
    pub fn go(&mut self, rows: &[String], by: isize) {
        let Some(at) = self.place(rows.iter().map(String::as_str)) else {
            return;
        };
        self.set(rows, at.saturating_add_signed(by));
    }

    /// Moves to the row `at`, or to the last row.
    pub fn set(&mut self, rows: &[String], at: usize) {
        self.at = at.min(rows.len().saturating_sub(1));
        self.on = rows.get(self.at).cloned();
    }

    /// Keeps the selection in a new picture: on its row, or, if that is gone, at its index.
    pub fn settle(&mut self, rows: &[String]) {
        let at = self.place(rows.iter().map(String::as_str));
        self.at = at.unwrap_or_default();
        self.on = rows.get(self.at).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_stays_with_its_row() {
        let rows = |names: &str| -> Vec<String> { names.chars().map(String::from).collect() };
        let place = |cursor: &Cursor, names: &str| {
            let rows = rows(names);
            cursor.place(rows.iter().map(String::as_str))
        };
        let mut cursor = Cursor::default();
        assert_eq!(place(&cursor, ""), None);
        cursor.go(&rows("abc"), 1);
        assert_eq!(place(&cursor, "abc"), Some(1));
        assert_eq!(place(&cursor, "cab"), Some(2));
        // The row is gone, so the index stays.
        assert_eq!(place(&cursor, "xyz"), Some(1));
        assert_eq!(place(&cursor, "x"), Some(0));
        cursor.settle(&rows("cab"));
        cursor.go(&rows("cab"), 9);
        assert_eq!(place(&cursor, "cab"), Some(2));
        cursor.go(&rows("cab"), -9);
        assert_eq!(place(&cursor, "cab"), Some(0));
        cursor.settle(&rows(""));
        cursor.go(&rows(""), 1);
        assert_eq!(place(&cursor, "a"), Some(0));
    }
}
