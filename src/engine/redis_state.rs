//! Which round trips show the state of Redis as a whole, for `/readyz`, the metrics and the log.

use gate::{GateError, Replies};

/// Returns true if a round trip shows the state of Redis. It does not if only some primaries of a
/// cluster were asked and none of them decided, because the others are not known.
pub(super) fn shows_redis(result: &Result<Replies, GateError>) -> bool {
    // A refusal is an answer, too.
    let decides = |reply: &_| matches!(reply, Ok(_) | Err(GateError::Refused(_)));
    result.as_ref().map_or(true, |all| all.iter().any(decides))
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
        assert!(!shows_redis(&Ok(vec![Err(cold()), Err(away())])));
        assert!(shows_redis(&Ok(vec![Err(cold()), Ok(decided())])));
        assert!(shows_redis(&Err(cold())));
        assert!(shows_redis(&Err(away())));
    }
}
