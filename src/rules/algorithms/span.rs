//! How far back a log must reach if jobs of one partition have limits with different windows.

/// The longest span that any job counts with. Two jobs of one tenant may have different limits
/// (plans, changed configurations), and one must not drop entries that the other still counts.
///
/// A span is remembered for at least its own length after its last use, and until then every entry
/// that it counted is kept. A job that uses the span later finds a log as if it used it for the
/// first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LongestSpan {
    /// When the period began, in milliseconds since the epoch. A period is as long as the longest
    /// span.
    since: u64,
    /// The longest span in this period, in milliseconds.
    now: u64,
    /// The longest span in the period before, in milliseconds.
    before: u64,
}

impl LongestSpan {
    /// Records that a job counts with `span` at `now`.
    pub fn note(&mut self, span: u64, now: u64) {
        // A later time means that the clock was stepped back.
        self.since = self.since.min(now);
        if now >= self.since + self.longest() {
            *self = Self {
                since: now,
                now: 0,
                before: self.now,
            };
        }
        self.now = self.now.max(span);
    }

    /// Returns the age in milliseconds beyond which no limit counts an entry.
    pub fn longest(&self) -> u64 {
        self.now.max(self.before)
    }

    /// Returns when the record may be dropped, in milliseconds since the epoch: after all entries
    /// of its period have expired.
    pub fn end(&self) -> u64 {
        self.since + 3 * self.longest()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_span_is_forgotten_when_no_limit_uses_it() {
        let mut spans = LongestSpan::default();
        spans.note(30_000, 1_000_000);
        for at in (1_000_000..1_061_000).step_by(500) {
            spans.note(1_000, at);
        }
        assert_eq!(spans.longest(), 1_000);
    }

    proptest! {
        /// Holds whatever other spans are noted meanwhile.
        #[test]
        fn a_span_is_remembered_for_its_own_length(
            uses in prop::collection::vec((0..5_000_u64, 1..20_000_u64), 1..100),
        ) {
            let (mut spans, mut now) = (LongestSpan::default(), 1_000_000);
            let mut noted: Vec<(u64, u64)> = Vec::new();
            for (pause, span) in uses {
                now += pause;
                spans.note(span, now);
                noted.push((now, span));
                for (at, span) in &noted {
                    prop_assert!(at + span < now || spans.longest() >= *span);
                }
                prop_assert!(spans.end() > now + spans.longest());
            }
        }
    }
}
