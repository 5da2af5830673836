//! The strict API's records and decisions, with zero tolerance and by its own clock. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use hyper::StatusCode;
use rules::limit::{Algorithm, Limit};

use super::scenario::CLOSED;
use super::workload::{DemoJob, Workload};

/// One call as the API saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The job of the call.
    pub job: DemoJob,
    /// The value of `x-attempt`, or 0 if it was not readable.
    pub attempt: u32,
    /// Nanoseconds since the API started, on its monotonic clock.
    pub mono_ns: u64,
    /// Nanoseconds since the Unix epoch, on its wall clock.
    pub wall_ns: u64,
    /// The status of its answer.
    pub status: u16,
    /// The reason, if the answer was 429.
    pub refused: Option<RefusalReason>,
}

/// The reason why a call was answered with 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// A limit was exceeded.
    Exceeded,
    /// The scenario throttles the tenant from now on.
    Closing,
    /// The tenant had been throttled for this many nanoseconds.
    Closed(u64),
}

/// The progress of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantProgress {
    /// Jobs with a final answer, 2xx or 422, each counted once.
    pub settled: usize,
    /// Calls answered with 429.
    pub throttled: usize,
}

/// The calls that count against one limit of one tenant.
#[derive(Debug, Clone, Default)]
struct Recent {
    calls: VecDeque<(u64, u64)>,
    units: u64,
}

impl Recent {
    /// Counts a call. Returns by how much it came too early, or 0 if it did not.
    fn arrive(&mut self, limit: &Limit, now: u64, units: u64) -> u64 {
        let window = limit.window_ms() * 1_000_000;
        let leaves = |start: u64| match limit.algorithm() {
            Algorithm::FixedWindow => (start / window + 1) * window,
            // `--algo` accepts only the two windows.
            _ => start + window,
        };
        while let Some(&(start, used)) = self.calls.front()
            && leaves(start) <= now
        {
            self.units -= used;
            self.calls.pop_front();
        }
        let mut above = (self.units + units).saturating_sub(limit.max());
        let mut wait = 0;
        for (start, used) in &self.calls {
            if above == 0 {
                break;
            }
            above = above.saturating_sub(*used);
            wait = leaves(*start) - now;
        }
        self.calls.push_back((now, units));
        self.units += units;
        wait
    }
}

/// One tenant at the API.
#[derive(Debug, Clone, Default)]
struct Account {
    /// One entry per limit.
    recent: Vec<Recent>,
    /// Calls while the tenant was open.
    calls: usize,
    /// When the tenant was throttled, and until when.
    closed: (u64, u64),
    progress: TenantProgress,
}

/// All arrivals.
#[derive(Debug)]
pub struct ArrivalLedger {
    plan: Workload,
    arrivals: Vec<Arrival>,
    /// Calls that named no job of the demo, or came when [`Self::has_room`] returned false.
    strangers: usize,
    accounts: Vec<Account>,
    settled: Vec<bool>,
}

impl ArrivalLedger {
    /// Creates an empty ledger.
    pub fn new(plan: Workload) -> Self {
        let account = Account {
            recent: vec![Recent::default(); plan.limits.len()],
            ..Account::default()
        };
        Self {
            arrivals: Vec::with_capacity(plan.total()),
            strangers: 0,
            accounts: vec![account; plan.tenants],
            settled: vec![false; plan.total()],
            plan,
        }
    }

    /// Returns the workload.
    pub fn plan(&self) -> &Workload {
        &self.plan
    }

    /// Returns each tenant's progress.
    pub fn progress(&self) -> Vec<TenantProgress> {
        self.accounts
            .iter()
            .map(|account| account.progress)
            .collect()
    }

    /// Returns the number of the last arrival, from 0.
    pub fn last(&self) -> usize {
        self.arrivals.len().saturating_sub(1)
    }

    /// Returns all arrivals so far, in order, and the number of strangers.
    pub fn arrivals(&self) -> (Vec<Arrival>, usize) {
        (self.arrivals.clone(), self.strangers)
    }

    /// Counts a call that names no job of the demo.
    pub fn stranger(&mut self) {
        self.strangers += 1;
    }

    /// Returns true if another arrival can be recorded. A faulty demo must not fill the memory.
    pub fn has_room(&self) -> bool {
        self.arrivals.len() < 4 * self.plan.total() + 1000
    }

    /// Records a call and decides its answer: a status and, with 429, the time to wait.
    pub fn arrive(
        &mut self,
        job: DemoJob,
        attempt: u32,
        mono_ns: u64,
        wall_ns: u64,
    ) -> (u16, Duration) {
        let account = &mut self.accounts[job.tenant];
        let actual = self.plan.cost(job).actual;
        let mut wait = 0;
        for (limit, recent) in self.plan.limits.iter().zip(&mut account.recent) {
            let now = match limit.algorithm() {
                Algorithm::FixedWindow => wall_ns,
                _ => mono_ns,
            };
            wait = wait.max(recent.arrive(limit, now, limit.unit().of(actual)));
        }
        let (since, until) = account.closed;
        let each = self.plan.scenario.closes_each(self.plan.limit().max());
        let refused = if mono_ns < until {
            wait = wait.max(until - mono_ns);
            Some(RefusalReason::Closed(mono_ns - since))
        } else if wait > 0 {
            Some(RefusalReason::Exceeded)
        } else {
            account.calls += 1;
            let closes = each.is_some_and(|each| account.calls.is_multiple_of(each));
            closes.then(|| {
                let for_ns = CLOSED.as_nanos() as u64;
                account.closed = (mono_ns, mono_ns + for_ns);
                wait = for_ns;
                RefusalReason::Closing
            })
        };
        let status = match (refused, self.plan.rejected(job)) {
            (Some(_), _) => StatusCode::TOO_MANY_REQUESTS,
            (None, true) => StatusCode::UNPROCESSABLE_ENTITY,
            (None, false) => StatusCode::OK,
        };
        if refused.is_some() {
            account.progress.throttled += 1;
        } else if !std::mem::replace(&mut self.settled[self.plan.id(job)], true) {
            account.progress.settled += 1;
        }
        let status = status.as_u16();
        self.arrivals.push(Arrival {
            job,
            attempt,
            mono_ns,
            wall_ns,
            status,
            refused,
        });
        (status, Duration::from_nanos(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scenario::Scenario;
    use trial::windows;

    const MS: u64 = 1_000_000;

    fn ledger(scenario: Scenario, algorithm: Algorithm, max: u32) -> ArrivalLedger {
        let (second, guard) = (Duration::from_secs(1), Duration::from_millis(50));
        let limits = scenario.limits(algorithm, max, second, guard);
        ArrivalLedger::new(Workload {
            tenants: 2,
            jobs: 100,
            limits: limits.expect("limits"),
            workers: 1,
            scenario,
            pipeline: None,
        })
    }

    fn answers(ledger: &mut ArrivalLedger, tenant: usize, times_ms: &[u64]) -> Vec<(u16, u64)> {
        let calls = times_ms.iter().enumerate().map(|(number, ms)| {
            let (status, wait) = ledger.arrive(DemoJob { tenant, number }, 1, ms * MS, ms * MS);
            (status, wait.as_millis() as u64)
        });
        calls.collect()
    }

    #[test]
    fn a_sliding_limit_is_kept_to_the_nanosecond_for_each_tenant() {
        let mut ledger = ledger(Scenario::Limit, Algorithm::SlidingWindow, 2);
        let expected = [(200, 0), (200, 0), (429, 1), (200, 0)];
        assert_eq!(answers(&mut ledger, 0, &[0, 500, 999, 1500]), expected);
        assert_eq!(answers(&mut ledger, 1, &[1500, 1500]), [(200, 0), (200, 0)]);
        let progress = ledger.progress();
        assert_eq!((progress[0].settled, progress[0].throttled), (3, 1));
        assert_eq!((progress[1].settled, progress[1].throttled), (2, 0));
    }

    #[test]
    fn a_fixed_limit_resets_at_the_window_edge() {
        let mut ledger = ledger(Scenario::Limit, Algorithm::FixedWindow, 2);
        let expected = [(200, 0), (200, 0), (429, 1), (200, 0), (200, 0), (429, 999)];
        assert_eq!(
            answers(&mut ledger, 0, &[998, 998, 999, 1000, 1001, 1001]),
            expected
        );
    }

    #[test]
    fn all_limits_count_and_the_longest_wait_is_returned() {
        let mut ledger = ledger(Scenario::Limits, Algorithm::SlidingWindow, 2);
        // 2 in 1 s, 8 in 10 s.
        let times: Vec<u64> = (0..8).map(|n| n / 2 * 1000).collect();
        assert!(
            answers(&mut ledger, 0, &times)
                .iter()
                .all(|answer| *answer == (200, 0))
        );
        let expected = [(429, 6000), (429, 1000)];
        assert_eq!(
            answers(&mut ledger, 0, &[4000, 9999]),
            [expected[0], (429, 1)]
        );
        assert_eq!(answers(&mut ledger, 1, &[0, 0, 0])[2], expected[1]);
    }

    #[test]
    fn actual_costs_count() {
        let mut ledger = ledger(Scenario::Costs, Algorithm::SlidingWindow, 20);
        let used = |ledger: &ArrivalLedger, numbers: std::ops::Range<usize>| -> u64 {
            let cost = |number| ledger.plan.cost(DemoJob { tenant: 0, number });
            numbers.map(|n| cost(n).actual).sum()
        };
        // 2000 tokens: large jobs, until one does not fit.
        let fitting = (50..100).take_while(|n| used(&ledger, 50..n + 1) <= 2000);
        let last = fitting.last().expect("some fit");
        for number in 50..=last {
            assert_eq!(ledger.arrive(DemoJob { tenant: 0, number }, 1, 0, 0).0, 200);
        }
        let number = last + 1;
        assert_eq!(ledger.arrive(DemoJob { tenant: 0, number }, 1, 0, 0).0, 429);
    }

    #[test]
    fn a_penalty_closes_only_its_tenant_and_is_distinguished() {
        let mut ledger = ledger(Scenario::Throttling, Algorithm::SlidingWindow, 1);
        // Every second call.
        let expected = [(200, 0), (429, 2000), (429, 1500), (200, 0)];
        let times = [0, 1000, 1500, 3000];
        assert_eq!(answers(&mut ledger, 0, &times), expected);
        assert_eq!(answers(&mut ledger, 1, &[2500]), [(200, 0)]);
        let refused: Vec<_> = ledger.arrivals.iter().filter_map(|a| a.refused).collect();
        assert_eq!(
            refused,
            [RefusalReason::Closing, RefusalReason::Closed(500 * MS)]
        );
    }

    #[test]
    fn answered_429s_match_the_checkers_count() {
        let mut ledger = ledger(Scenario::Limit, Algorithm::SlidingWindow, 2);
        let times: Vec<u64> = (0..90).map(|n| n * n % 97 + n * 400).collect();
        let refused = answers(&mut ledger, 0, &times)
            .iter()
            .filter(|(status, _)| *status == 429)
            .count();
        assert!(refused > 0);
        let arrivals: Vec<_> = times.iter().map(|time| (*time, 1)).collect();
        let above = windows::sliding(&arrivals, 1000)
            .into_iter()
            .filter(|n| *n > 2);
        assert_eq!(refused, above.count());
    }

    #[test]
    fn the_last_job_is_rejected_and_a_repeated_one_settles_once() {
        let mut ledger = ledger(Scenario::Limit, Algorithm::SlidingWindow, 2);
        let last = DemoJob {
            tenant: 0,
            number: 99,
        };
        assert_eq!(ledger.arrive(last, 1, 0, 0).0, 422);
        assert_eq!(ledger.arrive(last, 1, 1, 1).0, 422);
        assert_eq!(ledger.progress()[0].settled, 1);
        assert_eq!(ledger.arrivals().0.len(), 2);
    }
}
