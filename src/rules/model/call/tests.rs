//! Jobs that cost more than a limit that was lowered while they waited.

use std::time::Duration;

use crate::rules::decision::{Answer, Ask, Change, Ticket};
use crate::rules::limit::{Algorithm, Limit};
use crate::rules::model::State;
use crate::rules::usage::Clock;

const START: u64 = 1_700_000_000_000;

fn sliding(name: &str, max: u64, seconds: u64) -> Limit {
    let window = Duration::from_secs(seconds);
    Limit::new(name, Algorithm::SlidingWindow, max, window, Duration::ZERO).expect("in range")
}

/// A job, when it asks next, and when it started.
struct Job {
    ticket: Option<Ticket>,
    asks: u64,
    starts: Option<u64>,
}

/// The state, and jobs that ask when they were told to.
struct Backlog<'a> {
    limits: &'a [Limit],
    state: State,
    jobs: Vec<Job>,
}

impl<'a> Backlog<'a> {
    fn new(limits: &'a [Limit], jobs: usize) -> Self {
        let job = |_| Job {
            ticket: None,
            asks: START,
            starts: None,
        };
        Self {
            limits,
            state: State::default(),
            jobs: (0..jobs).map(job).collect(),
        }
    }

    fn ask(&mut self, index: usize, now: u64) {
        let limits = self.limits;
        let ask = Ask {
            ticket: self.jobs[index].ticket,
            cost: 2,
        };
        let clock = Clock::from_micros(now * 1000);
        let (answers, _) = self.state.alone(limits, |scopes| {
            scopes.ask(limits, clock, 1, "permit", &[ask])
        });
        let job = &mut self.jobs[index];
        match answers[0] {
            Answer::Wait { ttl_ms, ticket, .. } => {
                (job.ticket, job.asks) = (Some(ticket), now + ttl_ms);
            }
            Answer::Start { .. } => job.starts = Some(now),
            Answer::Capacity => unreachable!("one job asks at a time"),
        }
    }

    /// All that wait ask at `now`, as after an operator's change.
    fn wake(&mut self, now: u64) {
        for index in 0..self.jobs.len() {
            if self.jobs[index].starts.is_none() {
                self.ask(index, now);
            }
        }
    }

    /// Until all have started: when each did, in seconds since [`START`].
    fn run(&mut self) -> Vec<u64> {
        for _ in 0..1000 {
            let waiting = self.jobs.iter().enumerate();
            let waiting = waiting.filter(|(_, job)| job.starts.is_none());
            let Some((index, job)) = waiting.min_by_key(|(index, job)| (job.asks, *index)) else {
                break;
            };
            let at = job.asks;
            self.ask(index, at);
        }
        let started = |job: &Job| (job.starts.expect("it starts") - START) / 1000;
        self.jobs.iter().map(started).collect()
    }

    fn lower(&mut self, now: u64, name: &str) {
        let change = Change::Limit {
            name: name.to_owned(),
            max: 1,
            duration_ms: 86_400_000,
        };
        self.state.change(now, &change);
    }
}

#[test]
fn jobs_that_cost_more_than_a_lowered_limit_start_alone_in_their_order() {
    let limits = [sliding("default", 4, 10)];
    let mut backlog = Backlog::new(&limits, 8);
    backlog.wake(START);
    backlog.lower(START + 1000, "default");
    backlog.wake(START + 1000);
    let generation = backlog.state.waitlist.generation;
    assert_eq!(backlog.run(), [0, 0, 10, 20, 30, 40, 50, 60]);
    assert_eq!(backlog.state.waitlist.generation, generation);
}

#[test]
fn jobs_that_come_after_a_limit_was_lowered_start_in_their_order() {
    let limits = [sliding("second", 4, 1), sliding("minute", 5, 60)];
    let mut backlog = Backlog::new(&limits, 8);
    backlog.lower(START, "second");
    backlog.wake(START);
    let generation = backlog.state.waitlist.generation;
    assert_eq!(backlog.run(), [0, 1, 60, 61, 120, 121, 180, 181]);
    assert_eq!(backlog.state.waitlist.generation, generation);
}
