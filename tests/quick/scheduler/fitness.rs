//! The scheduler of a worker that can't make calls.

use broker::{DeliverySource, PublishError};
use gate::Standing;
use handler::{Attempt, Trouble};
use kit::SECOND;

use crate::scheduler::breaker::{attempt_of, closed, desk, granted, open, unwritten, words};
use crate::scheduler::{CAPACITY, Desk, Done, MS, retry};

fn refused() -> Attempt {
    unwritten(retry("no connection"), Some(Trouble::Unreachable))
}

/// Returns a scheduler that has returned its jobs because it can't make calls.
fn unfit() -> Desk {
    unfit_with(closed)
}

/// Like [`unfit`], with a function from the number of failures to the state of the API's breaker.
fn unfit_with(standing: impl Fn(u64) -> Standing) -> Desk {
    let mut desk = desk();
    desk.ready = 0;
    for failures in 1..=5 {
        desk.deliver(DeliverySource::Fresh, &["a"]);
        let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
        desk.prepared(key, Err(refused()));
        desk.step(MS);
        // No call was made, so no attempt is used, though no breaker is open.
        let done = desk.answer_reports(vec![standing(failures)]);
        if standing(failures).is_open {
            break;
        }
        assert_eq!(attempt_of(&done), 1);
        let moved: Vec<_> = done
            .published
            .iter()
            .map(|(key, _)| (*key, Ok(())))
            .collect();
        desk.scheduler.moved(desk.now, moved);
        let done = desk.step(MS);
        assert_eq!(done.rests, usize::from(failures == 5), "{failures}");
    }
    assert_eq!(desk.scheduler.unfit(), Some("no connection"));
    desk
}

#[test]
fn a_worker_that_cannot_make_calls_returns_its_jobs_and_tries_a_few() {
    let mut desk = unfit();
    assert!(desk.deliver(DeliverySource::Fresh, &["a"]).asked.is_empty());
    desk.scheduler.session_down();
    assert_eq!(desk.step(SECOND / 2).takes_few, 0);
    assert_eq!(desk.step(SECOND).takes_few, 1);
    desk.scheduler.session_up(1);
    // One connection is enough.
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Ok(()));
    assert_eq!(desk.scheduler.unfit(), None);
    let done = desk.step(MS);
    assert_eq!((done.rests, done.takes), (1, 0), "the few go back first");
    let done = desk.step(MS);
    assert_eq!((done.takes, done.asked.len()), (0, 0), "they start no more");
    desk.scheduler.session_down();
    assert_eq!(desk.step(MS).takes, 1);
}

#[test]
fn an_unfit_worker_keeps_no_breaker_open() {
    let mut desk = unfit();
    desk.scheduler.session_down();
    assert_eq!(desk.step(SECOND * 2).takes_few, 1);
    desk.scheduler.session_up(1);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(refused()));
    let done = desk.step(MS);
    assert_eq!(words(&done), [] as [&str; 0]);
    assert_eq!(attempt_of(&done), 1);
}

#[test]
fn an_unfit_workers_probe_that_fails_is_free_for_other_workers() {
    let mut desk = unfit_with(|failures| match failures {
        5 => open(1_000),
        failures => closed(failures),
    });
    desk.scheduler.session_down();
    desk.step(SECOND / 2);
    // Whether the breaker is still open is read.
    let done = desk.step(SECOND);
    assert_eq!(
        (words(&done), done.takes_few),
        (vec!["api: look".into()], 1)
    );
    desk.scheduler.session_up(1);
    desk.answer_reports(vec![open(0)]);
    let done = desk.deliver(DeliverySource::Fresh, &["a"]);
    assert_eq!(words(&done), ["api: may I?"]);
    let asked = desk.answer_reports(vec![granted()]).asked;
    assert_eq!(asked.len(), 1);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(refused()));
    let done = desk.step(MS);
    assert_eq!(words(&done), ["api: release"]);
    assert_eq!(attempt_of(&done), 1, "other jobs are tried next");
}

/// Returns a worker that is fit again because the second of its few jobs could be prepared, and what
/// the first did when it could not.
fn fit_again() -> (Desk, Done) {
    let mut desk = unfit();
    desk.scheduler.session_down();
    assert_eq!(desk.step(SECOND * 2).takes_few, 1);
    desk.scheduler.session_up(1);
    desk.deliver(DeliverySource::Due, &["gone"]);
    desk.deliver(DeliverySource::Fresh, &["sound"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Err(refused()));
    let failed = desk.step(MS);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    desk.prepared(key, Ok(()));
    assert_eq!(desk.scheduler.unfit(), None);
    (desk, failed)
}

#[test]
fn a_job_whose_host_always_fails_does_not_keep_other_queues_from_the_try() {
    let (_, failed) = fit_again();
    assert_eq!(attempt_of(&failed), 1);
}

#[test]
fn a_worker_without_jobs_is_fit_again_when_a_call_can_be_prepared() {
    let mut desk = unfit();
    desk.scheduler.session_down();
    assert_eq!(desk.step(SECOND * 2).takes_few, 1);
    desk.scheduler.session_up(1);
    // A preparation that fails is followed by a pause, and another try.
    let mut tests = Vec::new();
    for _ in 0..2 {
        let mut done = Done::default();
        for _ in 0..10 {
            done = desk.step(SECOND);
            if !done.prepared.is_empty() {
                break;
            }
        }
        let test = *done.prepared.first().expect("a preparation");
        assert!(done.asked.is_empty(), "it costs no permit");
        assert!(desk.scheduler.unfit().is_some());
        let result = if tests.is_empty() {
            Err(refused())
        } else {
            Ok(())
        };
        desk.prepared(test, result);
        let done = desk.step(MS);
        assert!(done.reported.is_empty(), "it is no call");
        assert!(done.released.contains(&test) && !tests.contains(&test));
        tests.push(test);
        desk.scheduler.session_down();
        desk.step(SECOND * 3);
        desk.scheduler.session_up(1);
    }
    assert_eq!(desk.scheduler.unfit(), None);
    assert!(!desk.deliver(DeliverySource::Fresh, &["a"]).asked.is_empty());
}

#[test]
fn a_stopping_worker_prepares_no_call_to_test_itself() {
    let mut desk = unfit();
    desk.scheduler.stop();
    assert!((0..20).all(|_| desk.step(SECOND).prepared.is_empty()));
}

#[test]
fn a_worker_that_is_fit_again_makes_calls_although_a_queue_is_full() {
    let (mut desk, Done { mut published, .. }) = fit_again();
    for _ in 0..60 {
        let full = |(key, _)| (key, Err(PublishError::Nacked));
        let results = published.into_iter().map(full).collect();
        desk.scheduler.moved(desk.now, results);
        let done = desk.step(SECOND);
        if !done.asked.is_empty() {
            return;
        }
        published = done.published;
    }
    panic!("the sound job is not called for a minute");
}
