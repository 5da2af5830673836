//! What the gate's answers say of Redis as a whole, for `/readyz` and the metrics.

use crate::gate::{GateError, Replies};

/// What a round trip says of Redis as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) answers: bool,
    /// It answers that nothing starts; the gate itself says why.
    pub(super) cold: bool,
}

impl Seen {
    /// `None`: only some primaries of a cluster were asked, and none of them decided, so the others are not known.
    pub(super) fn of(result: &Result<Replies, GateError>) -> Option<Self> {
        let (answers, cold) = match result {
            // What a server refuses is an answer, too.
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
    use crate::gate::TenantReply;

    #[test]
    fn some_primaries_without_a_decision_say_nothing_of_the_others() {
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
        let seen = |answers, cold| Some(Seen { answers, cold });
        assert_eq!(Seen::of(&Ok(vec![Err(cold()), Err(away())])), None);
        let mixed = Ok(vec![Err(cold()), Ok(decided())]);
        assert_eq!(Seen::of(&mixed), seen(true, false));
        assert_eq!(Seen::of(&Err(cold())), seen(true, true));
        assert_eq!(Seen::of(&Err(away())), seen(false, false));
    }
}
