//! Decides when to give up a run whose jobs are not all done: its time is over, no job ends any
//! more, or it has taken too much work.

use std::time::Duration;

use crate::environment::micros;
use crate::forms::MAX_DURATION;
use crate::history::{EarlyEnd, StopReason};
use crate::jobs::SimulatedJob;
use crate::run::RunSetup;

/// Minimum time without an ended job before a run is given up. Longer than any single call.
const MIN_IDLE_TIME: Duration = Duration::from_secs(3_600);
/// A run waits for jobs to be given up (`retry.give-up-after`) if that takes no longer than this.
const MAX_GIVE_UP_WAIT: Duration = Duration::from_secs(86_400);
/// Base of the maximum number of calls and deliveries.
const BASE_WORK: u64 = 10_000;
/// Calls and deliveries added to that maximum for each job.
const WORK_PER_JOB: u64 = 1_000;
/// Minimum interval between two checks whether the run is over; applies while jobs end.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum interval between two checks.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Headers with which a job sets its own start time.
const STARTS_LATER: [&str; 2] = ["x-delay", "x-not-before"];

/// Returns the number of calls and deliveries that a run of `jobs` jobs may take.
pub fn work_of(jobs: usize) -> u64 {
    BASE_WORK + WORK_PER_JOB.saturating_mul(jobs as u64)
}

/// The state of a run at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunState {
    /// Time since the beginning of the run.
    pub at: Duration,
    /// Jobs that are done or dead letters.
    pub ended: usize,
    /// Published jobs that are neither.
    pub waiting: usize,
    /// Calls and deliveries so far.
    pub work: u64,
}

/// Decides how long a run goes on.
pub(crate) struct StopRule {
    max: Duration,
    still: Duration,
    work: u64,
    /// Number of jobs that had ended at the last check.
    ended: usize,
    /// When that number last changed. While no job waits, the time of the last check.
    since: Duration,
}

impl StopRule {
    /// Derives the bounds from the setup and the jobs of a run.
    pub fn new(setup: &RunSetup<'_>, jobs: &[SimulatedJob]) -> Self {
        let config = setup.config;
        let limits = &config.rate_limiter;
        let windows = setup.api.limits.iter().map(|limit| limit.window);
        let window = windows.max().unwrap_or_default();
        let breaker = config.dispatch.breaker.as_ref();
        let breaker = breaker.map_or(Duration::ZERO, |breaker| breaker.max_interval);
        // The sum of all waits that end by themselves. Windows count twice, since other jobs may
        // use up the first one.
        let waits = 2 * (limits.policy.memory() + window)
            + limits.max_throttle.min(window)
            + config.delay.max_delay
            + config.retry.max_interval
            + breaker;
        let gives_up = config.retry.give_up_after;
        let gives_up = Some(gives_up).filter(|after| *after <= MAX_GIVE_UP_WAIT);
        let later = |job: &SimulatedJob| STARTS_LATER.iter().any(|it| job.header.contains_key(*it));
        let still = match config.job.deadline.is_some() || jobs.iter().any(later) {
            // Start times and deadlines of single jobs may be up to this far away.
            true => MAX_DURATION,
            false => MIN_IDLE_TIME + waits.max(gives_up.unwrap_or_default()),
        };
        Self {
            max: setup.max,
            still,
            work: setup.work,
            ended: 0,
            since: Duration::ZERO,
        }
    }

    /// Returns the reason if the run is over.
    pub fn over(&mut self, state: RunState) -> Option<EarlyEnd> {
        if state.ended > self.ended || state.waiting == 0 {
            self.ended = self.ended.max(state.ended);
            self.since = state.at;
        }
        let why = if state.at >= self.max {
            StopReason::Within
        } else if state.at - self.since >= self.still {
            StopReason::Still
        } else if state.work > self.work {
            StopReason::Work(state.work)
        } else {
            return None;
        };
        Some(EarlyEnd {
            at_us: micros(state.at),
            since_us: micros(self.since),
            why,
        })
    }

    /// Returns how long to wait before the next check.
    pub fn pause(&self, now: Duration) -> Duration {
        let pause =
            (now.saturating_sub(self.since) / 8).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL);
        pause.min(self.max.saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiModel;
    use config::Config;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn state(at: Duration, ended: usize, work: u64) -> RunState {
        RunState {
            at,
            ended,
            waiting: 1,
            work,
        }
    }

    fn rule(yaml: &str, jobs: &[SimulatedJob]) -> StopRule {
        let config = Config::parse("a.yaml", yaml, std::iter::empty()).expect("valid");
        let setup = RunSetup {
            config: &config,
            workers: 1,
            api: ApiModel::default(),
            redis: Duration::ZERO,
            seed: 1,
            max: 72 * HOUR,
            work: work_of(2),
        };
        StopRule::new(&setup, jobs)
    }

    #[test]
    fn a_run_ends_without_progress_or_at_its_time_or_work_limit() {
        let mut run = rule("", &[]);
        assert_eq!(run.over(state(HOUR, 1, 5)), None);
        let left = run.over(state(4 * HOUR, 1, 5)).expect("three hours");
        assert_eq!(left.why, StopReason::Still);
        assert_eq!((left.since_us, left.at_us), (3_600_000_000, 14_400_000_000));
        assert_eq!(run.over(state(4 * HOUR, 2, 5)), None, "one more has ended");
        let nobody = RunState {
            waiting: 0,
            ..state(30 * HOUR, 2, 5)
        };
        assert_eq!(run.over(nobody), None, "nobody waits");
        let why = |left: Option<EarlyEnd>| left.map(|left| left.why);
        assert_eq!(
            why(run.over(state(30 * HOUR, 2, 12_001))),
            Some(StopReason::Work(12_001))
        );
        assert_eq!(
            why(run.over(state(72 * HOUR, 3, 5))),
            Some(StopReason::Within)
        );
    }

    #[test]
    fn long_windows_and_delays_are_waited_for() {
        let day = "rate-limiter: {max-requests: 1, window-size: 1d}";
        assert_eq!(rule(day, &[]).over(state(48 * HOUR, 0, 5)), None);
        let gives_up = "retry: {give-up-after: 10h}";
        assert_eq!(rule(gives_up, &[]).over(state(10 * HOUR, 0, 5)), None);
        let mut later = SimulatedJob::new(0.0, "a");
        let delay = crate::jobs::Text::Number(1);
        later.header.insert("x-delay".to_owned(), delay);
        assert_eq!(rule("", &[later]).over(state(70 * HOUR, 0, 5)), None);
    }

    #[test]
    fn checks_become_rarer_without_progress_but_never_pass_the_end() {
        let run = rule("", &[]);
        assert_eq!(run.pause(Duration::ZERO), MIN_CHECK_INTERVAL);
        assert_eq!(run.pause(HOUR), MAX_CHECK_INTERVAL);
        let second = Duration::from_secs(1);
        assert_eq!(run.pause(72 * HOUR - second), second);
    }
}
