//! The prepared calls of jobs.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::action::JobKey;

/// Prepared calls by job. Each has a worker slot, so `dispatch.concurrency` bounds their number.
#[derive(Debug)]
pub struct PreparedCalls<R> {
    calls: HashMap<JobKey, R, RandomState>,
}

impl<R> Default for PreparedCalls<R> {
    fn default() -> Self {
        Self {
            calls: HashMap::default(),
        }
    }
}

impl<R> PreparedCalls<R> {
    /// Stores the prepared call of `key`.
    pub fn put(&mut self, key: JobKey, call: R) {
        self.calls.insert(key, call);
    }

    /// Takes the prepared call of `key`, to make it.
    pub fn take(&mut self, key: JobKey) -> Option<R> {
        self.calls.remove(&key)
    }

    /// Returns true if the call of `key` could be made now: its prepared call is still good, or
    /// `at_once` returns one.
    pub fn is_ready(
        &mut self,
        key: JobKey,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_prepared_call_is_replaced_or_dropped() {
        let (mut prepared, key) = (PreparedCalls::default(), JobKey(1));
        assert!(!prepared.is_ready(key, |_| true, || None));
        prepared.put(key, "old");
        assert!(prepared.is_ready(key, |call| *call == "old", || None));
        assert!(prepared.is_ready(key, |_| false, || Some("new")));
        assert_eq!(prepared.take(key), Some("new"));
        prepared.put(key, "old");
        assert!(!prepared.is_ready(key, |_| false, || None));
        assert_eq!(prepared.take(key), None);
    }
}
