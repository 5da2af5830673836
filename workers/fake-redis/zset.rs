//! A sorted set: members ordered by score, and by bytes if scores are equal.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::number::Bound;

/// Members and their scores. A range by rank or score costs a binary search, because logs of calls
/// are long.
#[derive(Debug, Clone, Default)]
pub struct Zset {
    ranked: VecDeque<(f64, Arc<[u8]>)>,
    scores: HashMap<Arc<[u8]>, f64, FixedState>,
}

impl Zset {
    pub fn len(&self) -> usize {
        self.ranked.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranked.is_empty()
    }

    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Sets the score of `member`. Returns the previous one.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        let before = self.score(member);
        let member: Arc<[u8]> = match before {
            Some(before) if before == score => return Some(before),
            Some(before) => self.take(before, member),
            None => member.into(),
        };
        self.scores.insert(Arc::clone(&member), score);
        let place = self.place(score, &member);
        self.ranked.insert(place, (score, member));
        before
    }

    /// Removes `member`. Returns whether it existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.take(score, member);
        true
    }

    /// Removes the members with these ranks.
    pub fn remove_range(&mut self, ranks: Range<usize>) {
        for (_, member) in self.ranked.drain(ranks) {
            self.scores.remove(&member);
        }
    }

    /// Returns the members with these ranks, the lowest first.
    pub fn range(
        &self,
        ranks: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], f64)> + ExactSizeIterator {
        self.ranked
            .range(ranks)
            .map(|(score, member)| (&**member, *score))
    }

    /// Returns the ranks between two scores.
    pub fn between(&self, min: Bound, max: Bound) -> Range<usize> {
        let is_below = |score: f64| match min.excluded {
            true => score <= min.score,
            false => score < min.score,
        };
        let is_within = |score: f64| match max.excluded {
            true => score < max.score,
            false => score <= max.score,
        };
        let first = self.ranked.partition_point(|(score, _)| is_below(*score));
        let end = self.ranked.partition_point(|(score, _)| is_within(*score));
        first..end.max(first)
    }

    /// Returns the ranks from `start` to `stop`, both included. Negative ones count from the end.
    pub fn ranks(&self, start: i64, stop: i64) -> Range<usize> {
        ranks(self.len(), start, stop)
    }

    fn place(&self, score: f64, member: &[u8]) -> usize {
        let is_before =
            |(other, at): &(f64, Arc<[u8]>)| *other < score || *other == score && **at < *member;
        // Logs grow at the end.
        match self.ranked.back() {
            Some(last) if is_before(last) => self.ranked.len(),
            _ => self.ranked.partition_point(is_before),
        }
    }

    /// Removes `member` from the ranks, and returns it.
    fn take(&mut self, score: f64, member: &[u8]) -> Arc<[u8]> {
        let place = self.place(score, member);
        let found = self.ranked.remove(place);
        found.map_or_else(|| member.into(), |(_, member)| member)
    }
}

/// Returns the indexes from `start` to `stop`, both included, in a sequence of `len`.
fn ranks(len: usize, start: i64, stop: i64) -> Range<usize> {
    let index = |number: i64| match usize::try_from(number) {
        Ok(index) => Some(index),
        Err(_) => len.checked_sub(usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let end = index(stop).map_or(0, |stop| stop.saturating_add(1).min(len));
    index(start).unwrap_or(0).min(end)..end
}
