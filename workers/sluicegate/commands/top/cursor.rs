//! The selected row of a list. The cursor stays on its item wherever that is in the next picture,
//! so that a key never acts on a tenant other than the one the operator looked at.

use rules::tenant::Tenant;

/// The tenant that keys act on, and a name that no other row of it has.
pub type RowKey = (Option<Tenant>, String);

/// The selected row.
#[derive(Debug, Default, Clone)]
pub struct Cursor {
    at: usize,
    on: Option<RowKey>,
}

impl Cursor {
    /// Returns the index of the selected row among `rows`, or `None` if there are no rows. If the
    /// row is gone, its index stays.
    pub fn place(&self, rows: &[RowKey]) -> Option<usize> {
        let last = rows.len().checked_sub(1)?;
        let found = rows.iter().position(|row| Some(row) == self.on.as_ref());
        Some(found.unwrap_or(self.at.min(last)))
    }

    /// Moves down by this many rows, or up if negative. With 0, keeps the selection in a new
    /// picture. Without rows, the selection stays.
    pub fn go(&mut self, rows: &[RowKey], by: isize) {
        let Some(at) = self.place(rows) else { return };
        self.at = at.saturating_add_signed(by).min(rows.len() - 1);
        self.on = rows.get(self.at).cloned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_stays_with_its_row() {
        let rows = |names: &str| -> Vec<RowKey> {
            let names = names.chars().map(String::from);
            names.map(|name| (None, name)).collect()
        };
        let place = |cursor: &Cursor, names: &str| cursor.place(&rows(names));
        let mut cursor = Cursor::default();
        assert_eq!(place(&cursor, ""), None);
        cursor.go(&rows("abc"), 1);
        assert_eq!(place(&cursor, "abc"), Some(1));
        assert_eq!(place(&cursor, "cab"), Some(2));
        // The row is gone, so the index stays.
        assert_eq!(place(&cursor, "xyz"), Some(1));
        assert_eq!(place(&cursor, "x"), Some(0));
        cursor.go(&rows("cab"), 0);
        cursor.go(&rows("cab"), 9);
        assert_eq!(place(&cursor, "cab"), Some(2));
        cursor.go(&rows("cab"), -9);
        assert_eq!(place(&cursor, "cab"), Some(0));
        cursor.go(&rows(""), 0);
        cursor.go(&rows(""), 1);
        assert_eq!(place(&cursor, "a"), Some(0));
    }
}
