//! The circuit breaker: after failures in a row it stops calls that would fail as well, until one
//! of them, the probe, succeeds.
//!
//! ```text
//! closed -- several failures in a row --> open until … -- its time is over --> half-open: one probe at a time
//!    ^                                       ^                                     |
//!    |                                       '------- it fails: twice as long -----|
//!    '------------------------ any success, or an operator's resume ---------------'
//! ```
//!
//! There is a breaker for each tenant, and one for the API as a whole. The store keeps them for all
//! workers. A tenant's breaker opens after failures of several jobs, because a single failing job
//! may itself be the cause and should use its attempts. The API's breaker opens after failures of
//! several tenants, or when no connection can be opened, which is not the fault of any tenant.
//! Failures are in a row in the order in which the ends of calls are reported. A success is
//! reported only if failures are known, so that successful calls cost nothing.

use crate::tenant::Tenant;

/// The calls that a breaker stops.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BreakerScope {
    /// The calls of one tenant.
    Tenant(Tenant),
    /// The calls of all tenants: the API's breaker.
    Api,
}

#[doc(hidden)]
impl From<Tenant> for BreakerScope {
    fn from(tenant: Tenant) -> Self {
        Self::Tenant(tenant)
    }
}

/// The party at fault for a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The API could not be reached at all. Counts against the API, regardless of the call's
    /// tenant.
    Unreachable,
    /// The tenant's call could not be made: its token, its secret or one of its values is missing.
    /// Counts against this tenant only.
    Tenant,
    /// This process or machine lacked something: a file descriptor, memory, a local port. Counts
    /// against no breaker, and uses no attempt.
    Local,
    /// The API answered 5xx, did not answer in time, or broke off. The cause may be the API, the
    /// tenant or the job.
    Failing,
}

/// Configures when a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Number of failures in a row after which it opens.
    pub failures: u32,
    /// Delay before the first probe, in milliseconds. It doubles after each probe that fails.
    pub first_wait_ms: u64,
    /// The longest delay before a later probe, in milliseconds.
    pub longest_wait_ms: u64,
    /// Time after which a probe without a report is given up, in milliseconds: its worker must have
    /// died.
    pub lease_ms: u64,
}

impl Rule {
    /// A rule for read-only use, by which no breaker opens.
    pub const NONE: Self = Self {
        failures: u32::MAX,
        first_wait_ms: 0,
        longest_wait_ms: 0,
        lease_ms: 0,
    };
}

/// A report to a breaker, or a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerEvent {
    /// A call failed.
    Failed {
        /// The store's clock when the call or its preparation started; 0 if the call is certainly
        /// not a probe.
        started_ms: u64,
        /// The job, or the tenant, that failed. Several of them must fail before the breaker opens.
        /// Empty if the failure counts by itself.
        of: String,
        /// The reason, for operators.
        reason: String,
        /// A number from 0 to [`MAX_JITTER`], so that tenants whose breakers opened together do not
        /// probe together.
        jitter: u32,
    },
    /// A call succeeded, or its answer shows that the API works.
    Succeeded,
    /// A worker requests to make the next probe.
    Probe,
    /// The call shows nothing of the API's health, or was not made. If it was the probe, another
    /// one may be made.
    Release {
        /// The store's clock when the call started.
        started_ms: u64,
    },
    /// Reads the state without changing it.
    Read,
}

/// The highest jitter, which makes a wait a quarter shorter.
pub const MAX_JITTER: u32 = 1000;
/// Stands for calls of several jobs or tenants that have failed. No encoded name has this form.
const SEVERAL: &str = "*";

/// The state of a breaker after an [`BreakerEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Failures in a row.
    pub failures: u64,
    /// Whether the breaker is open or half-open.
    pub is_open: bool,
    /// Whether the event opened or closed it.
    pub has_changed: bool,
    /// Whether the requested probe may be made.
    pub is_granted: bool,
    /// Until when no job may start, in milliseconds since the epoch, because of the breaker, the
    /// API's answer or an operator; 0 if jobs may start.
    pub closed_until_ms: u64,
    /// The same, considering only the API's answer and an operator.
    pub named_until_ms: u64,
    /// The reason for `closed_until_ms`; empty if jobs may start.
    pub reason: String,
}

/// One breaker, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Breaker {
    failures: u64,
    of: String,
    reason: String,
    open: Option<OpenState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OpenState {
    since_ms: u64,
    /// No probe is made before this time.
    until_ms: u64,
    wait_ms: u64,
    /// When the probe in flight started; 0 if there is none.
    began_ms: u64,
    lease_ms: u64,
}

impl OpenState {
    /// Returns true if a call that began at `started_ms` is the probe. Calls from before the
    /// breaker opened began earlier. A call that could not be prepared never starts: it is the
    /// probe if its preparation began while the breaker was half-open.
    fn is_probe(&self, started_ms: u64) -> bool {
        match self.began_ms {
            0 => started_ms >= self.until_ms,
            began_ms => started_ms >= began_ms,
        }
    }

    fn pull_back(&mut self, now: u64) {
        self.since_ms = self.since_ms.min(now);
        self.until_ms = self.until_ms.min(now + self.wait_ms);
        self.began_ms = self.began_ms.min(now);
    }

    fn lease_end(&self) -> u64 {
        match self.began_ms {
            0 => 0,
            began => began + self.lease_ms,
        }
    }
}

impl Breaker {
    /// Returns true if the breaker is open or half-open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the number of failures in a row. If it is not 0, a success must be reported.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns until when no job may start; 0 if jobs may start now. An open breaker then lets a
    /// single job through.
    pub fn closed_until(&self, now: u64) -> u64 {
        let Some(mut open) = self.open.clone() else {
            return 0;
        };
        open.pull_back(now);
        if open.until_ms > now {
            open.until_ms
        } else if open.lease_end() > now {
            // Waiting jobs look again before the lease of a lost probe ends.
            open.lease_end().min(now + open.wait_ms)
        } else {
            0
        }
    }

    /// Returns until when the breaker has state to keep.
    pub fn needed_until(&self) -> u64 {
        let open = self.open.as_ref();
        open.map_or(0, |open| open.until_ms.max(open.lease_end()))
    }

    /// Returns in words why the breaker is open.
    pub fn reason(&self) -> String {
        match &self.open {
            Some(_) => format!(
                "the breaker ({} failures in a row): {}",
                self.failures, self.reason
            ),
            None => String::new(),
        }
    }

    /// Pulls back times that are too far ahead because the store's clock was stepped back. Returns
    /// true if any changed.
    pub fn pull_back(&mut self, now: u64) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let before = open.clone();
        open.pull_back(now);
        *open != before
    }

    /// Records that a call starts as the probe while the breaker is half-open.
    pub fn begin_probe(&mut self, now: u64) {
        if let Some(open) = &mut self.open {
            open.began_ms = now;
        }
    }

    /// Gives up a call that began at `started_ms` and that shows nothing, so that another probe may
    /// be made.
    pub fn release(&mut self, started_ms: u64) {
        if let Some(open) = &mut self.open
            && open.is_probe(started_ms)
        {
            open.began_ms = 0;
        }
    }

    /// Records the failure of a call that began at `started_ms`. The other arguments are those of
    /// [`BreakerEvent::Failed`]. Returns true if this opens the breaker.
    pub fn failed(
        &mut self,
        now: u64,
        rule: &Rule,
        (started_ms, of): (u64, &str),
        reason: &str,
        jitter: u32,
    ) -> bool {
        self.failures += 1;
        let until = |wait: u64| now + wait - wait * u64::from(jitter.min(MAX_JITTER)) / 4000;
        if let Some(open) = &mut self.open {
            if open.is_probe(started_ms) {
                open.wait_ms = (open.wait_ms * 2).min(rule.longest_wait_ms);
                open.until_ms = until(open.wait_ms);
                open.began_ms = 0;
                open.lease_ms = rule.lease_ms;
                reason.clone_into(&mut self.reason);
            }
            return false;
        }
        reason.clone_into(&mut self.reason);
        if of.is_empty() || !self.of.is_empty() && self.of != of {
            SEVERAL.clone_into(&mut self.of);
        } else {
            of.clone_into(&mut self.of);
        }
        if self.failures < u64::from(rule.failures) || self.of != SEVERAL {
            return false;
        }
        self.open = Some(OpenState {
            since_ms: now,
            until_ms: until(rule.first_wait_ms),
            wait_ms: rule.first_wait_ms,
            began_ms: 0,
            lease_ms: rule.lease_ms,
        });
        true
    }

    /// Records that a call succeeded, or that an operator expects calls to succeed. Returns true if
    /// this closes the breaker.
    pub fn reset(&mut self) -> bool {
        let was_open = self.is_open();
        *self = Self::default();
        was_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Rule = Rule {
        failures: 3,
        first_wait_ms: 1_000,
        longest_wait_ms: 3_000,
        lease_ms: 60_000,
    };

    /// Records a failure of `of`, of a call that began at `at`.
    fn fail(breaker: &mut Breaker, at: u64, of: &str) -> bool {
        breaker.failed(at, &RULE, (at, of), "502", 0)
    }

    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        let opened: Vec<_> = (1..=3).map(|n| fail(&mut breaker, 100 + n, "")).collect();
        assert_eq!(opened, [false, false, true]);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let mut breaker = Breaker::default();
        for round in 0..9 {
            assert!(!fail(&mut breaker, round, ""));
            assert!(!fail(&mut breaker, round, ""));
            assert!(!breaker.reset());
        }
        let breaker = open();
        assert_eq!(breaker.closed_until(103), 1_103);
        assert_eq!(breaker.closed_until(1_102), 1_103);
        assert_eq!(breaker.reason(), "the breaker (3 failures in a row): 502");
    }

    #[test]
    fn a_failed_preparation_while_half_open_is_a_failed_probe() {
        let mut breaker = open();
        assert_eq!(breaker.closed_until(200), 1_103);
        breaker.failed(1_200, &RULE, (1_102, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_200), 0, "it began before");
        breaker.failed(1_250, &RULE, (0, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_250), 0, "surely no probe");
        breaker.failed(1_300, &RULE, (1_103, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_300), 3_300);
        breaker.failed(1_310, &RULE, (1_250, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_310), 3_300, "once for all of them");
    }

    #[test]
    fn the_api_breaker_needs_failures_of_several_tenants() {
        let mut breaker = Breaker::default();
        for n in 0..99 {
            assert!(!fail(&mut breaker, n, "a"), "one tenant's alone");
        }
        assert!(fail(&mut breaker, 99, "b"));
        let mut breaker = Breaker::default();
        assert!(!fail(&mut breaker, 1, "a"));
        assert!(!fail(&mut breaker, 2, "a"));
        assert!(fail(&mut breaker, 3, ""), "nobody's own");
    }

    #[test]
    fn probes_are_single_and_each_failed_one_doubles_the_wait() {
        let mut breaker = open();
        let (mut now, mut waits) = (1_103, Vec::new());
        for _ in 0..4 {
            assert_eq!(breaker.closed_until(now), 0, "half-open");
            breaker.begin_probe(now);
            assert!(breaker.closed_until(now) > now, "the others wait");
            assert!(breaker.closed_until(now) <= now + 3_000, "and look again");
            // A call from before the breaker opened.
            breaker.failed(now + 5, &RULE, (102, ""), "old", 0);
            assert!(breaker.closed_until(now + 5) > now + 5, "still probing");
            fail(&mut breaker, now + 10, "");
            waits.push(breaker.closed_until(now + 10) - now - 10);
            now = breaker.closed_until(now + 10);
        }
        assert_eq!(waits, [2_000, 3_000, 3_000, 3_000]);
        breaker.begin_probe(now);
        assert!(breaker.reset());
        assert_eq!((breaker.closed_until(now), breaker.is_open()), (0, false));
    }

    #[test]
    fn a_probe_that_is_never_reported_is_given_up() {
        let mut breaker = open();
        breaker.begin_probe(2_000);
        assert_eq!(breaker.closed_until(61_500), 62_000);
        assert_eq!(breaker.closed_until(62_000), 0);
        breaker.begin_probe(63_000);
        breaker.release(62_999);
        assert!(breaker.closed_until(63_000) > 63_000, "an older call");
        breaker.release(63_000);
        assert_eq!(breaker.closed_until(63_000), 0);
    }

    #[test]
    fn a_clock_that_was_stepped_back_does_not_keep_it_open() {
        let mut breaker = open();
        let far = 1_000_000;
        breaker.begin_probe(far);
        breaker.failed(far, &RULE, (far, ""), "502", 0);
        assert!(breaker.pull_back(500));
        assert!(breaker.closed_until(500) <= 500 + 2_000);
        assert!(!breaker.pull_back(501));
    }

    #[test]
    fn jitter_shortens_a_wait_by_a_quarter_at_most() {
        for (jitter, until) in [(0, 4_000), (500, 3_500), (1_000, 3_000), (u32::MAX, 3_000)] {
            let mut breaker = Breaker::default();
            let rule = Rule {
                failures: 1,
                first_wait_ms: 4_000,
                ..RULE
            };
            breaker.failed(0, &rule, (0, ""), "502", jitter);
            assert_eq!(breaker.closed_until(0), until);
        }
    }
}
