//! Behavior of every gate for partitions that several waitlists share.

use std::time::Duration;

use gate::{
    Answer, Change, End, Gate, Inspection, Question, Receipt, Sequences, TenantAsk, TenantReply,
    TenantSettlements, Ticket,
};
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::scope::{Labels, Scope};
use tokio::time::{Instant, sleep};

use super::{FRESH, LONG, asking, guarded_limit, receipt, settling, started, tenant, waits};
use crate::servers::unique;

/// A limit of `max` in the longest window.
fn named(name: &str, max: u64, scope: Scope) -> Limit {
    guarded_limit(name, Algorithm::SlidingWindow, (max, LONG, 0)).with_scope(scope)
}

fn path() -> Scope {
    Scope::Header("x-path".to_owned())
}

/// A gate, its limits and its callers, each named `TENANT` or `TENANT/VALUE`.
struct Desk<'a, G> {
    gate: &'a G,
    limits: Limits,
    /// A prefix of all names, so that tests of one gate don't affect each other.
    name: String,
}

impl<'a, G: Gate> Desk<'a, G> {
    fn new(gate: &'a G, limits: Vec<Limit>) -> Self {
        Self {
            gate,
            limits: Limits::new(limits).expect("names differ"),
            name: unique("t"),
        }
    }

    fn tenant_and_labels(&self, partition: &str) -> (String, Labels) {
        let (id, value) = partition.split_once('/').unwrap_or((partition, ""));
        let labels = Labels::of(&self.limits, |_| value.to_owned());
        (format!("{}-{id}", self.name), labels)
    }

    async fn reply(&self, partition: &str, asks: &[Question]) -> (TenantAsk, TenantReply) {
        let (id, labels) = self.tenant_and_labels(partition);
        let ask = TenantAsk {
            labels,
            ..asking(&id, &self.limits, asks)
        };
        let replies = self.gate.ask(std::slice::from_ref(&ask)).await;
        let mut replies = replies.expect("the gate answers");
        (ask, replies.remove(0).expect("a decision"))
    }

    async fn ask(&self, partition: &str, asks: &[Question]) -> Vec<Answer> {
        self.reply(partition, asks).await.1.answers
    }

    /// Asks again for jobs with `tickets`. Returns the number that start, and the tickets of the
    /// others.
    async fn back(&self, partition: &str, tickets: &[Ticket]) -> (usize, Vec<Ticket>) {
        let back = |ticket: &Ticket| Question {
            ticket: Some(*ticket),
            ..FRESH
        };
        let asks: Vec<Question> = tickets.iter().map(back).collect();
        let answers = self.ask(partition, &asks).await;
        (started(&answers), tickets_of(&answers))
    }

    /// Starts jobs of these costs. Returns their receipts.
    async fn start(&self, partition: &str, costs: &[u64]) -> Vec<Receipt> {
        let fresh = |cost: &u64| Question {
            cost: *cost,
            ..FRESH
        };
        let asks: Vec<Question> = costs.iter().map(fresh).collect();
        let (ask, reply) = self.reply(partition, &asks).await;
        (0..costs.len()).map(|n| receipt(&ask, &reply, n)).collect()
    }

    async fn settle(&self, partition: &str, ends: Vec<(Receipt, End)>) {
        let (id, labels) = self.tenant_and_labels(partition);
        let settled = TenantSettlements {
            labels,
            ..settling(id, &self.limits, ends)
        };
        // The second settlement has no effect.
        for _ in 0..2 {
            let settled = std::slice::from_ref(&settled);
            let replies = self.gate.settle(settled).await.expect("the gate answers");
            assert!(matches!(replies[..], [Ok(())]), "{replies:?}");
        }
    }

    async fn change(&self, partition: &str, change: Change) {
        let (id, _) = self.tenant_and_labels(partition);
        let done = self.gate.change(&tenant(&id).into(), &change).await;
        done.expect("the gate answers");
    }

    async fn inspect(&self, partition: &str) -> Inspection {
        let (id, labels) = self.tenant_and_labels(partition);
        let shown = self.gate.inspect(&tenant(&id), &labels, &self.limits).await;
        shown.expect("the gate answers")
    }

    /// Returns each limit's usage for `partition`.
    async fn counts(&self, partition: &str) -> Vec<u64> {
        let shown = self.inspect(partition).await;
        shown.limits.iter().map(|usage| usage.count).collect()
    }
}

fn tickets_of(answers: &[Answer]) -> Vec<Ticket> {
    waits(answers)
        .into_iter()
        .map(|(ticket, _)| ticket)
        .collect()
}

/// Returns the limit that makes each job wait.
fn limits_of(answers: &[Answer]) -> Vec<usize> {
    let limit = |answer: &Answer| match answer {
        Answer::Wait { limit, .. } => Some(*limit),
        _ => None,
    };
    answers.iter().filter_map(limit).collect()
}

fn unused(receipts: &[Receipt]) -> Vec<(Receipt, End)> {
    let end = |receipt: &Receipt| (receipt.clone(), End::Unused);
    receipts.iter().map(end).collect()
}

/// Checks everything that a gate must do with shared partitions. If all tenants share one, `gate`
/// must use a new prefix.
pub async fn shares_conform<G: Gate>(gate: impl Fn() -> G) {
    a_job_that_had_its_turn_needs_no_other(&gate()).await;
    tenants_take_turns(&gate()).await;
    a_closed_tenant_delays_no_other(&gate()).await;
    partitions_draw_from_all_their_limits(&gate()).await;
    settled_costs_count_in_every_log(&gate()).await;
    an_operator_reaches_all_parts(&gate()).await;
    a_reset_tenant_waits_for_no_shared_limit(&gate()).await;
    a_waitlist_without_labels_resets_no_other(&gate()).await;
    leases_are_held_until_their_calls_end(&gate()).await;
    leases_of_abandoned_calls_are_held_for_the_given_time(&gate()).await;
}

/// Waiting jobs stay away until their turns. Without this, returned quota would stay idle, and the
/// job that returned it would be last.
async fn a_job_that_had_its_turn_needs_no_other(gate: &impl Gate) {
    let desk = Desk::new(gate, vec![named("all", 6, Scope::Tenant)]);
    let again = [Ticket::HAD_ITS_TURN];
    assert_eq!(
        desk.back("a", &again).await.0,
        1,
        "there is no waitlist yet"
    );
    let first = desk.start("a", &[1; 5]).await;
    assert_eq!(tickets_of(&desk.ask("a", &[FRESH; 4]).await).len(), 4);
    desk.settle("a", unused(&first[..2])).await;
    assert_eq!(started(&desk.ask("a", &[FRESH]).await), 0);
    let (started, waits) = desk.back("a", &[again[0]; 3]).await;
    assert_eq!(
        (started, waits[0].number),
        (2, 1),
        "as the first of the waitlist"
    );
    assert_eq!(desk.inspect("a").await.waiting, 5);
    desk.settle("a", unused(&first[2..3])).await;
    assert_eq!(desk.back("a", &waits).await.0, 1);
}

async fn tenants_take_turns(gate: &impl Gate) {
    let desk = Desk::new(gate, vec![named("all", 6, Scope::Global)]);
    let first = desk.start("a", &[1; 6]).await;
    let a = tickets_of(&desk.ask("a", &[FRESH; 4]).await);
    let b = tickets_of(&desk.ask("b", &[FRESH; 4]).await);
    assert_eq!((a.len(), b.len()), (4, 4), "they wait");
    assert_eq!(desk.inspect("a").await.limits[0].waiting, 8);
    let shown = desk.inspect("nobody").await;
    let (usage, own) = (&shown.limits[0], shown.waiting);
    assert_eq!((usage.count, usage.waiting, own), (6, 8, 0));

    // There is room for four, in turns: one for each tenant, including the new one, and the fourth
    // is the first tenant's again, in any order of questions.
    desk.settle("a", unused(&first[..4])).await;
    let answers = desk.ask("c", &[FRESH; 2]).await;
    let c = tickets_of(&answers);
    assert_eq!((started(&answers), c.len()), (1, 1));
    let (started, b) = desk.back("b", &b).await;
    assert_eq!((started, b.len()), (1, 3));
    let (started, a) = desk.back("a", &a).await;
    assert_eq!((started, a.len()), (2, 2));
    assert_eq!(desk.inspect("b").await.limits[0].waiting, 6);
    // There is room for two more.
    desk.settle("a", unused(&first[4..])).await;
    assert_eq!(desk.back("a", &a).await.0, 0, "the others come first");
    assert_eq!(desk.back("b", &b).await.0, 1);
    assert_eq!(desk.back("c", &c).await.0, 1);
}

async fn a_closed_tenant_delays_no_other(gate: &impl Gate) {
    let desk = Desk::new(gate, vec![named("all", 6, Scope::Global)]);
    let duration_ms = 1_000_000;
    desk.change("a", Change::Pause { duration_ms }).await;
    desk.ask("a", &[FRESH; 6]).await;
    assert_eq!(desk.inspect("a").await.limits[0].waiting, 0);
    assert_eq!(started(&desk.ask("b", &[FRESH; 6]).await), 6);
}

async fn partitions_draw_from_all_their_limits(gate: &impl Gate) {
    let desk = Desk::new(
        gate,
        vec![
            named("path", 2, path()),
            named("own", 3, Scope::Tenant),
            named("all", 4, Scope::Global),
        ],
    );
    let answers = desk.ask("a/x", &[FRESH; 3]).await;
    assert_eq!((started(&answers), limits_of(&answers)), (2, vec![0]));
    let answers = desk.ask("a/y", &[FRESH; 2]).await;
    assert_eq!((started(&answers), limits_of(&answers)), (1, vec![1]));
    // Without the header, a job belongs to a partition of its own.
    let answers = desk.ask("a", &[FRESH]).await;
    assert_eq!((started(&answers), limits_of(&answers)), (0, vec![1]));
    let answers = desk.ask("b/x", &[FRESH; 2]).await;
    assert_eq!((started(&answers), limits_of(&answers)), (1, vec![2]));
    for (partition, counts) in [("a/x", [2, 3, 4]), ("a/y", [1, 3, 4]), ("a", [0, 3, 4])] {
        assert_eq!(desk.counts(partition).await, counts, "{partition}");
    }
    assert_eq!(desk.counts("b/x").await, [1, 1, 4]);
    let shown = desk.inspect("a/x").await;
    assert_eq!((shown.waiting, shown.limits[0].waiting), (1, 1));
    assert_eq!(shown.limits[2].free, 0);
}

async fn settled_costs_count_in_every_log(gate: &impl Gate) {
    let desk = Desk::new(
        gate,
        vec![
            named("path", 20, path()),
            named("own", 20, Scope::Tenant),
            named("all", 20, Scope::Global),
        ],
    );
    // A start has a different number in each log.
    desk.start("b/x", &[3]).await;
    desk.start("a/y", &[2]).await;
    let receipts = desk.start("a/x", &[4, 1, 5]).await;
    assert_eq!(desk.counts("a/x").await, [10, 12, 15]);
    let [four, one, five] = &receipts[..] else {
        panic!("{receipts:?}");
    };
    let ends = vec![(four.clone(), End::Cost(1)), (five.clone(), End::Unused)];
    desk.settle("a/x", ends).await;
    assert_eq!(desk.counts("a/x").await, [2, 4, 7]);
    assert_eq!(desk.counts("a/y").await, [2, 4, 7]);
    assert_eq!(desk.counts("b/x").await, [3, 3, 7]);
    // An actual cost above the charge.
    desk.settle("a/x", vec![(one.clone(), End::Cost(9))]).await;
    assert_eq!(desk.counts("a/x").await, [10, 12, 15]);
    assert_eq!(started(&desk.ask("b/x", &[FRESH; 9]).await), 5);
}

async fn an_operator_reaches_all_parts(gate: &impl Gate) {
    let limits = vec![named("path", 2, path()), named("all", 9, Scope::Global)];
    let desk = Desk::new(gate, limits);
    let duration_ms = 1_000_000;
    desk.change("a", Change::Pause { duration_ms }).await;
    for partition in ["a/x", "a/y", "a"] {
        let answers = desk.ask(partition, &[FRESH]).await;
        assert!(waits(&answers)[0].1 > 990_000, "{partition}: {answers:?}");
        let shown = desk.inspect(partition).await;
        assert!(shown.blocked_by.contains("operator"), "{shown:?}");
        assert_eq!((shown.waiting, shown.limits[0].free), (1, 0));
    }
    assert_eq!(started(&desk.ask("b/x", &[FRESH]).await), 1, "another's");
    desk.change("a", Change::Resume).await;

    // All waiting jobs are gone, from all partitions at once.
    desk.change("a", Change::Reset).await;
    for partition in ["a/x", "a/y", "a"] {
        let shown = desk.inspect(partition).await;
        assert_eq!(
            (shown.waiting, shown.waitlist_end_ms),
            (0, 0),
            "{partition}"
        );
    }
    let set = |name: &str| Change::Limit {
        name: name.to_owned(),
        max: 1,
        duration_ms,
    };
    desk.change("a", set("path")).await;
    // A limit that all tenants share can't be changed for one tenant.
    desk.change("a", set("all")).await;
    for partition in ["a/x", "a/y"] {
        let answers = desk.ask(partition, &[FRESH; 2]).await;
        assert_eq!((started(&answers), limits_of(&answers)), (1, vec![0]));
        let shown = desk.inspect(partition).await;
        assert_eq!((shown.limits[0].max, shown.limits[1].max), (1, 9));
        assert!(shown.limits[0].override_until_ms > shown.now_ms + 900_000);
        assert_eq!(shown.limits[1].override_until_ms, 0);
    }
    assert_eq!(desk.inspect("b/x").await.limits[0].max, 2);
}

/// A tenant that waits for the limit of all tenants no longer delays others once an operator resets
/// it.
async fn a_reset_tenant_waits_for_no_shared_limit(gate: &impl Gate) {
    let desk = Desk::new(gate, vec![named("all", 2, Scope::Global)]);
    let answers = desk.ask("a", &[FRESH; 5]).await;
    assert_eq!(started(&answers), 2);
    desk.ask("b", &[FRESH; 2]).await;
    let waiting = async |partition| desk.inspect(partition).await.limits[0].waiting;
    assert_eq!(waiting("b").await, 5);
    // The more jobs a tenant has waiting, the later is the turn of its next one.
    let turn = async |partition| desk.inspect(partition).await.turn_ms;
    let (a, b, c) = (turn("a").await, turn("b").await, turn("c").await);
    assert!(0 < c && c <= b && b <= a, "{c} {b} {a}");
    desk.change("a", Change::Reset).await;
    assert_eq!(waiting("b").await, 2);
    assert_eq!(desk.inspect("b").await.waiting, 2);
    // The second reset has no effect.
    desk.change("a", Change::Reset).await;
    assert_eq!(waiting("a").await, 2);
    desk.change("b", Change::Reset).await;
    assert_eq!(waiting("a").await, 0);
    // A job that returns takes a new ticket.
    let answers = desk.back("a", &tickets_of(&answers)).await;
    assert_eq!((answers.0, waiting("b").await), (0, 3));
}

/// Jobs of one plan wait for a path, and jobs of another plan for the tenant.
async fn a_waitlist_without_labels_resets_no_other(gate: &impl Gate) {
    let by_path = Desk::new(gate, vec![named("path", 1, path())]);
    let unlabeled = Desk {
        name: by_path.name.clone(),
        ..Desk::new(gate, vec![named("own", 1, Scope::Tenant)])
    };
    let tickets = tickets_of(&by_path.ask("a/x", &[FRESH; 3]).await);
    sleep(Duration::from_millis(2)).await;
    assert_eq!(waits(&unlabeled.ask("a", &[FRESH; 2]).await).len(), 1);
    assert_eq!(by_path.back("a/x", &tickets).await, (0, tickets.clone()));
    // An operator's reset concerns all of the tenant's waitlists.
    by_path.change("a", Change::Reset).await;
    let (started, new) = by_path.back("a/x", &tickets).await;
    assert_eq!((started, new.len()), (0, 2));
    assert!(new.iter().all(|ticket| !tickets.contains(ticket)));
    sleep(Duration::from_millis(2)).await;
    assert_eq!(by_path.back("a/x", &new).await, (0, new.clone()), "once");
}

/// It is not known whether abandoned calls still arrive.
async fn leases_of_abandoned_calls_are_held_for_the_given_time(gate: &impl Gate) {
    let places = Limit::concurrent("places", 3).expect("in range");
    let costs = named("costs", 50, Scope::Tenant).with_unit(Unit::Cost);
    let desk = Desk::new(gate, vec![places, costs]);
    let first = desk.start("a", &[2, 3, 4]).await;
    let abandoned = |receipt: &Receipt, for_ms| (receipt.clone(), End::Abandoned { for_ms });
    // A longer time than a lease is shortened to a lease. The others end, one of them at once.
    let [long, short, over] = [u64::MAX / 2, 30, 0];
    let ends = [long, short, over].into_iter().zip(&first);
    let ends = ends.map(|(for_ms, receipt)| abandoned(receipt, for_ms));
    desk.settle("a", ends.collect()).await;
    let until_held = async |places: u64| {
        let started = Instant::now();
        while desk.counts("a").await != [places, 9] {
            assert!(
                started.elapsed().as_secs() < 90,
                "{:?}",
                desk.counts("a").await
            );
            sleep(Duration::from_millis(5)).await;
        }
    };
    // Their costs stay charged.
    until_held(1).await;
    // The abandoned call is reported after all.
    desk.settle("a", vec![abandoned(&first[0], 0)]).await;
    until_held(0).await;
}

async fn leases_are_held_until_their_calls_end(gate: &impl Gate) {
    let places = |max| Limit::concurrent("places", max).expect("in range");
    let desk = Desk::new(gate, vec![places(3)]);
    let first = desk.start("a", &[1; 3]).await;
    let (lost, reply) = desk.reply("a", &[FRESH]).await;
    assert_eq!(waits(&reply.answers).len(), 1, "all are taken");
    // One call still runs, one has ended, and one was never made.
    let [running, ended, late] = &first[..] else {
        panic!("{first:?}");
    };
    desk.settle("a", vec![(running.clone(), End::Running)])
        .await;
    assert_eq!(desk.counts("a").await, [3]);
    let ends = vec![
        (ended.clone(), End::Cost(7)),
        (late.clone(), End::Unused),
        (running.clone(), End::Running),
    ];
    desk.settle("a", ends).await;
    // An end counts until its millisecond is over.
    sleep(Duration::from_millis(2)).await;
    assert_eq!(desk.counts("a").await, [1]);
    // If the answer to a question was lost, only the start's name is known. A name without a start
    // releases no lease.
    let doubted = |permits: &str, number: usize| Receipt {
        permit: format!("{permits}:{number}"),
        started_ms: 0,
        sequences: Sequences::NONE,
        cost: 1,
    };
    let tickets = tickets_of(&reply.answers);
    let back = |ticket| Question { ticket, ..FRESH };
    let asks = [back(Some(tickets[0])), back(None)];
    let (unheard, reply) = desk.reply("a", &asks).await;
    assert_eq!(started(&reply.answers), 2);
    let none = vec![
        (doubted(&lost.permits, 0), End::Unused),
        (doubted(&unheard.permits, 2), End::Unused),
    ];
    desk.settle("a", none).await;
    assert_eq!(desk.counts("a").await, [3]);
    let both = [0, 1].map(|number| (doubted(&unheard.permits, number), End::Unused));
    desk.settle("a", both.into()).await;
    assert_eq!(desk.counts("a").await, [1]);
}
