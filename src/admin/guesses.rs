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

/// Number of wrong tokens within [`SPAN`] that are refused at once, from all addresses together.
const MAX_AT_ONCE: u32 = 10;
/// Time after which wrong tokens are forgotten.
const SPAN: Duration = Duration::from_secs(60);
/// Pause before a further wrong token is refused.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of pauses at a time. Other wrong tokens wait for their turn.
const MAX_PAUSES: usize = 4;

/// The wrong tokens of all addresses.
pub struct Guesses {
    began: Instant,
    count: Mutex<Count>,
    pauses: Semaphore,
}

/// Number of wrong tokens in a span of time.
#[derive(Default)]
struct Count {
    since: Duration,
    wrong: u32,
}

impl Count {
    /// Counts one more wrong token and returns the number of them.
    fn add(&mut self, now: Duration) -> u32 {
        if now >= self.since + SPAN {
            *self = Self {
                since: now,
                wrong: 0,
            };
        }
        self.wrong = self.wrong.saturating_add(1);
        self.wrong
    }

    fn is_high(&self, now: Duration) -> bool {
        now < self.since + SPAN && self.wrong >= MAX_AT_ONCE
    }
}

impl Default for Guesses {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            count: Mutex::default(),
            pauses: Semaphore::new(MAX_PAUSES),
        }
    }
}

impl Guesses {
    /// Counts a wrong token from `peer`. Returns true if it must be refused slowly.
    pub fn add(&self, peer: SocketAddr) -> bool {
        let wrong = self.count().add(self.began.elapsed());
        if wrong == MAX_AT_ONCE + 1 {
            warn!(%peer, "many wrong tokens at the admin port: refusing them slowly for a minute");
        }
        wrong > MAX_AT_ONCE
    }

    /// Returns true if the next wrong token will be refused slowly.
    pub fn are_many(&self) -> bool {
        self.count().is_high(self.began.elapsed())
    }

    /// Waits before a wrong token is refused.
    pub async fn pause(&self) {
        // The semaphore is never closed.
        let _turn = self.pauses.acquire().await;
        sleep(PAUSE).await;
    }

    fn count(&self) -> std::sync::MutexGuard<'_, Count> {
        // The numbers are consistent at any time.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_are_many_for_a_minute() {
        let mut count = Count::default();
        let second = Duration::from_secs(1);
        for number in 1..=MAX_AT_ONCE {
            assert!(!count.is_high(second));
            assert_eq!(count.add(second), number);
        }
        assert!(count.is_high(second));
        assert_eq!(count.add(second), MAX_AT_ONCE + 1);
        assert!(count.is_high(SPAN - second) && !count.is_high(SPAN));
        assert_eq!(count.add(SPAN), 1);
    }
}
