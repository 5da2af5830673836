//! Paces the attempts to connect, and decides when to log failures.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::BrokerError;
use rules::failures::retry::Backoff;

/// Minimum age of a session after which the pauses begin anew.
const GOOD_SESSION: Duration = Duration::from_secs(10);
/// Interval at which an unchanged failure is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Paces the attempts of one connection and logs its failures: a new failure at once, an unchanged
/// one once a minute.
pub(super) struct Attempts {
    connection: &'static str,
    pauses: Backoff,
    logged: Option<(BrokerError, Instant)>,
}

impl Attempts {
    pub fn new(connection: &'static str) -> Self {
        Self {
            connection,
            pauses: Backoff::default(),
            logged: None,
        }
    }

    /// Records the end of an attempt, or of a session that was up since `up`.
    pub fn ended(&mut self, up: Option<Instant>) {
        if up.is_some_and(|up| up.elapsed() >= GOOD_SESSION) {
            self.pauses.reset();
            self.logged = None;
        }
    }

    /// Logs a failure, unless the same one was logged within the last minute. Returns true if it is
    /// a new failure.
    pub fn log(&mut self, error: &BrokerError) -> bool {
        let same = self.logged.as_ref().filter(|(last, _)| last == error);
        if same.is_some_and(|(_, at)| at.elapsed() < LOG_INTERVAL) {
            return false;
        }
        let news = same.is_none();
        tracing::warn!(connection = self.connection, %error, "no session: retrying");
        self.logged = Some((error.clone(), Instant::now()));
        news
    }

    /// Waits before the next attempt. Returns false if `end` came first.
    pub async fn pause(&mut self, end: &CancellationToken) -> bool {
        let pause = self.pauses.next(rand::random());
        tokio::select! {
            () = end.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: &str) -> BrokerError {
        BrokerError::Failed {
            at: "amqp://h".to_owned(),
            reason: reason.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_reset_after_a_good_session() {
        let mut attempts = Attempts::new("test");
        let end = CancellationToken::new();
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            let began = Instant::now();
            assert!(attempts.pause(&end).await);
            last = began.elapsed();
        }
        assert!(last > Duration::from_secs(1), "{last:?}");
        let up = Instant::now();
        tokio::time::advance(GOOD_SESSION).await;
        attempts.ended(Some(up));
        let began = Instant::now();
        assert!(attempts.pause(&end).await);
        assert!(began.elapsed() < Duration::from_secs(1));
        end.cancel();
        assert!(!attempts.pause(&end).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_reported_once() {
        let mut attempts = Attempts::new("test");
        assert!(attempts.log(&refused("a")));
        tokio::time::advance(LOG_INTERVAL * 2).await;
        assert!(!attempts.log(&refused("a")));
        assert!(attempts.log(&refused("b")));
        let up = Instant::now();
        attempts.ended(Some(up));
        assert!(!attempts.log(&refused("b")));
        tokio::time::advance(GOOD_SESSION).await;
        attempts.ended(Some(up));
        assert!(attempts.log(&refused("b")));
    }
}
