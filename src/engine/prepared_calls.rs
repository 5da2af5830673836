//! The prepared calls of jobs.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::action::JobKey;

/// Prepared calls by job. Each has a worker slot, so `dispatch.concurrency` bounds their number.
pub type PreparedCalls<R> = HashMap<JobKey, R, RandomState>;

/// Returns true if the call of `key` could be made now: its prepared call is still good, or
/// `at_once` returns one.
pub fn is_ready<R>(
    prepared: &mut PreparedCalls<R>,
    key: JobKey,
    is_good: impl FnOnce(&mut R) -> bool,
    at_once: impl FnOnce() -> Option<R>,
) -> bool {
    if prepared.get_mut(&key).is_some_and(is_good) {
        return true;
    }
    prepared.remove(&key);
    let call = at_once();
    let is_ready = call.is_some();
    prepared.extend(call.map(|call| (key, call)));
    is_ready
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unusable_prepared_call_is_replaced_or_dropped() {
        let (mut prepared, key) = (PreparedCalls::default(), JobKey(1));
        assert!(!is_ready(&mut prepared, key, |_| true, || None));
        prepared.insert(key, "old");
        assert!(is_ready(&mut prepared, key, |call| *call == "old", || None));
        assert!(is_ready(&mut prepared, key, |_| false, || Some("new")));
        assert_eq!(prepared.remove(&key), Some("new"));
        prepared.insert(key, "old");
        assert!(!is_ready(&mut prepared, key, |_| false, || None));
        assert_eq!(prepared.remove(&key), None);
    }
}
