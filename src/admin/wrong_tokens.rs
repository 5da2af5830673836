//! Counts wrong tokens at the admin port. If there are many, they are logged and refused slowly.
//!
//! Every token is compared, however many wrong ones came before it. Wrong tokens therefore keep no
//! right one out, even if all of them come from the address of one proxy.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tracing::warn;

/// Number of wrong tokens within [`COUNT_WINDOW`] that are refused at once, from all addresses
/// together.
const MAX_FAST_REFUSALS: u32 = 10;
/// Time after which wrong tokens are forgotten.
const COUNT_WINDOW: Duration = Duration::from_secs(60);
/// Pause before a further wrong token is refused.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of pauses at a time. Other wrong tokens wait for their turn.
const MAX_CONCURRENT_PAUSES: usize = 4;

/// The wrong tokens of all addresses.
pub struct WrongTokens {
    began: Instant,
    count: Mutex<WrongCount>,
    pauses: Semaphore,
}

/// Number of wrong tokens in a span of time.
#[derive(Default)]
struct WrongCount {
    since: Duration,
    wrong: u32,
}

impl WrongCount {
    /// Counts one more wrong token and returns the number of them.
    fn add(&mut self, now: Duration) -> u32 {
        if now >= self.since + COUNT_WINDOW {
            *self = Self {
                since: now,
                wrong: 0,
            };
        }
        self.wrong = self.wrong.saturating_add(1);
        self.wrong
    }

    fn is_high(&self, now: Duration) -> bool {
        now < self.since + COUNT_WINDOW && self.wrong >= MAX_FAST_REFUSALS
    }
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            count: Mutex::default(),
            pauses: Semaphore::new(MAX_CONCURRENT_PAUSES),
        }
    }
}

impl WrongTokens {
    /// Counts a wrong token from `peer`. Returns true if it must be refused slowly.
    pub fn add(&self, peer: SocketAddr) -> bool {
        let wrong = self.count().add(self.began.elapsed());
        if wrong == MAX_FAST_REFUSALS + 1 {
            warn!(%peer, "many wrong tokens at the admin port: refusing them slowly for a minute");
        }
        wrong > MAX_FAST_REFUSALS
    }

    /// Returns true if the next wrong token will be refused slowly.
    pub fn are_many(&self) -> bool {
        self.count().is_high(self.began.elapsed())
    }

    /// Waits before a wrong token is refused.
    pub async fn pause(&self) {
        // The semaphore is never closed.
        let _turn = self.pauses.acquire().await;
        sleep(REFUSAL_DELAY).await;
    }

    fn count(&self) -> std::sync::MutexGuard<'_, WrongCount> {
        // The numbers are consistent at any time.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_wrong_tokens_count_for_a_minute() {
        let mut count = WrongCount::default();
        let second = Duration::from_secs(1);
        for number in 1..=MAX_FAST_REFUSALS {
            assert!(!count.is_high(second));
            assert_eq!(count.add(second), number);
        }
        assert!(count.is_high(second));
        assert_eq!(count.add(second), MAX_FAST_REFUSALS + 1);
        assert!(count.is_high(COUNT_WINDOW - second) && !count.is_high(COUNT_WINDOW));
        assert_eq!(count.add(COUNT_WINDOW), 1);
    }
}
