//! The board of operators' instructions and of the versions that workers follow, as a store
//! implements it. `lua/steer.lua` must behave the same.

use std::collections::BTreeMap;

/// A worker that was silent for this long, in milliseconds, is forgotten.
pub const SILENT_MS: u64 = 60_000;
/// How long the board is kept after its last change, in milliseconds: longer than any instruction
/// lasts.
pub const KEPT_MS: u64 = 400 * 86_400_000;

/// The board in the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    version: u64,
    instructions: BTreeMap<String, PostedInstruction>,
    workers: BTreeMap<String, Follower>,
}

/// An instruction without its name. Times are in milliseconds of the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedInstruction {
    /// When it ends.
    pub until_ms: u64,
    /// The instruction's text.
    pub text: String,
}

/// A worker's last look at the board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follower {
    /// When it looked.
    pub at_ms: u64,
    /// The version that it follows.
    pub follows: u64,
    /// Its report on itself.
    pub says: String,
}

/// The board has too many instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardFull;

impl Board {
    fn change(&mut self, now_ms: u64) -> u64 {
        // The version is never behind the clock, so a version of a lost board is not reused.
        self.version = (self.version + 1).max(now_ms);
        self.version
    }

    /// Returns the board's version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Puts `text` in force under `name` from `now_ms` until `until_ms`. Returns the new version.
    ///
    /// # Errors
    /// [`BoardFull`] if there are `max` other instructions.
    pub fn put(
        &mut self,
        now_ms: u64,
        name: &str,
        until_ms: u64,
        text: &str,
        max: usize,
    ) -> Result<u64, BoardFull> {
        self.put_instead(now_ms, None, (name, until_ms, text), max)
    }

    /// Puts an instruction like [`Board::put`], and ends the one named in `ends` in the same step.
    /// If a text is given, it ends only if it has that text.
    ///
    /// # Errors
    /// [`BoardFull`] if there are `max` other instructions and none ended.
    pub fn put_instead(
        &mut self,
        now_ms: u64,
        ends: Option<(&str, Option<&str>)>,
        (name, until_ms, text): (&str, u64, &str),
        max: usize,
    ) -> Result<u64, BoardFull> {
        self.instructions
            .retain(|_, posted| posted.until_ms > now_ms);
        let says = |posted: &PostedInstruction, old_text: Option<&str>| {
            old_text.is_none_or(|it| posted.text == it)
        };
        let ended = ends.and_then(|(other, old_text)| {
            let posted = self.instructions.get(other)?;
            says(posted, old_text).then_some(other)
        });
        let remains = |other: &&String| **other != name && ended != Some(other.as_str());
        if self.instructions.keys().filter(remains).count() >= max {
            return Err(BoardFull);
        }
        if let Some(ended) = ended {
            self.instructions.remove(ended);
        }
        let text = text.to_owned();
        self.instructions
            .insert(name.to_owned(), PostedInstruction { until_ms, text });
        Ok(self.change(now_ms))
    }

    /// Ends the instructions with these `names`.
    pub fn drop_all(&mut self, now_ms: u64, names: &[&str]) -> u64 {
        let before = self.instructions.len();
        (self.instructions).retain(|name, _| !names.contains(&name.as_str()));
        match self.instructions.len() == before {
            true => self.version,
            false => self.change(now_ms),
        }
    }

    /// Records that the worker `name` follows this version, with its report on itself.
    pub fn record_worker(&mut self, now_ms: u64, name: &str, follows: u64, says: &str) {
        let follower = Follower {
            at_ms: now_ms,
            follows,
            says: says.to_owned(),
        };
        self.workers.insert(name.to_owned(), follower);
    }

    /// Forgets workers that have been silent for `silent_ms`.
    pub fn forget_silent(&mut self, now_ms: u64, silent_ms: u64) {
        (self.workers).retain(|_, worker| worker.at_ms + silent_ms >= now_ms);
    }

    /// Returns the instructions in force at `now_ms`, by name.
    pub fn instructions(&self, now_ms: u64) -> impl Iterator<Item = (&String, &PostedInstruction)> {
        let all = self.instructions.iter();
        all.filter(move |(_, posted)| posted.until_ms > now_ms)
    }

    /// Returns the workers that looked within `silent_ms`.
    pub fn workers(
        &self,
        now_ms: u64,
        silent_ms: u64,
    ) -> impl Iterator<Item = (&String, &Follower)> {
        let all = self.workers.iter();
        all.filter(move |(_, worker)| worker.at_ms + silent_ms >= now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_replaces_another_of_the_same_kind_and_meaning() {
        let mut board = Board::default();
        assert_eq!(board.put(10, "try", 90, "7", 1), Ok(10));
        let wake = ("wake", 90, "1");
        let other = Some(("try", Some("8")));
        assert_eq!(board.put_instead(11, other, wake, 1), Err(BoardFull));
        assert_eq!(board.put_instead(11, other, wake, 2), Ok(11));
        assert_eq!(board.instructions(11).count(), 2, "it says something else");
        let whatever = Some(("try", None));
        assert_eq!(
            board.put_instead(11, whatever, wake, 1),
            Ok(12),
            "it makes room"
        );
        let left: Vec<&str> = board
            .instructions(11)
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(left, ["wake"]);
        assert_eq!(board.put_instead(11, whatever, wake, 1), Ok(13));
    }

    #[test]
    fn instructions_end_by_themselves_and_make_room() {
        let mut board = Board::default();
        assert_eq!(board.put(10, "a", 20, "x", 1), Ok(10));
        assert_eq!(board.put(10, "b", 20, "x", 1), Err(BoardFull));
        assert_eq!(board.put(11, "a", 30, "y", 1), Ok(11), "it is replaced");
        assert_eq!(board.instructions(29).count(), 1);
        assert_eq!(board.instructions(30).count(), 0);
        assert_eq!(board.put(30, "b", 40, "z", 1), Ok(30));
        assert_eq!(board.drop_all(30, &["a"]), 30, "nothing has changed");
        assert_eq!(board.drop_all(30, &["b", "c"]), 31);
        board.record_worker(31, "w", 30, "");
        assert_eq!(board.workers(41, 10).count(), 1);
        assert_eq!(board.workers(42, 10).count(), 0);
        board.forget_silent(42, 10);
        assert_eq!(board.workers(41, 10).count(), 0, "it is forgotten");
    }
}
