//! The board, on which operators say what all workers are to do, and workers what they follow: what a store does with it. `lua/steer.lua`
//! must equal it.

use std::collections::BTreeMap;

/// A worker that was silent for so long is forgotten, in milliseconds.
pub const SILENT_MS: u64 = 60_000;
/// The board is kept for so long after the last word on it, in milliseconds: for longer than any instruction.
pub const KEPT_MS: u64 = 400 * 86_400_000;

/// The board as the store has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Board {
    version: u64,
    instructions: BTreeMap<String, Posted>,
    workers: BTreeMap<String, Follower>,
}

/// An instruction, beside its name. Times are in milliseconds of the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Posted {
    /// When it ends.
    pub until_ms: u64,
    /// What it says.
    pub text: String,
}

/// What a worker said last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follower {
    /// When.
    pub at_ms: u64,
    /// The version whose instructions it follows.
    pub follows: u64,
    /// What it said of itself.
    pub says: String,
}

/// There are too many instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Board {
    fn change(&mut self, now_ms: u64) -> u64 {
        // By the clock, so that one of a board that was lost does not come again.
        self.version = (self.version + 1).max(now_ms);
        self.version
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// From `now_ms` on `text` is in force under `name`, until `until_ms`: the new version.
    ///
    /// # Errors
    /// [`Full`]: there are `most` others.
    pub fn put(
        &mut self,
        now_ms: u64,
        name: &str,
        until_ms: u64,
        text: &str,
        most: usize,
    ) -> Result<u64, Full> {
        self.put_instead(now_ms, None, (name, until_ms, text), most)
    }

    /// As [`Board::put`], and what has the other name ends with it; where a text is given, only if that is what it says.
    ///
    /// # Errors
    /// [`Full`]: there are `most` others, and nothing has ended.
    pub fn put_instead(
        &mut self,
        now_ms: u64,
        ends: Option<(&str, Option<&str>)>,
        (name, until_ms, text): (&str, u64, &str),
        most: usize,
    ) -> Result<u64, Full> {
        self.instructions
            .retain(|_, posted| posted.until_ms > now_ms);
        let says = |posted: &Posted, said: Option<&str>| said.is_none_or(|it| posted.text == it);
        let ended = ends.and_then(|(other, said)| {
            let posted = self.instructions.get(other)?;
            says(posted, said).then_some(other)
        });
        let stays = |other: &&String| **other != name && ended != Some(other.as_str());
        if self.instructions.keys().filter(stays).count() >= most {
            return Err(Full);
        }
        if let Some(ended) = ended {
            self.instructions.remove(ended);
        }
        let text = text.to_owned();
        self.instructions
            .insert(name.to_owned(), Posted { until_ms, text });
        Ok(self.change(now_ms))
    }

    /// What has one of these `names` ends.
    pub fn drop_all(&mut self, now_ms: u64, names: &[&str]) -> u64 {
        let before = self.instructions.len();
        (self.instructions).retain(|name, _| !names.contains(&name.as_str()));
        match self.instructions.len() == before {
            true => self.version,
            false => self.change(now_ms),
        }
    }

    /// The worker `name` says that it follows this version, and this of itself.
    pub fn hear(&mut self, now_ms: u64, name: &str, follows: u64, says: &str) {
        let follower = Follower {
            at_ms: now_ms,
            follows,
            says: says.to_owned(),
        };
        self.workers.insert(name.to_owned(), follower);
    }

    /// The workers that were not heard of within `silent_ms` are forgotten.
    pub fn forget_silent(&mut self, now_ms: u64, silent_ms: u64) {
        (self.workers).retain(|_, worker| worker.at_ms + silent_ms >= now_ms);
    }

    /// What is in force at `now_ms`, by its name.
    pub fn instructions(&self, now_ms: u64) -> impl Iterator<Item = (&String, &Posted)> {
        let all = self.instructions.iter();
        all.filter(move |(_, posted)| posted.until_ms > now_ms)
    }

    /// The workers that were heard of within `silent_ms`.
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
    fn one_is_put_instead_of_another_that_says_what_is_meant() {
        let mut board = Board::default();
        assert_eq!(board.put(10, "try", 90, "7", 1), Ok(10));
        let wake = ("wake", 90, "1");
        let other = Some(("try", Some("8")));
        assert_eq!(board.put_instead(11, other, wake, 1), Err(Full));
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
        assert_eq!(board.put(10, "b", 20, "x", 1), Err(Full));
        assert_eq!(board.put(11, "a", 30, "y", 1), Ok(11), "it is replaced");
        assert_eq!(board.instructions(29).count(), 1);
        assert_eq!(board.instructions(30).count(), 0);
        assert_eq!(board.put(30, "b", 40, "z", 1), Ok(30));
        assert_eq!(board.drop_all(30, &["a"]), 30, "nothing has changed");
        assert_eq!(board.drop_all(30, &["b", "c"]), 31);
        board.hear(31, "w", 30, "");
        assert_eq!(board.workers(41, 10).count(), 1);
        assert_eq!(board.workers(42, 10).count(), 0);
        board.forget_silent(42, 10);
        assert_eq!(board.workers(41, 10).count(), 0, "it is forgotten");
    }
}
