//! The state of Redis as a whole that the gate's answers show, for `/readyz` and the metrics.

use gate::{GateError, Replies};

/// The state of Redis that a round trip shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RedisState {
    pub(super) answers: bool,
    /// Whether Redis answers that no job may start. The gate itself reports why.
    pub(super) cold: bool,
}

impl RedisState {
    /// Returns `None` if only some primaries of a cluster were asked and none of them decided,
    /// because the others are not known.
    pub(super) fn of(result: &Result<Replies, GateError>) -> Option<Self> {
        let (answers, cold) = match result {
            // A refusal is an answer, too.
            Ok(replies)
                if replies
                    .iter()
                    .any(|reply| matches!(reply, Ok(_) | Err(GateError::Refused(_)))) =>
            {
                (true, false)
            }
            Ok(_) => return None,
            Err(GateError::Cold { .. }) => (true, true),
            Err(_) => (false, false),
        };
        Some(Self { answers, cold })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use gate::TenantReply;

    #[test]
    fn primaries_without_a_decision_do_not_affect_the_others() {
        let cold = || GateError::Cold {
            wait: Duration::from_secs(1),
            why: "a test".to_owned(),
        };
        let away = || GateError::Unreachable("a test".to_owned());
        let decided = || TenantReply {
            now_ms: 1,
            blocked_until_ms: 0,
            has_failures: false,
            shadows: Vec::new(),
            answers: Vec::new(),
        };
        let seen = |answers, cold| Some(RedisState { answers, cold });
        assert_eq!(RedisState::of(&Ok(vec![Err(cold()), Err(away())])), None);
        let mixed = Ok(vec![Err(cold()), Ok(decided())]);
        assert_eq!(RedisState::of(&mixed), seen(true, false));
        assert_eq!(RedisState::of(&Err(cold())), seen(true, true));
        assert_eq!(RedisState::of(&Err(away())), seen(false, false));
    }
}
