//! Jobs with the same dedupe key, and their possible violations.

use super::*;

const TWO: JobId = JobId::new(0, 2);
/// How long the key counts, in milliseconds.
const LASTS: u64 = 1_000;

impl Story {
    fn keyed(&mut self, ms: u64, job: JobId, twice: bool) {
        self.published(ms, job);
        let (key, lasts) = (7, LASTS * MS);
        let keyed = EventKind::Keyed {
            job,
            key,
            lasts,
            twice,
        };
        self.add(ms, keyed);
    }

    fn dropped(&mut self, ms: u64, job: JobId) {
        self.ends(ms, job, "duplicate", None);
    }

    fn done(&mut self, ms: u64, job: JobId) {
        self.called(ms, job, 1, DownstreamAnswer::Done);
        self.ends(ms + 6, job, "done", Some(200));
    }

    fn ends(&mut self, ms: u64, job: JobId, ended: &str, status: Option<u16>) {
        let (job, ended) = (Some(job), ended.to_owned());
        self.add(ms, EventKind::Told { job, ended, status });
    }
}

fn of(tell: impl FnOnce(&mut Story)) -> HistoryVerdict {
    let mut story = Story::new();
    tell(&mut story);
    story.verdict()
}

#[test]
fn one_job_is_called_and_its_duplicate_is_dropped() {
    let verdict = of(|story| {
        story.keyed(0, ONE, false);
        story.keyed(1, TWO, false);
        story.dropped(5, ONE);
        story.done(500, TWO);
    });
    assert!(verdict.holds(), "{:?}", verdict.findings);
    assert_eq!((verdict.done, verdict.dropped), (1, 1));
}

#[test]
fn both_jobs_are_called_only_after_the_key_expired_or_was_lost() {
    let both = |second: u64, called: u64, fault: Option<FaultKind>| {
        of(|story| {
            story.keyed(0, ONE, false);
            story.keyed(second, TWO, false);
            story.done(10, ONE);
            story.done(called, TWO);
            if let Some(kind) = fault {
                story.broken(5, 6, kind);
            }
        })
        .findings
    };
    let twice = |called: u64| {
        [Violation::Twice {
            jobs: (ONE, TWO),
            at: called * MS,
        }]
    };
    assert_eq!(both(1, 500, None), twice(500));
    assert_eq!(both(1, 999, None), twice(999));
    assert_eq!(both(1, 1_000, None), []);
    assert_eq!(both(1, 500, Some(FaultKind::RedisFlush)), []);
    // These faults make neither side forget anything.
    for kind in [
        FaultKind::RedisKill,
        FaultKind::WorkerKill,
        FaultKind::RabbitKill,
    ] {
        assert_eq!(both(1, 500, Some(kind)), twice(500), "{kind}");
    }
}

#[test]
fn jobs_of_other_tenants_and_keys_are_no_duplicates() {
    let other = JobId::new(1, 2);
    let findings = of(|story| {
        story.keyed(0, ONE, false);
        story.keyed(0, other, false);
        story.done(10, ONE);
        story.done(10, other);
    });
    assert!(findings.holds(), "{:?}", findings.findings);
    let dropped = of(|story| {
        story.keyed(0, ONE, false);
        story.keyed(0, other, false);
        story.done(10, ONE);
        story.dropped(500, other);
    });
    let lost = Violation::Lost {
        job: other,
        calls: 0,
    };
    assert!(dropped.findings.contains(&lost), "{:?}", dropped.findings);
}

#[test]
fn a_dropped_duplicate_has_another_job_that_continues() {
    let mistold = |ms: u64| Violation::WrongResult {
        at: ms * MS,
        job: Some(ONE),
        how: "duplicate None".to_owned(),
    };
    let lost = Violation::Lost { job: ONE, calls: 0 };
    // The key has no other job, or one without an end (which is lost itself), one that was
    // published later, or one whose time was over.
    let alone = of(|story| {
        story.keyed(0, ONE, false);
        story.dropped(5, ONE);
    });
    assert_eq!(alone.findings, [lost.clone(), mistold(5)]);
    let both = of(|story| {
        story.keyed(0, ONE, false);
        story.keyed(0, TWO, false);
        story.dropped(5, ONE);
        story.dropped(5, TWO);
    });
    assert!(both.findings.contains(&lost) && both.findings.len() == 4);
    let later = of(|story| {
        story.keyed(0, ONE, false);
        story.dropped(5, ONE);
        story.keyed(6, TWO, false);
        story.done(10, TWO);
    });
    assert_eq!(later.findings, [mistold(5)]);
    let over = |fault: Option<FaultKind>| {
        of(|story| {
            story.keyed(0, TWO, false);
            story.done(10, TWO);
            story.keyed(1_010, ONE, false);
            story.dropped(1_015, ONE);
            if let Some(kind) = fault {
                story.broken(500, 501, kind);
            }
        })
        .findings
    };
    assert_eq!(over(None), [lost, mistold(1_015)]);
    assert_eq!(over(Some(FaultKind::RedisClock)), [], "it counts longer");
}

#[test]
fn a_dead_letter_keeps_its_key_and_a_job_without_one_is_no_duplicate() {
    let rejected = of(|story| {
        story.keyed(0, ONE, false);
        story.keyed(0, TWO, false);
        story.dropped(5, ONE);
        story.called(10, TWO, 1, DownstreamAnswer::Rejected);
        story.ends(16, TWO, "dead", Some(422));
        let reason = "422".to_owned();
        story.add(9_000, EventKind::Dead { job: TWO, reason });
    });
    assert!(rejected.holds(), "{:?}", rejected.findings);
    let without = of(|story| {
        story.published(0, ONE);
        story.keyed(0, TWO, false);
        story.done(10, TWO);
        story.dropped(5, ONE);
    });
    assert_eq!(without.findings.len(), 2, "{:?}", without.findings);
}

#[test]
fn a_job_published_twice_is_called_twice_only_after_a_fault() {
    let twice = |fault: Option<FaultKind>, twice| {
        of(|story| {
            story.keyed(0, ONE, twice);
            story.done(10, ONE);
            story.called(500, ONE, 1, DownstreamAnswer::Done);
            if let Some(kind) = fault {
                story.broken(5, 6, kind);
            }
        })
        .findings
    };
    let repeated = [Violation::Repeated {
        job: ONE,
        at: 500 * MS,
    }];
    assert_eq!(twice(None, true), repeated);
    // Returning a job to the queue makes its second message look like the first.
    for kind in [
        FaultKind::WorkerRestart,
        FaultKind::RedisStop,
        FaultKind::RedisWipe,
    ] {
        assert_eq!(twice(Some(kind), true), [], "{kind}");
    }
    for kind in [
        FaultKind::DownstreamFar,
        FaultKind::RabbitMemory,
        FaultKind::WorkerConfig,
    ] {
        assert_eq!(twice(Some(kind), true), repeated, "{kind}");
    }
    assert_eq!(twice(Some(FaultKind::WorkerRestart), false), repeated);
    let dropped = of(|story| {
        story.keyed(0, ONE, true);
        story.done(10, ONE);
        story.dropped(500, ONE);
    });
    assert!(dropped.holds(), "{:?}", dropped.findings);
}
