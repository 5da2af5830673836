//! Canceled jobs, and their possible violations.

use super::*;

/// Judges a job after a command that reported `state`. `tell` adds the outcome, with or without a fault.
fn of(state: &str, all_follow: bool, tell: impl FnOnce(&mut Story)) -> HistoryVerdict {
    let mut story = Story::new();
    story.published(0, ONE);
    story.add(5, EventKind::Canceling { job: ONE });
    let (job, state) = (ONE, state.to_owned());
    story.add(
        100,
        EventKind::Asked {
            job,
            said: state,
            all_follow,
        },
    );
    tell(&mut story);
    story.verdict()
}

fn buried(story: &mut Story) {
    let reason = "canceled by an operator".to_owned();
    story.add(9_000, EventKind::Dead { job: ONE, reason });
}

#[test]
fn a_canceled_job_is_a_dead_letter_or_was_called_before() {
    for state in ["canceled", "requested"] {
        let verdict = of(state, true, buried);
        assert!(verdict.holds(), "{:?}", verdict.findings);
        assert_eq!((verdict.dead, verdict.canceled), (1, (1, 1)));
    }
    for (state, at) in [("done", 6), ("running", 1_099)] {
        let called = of(state, true, |story| {
            story.called(at, ONE, 1, DownstreamAnswer::Done)
        });
        assert!(called.holds(), "{:?}", called.findings);
        assert_eq!(called.canceled, (0, 1));
    }
    let failed_before = of("running", true, |story| {
        story.called(50, ONE, 1, DownstreamAnswer::Failed);
        buried(story);
    });
    assert!(failed_before.holds(), "{:?}", failed_before.findings);
}

#[test]
fn a_canceled_job_is_not_called_once_all_workers_follow() {
    let called = |all_follow, fault: Option<FaultKind>| {
        of("requested", all_follow, |story| {
            story.called(1_101, ONE, 1, DownstreamAnswer::Done);
            if let Some(kind) = fault {
                story.broken(50, 60, kind);
            }
        })
        .findings
    };
    let at = 1_101 * MS;
    let after = [Violation::AfterCancel { job: ONE, at }];
    assert_eq!(called(true, None), after);
    assert_eq!(called(true, Some(FaultKind::WorkerKill)), after);
    assert_eq!(called(true, Some(FaultKind::RedisKill)), after);
    assert_eq!(called(true, Some(FaultKind::RedisWipe)), [], "nobody knew");
    assert_eq!(called(false, None), [], "one did not know yet");
}

#[test]
fn reported_cancellations_hold_and_no_job_has_both_outcomes() {
    let verdict = of("canceled", true, |story| {
        story.called(50, ONE, 1, DownstreamAnswer::Done);
    });
    assert_eq!(verdict.findings, [Violation::Uncanceled { job: ONE }]);
    let both = |fault: Option<FaultKind>| {
        of("requested", true, |story| {
            story.called(50, ONE, 1, DownstreamAnswer::Done);
            buried(story);
            if let Some(kind) = fault {
                story.broken(50, 60, kind);
            }
        })
        .findings
    };
    assert_eq!(both(None), [Violation::DoneAndCanceled { job: ONE }]);
    assert_eq!(
        both(Some(FaultKind::RedisKill)),
        [Violation::DoneAndCanceled { job: ONE }]
    );
    assert_eq!(both(Some(FaultKind::WorkerKill)), [], "a copy of it");
    let lost = of("requested", true, |_| {});
    let calls = 0;
    assert_eq!(lost.findings, [Violation::Lost { job: ONE, calls }]);
}

#[test]
fn only_jobs_named_by_an_operator_are_canceled() {
    let mut story = Story::new();
    story.published(0, ONE);
    buried(&mut story);
    let reason = "canceled by an operator".to_owned();
    let found = [Violation::Buried { job: ONE, reason }];
    assert_eq!(story.verdict().findings, found);
}
