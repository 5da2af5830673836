//! Throttles that could not be stored in the gate. Storing them is retried, so that a tenant does
//! not go on calling an API that has throttled it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::action::Block;
use rules::failures::breaker::BreakerScope;
use rules::failures::retry::pause;

/// Delay before the first retry. It doubles with each failure.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Delay before the last retry.
const MAX_RETRY_DELAY: Duration = Duration::from_millis(12_800);
/// Maximum number of retries, which take 25 s together. A worker that still can't store the
/// throttle starts nothing either, unless the store refuses only this kind of write.
const MAX_RETRIES: u32 = 8;
/// Maximum number of tenants at once.
const MAX_TENANTS: usize = 1024;

/// Throttles that are being stored, and those to retry: for each tenant, the one that ends last.
#[derive(Debug, Default)]
pub struct UnstoredThrottles {
    waiting: BTreeMap<BreakerScope, (Duration, Block)>,
    /// Number of throttles being stored.
    in_flight: usize,
}

impl UnstoredThrottles {
    /// Records that a throttle is being stored.
    pub fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// Records the end of an attempt.
    pub fn end(&mut self) {
        self.in_flight -= 1;
    }

    /// Returns the number of throttles being stored.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Schedules a retry for `block`. Returns false if it is given up.
    pub fn failed(&mut self, now: Duration, mut block: Block) -> bool {
        block.failures += 1;
        let at = now + pause(FIRST_RETRY_DELAY, MAX_RETRY_DELAY, block.failures);
        block.key = None;
        if block.failures > MAX_RETRIES || block.until <= at {
            return false;
        }
        if let Some((_, known)) = self.waiting.get_mut(&block.scope) {
            if known.until < block.until {
                *known = Block {
                    failures: known.failures,
                    ..block
                };
            }
            return true;
        }
        if self.waiting.len() == MAX_TENANTS {
            return false;
        }
        self.waiting.insert(block.scope.clone(), (at, block));
        true
    }

    /// Takes the throttles to store now.
    pub fn due(&mut self, now: Duration) -> Vec<Block> {
        let mut due = Vec::new();
        self.waiting.retain(|_, (at, block)| {
            let is_due = *at <= now;
            if is_due && now < block.until {
                due.push(block.clone());
            }
            !is_due
        });
        due
    }

    /// Returns when [`UnstoredThrottles::due`] may find something.
    pub fn next(&self) -> Option<Duration> {
        self.waiting.values().map(|(at, _)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::MS;
    use rules::tenant::Tenant;

    fn block(tenant: &str, until_ms: u32) -> Block {
        Block {
            key: None,
            scope: BreakerScope::Tenant(Tenant::parse(tenant).expect("a tenant")),
            until: until_ms * MS,
            reason: "a test".to_owned(),
            failures: 0,
            lesson: None,
        }
    }

    #[test]
    fn a_failed_throttle_is_retried_until_it_ends_or_too_often() {
        let mut blocks = UnstoredThrottles::default();
        assert!(!blocks.failed(MS, block("a", 100)), "over by then");
        assert!(blocks.failed(MS, block("a", 102)));
        assert_eq!(blocks.next(), Some(101 * MS));
        assert!(blocks.due(100 * MS).is_empty());
        assert!(blocks.due(102 * MS).is_empty(), "too late");
        let (mut now, mut times) = (MS, 0);
        let mut open = block("a", 3_600_000);
        while blocks.failed(now, open) {
            now = blocks.next().expect("one waits");
            open = blocks.due(now).pop().expect("it is due");
            times += 1;
        }
        assert_eq!((times, blocks.next()), (8, None));
        assert_eq!(now, MS + 25_500 * MS);
    }

    #[test]
    fn the_last_throttle_of_a_bounded_number_of_tenants_is_kept() {
        let mut blocks = UnstoredThrottles::default();
        for until in [5_000, 9_000, 7_000] {
            assert!(blocks.failed(MS, block("a", until)));
        }
        let due = blocks.due(101 * MS);
        assert_eq!(due.len(), 1);
        assert_eq!(due[0].until, 9_000 * MS);
        for number in 0..MAX_TENANTS {
            assert!(blocks.failed(MS, block(&number.to_string(), 9_000)));
        }
        assert!(!blocks.failed(MS, block("one more", 9_000)));
    }
}
