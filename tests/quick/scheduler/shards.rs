//! Questions to servers of a store that decide independently.

use std::time::Duration;

use broker::DeliverySource;
use engine::shards::Shards;
use gate::ShardId;

use crate::scheduler::{Desk, MS, START, reply};

fn of(tenant: &str) -> ShardId {
    ShardId::named(&tenant[..1])
}

/// Returns a desk where each tenant's first letter determines its shard.
fn desk(concurrency: usize) -> Desk {
    let mut desk = Desk::new(concurrency);
    let shards = Shards::from_grouping(|tenant| of(tenant.as_str()));
    desk.scheduler.shard_by(shards);
    desk
}

#[test]
fn each_shard_has_one_request_in_flight() {
    let mut desk = desk(8);
    let asked = |desk: &mut Desk, tenant: &str| {
        let asked = desk.deliver(DeliverySource::Fresh, &[tenant]).asked;
        asked
            .iter()
            .map(|ask| ask.tenant.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(&mut desk, "a1"), ["a1"]);
    let before = desk.scheduler.asked();
    assert_eq!(asked(&mut desk, "b1"), ["b1"]);
    assert_eq!(
        asked(&mut desk, "a2"),
        [""; 0],
        "the first has no answer yet"
    );
    let replies = Ok(vec![Ok(reply(vec![START]))]);
    desk.scheduler.answered(desk.now, of("b1"), replies.clone());
    assert_eq!(desk.actions().dispatched.len(), 1);
    assert_eq!(asked(&mut desk, "b2"), ["b2"]);
    assert!(!desk.scheduler.is_answered(before));
    desk.scheduler.answered(desk.now, of("a1"), replies);
    assert!(desk.scheduler.is_answered(before), "b2 was asked for later");
    assert_eq!(desk.step(5 * MS).asked[0].tenant.as_str(), "a2");
}

#[test]
fn slots_are_reserved_for_an_answer_while_it_may_start_jobs() {
    let mut desk = desk(2);
    let asked = desk.deliver(DeliverySource::Fresh, &["a", "a"]).asked;
    assert_eq!(asked[0].budget, 2);
    let asked = desk.deliver(DeliverySource::Fresh, &["b"]).asked;
    assert!(asked.is_empty(), "both may start");
    assert!(desk.step(5 * MS).asked.is_empty());
    // After half of the guard, an answer would be too late.
    let at = desk.scheduler.next_tick(desk.now).expect("a timer");
    assert!(at - desk.now < 25 * MS);
    let asked = desk.step(at - desk.now).asked;
    assert_eq!((asked[0].tenant.as_str(), asked[0].budget), ("b", 1));
    desk.scheduler
        .answered(desk.now, of("b"), Ok(vec![Ok(reply(vec![START]))]));
    assert_eq!(desk.actions().dispatched.len(), 1);
    desk.now += Duration::from_secs(1);
    let late = Ok(vec![Ok(reply(vec![START, START]))]);
    desk.scheduler.answered(desk.now, of("a"), late);
    assert!(desk.actions().dispatched.is_empty());
}
