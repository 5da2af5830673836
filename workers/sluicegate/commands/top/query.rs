//! A question that is repeated: the last answer, its age, and whether the server answers.

/// How long a question may take, in milliseconds, until the server is reported as not answering.
const LATE_MS: u64 = 3_000;

/// One question and its last answer.
#[derive(Debug, Default)]
pub struct QueryState<T> {
    answer: Option<(T, u64)>,
    /// The number of the question in flight, and when it was sent.
    in_flight: Option<(u64, u64)>,
    last_ms: Option<u64>,
    failing: Option<(u64, String)>,
    /// Whether the question in flight went to a server of an earlier configuration.
    is_outdated: bool,
}

/// A server that does not answer.
#[derive(Debug, PartialEq, Eq)]
pub struct QueryFailure<'a> {
    /// Since when it does not answer.
    pub since_ms: u64,
    /// The reason, if known.
    pub why: Option<&'a str>,
    /// The time of the last answer.
    pub answered_ms: Option<u64>,
}

impl<T: Default> QueryState<T> {
    /// Returns the last answer and its time.
    pub fn answer(&self) -> Option<(&T, u64)> {
        self.answer.as_ref().map(|(answer, at_ms)| (answer, *at_ms))
    }

    /// Returns true if the question was never asked.
    pub fn is_new(&self) -> bool {
        self.last_ms.is_none()
    }

    /// Returns true if the question is in flight.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns true if it is time to ask, once every `every_ms` milliseconds.
    pub fn is_due(&self, now_ms: u64, every_ms: u64) -> bool {
        !self.is_in_flight() && self.is_older(now_ms, every_ms)
    }

    /// Returns true if it was asked longer ago than `age_ms`, or never.
    pub fn is_older(&self, now_ms: u64, age_ms: u64) -> bool {
        self.last_ms
            .is_none_or(|last| now_ms.saturating_sub(last) >= age_ms)
    }

    /// Drops the question in flight, whose answer is no longer wanted, and makes the question due.
    pub fn urge(&mut self) {
        (self.in_flight, self.last_ms, self.is_outdated) = (None, None, false);
    }

    /// Forgets all answers, since the server has changed. The question is due once the one in
    /// flight, if any, has ended.
    pub fn renew(&mut self) {
        *self = Self {
            in_flight: self.in_flight,
            last_ms: self.in_flight.map(|(_, at_ms)| at_ms),
            is_outdated: self.is_in_flight(),
            ..Self::default()
        };
    }

    /// Records that the question is sent with the next number. `last_number` becomes this one.
    pub fn begin(&mut self, last_number: &mut u64, now_ms: u64) {
        *last_number += 1;
        (self.in_flight, self.last_ms) = (Some((*last_number, now_ms)), Some(now_ms));
    }

    /// Takes an answer to the question `number`. Returns true if it was awaited.
    pub fn receive(&mut self, number: u64, answer: Result<T, String>, now_ms: u64) -> bool {
        let Some((_, since_ms)) = self.in_flight.take_if(|(awaited, _)| *awaited == number) else {
            return false;
        };
        if std::mem::take(&mut self.is_outdated) {
            self.last_ms = None;
            return false;
        }
        match answer {
            Ok(answer) => (self.answer, self.failing) = (Some((answer, now_ms)), None),
            Err(why) => {
                let since_ms = (self.failing.take()).map_or(since_ms, |(since, _)| since);
                self.failing = Some((since_ms, why));
            }
        }
        true
    }

    /// Returns the trouble with the server, or `None` if it answers.
    pub fn trouble(&self, now_ms: u64) -> Option<QueryFailure<'_>> {
        let (since_ms, why) = match (&self.failing, self.in_flight) {
            (Some((since_ms, why)), _) => (*since_ms, Some(why.as_str())),
            (None, Some((_, since_ms))) if now_ms.saturating_sub(since_ms) >= LATE_MS => {
                (since_ms, None)
            }
            _ => return None,
        };
        Some(QueryFailure {
            since_ms,
            why,
            answered_ms: self.answer().map(|(_, at_ms)| at_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_from_its_first_request_and_the_last_answer_stays() {
        let mut asked = QueryState::default();
        let number = &mut 0;
        assert!(asked.is_due(0, 2_000) && asked.is_new());
        asked.begin(number, 0);
        assert!(!asked.is_due(9_000, 2_000), "one at a time");
        assert!(asked.receive(1, Ok("first"), 100));
        assert!(!asked.is_due(1_999, 2_000) && asked.is_due(2_000, 2_000));
        assert_eq!(asked.trouble(2_000), None);
        // The question hangs, which is reported before it fails.
        asked.begin(number, 2_000);
        assert_eq!(asked.trouble(4_999), None);
        let hangs = |why| QueryFailure {
            since_ms: 2_000,
            why,
            answered_ms: Some(100),
        };
        assert_eq!(asked.trouble(5_000), Some(hangs(None)));
        assert!(asked.receive(2, Err("away".to_owned()), 7_000));
        asked.begin(number, 7_000);
        assert!(asked.receive(3, Err("still away".to_owned()), 9_000));
        assert_eq!(asked.trouble(9_000), Some(hangs(Some("still away"))));
        assert_eq!(asked.answer(), Some((&"first", 100)));
        // An answer that is no longer wanted is ignored.
        asked.begin(number, 9_000);
        asked.urge();
        assert!(asked.is_due(9_000, 2_000));
        asked.begin(number, 9_000);
        assert!(!asked.receive(4, Ok("old"), 9_001));
        assert!(asked.receive(5, Ok("new"), 9_002));
        assert_eq!(asked.answer(), Some((&"new", 9_002)));
        assert_eq!(asked.trouble(9_002), None);
    }
}
