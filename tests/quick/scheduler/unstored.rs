//! Messages of which RabbitMQ stores no copy. Each is tried a bounded number of times. Then its
//! delivery goes back to its queue, before RabbitMQ ends the session over it.

use std::time::Duration;

use broker::{DeliverySource, PublishError};
use engine::facts::{BrokerFact, Fact};
use handler::Outcome;
use kit::SECOND;

use crate::scheduler::{Desk, MS, START, message};

/// RabbitMQ's `consumer_timeout` in the settings of a [`Desk`].
const TIMEOUT: Duration = Duration::from_secs(1_800);

/// The end of a delivery whose publishes all fail.
#[derive(Debug)]
struct End {
    /// Number of publishes.
    tries: usize,
    took: Duration,
    /// RabbitMQ's reason in the fact about the returned delivery.
    refusal: Option<String>,
}

/// Calls a job with `outcome`, or delivers an invalid message if there is none, and fails each
/// publish of it because of `why` until its delivery is given back.
fn end(outcome: Option<Outcome>, why: &PublishError) -> End {
    let mut desk = Desk::new(4);
    let mut done = match outcome {
        Some(outcome) => {
            let key = desk.start_one();
            desk.scheduler.finished(desk.now, key, MS, outcome);
            desk.actions()
        }
        None => desk.deliver_messages(DeliverySource::Fresh, vec![message(&[])]),
    };
    let (began, mut tries) = (desk.now, 0);
    while done.given_back.is_empty() {
        assert!(desk.now < began + TIMEOUT, "{why:?} never ends");
        assert_eq!(done.acked, [0; 0], "{why:?} loses it");
        let failed: Vec<_> = (done.published.iter())
            .map(|(key, _)| (*key, Err(why.clone())))
            .collect();
        tries += failed.len();
        desk.scheduler.moved(desk.now, failed);
        done = desk.step(SECOND);
    }
    assert_eq!(done.given_back, [1]);
    assert_eq!(desk.scheduler.in_memory(), 0);
    let mut refusals = desk.facts().into_iter().filter_map(|fact| {
        let Fact::Broker(BrokerFact::MoveGivenBack {
            refusal, is_news, ..
        }) = fact
        else {
            return None;
        };
        assert!(is_news);
        Some(refusal)
    });
    End {
        tries,
        took: desk.now - began,
        refusal: refusals.next().expect("a fact"),
    }
}

fn rejected() -> Option<Outcome> {
    let reason = "422".to_owned();
    Some(Outcome::Reject { reason })
}

fn snoozed() -> Option<Outcome> {
    let after = 100 * SECOND;
    Some(Outcome::Snooze { after })
}

#[test]
fn a_message_that_rabbitmq_closes_the_channel_for_is_given_back_after_a_bound() {
    let refused = PublishError::Refused("406".to_owned());
    for (outcome, seconds, most) in [
        (snoozed(), 30..90, 12),
        (rejected(), 600..700, 25),
        (None, 600..700, 25),
    ] {
        let end = end(outcome, &refused);
        assert!(seconds.contains(&end.took.as_secs()), "{end:?}");
        assert!((3..=most).contains(&end.tries), "{end:?}");
        assert_eq!(end.refusal.as_deref(), Some("406"));
    }
}

#[test]
fn no_failure_of_publishes_holds_a_delivery_until_rabbitmq_takes_it_back() {
    for why in [
        PublishError::Returned,
        PublishError::Nacked,
        PublishError::Unconfirmed,
        PublishError::Down("cut".to_owned()),
    ] {
        for outcome in [snoozed(), rejected(), None] {
            let end = end(outcome, &why);
            assert!(end.took < TIMEOUT - TIMEOUT / 20, "{why:?}: {end:?}");
            assert!(end.tries < 1_000, "{why:?}: {end:?}");
            assert_eq!(end.refusal, None);
        }
    }
}

/// A returned job comes again, and what RabbitMQ answers to its earlier publish changes nothing.
#[test]
fn a_late_confirm_of_a_returned_job_acks_nothing() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    desk.scheduler
        .finished(desk.now, key, MS, snoozed().expect("an outcome"));
    let published = desk.actions().published;
    assert_eq!(published.len(), 1);
    let mut given_back = Vec::new();
    for _ in 0..TIMEOUT.as_secs() {
        given_back.extend(desk.step(SECOND).given_back);
    }
    assert_eq!(given_back, [1], "RabbitMQ never answered");
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.scheduler
        .moved(desk.now, vec![(published[0].0, Ok(()))]);
    assert_eq!(desk.actions().acked, [0; 0]);
    assert_eq!(desk.answer(MS, vec![vec![START]]).dispatched.len(), 1);
}
