//! The agreement of the workers on their limits, and its end. Without an agreement no job starts
//! here.

use std::sync::Arc;
use std::time::Duration;

use super::fitness::WantedJobs;
use gate::fleet::{AGREED_FOR_MS, EnforcedPolicies};
use rules::limit::Limits;
use rules::policy::Policy;
use rules::tenant::Tenant;

/// Time within which a new worker must agree with the others.
const FIRST_AGREEMENT_WITHIN: Duration = Duration::from_millis(AGREED_FOR_MS);

/// A change of the deliveries that the worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakingChange {
    /// Return all deliveries, for other workers, because no job may start here.
    Rest,
    /// Take deliveries, because jobs may start again.
    Take,
    /// Take a few deliveries, to find out whether this worker can make calls again.
    TakeFew,
}

/// The policies in force, and until when.
#[derive(Debug)]
pub struct Agreement {
    /// The worker's own policy and those of other workers.
    fleet: EnforcedPolicies,
    /// Until when the gate may be asked, or `None` if this worker needs no agreement.
    until: Option<Duration>,
    /// Which deliveries the worker takes now.
    taking: WantedJobs,
    /// Whether an operator paused all workers.
    paused: bool,
}

impl Agreement {
    /// Creates the agreement of a worker that needs none.
    pub fn alone(own: Policy) -> Self {
        Self {
            fleet: EnforcedPolicies::alone(Arc::new(own)),
            until: None,
            taking: WantedJobs::All,
            paused: false,
        }
    }

    /// Makes an agreement necessary: from now on, the gate may be asked only after
    /// [`Agreement::renew`].
    pub fn require(&mut self) {
        self.until = Some(Duration::ZERO);
    }

    /// Renews the agreement: `fleet` is in force (`None`: no change), and the gate may be asked
    /// until `until`.
    pub fn renew(&mut self, fleet: Option<EnforcedPolicies>, until: Duration) {
        if let Some(fleet) = fleet {
            self.fleet = fleet;
        }
        self.until = Some(until);
    }

    /// Returns the policy of this worker's own configuration.
    pub fn own(&self) -> &Policy {
        self.fleet.own()
    }

    /// Returns the limits in force for jobs of `tenant` that name `plan`.
    pub fn limits(&mut self, tenant: &Tenant, plan: Option<&str>) -> Limits {
        self.fleet.limits(tenant, plan)
    }

    /// Sets whether an operator has paused all workers.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Returns true if other workers and operators allow the gate to be asked.
    pub fn allows(&self, now: Duration) -> bool {
        !self.paused && self.until.is_none_or(|until| now < until)
    }

    /// Returns until when jobs may start, or `None` for forever.
    fn ends(&self) -> Option<Duration> {
        self.until.map(|until| until.max(FIRST_AGREEMENT_WITHIN))
    }

    /// Returns true if the worker needs an agreement and has had none yet.
    pub fn is_awaited(&self) -> bool {
        self.until == Some(Duration::ZERO)
    }

    /// Returns true if there is an agreement, or still time to reach the first one.
    pub fn stands(&self, now: Duration) -> bool {
        self.ends().is_none_or(|ends| now < ends)
    }

    /// Returns when nothing may start anymore unless the agreement is renewed.
    pub fn ends_after(&self, now: Duration) -> Option<Duration> {
        self.ends().filter(|ends| now < *ends)
    }

    /// Returns the change of the deliveries that is due. The worker takes none without an agreement
    /// or while all workers are paused, otherwise the `wanted` ones. It returns deliveries to their
    /// queues only when it is not `busy`: no message moves, and no call runs, which another worker
    /// would repeat.
    pub fn change(
        &mut self,
        now: Duration,
        busy: bool,
        wanted: WantedJobs,
    ) -> Option<TakingChange> {
        let wanted = match self.stands(now) && !self.paused {
            true => wanted,
            false => WantedJobs::Nothing,
        };
        match (self.taking, wanted) {
            (taking, wanted) if taking == wanted => None,
            (WantedJobs::Nothing, WantedJobs::Few) => {
                self.taking = WantedJobs::Few;
                Some(TakingChange::TakeFew)
            }
            (WantedJobs::Nothing, _) => {
                self.taking = WantedJobs::All;
                Some(TakingChange::Take)
            }
            // The jobs that are still here are enough to try with.
            (WantedJobs::All, WantedJobs::Few) => None,
            _ if busy => None,
            _ => {
                self.taking = WantedJobs::Nothing;
                Some(TakingChange::Rest)
            }
        }
    }

    /// Returns why the worker takes no deliveries, when [`Agreement::change`] ends them.
    pub fn rest_reason(&self, now: Duration) -> &'static str {
        if self.paused {
            "an operator paused all workers"
        } else if !self.stands(now) {
            "the workers have not agreed on the limits in time"
        } else {
            "this worker can't make calls"
        }
    }

    /// Returns true while the few jobs here must go back before the worker can take all that it
    /// wants.
    pub(super) fn is_giving_back(&self, wanted: WantedJobs) -> bool {
        self.taking == WantedJobs::Few && wanted == WantedJobs::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use rules::limit::Limit;

    fn agreement() -> Agreement {
        let limit = Limit::concurrent("running", 3).expect("in range");
        Agreement::alone(limit.into())
    }

    #[test]
    fn a_worker_alone_needs_no_agreement() {
        let mut alone = agreement();
        assert!(alone.allows(1000 * SECOND) && alone.stands(1000 * SECOND));
        assert!(!alone.is_awaited());
        assert_eq!(alone.ends_after(SECOND), None);
        assert_eq!(alone.change(1000 * SECOND, false, WantedJobs::All), None);
    }

    #[test]
    fn nothing_starts_before_a_required_agreement_and_jobs_are_held() {
        let mut fleet = agreement();
        fleet.require();
        assert!(!fleet.allows(SECOND) && fleet.stands(SECOND) && fleet.is_awaited());
        assert_eq!(
            fleet.change(SECOND, false, WantedJobs::All),
            None,
            "it may come"
        );
        let until = FIRST_AGREEMENT_WITHIN + SECOND;
        fleet.renew(None, until);
        assert!(
            fleet.allows(FIRST_AGREEMENT_WITHIN) && !fleet.allows(until) && !fleet.is_awaited()
        );
        assert_eq!(fleet.ends_after(SECOND), Some(until));
        assert_eq!(
            fleet.change(until, true, WantedJobs::All),
            None,
            "something runs"
        );
        assert_eq!(
            fleet.change(until, false, WantedJobs::All),
            Some(TakingChange::Rest)
        );
        assert!(fleet.rest_reason(until).contains("agreed"));
        assert_eq!(fleet.change(until, false, WantedJobs::All), None, "once");
        fleet.renew(None, until + SECOND);
        assert_eq!(
            fleet.change(until, true, WantedJobs::All),
            Some(TakingChange::Take)
        );
    }

    #[test]
    fn a_worker_returns_its_few_jobs_before_it_takes_all() {
        let mut alone = agreement();
        let mut change = |busy, wanted| alone.change(SECOND, busy, wanted);
        assert_eq!(change(true, WantedJobs::Nothing), None, "something runs");
        assert_eq!(change(false, WantedJobs::Nothing), Some(TakingChange::Rest));
        assert_eq!(change(false, WantedJobs::Few), Some(TakingChange::TakeFew));
        assert_eq!(change(true, WantedJobs::All), None, "something runs");
        assert!(alone.is_giving_back(WantedJobs::All));
        let mut change = |busy, wanted| alone.change(SECOND, busy, wanted);
        assert_eq!(change(false, WantedJobs::All), Some(TakingChange::Rest));
        assert_eq!(change(true, WantedJobs::All), Some(TakingChange::Take));
        assert_eq!(change(false, WantedJobs::All), None);
        assert!(!alone.is_giving_back(WantedJobs::All));
        assert!(alone.rest_reason(SECOND).contains("calls"));
        alone.pause(true);
        assert!(alone.rest_reason(SECOND).contains("paused"));
    }
}
