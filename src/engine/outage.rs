//! Logs that a server is unavailable: at once, then once a minute, and when it is back.

use std::fmt;
use std::time::Duration;

use tracing::{error, info};

const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The outages of one server.
pub struct Outage {
    server: &'static str,
    /// When the outage began, and when it was last logged.
    state: Option<(Duration, Duration)>,
}

impl Outage {
    /// Creates the record of a server that is available.
    pub fn new(server: &'static str) -> Self {
        Self {
            server,
            state: None,
        }
    }

    /// Records a failed attempt. Returns true if it was logged.
    pub fn failed(&mut self, now: Duration, why: &dyn fmt::Display) -> bool {
        let since = match self.state {
            Some((_, last)) if now.saturating_sub(last) < LOG_INTERVAL => return false,
            Some((since, _)) => since,
            None => now,
        };
        self.state = Some((since, now));
        let down_s = now.saturating_sub(since).as_secs();
        error!(server = self.server, down_s, reason = %why, "a server is unavailable: no job is \
            admitted; retrying");
        true
    }

    /// Records a successful attempt.
    pub fn over(&mut self, now: Duration) {
        if let Some((since, _)) = self.state.take() {
            let down_s = now.saturating_sub(since).as_secs();
            info!(server = self.server, down_s, "answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_at_once_and_then_every_minute() {
        let mut outage = Outage::new("Redis");
        let is_logged =
            |outage: &mut Outage, s: u64| outage.failed(Duration::from_secs(s), &"refused");
        let times = [5, 6, 64, 65, 66, 125];
        let said_at: Vec<bool> = times.iter().map(|s| is_logged(&mut outage, *s)).collect();
        assert_eq!(said_at, [true, false, false, true, false, true]);
        outage.over(Duration::from_secs(130));
        assert!(is_logged(&mut outage, 131), "a new outage is said at once");
    }
}
