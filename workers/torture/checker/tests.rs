//! Made-up histories: one that is whole, and one for each thing that can be wrong with it.

use super::*;
use crate::history::Answer;

const MS: u64 = 1_000_000;

/// 2 in 100 ms.
const RULES: Rules = Rules {
    window: 100 * MS,
    max_attempts: 3,
    windows_hold: true,
};

const ONE: Job = Job {
    tenant: 0,
    number: 1,
};

#[derive(Default)]
struct Story {
    events: Vec<Event>,
    calls: u64,
}

impl Story {
    fn new() -> Self {
        let mut story = Self::default();
        story.add(0, What::Limit { max: 2 });
        story
    }

    fn add(&mut self, ms: u64, what: What) {
        self.events.push(Event { at: ms * MS, what });
    }

    fn published(&mut self, ms: u64, job: Job) {
        self.add(ms, What::Publishing { job });
        self.add(ms, What::Confirmed { job });
    }

    fn called(&mut self, ms: u64, job: Job, attempt: u32, answer: Answer) {
        self.calls += 1;
        let call = self.calls;
        let arrived = What::Arrived {
            call,
            job,
            attempt,
            worker: 0,
            life: 1,
        };
        self.add(ms, arrived);
        self.add(ms + 5, What::Answered { call, answer });
    }

    fn broken(&mut self, from: u64, to: u64, kind: Kind) {
        let fault = from;
        let how = String::new();
        let worker = None;
        self.add(
            from,
            What::Broken {
                fault,
                kind,
                worker,
                how,
            },
        );
        self.add(to, What::Mended { fault });
    }

    fn verdict(mut self) -> Verdict {
        self.events.sort_by_key(|event| event.at);
        check(&self.events, RULES)
    }
}

/// Ten jobs of two tenants, each as early as its limit allows.
fn whole() -> Story {
    let mut story = Story::new();
    for number in 0..10 {
        let job = Job {
            tenant: number % 2,
            number,
        };
        story.published(0, job);
        story.called(u64::from(number / 4) * 100 + 1, job, 1, Answer::Done);
    }
    story
}

#[test]
fn a_whole_history_holds() {
    let verdict = whole().verdict();
    assert!(verdict.holds(), "{:?}", verdict.findings);
    assert_eq!((verdict.confirmed, verdict.done, verdict.dead), (10, 10, 0));
    assert_eq!((verdict.fullest, verdict.overfull), ((2, 2), 0));
}

#[test]
fn a_confirmed_job_that_never_ended_is_lost_and_an_unsure_one_is_not() {
    let mut story = whole();
    let (lost, unsure) = (
        Job {
            tenant: 5,
            number: 1,
        },
        Job {
            tenant: 5,
            number: 2,
        },
    );
    story.published(7, lost);
    story.called(8, lost, 1, Answer::Failed);
    story.add(7, What::Publishing { job: unsure });
    let verdict = story.verdict();
    assert_eq!(
        verdict.findings,
        [Finding::Lost {
            job: lost,
            calls: 1
        }]
    );
    assert_eq!((verdict.confirmed, verdict.unsure), (11, 1));
}

#[test]
fn one_call_too_many_in_a_window_is_found_to_the_nanosecond() {
    let window = |last: u64| {
        let mut story = Story::new();
        for (number, ms) in [(0, 0), (1, 60)] {
            let job = Job { tenant: 0, number };
            story.published(0, job);
            story.called(ms, job, 1, Answer::Done);
        }
        let job = Job {
            tenant: 0,
            number: 2,
        };
        story.published(0, job);
        let (call, worker) = (99, 0);
        let what = What::Arrived {
            call,
            job,
            attempt: 1,
            worker,
            life: 1,
        };
        story.events.push(Event { at: last, what });
        story.add(
            500,
            What::Answered {
                call,
                answer: Answer::Done,
            },
        );
        story.verdict()
    };
    assert!(window(100 * MS).holds());
    let early = 100 * MS - 1;
    let found = Finding::Overfull {
        tenant: 0,
        at: early,
        calls: 3,
        allowed: 2,
    };
    assert_eq!(window(early).findings, [found]);
}

#[test]
fn a_guard_counts_windows_and_a_strict_one_asserts_them() {
    let mut story = Story::new();
    for number in 0..3 {
        let job = Job { tenant: 0, number };
        story.published(0, job);
        story.called(1, job, 1, Answer::Done);
    }
    let rules = Rules {
        windows_hold: false,
        ..RULES
    };
    story.events.sort_by_key(|event| event.at);
    let verdict = check(&story.events, rules);
    assert!(verdict.holds());
    assert_eq!((verdict.overfull, verdict.fullest), (1, (3, 2)));
}

#[test]
fn the_larger_limit_counts_while_it_is_in_the_window() {
    let with = |lowered: u64| {
        let mut story = Story::new();
        story.add(10, What::Limit { max: 3 });
        story.add(lowered, What::Limit { max: 2 });
        for number in 0..3 {
            let job = Job { tenant: 0, number };
            story.published(0, job);
            story.called(200 + u64::from(number), job, 1, Answer::Done);
        }
        story.verdict().overfull
    };
    assert_eq!(with(103), 0);
    assert_eq!(with(102), 1);
}

#[test]
fn a_job_that_ran_again_needs_a_fault_in_its_life() {
    let again = |fault: Option<(u64, u64, Kind)>| {
        let mut story = Story::new();
        story.published(40_000, ONE);
        story.called(40_100, ONE, 1, Answer::Done);
        story.called(40_300, ONE, 1, Answer::Done);
        if let Some((from, to, kind)) = fault {
            story.broken(from, to, kind);
        }
        story.verdict()
    };
    let unexplained = [Finding::Repeated {
        job: ONE,
        at: 40_300 * MS,
    }];
    assert_eq!(again(None).findings, unexplained);
    // Not a kind that repeats jobs; too early; too late.
    for fault in [
        (40_200, 40_250, Kind::RedisKill),
        (40_200, 40_250, Kind::WorkerRestart),
        (0, 9_999, Kind::WorkerKill),
        (40_301, 40_400, Kind::WorkerKill),
    ] {
        assert_eq!(again(Some(fault)).findings, unexplained, "{fault:?}");
    }
    for (from, to) in [
        (40_200, 40_250),
        (40_000, 40_001),
        (0, 10_000),
        (39_000, 90_000),
    ] {
        let verdict = again(Some((from, to, Kind::WorkerKill)));
        assert!(verdict.holds(), "{:?}", verdict.findings);
        assert_eq!(verdict.repeated, BTreeMap::from([(Kind::WorkerKill, 1)]));
    }
}

#[test]
fn a_retry_is_no_repetition_and_its_attempts_are_counted() {
    let ends = [Answer::Failed, Answer::Cut, Answer::Done];
    let attempts = |numbers: [u32; 3]| {
        let mut story = Story::new();
        story.published(0, ONE);
        for (at, (attempt, answer)) in numbers.into_iter().zip(ends).enumerate() {
            story.called(at as u64 * 200, ONE, attempt, answer);
        }
        story.verdict()
    };
    assert!(attempts([1, 2, 3]).holds());
    // A worker that died forgot one.
    assert!(attempts([1, 1, 2]).holds());
    let of = |attempt, failures| {
        [Finding::Attempt {
            job: ONE,
            attempt,
            failures,
        }]
    };
    assert_eq!(attempts([1, 2, 4]).findings, of(4, 2));
    assert_eq!(attempts([1, 0, 2]).findings, of(0, 1));
}

#[test]
fn being_throttled_uses_no_attempt() {
    let mut story = Story::new();
    story.published(0, ONE);
    story.called(0, ONE, 1, Answer::Throttled);
    story.called(200, ONE, 2, Answer::Done);
    let found = Finding::Attempt {
        job: ONE,
        attempt: 2,
        failures: 0,
    };
    assert_eq!(story.verdict().findings, [found]);
}

#[test]
fn a_dead_letter_was_rejected_or_has_used_its_attempts() {
    let dead = |answers: &[Answer]| {
        let mut story = Story::new();
        story.published(0, ONE);
        for (at, answer) in answers.iter().enumerate() {
            story.called(at as u64 * 200, ONE, 1, *answer);
        }
        let reason = "why".to_owned();
        story.add(5000, What::Dead { job: ONE, reason });
        story.verdict()
    };
    assert!(dead(&[Answer::Rejected]).holds());
    assert!(dead(&[Answer::Failed; 3]).holds());
    let reason = "why".to_owned();
    let found = [Finding::Buried { job: ONE, reason }];
    assert_eq!(dead(&[Answer::Failed; 2]).findings, found);
    assert_eq!(dead(&[Answer::Throttled; 9]).findings, found);
    assert_eq!(dead(&[]).findings, found);
}

#[test]
fn strangers_and_workers_that_end_are_found() {
    let mut story = whole();
    let job = Job {
        tenant: 9,
        number: 9,
    };
    story.called(1, job, 1, Answer::Done);
    let how = "ended".to_owned();
    story.add(
        2,
        What::Failed {
            worker: 1,
            how: how.clone(),
        },
    );
    let verdict = story.verdict();
    assert!(!verdict.holds());
    let found = [
        Finding::Stranger { job },
        Finding::Worker { worker: 1, how },
    ];
    assert_eq!(verdict.findings, found);
}
