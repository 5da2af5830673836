//! How far back a log must remember, where jobs of one partition have limits of different lengths.

/// The longest span that anybody counts with. Of two jobs of one tenant each may have limits of its own (plans, changed
/// configurations), and what one of them forgets the other may still count.
///
/// A span is remembered for its own length at least after it was last counted with: until then all that it counted is
/// there. Who comes back later finds a log as for the first time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LongestSpan {
    /// When the period began, in milliseconds since the epoch. It is as long as the longest span.
    since: u64,
    /// The longest span in this period, in milliseconds.
    now: u64,
    /// That in the period before.
    before: u64,
}

impl LongestSpan {
    /// Somebody counts with `span` at `now`.
    pub fn note(&mut self, span: u64, now: u64) {
        // Of later than now: the clock was stepped back.
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

    /// What is older than this, in milliseconds, nobody counts.
    pub fn longest(&self) -> u64 {
        self.now.max(self.before)
    }

    /// When it need not be remembered any more, in milliseconds since the epoch: behind whatever was written in its period.
    pub fn end(&self) -> u64 {
        self.since + 3 * self.longest()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_span_is_forgotten_when_nobody_counts_with_it_any_more() {
        let mut spans = LongestSpan::default();
        spans.note(30_000, 1_000_000);
        for at in (1_000_000..1_061_000).step_by(500) {
            spans.note(1_000, at);
        }
        assert_eq!(spans.longest(), 1_000);
    }

    proptest! {
        /// Whatever else is counted with meanwhile.
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
