//! Targets over which RabbitMQ has closed the connection. Further messages to them are refused
//! without another try, because each closed connection delays the messages of all other targets.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How long a target is refused without a try.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of targets. The oldest is dropped first.
const MAX_TARGETS: usize = 64;

#[derive(Debug)]
struct RefusedTarget {
    key: String,
    reason: String,
    until: Instant,
}

/// Refused targets, the oldest first.
#[derive(Debug, Default)]
pub(super) struct RefusedTargets(VecDeque<RefusedTarget>);

impl RefusedTargets {
    /// Refuses messages with the routing key `key` from now on, because RabbitMQ closed the
    /// connection over one of them for `reason`.
    pub fn refuse(&mut self, now: Instant, key: &str, reason: &str) {
        self.0
            .retain(|target| now < target.until && target.key != key);
        if self.0.len() >= MAX_TARGETS {
            self.0.pop_front();
        }
        self.0.push_back(RefusedTarget {
            key: key.to_owned(),
            reason: reason.to_owned(),
            until: now + REFUSED_FOR,
        });
    }

    /// Returns RabbitMQ's reason if messages with this routing key are refused.
    pub fn reason(&self, now: Instant, key: &str) -> Option<&str> {
        let mut targets = self.0.iter();
        let target = targets.find(|target| target.key == key && now < target.until)?;
        Some(&target.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_refused_for_a_minute_and_the_oldest_is_forgotten_first() {
        let (mut targets, now) = (RefusedTargets::default(), Instant::now());
        targets.refuse(now, "a", "why");
        assert_eq!(targets.reason(now, "a"), Some("why"));
        assert_eq!(targets.reason(now, "b"), None);
        assert_eq!(targets.reason(now + REFUSED_FOR, "a"), None);
        targets.refuse(now + REFUSED_FOR / 2, "a", "why");
        assert_eq!(targets.reason(now + REFUSED_FOR, "a"), Some("why"));
        assert_eq!(targets.0.len(), 1);
        let more = (0..MAX_TARGETS).map(|n| format!("more-{n}"));
        more.for_each(|key| targets.refuse(now + REFUSED_FOR / 2, &key, "why"));
        assert_eq!(targets.0.len(), MAX_TARGETS);
        assert_eq!(targets.reason(now + REFUSED_FOR, "a"), None);
        assert_eq!(targets.reason(now + REFUSED_FOR, "more-0"), Some("why"));
    }
}
