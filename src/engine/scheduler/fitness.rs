//! Whether this worker can make calls. A worker that can't, although others may be able to, returns
//! its jobs to their queues and tries a few of them from time to time.

use std::time::Duration;

use crate::rules::breaker::Rule;

/// Which deliveries a worker wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedJobs {
    /// None: the jobs are for other workers.
    Nothing,
    /// One from each queue, to try.
    Few,
    /// All that fit into memory.
    All,
}

/// The record of this worker's own calls.
#[derive(Debug)]
pub(super) struct Fitness {
    /// The breaker's rule, whose number of failures and pauses apply here, too. `None` if failures
    /// never stop calls.
    rule: Option<Rule>,
    /// Calls in a row that could not be made.
    failures: u32,
    /// `None` while the worker can make calls.
    unfit: Option<Unfitness>,
    /// Whether the API's breaker was open at the last look.
    was_open: bool,
}

#[derive(Debug)]
struct Unfitness {
    why: String,
    /// Duration of the next pause.
    pause: Duration,
    /// End of the current pause, or `None` while the worker tries.
    until: Option<Duration>,
}

impl Fitness {
    pub(super) fn new(rule: Option<Rule>) -> Self {
        Self {
            rule,
            failures: 0,
            unfit: None,
            was_open: false,
        }
    }

    /// Records a call that could not be made because the API was not reached. Returns true if the
    /// worker is unfit from now on.
    pub(super) fn failed(&mut self, now: Duration, why: &str) -> bool {
        self.failures = self.failures.saturating_add(1);
        let Some(rule) = self.rule.filter(|rule| self.failures >= rule.failures) else {
            return false;
        };
        let is_new = self.unfit.is_none();
        let unfit = self.unfit.get_or_insert_with(|| Unfitness {
            why: String::new(),
            pause: Duration::from_millis(rule.first_wait_ms),
            until: None,
        });
        why.clone_into(&mut unfit.why);
        if unfit.until.is_none() {
            unfit.until = Some(now + unfit.pause);
            let longest = Duration::from_millis(rule.longest_wait_ms);
            unfit.pause = (unfit.pause * 2).min(longest);
        }
        is_new
    }

    /// Records that a connection was opened or a call was answered. Returns true if the worker was
    /// unfit.
    pub(super) fn reached(&mut self) -> bool {
        self.failures = 0;
        self.unfit.take().is_some()
    }

    /// Begins a try when the pause is over, and at once when the API's breaker closes: another
    /// worker's call has succeeded.
    pub(super) fn update(&mut self, now: Duration, is_open: bool) {
        let has_closed = self.was_open && !is_open;
        self.was_open = is_open;
        if let Some(unfit) = &mut self.unfit {
            unfit.until = unfit.until.filter(|until| now < *until && !has_closed);
        }
    }

    /// Returns which deliveries the worker wants.
    pub(super) fn wants(&self) -> WantedJobs {
        match &self.unfit {
            None => WantedJobs::All,
            Some(unfit) if unfit.until.is_some() => WantedJobs::Nothing,
            Some(_) => WantedJobs::Few,
        }
    }

    /// Returns why the worker can't make calls, or `None` if it can.
    pub(super) fn unfit(&self) -> Option<&str> {
        self.unfit.as_ref().map(|unfit| unfit.why.as_str())
    }

    /// Returns when the current pause ends.
    pub(super) fn next(&self) -> Option<Duration> {
        self.unfit.as_ref()?.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const RULE: Rule = Rule {
        failures: 5,
        first_wait_ms: 1_000,
        longest_wait_ms: 30_000,
        lease_ms: 60_000,
    };

    fn unfit() -> Fitness {
        let mut fitness = Fitness::new(Some(RULE));
        let became: Vec<_> = (0..5).map(|_| fitness.failed(SECOND, "refused")).collect();
        assert_eq!(became, [false, false, false, false, true]);
        fitness
    }

    #[test]
    fn failures_in_a_row_make_a_worker_unfit_and_one_connection_makes_it_fit() {
        let mut fitness = Fitness::new(Some(RULE));
        for _ in 0..9 {
            (0..4).for_each(|_| assert!(!fitness.failed(SECOND, "refused")));
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
        assert!((0..100).all(|_| !fitness.failed(SECOND, "refused")));
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
            assert!(!fitness.failed(now, "refused"));
            assert_eq!(fitness.next(), Some(until));
            fitness.update(now, true);
            assert_eq!((fitness.wants(), fitness.next()), (WantedJobs::Few, None));
            // It waits for a job as long as there is none.
            now += 100 * SECOND;
            fitness.update(now, true);
            assert_eq!(fitness.wants(), WantedJobs::Few);
            assert!(!fitness.failed(now, "refused"));
            assert_eq!(fitness.wants(), WantedJobs::Nothing);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
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
