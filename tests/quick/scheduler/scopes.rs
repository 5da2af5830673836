//! The scheduler alone, with limits that tell a tenant's jobs apart: its questions, and under which
//! labels.

use std::sync::Arc;
use std::time::Duration;

use broker::{DeliverySource, Message, Outgoing};
use engine::action::JobKey;
use gate::fleet::{RegisteredPolicy, RegistryKnowledge};
use gate::{Answer, End, GateError, TenantAsk};
use handler::Outcome;
use proptest::collection::vec;
use proptest::test_runner::Config;
use proptest::{prop_assert, prop_assert_eq, proptest};
use rules::headers::HeaderValue;
use rules::job::{Field, TenantField};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::Policy;
use rules::scope::{Labels, Scope};

use crate::scheduler::{CAPACITY, Desk, MS, START, message, reply, throttled, wait};

fn path() -> Scope {
    Scope::Header("x-path".to_owned())
}

fn limit(name: &str, scope: Scope) -> Limit {
    let guard = Duration::from_millis(50);
    let limit = Limit::new(name, Algorithm::SlidingWindow, 20, MS * 1000, guard);
    limit.expect("a limit").with_scope(scope)
}

fn desk(concurrency: usize, limits: Vec<Limit>) -> Desk {
    let policy = Policy::common(Limits::new(limits).expect("names differ"));
    let tenant = TenantField::Header("x-tenant".into());
    Desk::with(concurrency, policy, tenant)
}

fn of_paths(concurrency: usize) -> Desk {
    desk(
        concurrency,
        vec![limit("path", path()), limit("all", Scope::Global)],
    )
}

fn text(text: &str) -> HeaderValue {
    HeaderValue::Text(text.to_owned())
}

fn job(tenant: &str, path: &str) -> Message {
    message(&[("x-tenant", text(tenant)), ("x-path", text(path))])
}

fn shown(asked: &[TenantAsk]) -> Vec<String> {
    let one = |ask: &TenantAsk| {
        let values: Vec<&str> = ask.labels.iter().map(|(_, value)| value).collect();
        let (jobs, budget) = (ask.asks.len(), ask.budget);
        format!("{} {} {jobs}/{budget}", ask.tenant, values.join(","))
    };
    asked.iter().map(one).collect()
}

fn label(value: &str) -> Labels {
    Labels::of(&[limit("path", path())], |_| value.to_owned())
}

#[test]
fn jobs_of_a_tenant_ask_by_labels_in_one_round_and_share_its_quota() {
    let mut desk = of_paths(4);
    let mut jobs: Vec<Message> = ["/a", "/b", "/a", "/c"].map(|at| job("t", at)).into();
    jobs.push(message(&[("x-tenant", text("t"))]));
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs).asked;
    assert_eq!(shown(&asked), ["t /a 2/2", "t /b 1/1", "t /c 1/1"]);
    assert!(asked.iter().all(|ask| ask.limits.len() == 2));

    // Two tenants keep their shares, divided among their labels.
    let mut desk = of_paths(4);
    let jobs = ["/a", "/b", "/c"].map(|at| [job("t", at), job("u", at)]);
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs.into_iter().flatten().collect());
    assert_eq!(
        shown(&asked.asked),
        ["t /a 1/1", "t /b 1/1", "u /a 1/1", "u /b 1/1"]
    );
}

#[test]
fn plans_with_other_limits_ask_in_the_same_round() {
    let pro = Limits::from(limit("pro", Scope::Tenant));
    let policy = Policy::common(limit("free", Scope::Tenant).into())
        .with_plans([("pro".to_owned(), pro)].into())
        .with_plan_header("x-plan".to_owned());
    let mut desk = Desk::with(4, policy, TenantField::Header("x-tenant".into()));
    let tenant = ("x-tenant", text("t"));
    let with_plan = message(&[tenant.clone(), ("x-plan", text("pro"))]);
    let jobs = vec![message(std::slice::from_ref(&tenant)), with_plan];
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs).asked;
    let names: Vec<&str> = asked.iter().map(|ask| ask.limits[0].name()).collect();
    assert_eq!(names, ["free", "pro"]);
    assert_eq!(shown(&asked), ["t  1/1", "t  1/1"]);
}

#[test]
fn jobs_without_a_slot_ask_again_in_order_and_waiting_ones_do_not() {
    let mut desk = of_paths(2);
    let jobs = ["/b", "/a", "/b", "/c", "/a"].map(|at| job("t", at)).into();
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs).asked;
    assert_eq!(shown(&asked), ["t /b 1/1", "t /a 1/1"]);
    // There is no quota for /a. Its unused slot is free, and now all jobs ask.
    let done = desk.answer(MS, vec![vec![START], vec![wait(60_000, 1)]]);
    assert_eq!((done.dispatched.len(), done.published.len()), (1, 1));
    let asked = desk.step(MS * 5).asked;
    assert_eq!(shown(&asked), ["t /b 1/1", "t /c 1/0", "t /a 1/0"]);
    // /c lacks only a permit.
    let again = desk.answer(MS, vec![vec![START], vec![CAPACITY], vec![wait(60_001, 2)]]);
    assert_eq!((again.dispatched.len(), again.published.len()), (1, 1));
    assert_eq!(shown(&desk.step(MS * 5).asked), ["t /c 1/0"]);
    desk.answer(MS, vec![vec![CAPACITY]]);
    assert!(desk.step(Duration::from_secs(1)).asked.is_empty());
    let key = done.dispatched[0].0;
    assert_eq!(
        shown(&desk.ended_within(MS, key, Outcome::Done).asked),
        ["t /c 1/1"]
    );
}

#[test]
fn returned_jobs_keep_their_order_across_labels() {
    let mut desk = of_paths(4);
    let paths = ["/a", "/b", "/a", "/b"];
    let named = paths.iter().enumerate().map(|(at, path)| {
        message(&[
            ("x-tenant", text("t")),
            ("x-path", text(path)),
            ("x-cost", text(&(at + 1).to_string())),
        ])
    });
    let jobs: Vec<Message> = named.collect();
    let costs = |asked: &[TenantAsk]| -> Vec<Vec<u64>> {
        let of = |ask: &TenantAsk| ask.asks.iter().map(|ask| ask.cost).collect();
        asked.iter().map(of).collect()
    };
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs).asked;
    assert_eq!(costs(&asked), [[1, 3], [2, 4]]);
    let why = GateError::Unreachable("refused".into());
    desk.answered(Err(why));
    let next = desk.scheduler.next_tick(desk.now).expect("it tries again");
    let asked = desk.step(next - desk.now).asked;
    assert_eq!(costs(&asked), [[1, 3], [2, 4]]);
    // The answer is too late for some jobs, which come first afterwards, and others got no permit.
    let late = desk.answer(MS * 26, vec![vec![START, CAPACITY], vec![CAPACITY, START]]);
    assert!(late.dispatched.is_empty());
    desk.step(MS * 5);
    desk.settled_all(2);
    assert_eq!(costs(&desk.step(MS).asked), [[1, 3], [4, 2]]);
}

#[test]
fn settlements_carry_the_labels_of_their_start() {
    let running = Limit::concurrent("running", 9).expect("in range");
    let mut desk = desk(4, vec![limit("path", path()), running]);
    let jobs = vec![job("t", "/a"), job("t", "/b")];
    let asked = desk.deliver_messages(DeliverySource::Fresh, jobs).asked;
    assert_ne!(asked[0].permits, asked[1].permits);
    let started = desk.answer(MS, vec![vec![START], vec![START]]).dispatched;
    let renewed = desk.step(Duration::from_secs(20)).settled;
    let settled: Vec<_> = (renewed.iter())
        .map(|settled| {
            (
                &settled.labels,
                settled.settled[0].end,
                &settled.settled[0].receipt.permit,
            )
        })
        .collect();
    let permits = [0, 1].map(|at: usize| format!("{}:0", asked[at].permits));
    assert_eq!(
        settled,
        [
            (&label("/a"), End::Running, &permits[0]),
            (&label("/b"), End::Running, &permits[1])
        ]
    );
    desk.settled_all(2);
    let key = started[1].0;
    let ended = desk.ended_within(MS, key, Outcome::Done).settled;
    assert_eq!(ended.len(), 1);
    assert_eq!(
        (&ended[0].labels, &ended[0].limits),
        (&label("/b"), &asked[1].limits)
    );
}

#[test]
fn labels_without_a_decision_wait_alone() {
    let mut desk = of_paths(4);
    desk.deliver_messages(DeliverySource::Fresh, vec![job("t", "/a"), job("t", "/b")]);
    let why = GateError::Refused("WRONGTYPE".into());
    desk.answered(Ok(vec![Err(why), Ok(reply(vec![START]))]));
    let done = desk.actions();
    assert_eq!((done.dispatched.len(), done.published.len()), (1, 1));
    let waits = done.published[0].1.message.header("x-path");
    assert_eq!(waits, Field::Text("/a"));
}

#[test]
fn an_unusable_partition_value_is_a_dead_letter_or_empty_for_other_limits() {
    let flag = || {
        let tenant = ("x-tenant", text("t"));
        message(&[tenant, ("x-path", text(&"p".repeat(256)))])
    };
    let mut desk = of_paths(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![flag()]);
    assert!(done.asked.is_empty());
    let (_, dead) = &done.published[0];
    assert_eq!(&*dead.queue, "jobs.dead");
    let why =
        "header x-path has 256 bytes; the maximum is 255; the limit path separates jobs by it";
    assert_eq!(dead.message.header("x-sluicegate-reason"), Field::Text(why));

    // The same limits are those of another worker.
    let mut desk = Desk::new(4);
    let own: Policy = limit("default", Scope::Tenant).into();
    let mut known = RegistryKnowledge::default();
    let other = RegisteredPolicy {
        id: "other".to_owned(),
        policy: Arc::new(limit("path", path()).into()),
        since_ms: 1,
        used_ms: 1,
    };
    known.learn(vec![other], 1);
    let fleet = known.fleet(Arc::new(own), "own", 1);
    desk.scheduler.agreed(Some(fleet), desk.now + MS * 1000);
    let asked = desk.deliver_messages(DeliverySource::Fresh, vec![flag(), job("t", "/a")]);
    assert_eq!(shown(&asked.asked), ["t  1/1", "t /a 1/1"]);
    assert_eq!(asked.asked[0].labels, label(""));
}

/// Returns a job after its trip through a delay queue.
#[track_caller]
fn through_a_delay_queue(desk: &mut Desk, job: Message) -> Outgoing {
    let asked = desk
        .deliver_messages(DeliverySource::Fresh, vec![job])
        .asked;
    assert_eq!(asked.len(), 1);
    let done = desk.answer(MS, vec![vec![wait(10_000, 4)]]);
    desk.leaves(done)
}

#[test]
fn a_job_keeps_the_routing_key_of_its_publisher() {
    let with_key = |key: &str| Message {
        routing_key: key.to_owned(),
        // Only a job from a delay queue may have this header.
        ..message(&[
            ("x-tenant", text("t")),
            ("x-sluicegate-routing-key", text("forged")),
        ])
    };
    for key in ["orders.eu", "", "jobs"] {
        let mut by_key = desk(4, vec![limit("key", Scope::RoutingKey)]);
        let back = through_a_delay_queue(&mut by_key, with_key(key));
        let header = back.message.header("x-sluicegate-routing-key");
        // The work queue's name needs no header.
        let expected = match key {
            "jobs" => Field::Missing,
            key => Field::Text(key),
        };
        assert_eq!(header, expected);
        let asked = by_key.back(back).asked;
        let found: Vec<_> = asked[0].labels.iter().collect();
        assert_eq!(found, [(&Scope::RoutingKey, key)]);
    }
    // The tenant from the routing key is kept as well.
    let policy: Policy = limit("default", Scope::Tenant).into();
    let mut desk = Desk::with(4, policy, TenantField::RoutingKey);
    let back = through_a_delay_queue(&mut desk, with_key("acme"));
    let asked = desk.back(back).asked;
    assert_eq!(asked[0].tenant.as_str(), "acme");
}

#[test]
fn a_tenant_without_a_window_is_closed_for_a_moment() {
    let running = Limit::concurrent("running", 9).expect("in range");
    let window = Limit::new("default", Algorithm::FixedWindow, 20, MS * 3000, MS * 50);
    let window = window.expect("in range");
    for (limits, expected) in [
        (vec![running.clone()], Duration::from_secs(1)),
        (vec![running, window], Duration::from_secs(3)),
    ] {
        let mut desk = desk(4, limits);
        let key = desk.start_one();
        assert_eq!(desk.ended(key, throttled(None)).blocked[0].1, expected);
    }
}

#[test]
fn a_job_that_waits_for_a_lease_asks_when_a_call_has_ended() {
    let running = Limit::concurrent("running", 1).expect("in range");
    let mut desk = desk(4, vec![running]);
    let jobs = vec![job("t", "/"), job("t", "/"), job("t", "/")];
    desk.deliver_messages(DeliverySource::Fresh, jobs);
    let started = desk.answer(MS, vec![vec![START, wait(200, 1), wait(400, 2)]]);
    let key = started.dispatched[0].0;
    assert!(desk.step(MS * 50).asked.is_empty());
    let done = desk.ended_within(MS, key, Outcome::Done);
    assert_eq!((done.settled.len(), done.asked.len()), (1, 0));
    // The first of the two asks once. The other one returns at its time.
    desk.settled_all(1);
    let asked = desk.step(MS * 5).asked;
    assert_eq!(asked[0].asks.len(), 1);
    assert_eq!(asked[0].asks[0].ticket.map(|ticket| ticket.number), Some(1));
    desk.answer(MS, vec![vec![START]]);
    assert!(desk.step(MS * 300).asked.is_empty());
    assert_eq!(desk.step(MS * 100).asked[0].asks.len(), 1);
}

/// Makes three of ten jobs wait. Of the others, those with a permit start.
fn answers(asked: &[TenantAsk], rolls: &mut impl Iterator<Item = u8>) -> Vec<Vec<Answer>> {
    let one = |ask: &TenantAsk| {
        let mut left = ask.budget;
        let mut answer = |_| match (rolls.next().unwrap_or(0), left) {
            (0..3, _) => wait(60_000, 1),
            (_, 0) => CAPACITY,
            (_, _) => {
                left -= 1;
                START
            }
        };
        ask.asks.iter().map(&mut answer).collect()
    };
    asked.iter().map(one).collect()
}

proptest! {
    #![proptest_config(Config::with_source_file(file!()))]

    #[test]
    fn no_round_exceeds_the_permits_and_no_job_is_lost(
        jobs in vec((0..3_u8, 0..4_u8), 1..60),
        rolls in vec(0..10_u8, 200),
        concurrency in 1..9_usize,
    ) {
        let mut desk = of_paths(concurrency);
        let mut rolls = rolls.into_iter().cycle();
        let named = |(tenant, path): &(u8, u8)| job(&tenant.to_string(), &path.to_string());
        let mut done = desk.deliver_messages(DeliverySource::Fresh, jobs.iter().map(named).collect());
        let (mut running, mut ended): (Vec<JobKey>, usize) = (Vec::new(), 0);
        for _ in 0..200 {
            if done.asked.is_empty() {
                let Some(key) = running.pop() else { break };
                desk.scheduler.finished(desk.now, key, MS, Outcome::Done);
                ended += 1;
                done = desk.step(MS * 5);
                continue;
            }
            let budget: u32 = done.asked.iter().map(|ask| ask.budget).sum();
            let free = concurrency - running.len();
            prop_assert!(budget as usize <= free, "{budget} of {free}");
            let mut tenants: Vec<_> = done.asked.iter().map(|ask| &ask.tenant).collect();
            tenants.dedup();
            let runs = tenants.len();
            tenants.sort_unstable();
            tenants.dedup();
            prop_assert_eq!(runs, tenants.len(), "a tenant's questions follow each other");
            let answered = desk.answer(MS, answers(&done.asked, &mut rolls));
            running.extend(answered.dispatched.iter().map(|(key, ..)| *key));
            ended += answered.published.len();
            done = desk.step(MS * 5);
        }
        prop_assert_eq!((running.len(), ended), (0, jobs.len()));
    }
}
