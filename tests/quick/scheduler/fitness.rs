//! The scheduler of a worker that can't make calls.

use std::time::Duration;

use sluicegate::broker::DeliverySource;
use sluicegate::handler::{Outcome, Trouble};

use crate::scheduler::breaker::{attempt_of, closed, desk, unwritten};
use crate::scheduler::{CAPACITY, MS};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_worker_that_cannot_make_calls_returns_its_jobs_and_tries_a_few() {
    let mut desk = desk();
    desk.ready = 0;
    for failures in 1..=5 {
        desk.deliver(DeliverySource::Fresh, &["a"]);
        let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
        let reason = "no connection".to_owned();
        let after = None;
        let outcome = Outcome::Retry { after, reason };
        let refused = unwritten(outcome, Some(Trouble::Unreachable));
        let now = desk.now;
        desk.scheduler.prepared(now, key, Some(MS), Err(refused));
        desk.step(MS);
        // No call was made, so no attempt is used, though no breaker is open.
        let done = desk.answer_reports(vec![closed(failures)]);
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
    assert!(desk.deliver(DeliverySource::Fresh, &["a"]).asked.is_empty());
    desk.scheduler.session_down();
    assert_eq!(desk.step(SECOND / 2).takes_few, 0);
    assert_eq!(desk.step(SECOND).takes_few, 1);
    desk.scheduler.session_up(1);
    // One connection is enough.
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![CAPACITY]]).prepared[0];
    let now = desk.now;
    desk.scheduler.prepared(now, key, Some(MS), Ok(()));
    assert_eq!(desk.scheduler.unfit(), None);
    let done = desk.step(MS);
    assert_eq!((done.rests, done.takes), (1, 0), "the few go back first");
    let done = desk.step(MS);
    assert_eq!((done.takes, done.asked.len()), (0, 0), "they start no more");
    desk.scheduler.session_down();
    assert_eq!(desk.step(MS).takes, 1);
}
