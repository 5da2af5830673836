//! Made-up histories: a correct one, and one for each possible violation.

mod cancels;
mod keys;
mod misses;
mod neighbors;
mod results;
mod starts;

use super::*;
use crate::history::DownstreamAnswer;

const MS: u64 = 1_000_000;

/// Rules for windows of 100 ms, each with two calls.
const RULES: CheckRules = CheckRules {
    window: 100 * MS,
    max_attempts: 3,
    breakers: false,
    windows_hold: true,
    forwards: false,
    closed: 100 * MS,
    results: false,
    neighbors: false,
};

const ONE: JobId = JobId::new(0, 1);

#[derive(Default)]
struct Story {
    events: Vec<HistoryEvent>,
    calls: u64,
}

impl Story {
    fn new() -> Self {
        let mut story = Self::default();
        story.add(0, EventKind::Limit { max: 2 });
        story
    }

    fn add(&mut self, ms: u64, what: EventKind) {
        self.events.push(HistoryEvent { at: ms * MS, what });
    }

    fn published(&mut self, ms: u64, job: JobId) {
        self.add(ms, EventKind::Publishing { job });
        self.add(ms, EventKind::Confirmed { job });
    }

    fn called(&mut self, ms: u64, job: JobId, attempt: u32, answer: DownstreamAnswer) {
        self.calls += 1;
        let call = self.calls;
        let arrived = EventKind::Arrived {
            call,
            job,
            attempt,
            worker: 0,
            life: 1,
        };
        self.add(ms, arrived);
        self.add(ms + 5, EventKind::Answered { call, answer });
    }

    fn broken(&mut self, from: u64, to: u64, kind: FaultKind) {
        let fault = from;
        let how = String::new();
        let worker = None;
        self.add(
            from,
            EventKind::Broken {
                fault,
                kind,
                worker,
                how,
            },
        );
        self.add(to, EventKind::Mended { fault });
    }

    /// Adds a fault that waits in vain.
    fn missed(&mut self, from: u64, to: u64, kind: FaultKind) {
        self.broken(from, to, kind);
        self.add(to - 1, EventKind::Missed { fault: from });
    }

    fn verdict(self) -> HistoryVerdict {
        self.verdict_by(RULES)
    }

    fn verdict_by(mut self, rules: CheckRules) -> HistoryVerdict {
        self.events.sort_by_key(|event| event.at);
        check(&self.events, rules)
    }
}

/// Returns a history with ten jobs of two tenants, each as early as its limit allows.
fn whole() -> Story {
    let mut story = Story::new();
    for number in 0..10 {
        let job = JobId::new(number % 2, number);
        story.published(0, job);
        story.called(
            u64::from(number / 4) * 100 + 1,
            job,
            1,
            DownstreamAnswer::Done,
        );
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
    let (lost, unsure) = (JobId::new(5, 1), JobId::new(5, 2));
    story.published(7, lost);
    story.called(8, lost, 1, DownstreamAnswer::Failed);
    story.add(7, EventKind::Publishing { job: unsure });
    let verdict = story.verdict();
    assert_eq!(
        verdict.findings,
        [Violation::Lost {
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
            let job = JobId::new(0, number);
            story.published(0, job);
            story.called(ms, job, 1, DownstreamAnswer::Done);
        }
        let job = JobId::new(0, 2);
        story.published(0, job);
        let (call, worker) = (99, 0);
        let what = EventKind::Arrived {
            call,
            job,
            attempt: 1,
            worker,
            life: 1,
        };
        story.events.push(HistoryEvent { at: last, what });
        story.add(
            500,
            EventKind::Answered {
                call,
                answer: DownstreamAnswer::Done,
            },
        );
        story.verdict()
    };
    assert!(window(100 * MS).holds());
    let early = 100 * MS - 1;
    let found = Violation::Overfull {
        tenant: 0,
        at: early,
        calls: 3,
        allowed: 2,
    };
    assert_eq!(window(early).findings, [found]);
}

#[test]
fn overfull_windows_are_counted_even_if_they_are_no_finding() {
    let mut story = Story::new();
    for number in 0..3 {
        let job = JobId::new(0, number);
        story.published(0, job);
        story.called(1, job, 1, DownstreamAnswer::Done);
    }
    let rules = CheckRules {
        windows_hold: false,
        ..RULES
    };
    story.events.sort_by_key(|event| event.at);
    let verdict = check(&story.events, rules);
    assert!(verdict.holds());
    assert_eq!((verdict.overfull, verdict.fullest), (1, (3, 2)));
    let verdict = check(&story.events, RULES);
    assert!(!verdict.holds());
    assert_eq!((verdict.overfull, verdict.fullest), (1, (3, 2)));
}

#[test]
fn the_larger_limit_counts_while_it_is_in_the_window() {
    let with = |lowered: u64| {
        let mut story = Story::new();
        story.add(10, EventKind::Limit { max: 3 });
        story.add(lowered, EventKind::Limit { max: 2 });
        for number in 0..3 {
            let job = JobId::new(0, number);
            story.published(0, job);
            story.called(200 + u64::from(number), job, 1, DownstreamAnswer::Done);
        }
        story.verdict().overfull
    };
    assert_eq!(with(103), 0);
    assert_eq!(with(102), 1);
}

#[test]
fn a_job_that_ran_again_needs_a_fault_in_its_life() {
    let again = |fault: Option<(u64, u64, FaultKind)>| {
        let mut story = Story::new();
        story.published(40_000, ONE);
        story.called(40_100, ONE, 1, DownstreamAnswer::Done);
        story.called(40_300, ONE, 1, DownstreamAnswer::Done);
        if let Some((from, to, kind)) = fault {
            story.broken(from, to, kind);
        }
        story.verdict()
    };
    let unexplained = [Violation::Repeated {
        job: ONE,
        at: 40_300 * MS,
    }];
    assert_eq!(again(None).findings, unexplained);
    // A kind that repeats no jobs; a fault too early; a fault too late.
    for fault in [
        (40_200, 40_250, FaultKind::RedisKill),
        (40_200, 40_250, FaultKind::WorkerRestart),
        (0, 9_999, FaultKind::WorkerKill),
        (40_301, 40_400, FaultKind::WorkerKill),
    ] {
        assert_eq!(again(Some(fault)).findings, unexplained, "{fault:?}");
    }
    for (from, to) in [
        (40_200, 40_250),
        (40_000, 40_001),
        (0, 10_000),
        (39_000, 90_000),
    ] {
        let verdict = again(Some((from, to, FaultKind::WorkerKill)));
        assert!(verdict.holds(), "{:?}", verdict.findings);
        assert_eq!(
            verdict.repeated,
            BTreeMap::from([(FaultKind::WorkerKill, 1)])
        );
    }
}

#[test]
fn a_forwarded_job_may_repeat_only_after_a_rabbitmq_fault() {
    let again = |kind, forwards| {
        let mut story = Story::new();
        story.published(0, ONE);
        story.called(100, ONE, 1, DownstreamAnswer::Done);
        story.broken(150, 160, kind);
        story.called(400, ONE, 1, DownstreamAnswer::Done);
        let rules = CheckRules { forwards, ..RULES };
        story.verdict_by(rules).findings
    };
    let at = 400 * MS;
    let repeated = [Violation::Repeated { job: ONE, at }];
    assert_eq!(again(FaultKind::RabbitMemory, true), []);
    assert_eq!(again(FaultKind::RabbitMemory, false), repeated);
    assert_eq!(again(FaultKind::RedisKill, true), repeated);
}

#[test]
fn a_retry_is_not_a_repetition_and_its_attempts_are_counted() {
    let ends = [
        DownstreamAnswer::Failed,
        DownstreamAnswer::Cut,
        DownstreamAnswer::Done,
    ];
    let attempts = |numbers: [u32; 3]| {
        let mut story = Story::new();
        story.published(0, ONE);
        for (at, (attempt, answer)) in numbers.into_iter().zip(ends).enumerate() {
            story.called(at as u64 * 200, ONE, attempt, answer);
        }
        story
    };
    // A worker that died forgot one failure, or two.
    for forgot in [[1, 1, 2], [1, 1, 1]] {
        let mut story = attempts(forgot);
        story.broken(100, 150, FaultKind::WorkerKill);
        assert!(story.verdict().holds());
    }
    // A failure uses no attempt while a breaker is open. Nothing else uses one.
    let breakers = CheckRules {
        breakers: true,
        ..RULES
    };
    assert!(attempts([1, 1, 2]).verdict_by(breakers).holds());
    assert!(!attempts([1, 3, 3]).verdict_by(breakers).holds());
    let attempts = |numbers| attempts(numbers).verdict();
    assert!(attempts([1, 2, 3]).holds());
    let of = |attempt, failures| {
        [Violation::Attempt {
            job: ONE,
            attempt,
            failures,
        }]
    };
    assert_eq!(attempts([1, 2, 4]).findings, of(4, 2));
    assert_eq!(attempts([1, 2, 2]).findings, of(2, 2));
    assert_eq!(attempts([1, 0, 3]).findings, of(0, 1));
}

#[test]
fn being_throttled_uses_no_attempt() {
    let mut story = Story::new();
    story.published(0, ONE);
    story.called(0, ONE, 1, DownstreamAnswer::Throttled);
    story.called(200, ONE, 2, DownstreamAnswer::Done);
    let found = Violation::Attempt {
        job: ONE,
        attempt: 2,
        failures: 0,
    };
    assert_eq!(story.verdict().findings, [found]);
}

#[test]
fn a_dead_letter_was_rejected_or_has_used_its_attempts() {
    let dead = |answers: &[DownstreamAnswer]| {
        let mut story = Story::new();
        story.published(0, ONE);
        let mut attempt = 1;
        for (at, answer) in answers.iter().enumerate() {
            story.called(at as u64 * 200, ONE, attempt, *answer);
            attempt += u32::from(answer.is_failure());
        }
        let reason = "why".to_owned();
        story.add(5000, EventKind::Dead { job: ONE, reason });
        story.verdict()
    };
    assert!(dead(&[DownstreamAnswer::Rejected]).holds());
    assert!(dead(&[DownstreamAnswer::Failed; 3]).holds());
    let reason = "why".to_owned();
    let found = [Violation::Buried { job: ONE, reason }];
    assert_eq!(dead(&[DownstreamAnswer::Failed; 2]).findings, found);
    assert_eq!(dead(&[DownstreamAnswer::Throttled; 9]).findings, found);
    assert_eq!(dead(&[]).findings, found);
}

#[test]
fn strangers_and_workers_that_end_are_found() {
    let mut story = whole();
    let job = JobId::new(9, 9);
    story.called(1, job, 1, DownstreamAnswer::Done);
    let how = "ended".to_owned();
    story.add(
        2,
        EventKind::Failed {
            worker: 1,
            how: how.clone(),
        },
    );
    let verdict = story.verdict();
    assert!(!verdict.holds());
    let found = [
        Violation::Stranger { job },
        Violation::Worker { worker: 1, how },
    ];
    assert_eq!(verdict.findings, found);
}

#[test]
fn a_dead_letter_has_a_reason() {
    let mut story = whole();
    story.published(0, ONE);
    story.called(0, ONE, 1, DownstreamAnswer::Rejected);
    let reason = " ".to_owned();
    story.add(9000, EventKind::Dead { job: ONE, reason });
    let verdict = story.verdict();
    assert!(verdict.findings.contains(&Violation::NoReason { job: ONE }));
}

#[test]
fn an_abandoned_call_needs_a_kill_or_a_timeout() {
    let left = |after: u64, fault: Option<FaultKind>| {
        let mut story = Story::new();
        story.published(0, ONE);
        story.called(1000, ONE, 1, DownstreamAnswer::Done);
        story.events.pop();
        let (call, answer) = (story.calls, DownstreamAnswer::Gone);
        story.add(1000 + after, EventKind::Answered { call, answer });
        story.called(9000, ONE, 2, DownstreamAnswer::Done);
        if let Some(kind) = fault {
            story.broken(900, 1100, kind);
        }
        story.verdict().findings
    };
    let at = 1040 * MS;
    let abandoned = [Violation::Abandoned { job: ONE, at }];
    assert_eq!(left(40, None), abandoned);
    for kind in [
        FaultKind::WorkerRestart,
        FaultKind::WorkerRolling,
        FaultKind::RedisKill,
    ] {
        assert_eq!(left(40, Some(kind)), abandoned, "{kind}");
    }
    for kind in [
        FaultKind::WorkerKill,
        FaultKind::KillAtCall,
        FaultKind::StopAtCall,
    ] {
        assert_eq!(left(40, Some(kind)), [], "{kind}");
    }
    assert_eq!(left(5000, None), []);
}

#[test]
fn a_run_without_confirms_proves_nothing() {
    assert_eq!(Story::new().verdict().findings, [Violation::Nothing]);
}

#[test]
fn a_job_arrives_as_it_was_published() {
    let mut story = whole();
    story.add(3, EventKind::Mangled { job: ONE });
    let found = [Violation::Mangled { job: ONE }];
    assert_eq!(story.verdict().findings, found);
}

#[test]
fn calls_that_continue_after_most_429s_are_found() {
    let rules = CheckRules {
        window: MS,
        closed: 1000 * MS,
        ..RULES
    };
    let went_on_beside = |after: [u64; 4], fault: Option<(u64, u64)>| {
        let mut story = Story::new();
        if let Some((from, to)) = fault {
            story.broken(from, to, FaultKind::RedisFlush);
        }
        for (tenant, after) in (0..).zip(after) {
            let job = |number| JobId::new(tenant, number);
            story.published(0, job(1));
            story.called(5000, job(1), 1, DownstreamAnswer::Throttled);
            story.called(7000, job(1), 1, DownstreamAnswer::Done);
            story.published(0, job(2));
            // The 429 was sent at 5005.
            story.called(5005 + after, job(2), 1, DownstreamAnswer::Done);
        }
        story.events.sort_by_key(|event| event.at);
        check(&story.events, rules)
    };
    let went_on = |after| went_on_beside(after, None);
    assert_eq!(went_on([500, 500, 20, 1]).closings, (4, 0));
    assert_eq!(went_on([1000; 4]).closings, (4, 0), "it is over");
    let verdict = went_on([501, 999, 20, 1500]);
    assert_eq!((verdict.closings, verdict.holds()), ((4, 2), true));
    let (closings, ignored) = (4, 3);
    let after = [501, 999, 700, 20];
    let found = [Violation::Ignored { closings, ignored }];
    assert_eq!(went_on(after).findings, found);
    // Redis forgot the 429s; it lost its data before them, or after the closing.
    assert_eq!(went_on_beside(after, Some((5100, 5200))).closings, (0, 0));
    assert_eq!(went_on_beside(after, Some((4000, 5004))).findings, found);
    assert_eq!(went_on_beside(after, Some((6006, 6100))).findings, found);
}
