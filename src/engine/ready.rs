//! The calls that are prepared, each for a job, and how long preparing takes.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::engine::action::Key;

/// What handlers prepared: at most as much as the concurrency, since each has a slot of it.
#[derive(Debug)]
pub struct Prepared<R> {
    calls: HashMap<Key, R>,
}

impl<R> Default for Prepared<R> {
    fn default() -> Self {
        Self {
            calls: HashMap::new(),
        }
    }
}

impl<R> Prepared<R> {
    /// The call of `key` is prepared.
    pub fn put(&mut self, key: Key, call: R) {
        self.calls.insert(key, call);
    }

    /// The call of `key`, to be made.
    pub fn take(&mut self, key: Key) -> Option<R> {
        self.calls.remove(&key)
    }

    /// Whether the call of `key` could be made now: the one that was prepared, if it is still good, or one that is there
    /// `at_once`.
    pub fn is_ready(
        &mut self,
        key: Key,
        is_good: impl FnOnce(&mut R) -> bool,
        at_once: impl FnOnce() -> Option<R>,
    ) -> bool {
        if self.calls.get_mut(&key).is_some_and(is_good) {
            return true;
        }
        self.calls.remove(&key);
        let call = at_once();
        let is_ready = call.is_some();
        self.calls.extend(call.map(|call| (key, call)));
        is_ready
    }
}

/// So many of the last preparations say how long the next one takes.
const LAST: usize = 64;
/// Who is as quick prepares when it is asked for.
const QUICK: Duration = Duration::from_millis(5);
/// What a machine adds.
const MARGIN: Duration = Duration::from_millis(20);
/// Nobody prepares earlier.
const MOST: Duration = Duration::from_secs(2);

/// How long before a job's turn its call is prepared.
#[derive(Debug, Default)]
pub struct Lead {
    /// The newest last.
    took: VecDeque<Duration>,
    lead: Duration,
}

impl Lead {
    /// A preparation took so long.
    pub fn learn(&mut self, took: Duration) {
        if self.took.len() == LAST {
            self.took.pop_front();
        }
        self.took.push_back(took);
        let mut sorted: Vec<_> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        let usual = sorted[(sorted.len() - 1) * 95 / 100];
        self.lead = match usual < QUICK {
            true => Duration::ZERO,
            false => (usual + MARGIN).min(MOST),
        };
    }

    /// The 95 % quantile of what preparing took lately, and a margin; zero where it is quick.
    pub fn get(&self) -> Duration {
        self.lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_call_that_is_no_good_any_more_is_replaced_or_gone() {
        let (mut prepared, key) = (Prepared::default(), Key(1));
        assert!(!prepared.is_ready(key, |_| true, || None));
        prepared.put(key, "old");
        assert!(prepared.is_ready(key, |call| *call == "old", || None));
        assert!(prepared.is_ready(key, |_| false, || Some("new")));
        assert_eq!(prepared.take(key), Some("new"));
        prepared.put(key, "old");
        assert!(!prepared.is_ready(key, |_| false, || None));
        assert_eq!(prepared.take(key), None);
    }

    #[test]
    fn the_lead_follows_what_preparing_takes() {
        let mut lead = Lead::default();
        assert_eq!(lead.get(), Duration::ZERO, "nothing is prepared");
        lead.learn(MS);
        assert_eq!(lead.get(), Duration::ZERO, "it is quick");
        for _ in 0..LAST {
            lead.learn(240 * MS);
        }
        lead.learn(9_000 * MS);
        assert_eq!(lead.get(), 260 * MS, "one was slow");
        for _ in 0..LAST {
            lead.learn(9_000 * MS);
        }
        assert_eq!(lead.get(), MOST);
        for _ in 0..LAST {
            lead.learn(MS);
        }
        assert_eq!(lead.get(), Duration::ZERO);
    }
}
