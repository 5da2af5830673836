//! What was asked of servers again and again: what is known, how old it is, and what does not answer.

/// Who has not answered for so long is said not to answer, in milliseconds.
const LATE_MS: u64 = 3_000;

/// One question, and what is known of its answer.
#[derive(Debug)]
pub struct Asked<T> {
    known: Option<(T, u64)>,
    /// The number of the question that is under way, and since when.
    under_way: Option<(u64, u64)>,
    last_ms: Option<u64>,
    failing: Option<(u64, String)>,
}

/// What does not answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Trouble<'a> {
    /// Since when.
    pub since_ms: u64,
    /// Why, if that is known.
    pub why: Option<&'a str>,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Self {
            known: None,
            under_way: None,
            last_ms: None,
            failing: None,
        }
    }
}

impl<T> Asked<T> {
    /// What is known, and when it came.
    pub fn known(&self) -> Option<(&T, u64)> {
        self.known.as_ref().map(|(known, at_ms)| (known, *at_ms))
    }

    /// Nobody has asked yet.
    pub fn is_new(&self) -> bool {
        self.last_ms.is_none()
    }

    /// An answer is awaited.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// It is time to ask, once in so many milliseconds.
    pub fn is_due(&self, now_ms: u64, every_ms: u64) -> bool {
        !self.is_under_way() && self.is_older(now_ms, every_ms)
    }

    /// It was asked longer ago, or never.
    pub fn is_older(&self, now_ms: u64, age_ms: u64) -> bool {
        self.last_ms
            .is_none_or(|last| now_ms.saturating_sub(last) >= age_ms)
    }

    /// Whatever is under way is not what is wanted any more: it is due.
    pub fn urge(&mut self) {
        (self.under_way, self.last_ms) = (None, None);
    }

    /// The question `number` goes out.
    pub fn begin(&mut self, number: u64, now_ms: u64) {
        (self.under_way, self.last_ms) = (Some((number, now_ms)), Some(now_ms));
    }

    /// An answer to the question `number` came: whether it was awaited.
    pub fn came(&mut self, number: u64, answer: Result<T, String>, now_ms: u64) -> bool {
        let Some((_, since_ms)) = self.under_way.take_if(|(awaited, _)| *awaited == number) else {
            return false;
        };
        match answer {
            Ok(answer) => (self.known, self.failing) = (Some((answer, now_ms)), None),
            Err(why) => {
                let since_ms = (self.failing.take()).map_or(since_ms, |(since, _)| since);
                self.failing = Some((since_ms, why));
            }
        }
        true
    }

    /// What does not answer; `None`: all is well.
    pub fn trouble(&self, now_ms: u64) -> Option<Trouble<'_>> {
        if let Some((since_ms, why)) = &self.failing {
            return Some(Trouble {
                since_ms: *since_ms,
                why: Some(why),
            });
        }
        let (_, since_ms) = self.under_way?;
        (now_ms.saturating_sub(since_ms) >= LATE_MS).then_some(Trouble {
            since_ms,
            why: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_known_since_it_was_first_asked_and_the_last_picture_stays() {
        let mut asked = Asked::default();
        assert!(asked.is_due(0, 2_000) && asked.is_new());
        asked.begin(1, 0);
        assert!(!asked.is_due(9_000, 2_000), "one at a time");
        assert!(asked.came(1, Ok("first"), 100));
        assert!(!asked.is_due(1_999, 2_000) && asked.is_due(2_000, 2_000));
        assert_eq!(asked.trouble(2_000), None);
        // It hangs: that is told before it fails.
        asked.begin(2, 2_000);
        assert_eq!(asked.trouble(4_999), None);
        let hangs = |why| Trouble {
            since_ms: 2_000,
            why,
        };
        assert_eq!(asked.trouble(5_000), Some(hangs(None)));
        assert!(asked.came(2, Err("away".to_owned()), 7_000));
        asked.begin(3, 7_000);
        assert!(asked.came(3, Err("still away".to_owned()), 9_000));
        assert_eq!(asked.trouble(9_000), Some(hangs(Some("still away"))));
        assert_eq!(asked.known(), Some((&"first", 100)));
        // What is not wanted any more is not heard.
        asked.begin(4, 9_000);
        asked.urge();
        assert!(asked.is_due(9_000, 2_000));
        asked.begin(5, 9_000);
        assert!(!asked.came(4, Ok("old"), 9_001));
        assert!(asked.came(5, Ok("new"), 9_002));
        assert_eq!(asked.known(), Some((&"new", 9_002)));
        assert_eq!(asked.trouble(9_002), None);
    }
}
