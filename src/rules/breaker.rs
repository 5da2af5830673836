//! The breaker: failures in a row stop calls that would fail too, until one of them, the probe, succeeds.
//!
//! ```text
//! closed -- so many failures in a row --> open until … -- its time is over --> half-open: one probe at a time
//!    ^                                       ^                                     |
//!    |                                       '------- it fails: twice as long -----|
//!    '------------------------ any success, or an operator's resume ---------------'
//! ```
//!
//! Each tenant has one, and there is one for the API as a whole. The store keeps them, for all workers. A tenant's opens by
//! failures of several jobs, since one that fails alone may be at fault itself and is to use its attempts; the API's by
//! failures of several tenants, or where no connection can be opened, which is nobody's own fault.
//! In a row means by the order in which calls are reported as ended. A success is reported where somebody knows of
//! failures, so that calls which succeed cost nothing.

use crate::rules::tenant::Tenant;

/// Whose calls.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Whose {
    /// One tenant's.
    Tenant(Tenant),
    /// Those of all tenants: the API's.
    Api,
}

impl From<Tenant> for Whose {
    fn from(tenant: Tenant) -> Self {
        Self::Tenant(tenant)
    }
}

/// The party at fault for a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The API could not be reached at all. Counts against the API, regardless of the call's tenant.
    Unreachable,
    /// The tenant's call could not be made: its token, its secret or one of its values is missing. Counts against this tenant only.
    Tenant,
    /// This process or machine lacked something: a file descriptor, memory, a local port. Counts against no breaker, and uses no attempt.
    Local,
    /// It answered 5xx, or not in time, or broke off: that may be the API, the tenant or the job.
    Failing,
}

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// It opens after so many failures in a row.
    pub failures: u32,
    /// The first probe comes after this, in milliseconds; after each that fails it is twice as long,
    pub first_wait_ms: u64,
    /// up to this.
    pub longest_wait_ms: u64,
    /// A probe that is not reported for so long, in milliseconds, is given up: its worker must have died.
    pub lease_ms: u64,
}

impl Rule {
    /// For who only looks: nothing opens by it.
    pub const NONE: Self = Self {
        failures: u32::MAX,
        first_wait_ms: 0,
        longest_wait_ms: 0,
        lease_ms: 0,
    };
}

/// What a breaker is told or asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A call failed.
    Failed {
        /// The store's clock when the call or its preparation started; 0 for a call that is surely no probe.
        started_ms: u64,
        /// Which job's, or tenant's, failure it is, of which several must fail before the breaker opens; empty: it counts
        /// whosever it is.
        of: String,
        /// Why, for those who ask.
        by: String,
        /// From 0 to [`MOST_JITTER`]: tenants whose breakers opened together do not probe together.
        jitter: u32,
    },
    /// A call succeeded, or was answered in a way that shows the API sound.
    Sound,
    /// Somebody wants to make the next probe.
    Probe,
    /// A call that began then says nothing of the API's health, or was not made after all: if it was the probe, there is none now.
    Release {
        /// The store's clock at its start.
        started_ms: u64,
    },
    /// It is only looked at.
    Look,
}

/// The highest jitter: a wait is up to a quarter shorter by it.
pub const MOST_JITTER: u32 = 1000;
/// Several jobs', or tenants', calls have failed. No encoded name is this.
const SEVERAL: &str = "*";

/// What an [`Event`] came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Failures in a row.
    pub failures: u64,
    /// It is open, or half-open.
    pub is_open: bool,
    /// The event opened it, or closed it.
    pub has_changed: bool,
    /// The probe that was asked for may be made.
    pub is_granted: bool,
    /// Until when nobody may start (milliseconds since the epoch), whatever the reason: the breaker, the API's own words, an operator; 0: now.
    pub closed_until_ms: u64,
    /// The same where the API itself, or an operator, said so.
    pub named_until_ms: u64,
    /// What closed it; empty where nothing did.
    pub by: String,
}

/// One breaker, as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Breaker {
    failures: u64,
    of: String,
    by: String,
    open: Option<Open>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    since_ms: u64,
    /// No probe before this.
    until_ms: u64,
    wait_ms: u64,
    /// When the probe in flight began; 0: there is none.
    began_ms: u64,
    lease_ms: u64,
}

impl Open {
    /// Returns true if a call that began at `started_ms` is the probe. Calls from before the breaker opened began earlier. A call that
    /// could not be prepared never starts: it is the probe if its preparation began while the breaker was half-open.
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
    /// Open or half-open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Failures in a row; somebody who succeeds is to report it if there are any.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Until when nobody may start; 0: now, though of an open one a single call may.
    pub fn closed_until(&self, now: u64) -> u64 {
        let Some(mut open) = self.open.clone() else {
            return 0;
        };
        open.pull_back(now);
        if open.until_ms > now {
            open.until_ms
        } else if open.lease_end() > now {
            // Who waits looks again before the lease of a lost probe ends.
            open.lease_end().min(now + open.wait_ms)
        } else {
            0
        }
    }

    /// Until when it has something to remember.
    pub fn kept_until(&self) -> u64 {
        let open = self.open.as_ref();
        open.map_or(0, |open| open.until_ms.max(open.lease_end()))
    }

    /// Why it is open, in words.
    pub fn by(&self) -> String {
        match &self.open {
            Some(_) => format!(
                "the breaker ({} failures in a row): {}",
                self.failures, self.by
            ),
            None => String::new(),
        }
    }

    /// The store's clock was stepped back: what lies too far ahead is brought back. True where something did.
    pub fn pull_back(&mut self, now: u64) -> bool {
        let Some(open) = &mut self.open else {
            return false;
        };
        let before = open.clone();
        open.pull_back(now);
        *open != before
    }

    /// A call starts while it is half-open: the probe.
    pub fn begin_probe(&mut self, now: u64) {
        if let Some(open) = &mut self.open {
            open.began_ms = now;
        }
    }

    /// A call that began at `started_ms` says nothing; nobody waits for it any more.
    pub fn release(&mut self, started_ms: u64) {
        if let Some(open) = &mut self.open
            && open.is_probe(started_ms)
        {
            open.began_ms = 0;
        }
    }

    /// A call that began at `started_ms` failed; the other arguments are [`Event::Failed`]'s. True where this opens it.
    pub fn failed(
        &mut self,
        now: u64,
        rule: &Rule,
        (started_ms, of): (u64, &str),
        by: &str,
        jitter: u32,
    ) -> bool {
        self.failures += 1;
        let until = |wait: u64| now + wait - wait * u64::from(jitter.min(MOST_JITTER)) / 4000;
        if let Some(open) = &mut self.open {
            if open.is_probe(started_ms) {
                open.wait_ms = (open.wait_ms * 2).min(rule.longest_wait_ms);
                open.until_ms = until(open.wait_ms);
                open.began_ms = 0;
                open.lease_ms = rule.lease_ms;
                by.clone_into(&mut self.by);
            }
            return false;
        }
        by.clone_into(&mut self.by);
        if of.is_empty() || !self.of.is_empty() && self.of != of {
            SEVERAL.clone_into(&mut self.of);
        } else {
            of.clone_into(&mut self.of);
        }
        if self.failures < u64::from(rule.failures) || self.of != SEVERAL {
            return false;
        }
        self.open = Some(Open {
            since_ms: now,
            until_ms: until(rule.first_wait_ms),
            wait_ms: rule.first_wait_ms,
            began_ms: 0,
            lease_ms: rule.lease_ms,
        });
        true
    }

    /// A call succeeded, or an operator says that it will. True where this closes it.
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

    /// Failures of `of`, each of a call that began at its time.
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
        assert_eq!(breaker.by(), "the breaker (3 failures in a row): 502");
    }

    #[test]
    fn a_preparation_that_fails_while_it_is_half_open_is_a_failed_probe() {
        let mut breaker = open();
        assert_eq!(breaker.closed_until(200), 1_103);
        breaker.failed(1_200, &RULE, (1_102, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_200), 0, "it began before");
        breaker.failed(1_250, &RULE, (0, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_250), 0, "surely no probe");
        breaker.failed(1_300, &RULE, (1_200, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_300), 3_300);
        breaker.failed(1_310, &RULE, (1_250, "a"), "no token", 0);
        assert_eq!(breaker.closed_until(1_310), 3_300, "once for all of them");
    }

    #[test]
    fn one_that_is_for_all_needs_failures_of_several() {
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
    fn one_probe_at_a_time_and_each_that_fails_doubles_the_wait() {
        let mut breaker = open();
        let (mut now, mut waits) = (1_103, Vec::new());
        for _ in 0..4 {
            assert_eq!(breaker.closed_until(now), 0, "half-open");
            breaker.begin_probe(now);
            assert!(breaker.closed_until(now) > now, "the others wait");
            assert!(breaker.closed_until(now) <= now + 3_000, "and look again");
            // Of before it opened.
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
