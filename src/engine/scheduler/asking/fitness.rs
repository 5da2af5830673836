//! Whether this worker can make calls. A worker that can't, although others may be able to, returns
//! its jobs to their queues and tries a few of them from time to time. If a try has no result,
//! perhaps because there are no jobs, it is followed by a test: the worker prepares a call, which
//! costs no permit.

use std::time::Duration;

use crate::action::JobKey;
use rules::failures::breaker::Rule;
use rules::job::Job;

/// How long a try may go on without a result before a test begins. Idle connections are closed
/// earlier (`pool::MAX_IDLE`, 4 s), so the test opens a new one.
const TEST_AFTER: Duration = Duration::from_secs(5);
/// Number of calls in a row whose failure ends a try. One is too few: the first job of each try may
/// be one whose host always fails, while jobs in another queue wait behind it forever.
const FAILURES_PER_TRY: u32 = 4;

/// Which deliveries a worker wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedJobs {
    /// None: the jobs are for other workers.
    Nothing,
    /// One from each queue, to try.
    Few,
    /// All that fit into memory.
    All,
}

/// The record of this worker's own calls.
#[derive(Debug)]
pub struct Fitness {
    /// The breaker's rule, whose number of failures and pauses apply here, too. `None` if failures
    /// never stop calls.
    rule: Option<Rule>,
    /// Calls in a row that could not be made.
    failures: u32,
    /// Whether the worker was unfit before the last failure.
    was_unfit: bool,
    /// `None` while the worker can make calls.
    unfit: Option<Unfitness>,
    /// The test in progress.
    test: Option<JobKey>,
    /// Whether the API's breaker was open at the last look.
    was_open: bool,
}

#[derive(Debug)]
struct Unfitness {
    why: String,
    /// The last job that failed. The next test prepares its call.
    job: Option<Job>,
    /// Duration of the next pause.
    pause: Duration,
    /// End of the current pause, or `None` while the worker tries.
    until: Option<Duration>,
    /// Number of failures that end the current try.
    failures_left: u32,
    /// When a test begins, unless the try has had a result.
    test_at: Duration,
}

impl Fitness {
    pub fn new(rule: Option<Rule>) -> Self {
        Self {
            rule,
            failures: 0,
            was_unfit: false,
            unfit: None,
            test: None,
            was_open: false,
        }
    }

    /// Sets the rule of later tries.
    pub fn set_rule(&mut self, rule: Option<Rule>) {
        self.rule = rule;
    }

    /// Records that the call of `job` could not be made because the API was not reached. `job` is
    /// `None` for a test, or if the job has left. Returns true if the worker is unfit from now on.
    pub fn failed(&mut self, now: Duration, why: &str, job: Option<Job>) -> bool {
        self.failures = self.failures.saturating_add(1);
        let is_new = self.unfit.is_none();
        self.was_unfit = !is_new;
        let applies = |rule: &Rule| !is_new || self.failures >= rule.failures;
        let Some(rule) = self.rule.filter(applies) else {
            return false;
        };
        let unfit = self.unfit.get_or_insert_with(|| Unfitness {
            why: String::new(),
            job: None,
            pause: Duration::from_millis(rule.first_wait_ms),
            until: None,
            failures_left: 1,
            test_at: now,
        });
        why.clone_into(&mut unfit.why);
        unfit.failures_left = match &job {
            Some(_) => unfit.failures_left.saturating_sub(1),
            None => 0,
        };
        unfit.test_at = now + TEST_AFTER;
        unfit.job = job.or(unfit.job.take());
        if unfit.until.is_none() && unfit.failures_left == 0 {
            unfit.until = Some(now + unfit.pause);
            let longest = Duration::from_millis(rule.longest_wait_ms);
            unfit.pause = (unfit.pause * 2).min(longest);
        }
        is_new
    }

    /// Records that a connection was opened or a call was answered. Returns true if the worker was
    /// unfit.
    pub fn reached(&mut self) -> bool {
        self.failures = 0;
        self.unfit.take().is_some()
    }

    /// Returns true if the last failure counts for all workers. Failures of a worker that is already
    /// unfit don't: they would keep the API's breaker open for workers that can make calls.
    pub fn counts_for_all(&self) -> bool {
        self.rule.is_none() || !self.was_unfit
    }

    /// Begins a try when the pause is over, and at once when the API's breaker closes: another
    /// worker's call has succeeded.
    pub fn update(&mut self, now: Duration, is_open: bool) {
        let has_closed = self.was_open && !is_open;
        self.was_open = is_open;
        if let Some(unfit) = &mut self.unfit
            && unfit.until.is_some_and(|until| until <= now || has_closed)
        {
            unfit.until = None;
            unfit.failures_left = FAILURES_PER_TRY;
            unfit.test_at = now + TEST_AFTER;
        }
    }

    /// Begins a test if it is due. Returns the job whose call is to be prepared, and the key for
    /// [`Fitness::ends_test`].
    pub fn begin_test(
        &mut self,
        now: Duration,
        new_key: impl FnOnce() -> JobKey,
    ) -> Option<(JobKey, Job)> {
        self.test_at().filter(|at| *at <= now)?;
        let job = self.unfit.as_ref()?.job.clone()?;
        Some((*self.test.insert(new_key()), job))
    }

    /// Returns true if `key` is the test in progress, which has ended.
    pub(super) fn ends_test(&mut self, key: JobKey) -> bool {
        self.test.take_if(|test| *test == key).is_some()
    }

    fn test_at(&self) -> Option<Duration> {
        let unfit = self.unfit.as_ref().filter(|_| self.test.is_none())?;
        (unfit.until.is_none() && unfit.job.is_some()).then_some(unfit.test_at)
    }

    /// Returns which deliveries the worker wants.
    pub fn wants(&self) -> WantedJobs {
        match &self.unfit {
            None => WantedJobs::All,
            Some(unfit) if unfit.until.is_some() => WantedJobs::Nothing,
            Some(_) => WantedJobs::Few,
        }
    }

    /// Returns why the worker can't make calls, or `None` if it can.
    pub fn unfit(&self) -> Option<&str> {
        self.unfit.as_ref().map(|unfit| unfit.why.as_str())
    }

    /// Returns when the current pause ends, or the next test begins.
    pub fn next(&self) -> Option<Duration> {
        let until = self.unfit.as_ref()?.until;
        until.or_else(|| self.test_at())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use rules::tenant::Tenant;

    const RULE: Rule = Rule {
        failures: 5,
        first_wait_ms: 1_000,
        longest_wait_ms: 30_000,
        lease_ms: 60_000,
    };

    fn job() -> Option<Job> {
        Some(Job::new("1", Tenant::parse("a").expect("a tenant"), ""))
    }

    fn unfit() -> Fitness {
        let mut fitness = Fitness::new(Some(RULE));
        let mut fails = || fitness.failed(SECOND, "refused", job());
        let became: Vec<_> = (0..5).map(|_| fails()).collect();
        assert_eq!(became, [false, false, false, false, true]);
        fitness
    }

    #[test]
    fn failures_in_a_row_make_a_worker_unfit_and_one_connection_makes_it_fit() {
        let mut fitness = Fitness::new(Some(RULE));
        for _ in 0..9 {
            (0..4).for_each(|_| assert!(!fitness.failed(SECOND, "refused", job())));
            assert!(!fitness.reached());
        }
        let mut fitness = unfit();
        assert_eq!(fitness.wants(), WantedJobs::Nothing);
        assert_eq!(fitness.unfit(), Some("refused"));
        assert!(fitness.reached() && !fitness.reached());
        assert_eq!((fitness.wants(), fitness.unfit()), (WantedJobs::All, None));
    }

    #[test]
    fn without_breakers_failures_stop_nothing() {
        let mut fitness = Fitness::new(None);
        assert!((0..100).all(|_| !fitness.failed(SECOND, "refused", job())));
        assert_eq!(fitness.wants(), WantedJobs::All);
    }

    #[test]
    fn pauses_between_tries_double_up_to_a_bound() {
        let mut fitness = unfit();
        let (mut now, mut pauses) = (SECOND, Vec::new());
        for _ in 0..7 {
            let until = fitness.next().expect("a pause");
            pauses.push((until - now).as_secs());
            now = until;
            // A call that began before the pause changes nothing.
            assert!(!fitness.failed(now, "refused", job()));
            assert_eq!(fitness.next(), Some(until));
            fitness.update(now, true);
            assert_eq!(fitness.wants(), WantedJobs::Few);
            // A try goes on until a job arrives.
            now += 100 * SECOND;
            fitness.update(now, true);
            for _ in 0..FAILURES_PER_TRY {
                assert_eq!(fitness.wants(), WantedJobs::Few);
                assert!(!fitness.failed(now, "refused", job()));
            }
            assert_eq!(fitness.wants(), WantedJobs::Nothing);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_try_without_a_result_is_followed_by_one_test_at_a_time() {
        let mut fitness = unfit();
        let begins = |fitness: &mut Fitness, now, key| {
            let test = fitness.begin_test(now, || JobKey(key));
            test.map(|(key, _)| key)
        };
        let mut now = fitness.next().expect("a pause");
        assert_eq!(begins(&mut fitness, 100 * SECOND, 1), None, "it pauses");
        fitness.update(now, true);
        let first = fitness.next().expect("a test");
        assert_eq!(begins(&mut fitness, first - SECOND, 1), None, "it tries");
        let test = begins(&mut fitness, first, 1).expect("it is due");
        assert_eq!(fitness.next(), None);
        assert_eq!(begins(&mut fitness, 100 * SECOND, 2), None);
        // Jobs end the try; the test is in progress still.
        for _ in 0..FAILURES_PER_TRY {
            assert!(!fitness.failed(first, "refused", job()));
        }
        now = fitness.next().expect("a pause");
        fitness.update(now, true);
        assert_eq!(begins(&mut fitness, 100 * SECOND, 2), None);
        assert!(fitness.ends_test(test) && !fitness.ends_test(test));
        assert!(!fitness.failed(now, "refused", None), "the test");
        now = fitness.next().expect("a pause");
        fitness.update(now, true);
        // A job that fails postpones the test.
        assert!(!fitness.failed(now + SECOND, "refused", job()));
        assert_eq!(begins(&mut fitness, now + TEST_AFTER, 3), None);
        let due = now + SECOND + TEST_AFTER;
        assert!(begins(&mut fitness, due, 3).is_some());
        assert!(fitness.reached());
    }

    #[test]
    fn a_try_of_a_worker_that_was_unfit_under_a_stricter_rule_ends_as_well() {
        let mut fitness = unfit();
        fitness.set_rule(Some(Rule {
            failures: 1_000,
            ..RULE
        }));
        let now = fitness.next().expect("a pause");
        fitness.update(now, true);
        let now = fitness.next().expect("a test");
        let (test, _) = fitness.begin_test(now, || JobKey(1)).expect("it is due");
        assert!(fitness.ends_test(test));
        assert!(!fitness.failed(now, "refused", None), "it was unfit before");
        assert!(!fitness.counts_for_all());
        assert_eq!(fitness.wants(), WantedJobs::Nothing);
        assert!(fitness.next().is_some_and(|at| at > now), "a pause follows");
    }

    #[test]
    fn another_workers_call_that_succeeds_begins_a_try() {
        let mut fitness = unfit();
        fitness.update(SECOND, true);
        assert_eq!(fitness.wants(), WantedJobs::Nothing);
        fitness.update(SECOND, false);
        assert_eq!(fitness.wants(), WantedJobs::Few);
    }
}
