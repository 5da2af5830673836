//! The scheduler alone: deliveries, answers and outcomes in, actions out, at chosen times.

mod breaker;
mod closing;
mod dedupe;
mod delays;
mod expiry;
mod fitness;
mod held;
mod load;
mod prepare;
mod results;
mod scopes;
mod settle;
mod shards;
mod starts;
mod steering;
mod suspects;
mod traces;
mod unstored;
mod waking;

use std::sync::Arc;
use std::time::Duration;

use broker::{Delivery, DeliverySource, ExternalMessage, Message, Outgoing, PublishError, Tag};
use bytes::Bytes;
use engine::action::{Action, Block, EngineSettings, JobKey, LiveSettings};
use engine::facts::{Fact, TenantFact};
use engine::scheduler::Scheduler;
use gate::fleet::{EnforcedPolicies, RegisteredPolicy, RegistryKnowledge};
use gate::{
    Answer, BreakerEvent, BreakerScope, Candidate, End, GateError, LimitEvidence, Replies,
    Sequences, SettleReplies, ShardId, SuspectNote, TenantAsk, TenantReply, TenantSettlements,
    Ticket,
};
use handler::{Attempt, Fate, Outcome};
use kit::{MS, Says};
use rules::answers::{LimitInfo, Pushback, Quotas};
use rules::delays::{DelayLevels, QueueNames, Trip};
use rules::failures::retry::RetryPolicy;
use rules::headers::{self, HeaderValue};
use rules::job::{Field, Fields, Job, TenantField};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::Policy;
use rules::steering::JobSighting;
use rules::tenant::Tenant;

pub const STORE_MS: u64 = 1_700_000_000_000;

pub struct Desk {
    pub scheduler: Scheduler,
    /// Number of calls that can be made at once when the gate is asked.
    pub ready: usize,
    pub now: Duration,
    /// Whether the gate reports failures of its tenants' calls.
    pub has_failures: bool,
    next_tag: u64,
}

/// All actions of the scheduler at one moment.
#[derive(Default)]
pub struct Done {
    pub asked: Vec<TenantAsk>,
    pub dispatched: Vec<(JobKey, Job, Duration)>,
    /// Calls to be prepared, and prepared calls that are not needed.
    pub prepared: Vec<JobKey>,
    pub released: Vec<JobKey>,
    pub published: Vec<(JobKey, Outgoing)>,
    /// Results.
    pub results: Vec<(JobKey, ExternalMessage)>,
    pub acked: Vec<u64>,
    /// Deliveries that went back to their queues.
    pub given_back: Vec<u64>,
    pub settled: Vec<TenantSettlements>,
    pub blocked: Vec<(Block, Duration)>,
    pub reported: Vec<(BreakerScope, BreakerEvent)>,
    pub advertised: Vec<(Tenant, Quotas)>,
    /// Abandoned calls whose ends are awaited.
    pub awaited: Vec<(String, Duration)>,
    /// Notes on suspects for the gate.
    pub suspected: Vec<SuspectNote>,
    /// Candidates that ask whether they are the first with their dedupe keys.
    pub deduped: Vec<Candidate>,
    /// Answers about jobs that operators asked for.
    pub sighted: Vec<JobSighting>,
    /// Lessons for adaptive limits.
    pub lessons: Vec<LimitEvidence>,
    /// Whether new jobs are wanted.
    pub new: Vec<bool>,
    /// How many times deliveries were returned, and taken again.
    pub rests: usize,
    pub takes: usize,
    /// How many times one delivery per queue was taken.
    pub takes_few: usize,
}

/// Returns a policy of 20 calls per second.
pub fn usual() -> Policy {
    let second = Duration::from_secs(1);
    let guard = Duration::from_millis(50);
    let limit = Limit::new("default", Algorithm::SlidingWindow, 20, second, guard);
    limit.expect("a limit").into()
}

pub fn by_header() -> TenantField {
    TenantField::Header("x-tenant".into())
}

pub fn settings(concurrency: usize, policy: Policy, tenant: TenantField) -> EngineSettings {
    let open = kit::settings::open(concurrency);
    let retry = RetryPolicy {
        initial_interval: Duration::from_secs(10),
        max_interval: Duration::from_secs(300),
        ..open.live.retry
    };
    EngineSettings {
        policy,
        fields: Fields {
            tenant,
            ..open.fields
        },
        live: LiveSettings {
            retry,
            max_throttle: Duration::from_secs(3600),
            ..open.live
        },
        prefetch: 80,
        ..open
    }
}

impl Desk {
    pub fn new(concurrency: usize) -> Self {
        Self::of(settings(concurrency, usual(), by_header()))
    }

    /// Returns a desk that knows the store's clock, which shows [`STORE_MS`] at `now`.
    pub fn with_clock(concurrency: usize) -> Self {
        let mut desk = Self::new(concurrency);
        let key = desk.start_one();
        desk.ended(key, Outcome::Done);
        desk
    }

    pub fn with(concurrency: usize, policy: Policy, tenant: TenantField) -> Self {
        Self::of(settings(concurrency, policy, tenant))
    }

    pub fn of(settings: EngineSettings) -> Self {
        let mut scheduler = Scheduler::new(settings, 7);
        scheduler.session_up(1);
        Self {
            scheduler,
            ready: usize::MAX,
            now: Duration::from_secs(1),
            has_failures: false,
            next_tag: 0,
        }
    }

    pub fn step(&mut self, forward: Duration) -> Done {
        self.now += forward;
        self.scheduler.tick(self.now);
        let mut ready = self.ready;
        self.scheduler.ask(self.now, |_, _| {
            let is_ready = ready > 0;
            ready = ready.saturating_sub(1);
            is_ready
        });
        self.actions()
    }

    /// Takes the facts.
    pub fn facts(&mut self) -> Vec<Fact> {
        let mut facts = Vec::new();
        self.scheduler.take_facts(&mut facts);
        facts
    }

    pub fn actions(&mut self) -> Done {
        let mut done = Done::default();
        for action in self.scheduler.take_actions() {
            match action {
                Action::Ask(_, batch) => done.asked = batch,
                Action::Dispatch {
                    key, job, deadline, ..
                } => done.dispatched.push((key, *job, deadline)),
                Action::Prepare { key, .. } => done.prepared.push(key),
                Action::Release(keys) => done.released.extend(keys),
                Action::Learn(batch) => done.lessons.extend(batch),
                Action::ReturnDeliveries => done.rests += 1,
                Action::Take => done.takes += 1,
                Action::TakeFew => done.takes_few += 1,
                Action::TakeNew(enabled) => done.new.push(enabled),
                Action::Sighted(batch) => done.sighted.extend(batch),
                Action::PublishResults(batch) => done.results.extend(batch),
                Action::Publish(batch) => done.published.extend(batch),
                Action::Settle(_, batch) => done.settled.extend(batch),
                Action::Await { permit, lease, .. } => done.awaited.push((permit, lease)),
                Action::Advertised(batch) => done.advertised.extend(batch),
                Action::Ack(tags) => done.acked.extend(tags.iter().map(|t| t.tag)),
                Action::GiveBack(tags) => done.given_back.extend(tags.iter().map(|t| t.tag)),
                Action::Report(_, batch) => done.reported.extend(batch),
                Action::Suspect(_, batch) => done.suspected.extend(batch),
                Action::Dedupe(_, batch) => done.deduped.extend(batch),
                Action::Block(block, duration) => done.blocked.push((block, duration)),
            }
        }
        done
    }

    pub fn deliver(&mut self, source: DeliverySource, tenants: &[&str]) -> Done {
        let headers = |tenant: &str| vec![("x-tenant", HeaderValue::Text(tenant.to_owned()))];
        let messages = tenants.iter().map(|t| message(&headers(t))).collect();
        self.deliver_messages(source, messages)
    }

    pub fn deliver_messages(&mut self, source: DeliverySource, messages: Vec<Message>) -> Done {
        self.deliver_marked(source, false, messages)
    }

    /// Delivers jobs with the broker's marks.
    pub fn deliver_marked(
        &mut self,
        source: DeliverySource,
        redelivered: bool,
        messages: Vec<Message>,
    ) -> Done {
        let deliver = |message| {
            self.next_tag += 1;
            let tag = Tag {
                session: 1,
                source,
                tag: self.next_tag,
            };
            Delivery {
                source,
                tag,
                redelivered,
                message: Arc::new(message),
            }
        };
        let deliveries = messages.into_iter().map(deliver).collect();
        self.scheduler.delivered(self.now, deliveries);
        self.step(Duration::from_millis(5))
    }

    /// Returns a job from its delay queue at the end of its trip.
    pub fn back(&mut self, outgoing: Outgoing) -> Done {
        self.now += Duration::from_millis(trip(&outgoing.message).wait_ms);
        self.arrives(outgoing)
    }

    /// Returns a job from its delay queue.
    pub fn arrives(&mut self, outgoing: Outgoing) -> Done {
        let names = QueueNames::new("jobs", &DelayLevels::new(Duration::from_secs(1)));
        let delay_queue = names
            .delays()
            .iter()
            .position(|name| *name == outgoing.queue);
        let source =
            DeliverySource::Delay(u8::try_from(delay_queue.expect("a delay queue")).expect("few"));
        let routing_key = outgoing.queue.to_string();
        let message = outgoing.message;
        self.deliver_messages(
            source,
            vec![Message {
                routing_key,
                ..message
            }],
        )
    }

    pub fn answer(&mut self, after: Duration, answers: Vec<Vec<Answer>>) -> Done {
        self.now += after;
        let has_failures = self.has_failures;
        let reply = |answers| TenantReply {
            has_failures,
            ..reply(answers)
        };
        let replies = answers
            .into_iter()
            .map(|answers| Ok(reply(answers)))
            .collect();
        self.answered(Ok(replies));
        self.actions()
    }

    /// Answers the questions to the default shard.
    pub fn answered(&mut self, replies: Result<Replies, GateError>) {
        let shard = ShardId::default();
        self.scheduler.answered(self.now, shard, replies);
    }

    /// Answers the settlements of the default shard.
    pub fn settled(&mut self, replies: Result<SettleReplies, GateError>) {
        let shard = ShardId::default();
        self.scheduler.settled(self.now, shard, replies);
    }

    /// Answers that the settlements of this many tenants are stored.
    pub fn settled_all(&mut self, tenants: usize) {
        self.settled(Ok(vec![Ok(()); tenants]));
    }

    /// Ends a call that took a millisecond.
    pub fn ended(&mut self, key: JobKey, attempt: impl Into<Attempt>) -> Done {
        self.scheduler.finished(self.now, key, MS, attempt);
        self.actions()
    }

    /// Ends a call. Returns the actions from then until `forward` later.
    pub fn ended_within(
        &mut self,
        forward: Duration,
        key: JobKey,
        attempt: impl Into<Attempt>,
    ) -> Done {
        self.scheduler.finished(self.now, key, MS, attempt);
        self.step(forward)
    }

    /// Ends a job's preparation, which took a millisecond.
    pub fn prepared(&mut self, key: JobKey, result: Result<(), Attempt>) {
        let now = self.now;
        self.scheduler.prepared(now, key, Some(MS), result);
    }

    /// Confirms the publication of a message.
    pub fn confirmed(&mut self, key: JobKey) -> Done {
        self.scheduler.moved(self.now, vec![(key, Ok(()))]);
        self.actions()
    }

    /// Returns the first published message and confirms it.
    #[track_caller]
    pub fn leaves(&mut self, done: Done) -> Outgoing {
        let first = done.published.into_iter().next();
        let (key, outgoing) = first.expect("a published message");
        self.confirmed(key);
        outgoing
    }

    pub fn start_one(&mut self) -> JobKey {
        self.deliver(DeliverySource::Fresh, &["a"]);
        let done = self.answer(MS, vec![vec![START]]);
        done.dispatched[0].0
    }
}

pub fn trip(message: &Message) -> Trip {
    let Field::Text(trip) = message.header("x-sluicegate-trip") else {
        panic!("no trip")
    };
    headers::read_trip(trip).expect("two numbers")
}

pub const START: Answer = Answer::Start {
    sequences: Sequences::NONE,
};
pub const CAPACITY: Answer = Answer::Capacity;

pub fn retry(why: &str) -> Outcome {
    let (after, reason) = (None, why.to_owned());
    Outcome::Retry { after, reason }
}

pub fn throttled(after: Option<Duration>) -> Outcome {
    let reason = "429".to_owned();
    Outcome::Throttled { after, reason }
}

pub fn reply(answers: Vec<Answer>) -> TenantReply {
    TenantReply {
        now_ms: STORE_MS,
        blocked_until_ms: 0,
        has_failures: false,
        shadows: Vec::new(),
        answers,
    }
}

pub fn wait(ttl_ms: u64, number: u64) -> Answer {
    let ticket = Ticket {
        generation: 9,
        number,
    };
    Answer::Wait {
        limit: 0,
        count: 20,
        ttl_ms,
        ticket,
    }
}

pub fn message(headers: &[(&str, HeaderValue)]) -> Message {
    let plain = Message {
        routing_key: "jobs".into(),
        properties: Default::default(),
        body: Bytes::from_static(b"body"),
    };
    plain.with_headers(headers, &[])
}

#[test]
fn a_job_with_quota_is_admitted_run_and_acked() {
    let mut desk = Desk::new(4);
    let asked = desk.deliver(DeliverySource::Fresh, &["a"]).asked;
    assert_eq!(
        (asked.len(), asked[0].budget, asked[0].asks[0].ticket),
        (1, 1, None)
    );
    let done = desk.answer(MS, vec![vec![START]]);
    let (key, job, deadline) = &done.dispatched[0];
    assert_eq!(
        (job.tenant.as_str(), job.attempt, &job.body[..]),
        ("a", 1, &b"body"[..])
    );
    assert!(!job.id.is_empty(), "a job without id gets one");
    assert_eq!(
        *deadline,
        desk.now - MS + Duration::from_millis(25),
        "half a guard from the question"
    );
    assert_eq!(desk.ended(*key, Outcome::Done).acked, [1]);
    assert!(desk.scheduler.is_idle());
}

#[test]
fn a_short_wait_is_held_and_shows_its_ticket_when_its_time_comes() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(300, 4)]]);
    assert!(done.published.is_empty());
    assert_eq!(
        desk.scheduler.next_tick(desk.now),
        Some(desk.now + MS * 300)
    );
    assert!(desk.step(MS * 299).asked.is_empty());
    let asked = desk.step(MS).asked;
    assert_eq!(
        asked[0].asks[0].ticket,
        Some(Ticket {
            generation: 9,
            number: 4
        })
    );
}

#[test]
fn a_long_wait_takes_a_delay_queue_and_is_acked_only_when_that_is_confirmed() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS, vec![vec![wait(10_100, 4)]]);
    let (key, outgoing) = &done.published[0];
    outgoing.queue.begins("jobs.delay.");
    let header = |name| outgoing.message.header(name);
    assert_eq!(header("x-sluicegate-ticket"), Field::Text("9:4"));
    assert_eq!(header("x-ratelimit-limit"), Field::Int(20));
    assert_eq!(header("retry-after"), Field::Int(11));
    assert_eq!(header("x-ratelimit-reset"), Field::Int(1_700_000_011));
    assert!(done.acked.is_empty());
    assert_eq!(desk.confirmed(*key).acked, [1]);
}

#[test]
fn a_failed_publish_keeps_the_job_and_is_retried() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let (key, first) = desk
        .answer(MS, vec![vec![wait(10_000, 4)]])
        .published
        .remove(0);
    for error in [
        PublishError::Returned,
        PublishError::Nacked,
        PublishError::Down("x".into()),
    ] {
        desk.scheduler.moved(desk.now, vec![(key, Err(error))]);
        assert!(desk.actions().acked.is_empty());
        let (_, again) = desk.step(Duration::from_secs(1)).published.remove(0);
        assert_eq!(again.message, first.message);
    }
    assert_eq!(desk.confirmed(key).acked, [1]);
}

#[test]
fn headers_do_not_grow_however_often_a_job_waits() {
    let mut desk = Desk::new(4);
    let mut travelling = None;
    let mut sizes = Vec::new();
    for _ in 0..100 {
        match travelling.take() {
            None => desk.deliver(DeliverySource::Fresh, &["a"]),
            Some(outgoing) => desk.back(outgoing),
        };
        let (key, outgoing) = desk
            .answer(MS, vec![vec![wait(10_000, 4)]])
            .published
            .remove(0);
        desk.confirmed(key);
        assert_eq!(
            outgoing.message.header("x-sluicegate-attempt"),
            Field::Int(1)
        );
        // Numbers have one size on the wire.
        let rest = outgoing
            .message
            .clone()
            .with_headers(&[], &[headers::WAITS]);
        sizes.push(format!("{:?}", rest.properties.headers()).len());
        travelling = Some(outgoing);
    }
    assert!(sizes.iter().all(|size| *size == sizes[0]), "{sizes:?}");
}

#[test]
fn an_answer_that_comes_too_late_starts_nothing() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS * 26, vec![vec![START]]);
    assert!(done.dispatched.is_empty());
    let done = desk.step(MS * 5);
    assert!(
        done.asked.is_empty(),
        "first it gives back what it did not use"
    );
    assert_eq!(done.settled[0].settled[0].end, End::Unused);
    desk.settled_all(1);
    let asked = desk.step(MS).asked;
    assert_eq!(asked.len(), 1, "it asks again");
    let ask = asked[0].asks[0];
    assert_eq!(
        (ask.ticket, ask.readmitted),
        (Some(Ticket::HAD_ITS_TURN), true)
    );
}

#[test]
fn a_permits_age_is_the_answer_time_beyond_the_latency() {
    for (took, starts) in [(40, true), (64, true), (66, false)] {
        let mut desk = Desk::new(4);
        desk.deliver(DeliverySource::Fresh, &["a"]);
        desk.scheduler.set_base(MS * 40);
        let done = desk.answer(MS * took, vec![vec![START]]);
        assert_eq!(done.dispatched.len(), usize::from(starts), "{took} ms");
    }
}

#[test]
fn a_held_job_asks_earlier_by_the_latency() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    desk.scheduler.set_base(MS * 40);
    desk.answer(MS * 40, vec![vec![wait(300, 4)]]);
    assert!(desk.step(MS * 259).asked.is_empty());
    assert_eq!(desk.step(MS).asked.len(), 1);
}

#[test]
fn a_job_without_a_slot_waits_in_memory_until_one_is_free() {
    let mut desk = Desk::new(1);
    desk.deliver(DeliverySource::Fresh, &["a", "a"]);
    let done = desk.answer(MS, vec![vec![START, CAPACITY]]);
    let key = done.dispatched[0].0;
    assert!(desk.step(Duration::from_secs(9)).asked.is_empty());
    let next = desk.scheduler.next_tick(desk.now);
    let soon = desk.now + Duration::from_secs(10);
    assert!(
        next.is_none_or(|at| at > soon),
        "no busy loop while it waits"
    );
    assert_eq!(desk.ended_within(MS, key, Outcome::Done).asked[0].budget, 1);
}

#[test]
fn no_job_starts_or_is_lost_while_the_gate_is_unreachable() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a", "a"]);
    for _ in 0..5 {
        desk.answered(Err(GateError::Unreachable("refused".into())));
        let done = desk.actions();
        assert!(done.dispatched.is_empty() && done.acked.is_empty());
        let next = desk.scheduler.next_tick(desk.now).expect("it tries again");
        assert!(next > desk.now, "not at once");
        let asked = desk.step(next - desk.now).asked;
        assert_eq!(asked[0].asks.len(), 2);
    }
}

#[test]
fn a_failed_job_takes_a_delay_queue_with_its_attempt_and_in_the_end_becomes_a_dead_letter() {
    let mut desk = Desk::new(4);
    let mut key = desk.start_one();
    for attempt in 2..=3 {
        let (moving, outgoing) = desk.ended(key, retry("500")).published.remove(0);
        assert!(outgoing.queue.starts_with("jobs.delay."));
        assert_eq!(
            outgoing.message.header("x-sluicegate-attempt"),
            Field::Int(attempt)
        );
        let Field::Int(at) = outgoing.message.header("x-sluicegate-not-before") else {
            panic!("a time")
        };
        let wait_ms = u64::try_from(at).expect("a time") - STORE_MS;
        assert!((5_000..=30_000).contains(&wait_ms), "{wait_ms}");
        desk.confirmed(moving);
        // The delay queue does not keep the time, so the job waits unacked in the worker.
        let back = desk.arrives(outgoing);
        assert!(back.asked.is_empty() && back.published.is_empty());
        let asked = desk.step(Duration::from_millis(wait_ms)).asked;
        assert_eq!(asked.len(), 1);
        let started = desk.answer(MS, vec![vec![START]]).dispatched.remove(0);
        assert_eq!(i64::from(started.1.attempt), attempt);
        key = started.0;
    }
    let (_, dead) = desk.ended(key, retry("500")).published.remove(0);
    assert_eq!(&*dead.queue, "jobs.dead");
    let reason = dead.message.header("x-sluicegate-reason");
    assert_eq!(reason, Field::Text("gave up after 3 attempts: 500"));
}

#[test]
fn a_snooze_uses_no_attempt() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    let after = Duration::from_secs(30);
    let (_, outgoing) = desk
        .ended(key, Outcome::Snooze { after })
        .published
        .remove(0);
    assert_eq!(
        outgoing.message.header("x-sluicegate-attempt"),
        Field::Int(1)
    );
}

#[test]
fn a_throttled_job_closes_its_tenant_and_asks_again_with_the_same_attempt() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    let after = Some(Duration::from_secs(99_999));
    let blocked = desk.ended(key, throttled(after)).blocked.remove(0);
    assert_eq!(
        (blocked.0.key, blocked.1, blocked.0.reason.as_str()),
        (Some(key), Duration::from_secs(3600), "429"),
        "capped"
    );
    desk.scheduler.blocked(desk.now, blocked.0, Ok(()));
    let asked = desk.step(MS * 5).asked;
    assert_eq!(asked[0].asks[0].ticket, None);
    let (_, outgoing) = desk
        .answer(MS, vec![vec![wait(60_000, 1)]])
        .published
        .remove(0);
    assert_eq!(
        outgoing.message.header("x-sluicegate-attempt"),
        Field::Int(1)
    );
}

#[test]
fn no_job_of_a_tenant_asks_while_its_throttle_is_being_stored() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    let (block, _) = desk
        .ended(key, throttled(Some(Duration::from_secs(9))))
        .blocked
        .remove(0);
    let asked = desk.deliver(DeliverySource::Fresh, &["a", "b"]).asked;
    let tenants: Vec<_> = asked.iter().map(|ask| ask.tenant.as_str()).collect();
    assert_eq!(tenants, ["b"]);
    desk.answer(MS, vec![vec![START]]);
    desk.scheduler.blocked(desk.now, block, Ok(()));
    let asked = desk.step(MS * 5).asked;
    assert_eq!((asked[0].tenant.as_str(), asked[0].asks.len()), ("a", 2));
}

#[test]
fn an_admission_that_arrives_while_a_throttle_is_being_stored_is_returned() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    assert_eq!(desk.deliver(DeliverySource::Fresh, &["a"]).asked.len(), 1);
    let (block, _) = desk
        .ended(key, throttled(Some(Duration::from_secs(9))))
        .blocked
        .remove(0);
    let done = desk.answer(MS, vec![vec![START]]);
    assert!(done.dispatched.is_empty() && done.asked.is_empty());
    let settled = desk.step(MS).settled;
    assert_eq!(settled.len(), 1, "the permit is given back");
    desk.scheduler.blocked(desk.now, block, Ok(()));
    desk.settled_all(1);
    assert_eq!(desk.step(MS * 5).asked[0].asks.len(), 2);
}

#[test]
fn an_even_flow_is_throttled_for_twice_as_long_until_a_call_succeeds() {
    let limit = Limit::new("default", Algorithm::LeakyBucket, 20, 1_000 * MS, 50 * MS);
    let mut desk = Desk::with(4, limit.expect("a limit").into(), by_header());
    let mut lengths = Vec::new();
    let mut key = desk.start_one();
    let failed = retry("500");
    for next in [None, Some(failed), Some(Outcome::Done), None] {
        let (block, lasts) = desk.ended(key, throttled(None)).blocked.remove(0);
        lengths.push(lasts.as_millis());
        desk.scheduler.blocked(desk.now, block, Ok(()));
        desk.step(lasts);
        key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
        if let Some(outcome) = next {
            desk.ended(key, outcome);
            key = desk.start_one();
        }
    }
    assert_eq!(lengths, [50, 100, 200, 50]);
}

#[test]
fn a_call_from_before_a_throttle_does_not_end_its_doubling() {
    let limit = Limit::new("default", Algorithm::LeakyBucket, 20, 1_000 * MS, 50 * MS);
    let mut desk = Desk::with(4, limit.expect("a limit").into(), by_header());
    let (mut key, in_flight) = (desk.start_one(), desk.start_one());
    let mut lengths = Vec::new();
    for _ in 0..2 {
        desk.now += MS;
        let (block, lasts) = desk.ended(key, throttled(None)).blocked.remove(0);
        lengths.push(lasts.as_millis());
        desk.scheduler.blocked(desk.now, block, Ok(()));
        desk.ended(in_flight, Outcome::Done);
        desk.step(lasts);
        key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    }
    assert_eq!(lengths, [50, 100]);
}

/// Its job would be called again at once, and again, since no attempt is used.
#[test]
fn a_throttle_of_no_time_lasts_a_second() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    let (_, lasts) = desk
        .ended(key, throttled(Some(Duration::ZERO)))
        .blocked
        .remove(0);
    assert_eq!(lasts, Duration::from_secs(1));
}

#[test]
fn throttles_that_repeat_name_the_algorithm_that_fits_the_api() {
    let mut desk = Desk::new(4);
    let mut reasons = Vec::new();
    let mut key = desk.start_one();
    for _ in 0..3 {
        let refused = Attempt {
            seen: LimitInfo {
                refused: Some(Pushback { after: None }),
                ..LimitInfo::default()
            },
            fate: Fate::Answered,
            ..throttled(None).into()
        };
        desk.now += MS;
        let (block, _) = desk.ended(key, refused).blocked.remove(0);
        reasons.push(block.reason.clone());
        desk.scheduler.blocked(desk.now, block, Ok(()));
        desk.step(5 * MS);
        key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    }
    let advice = "429; 3 of 3 calls were refused although the limit default was kept: the API \
                  seems to require an even flow; use leaky-bucket-algo (or scope: global, if tenants \
                  share this quota)";
    assert_eq!(reasons, ["429", "429", advice]);
}

#[test]
fn a_start_is_marked_as_repeated_until_its_permit_is_used() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let key = desk.answer(MS, vec![vec![START]]).dispatched[0].0;
    let gives_back = |desk: &mut Desk, outcome| {
        (desk.scheduler).finished(desk.now, key, MS * 26, outcome);
        desk.step(MS);
        desk.settled_all(1);
        desk.step(MS * 2).asked[0].asks[0]
    };
    let again = gives_back(&mut desk, Outcome::Late);
    assert!(again.readmitted);
    assert_eq!(again.ticket, Some(Ticket::HAD_ITS_TURN));
    desk.answer(MS, vec![vec![START]]);
    assert!(
        gives_back(&mut desk, Outcome::Late).readmitted,
        "and once more"
    );
    // This time it is called. Its next question is another start.
    desk.answer(MS, vec![vec![START]]);
    let blocked = desk
        .ended(key, throttled(Some(MS * 1_000)))
        .blocked
        .remove(0);
    desk.scheduler.blocked(desk.now, blocked.0, Ok(()));
    assert!(!desk.step(MS * 5).asked[0].asks[0].readmitted);
}

#[test]
fn an_unusable_message_becomes_a_dead_letter_with_its_reason() {
    let mut desk = Desk::new(4);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![message(&[])]);
    assert!(done.asked.is_empty());
    let (key, outgoing) = &done.published[0];
    assert_eq!(&*outgoing.queue, "jobs.dead");
    let reason = outgoing.message.header("x-sluicegate-reason");
    assert_eq!(reason, Field::Text("no tenant: header x-tenant is missing"));
    assert_eq!(desk.confirmed(*key).acked, [1]);
}

#[test]
fn a_lost_session_is_forgotten_and_never_acked() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a", "a", "a", "a"]);
    let answers = vec![wait(10_000, 1), wait(100, 2), START, START];
    let done = desk.answer(MS, vec![answers]);
    let (moving, running) = (done.published[0].0, done.dispatched);
    desk.scheduler.session_down();
    desk.scheduler.moved(desk.now, vec![(moving, Ok(()))]);
    desk.scheduler
        .finished(desk.now, running[0].0, MS, Outcome::Done);
    desk.scheduler.session_up(2);
    let reject = Outcome::Reject {
        reason: "no".into(),
    };
    let done = desk.ended_within(Duration::from_secs(60), running[1].0, reject);
    assert!(done.acked.is_empty() && done.published.is_empty() && done.asked.is_empty());
    assert!(desk.scheduler.is_idle());
}

#[test]
fn held_jobs_are_bounded_and_surplus_ones_take_a_delay_queue() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"; 30]);
    let waits = |tickets: std::ops::RangeInclusive<u64>| tickets.map(|number| wait(400, number));
    let first = desk.answer(MS, vec![waits(1..=4).collect()]);
    assert!(first.published.is_empty());
    // The tenant is limited: all its other jobs ask as well, to wait where they take no slot.
    assert_eq!(desk.step(MS * 5).asked[0].asks.len(), 26);
    let done = desk.answer(MS, vec![waits(5..=30).collect()]);
    assert_eq!(
        done.published.len(),
        20,
        "an eighth of the prefetch of 80 is held"
    );
}

#[test]
fn jobs_that_wait_long_for_a_permit_do_not_fill_the_prefetch() {
    let mut desk = Desk::new(2);
    let asked = desk.deliver(DeliverySource::Fresh, &["a"; 80]).asked;
    assert_eq!(asked[0].asks.len(), 2, "only what can run asks");
    let running = desk.answer(MS, vec![vec![START, START]]).dispatched;
    assert!(
        desk.step(MS * 490).published.is_empty(),
        "a short wait is no reason"
    );
    let surplus = desk.step(Duration::from_secs(1)).published;
    assert_eq!(surplus.len(), 68, "an eighth of the prefetch of 80 stays");
    assert!(
        surplus
            .iter()
            .all(|(_, out)| out.queue.starts_with("jobs.delay."))
    );
    let (key, took) = (running[0].0, Duration::from_secs(2));
    desk.scheduler.finished(desk.now, key, took, Outcome::Done);
    let asked = desk.step(MS * 5).asked;
    assert_eq!((asked[0].budget, asked[0].asks.len()), (1, 1));
}

#[test]
fn after_slow_runs_no_job_waits_longer_than_max_delay() {
    let mut desk = Desk::new(1);
    let key = desk.start_one();
    let slow = Duration::from_secs(10_000);
    desk.scheduler.finished(desk.now, key, slow, Outcome::Done);
    desk.deliver(DeliverySource::Fresh, &["a"; 80]);
    desk.answer(MS, vec![vec![START]]);
    let surplus = desk.step(Duration::from_secs(1)).published;
    assert_eq!(surplus.len(), 69);
    let waits: Vec<u64> = surplus
        .iter()
        .map(
            |(_, out)| match out.message.header("x-sluicegate-not-before") {
                Field::Int(at) => at.cast_unsigned() - STORE_MS - 1000,
                other => panic!("{other:?}"),
            },
        )
        .collect();
    let longest = waits.iter().max().expect("there are 69");
    assert!((200_000..=300_000).contains(longest), "{waits:?}");
    let shortest = waits.iter().min().expect("there are 69");
    assert!(longest - shortest > 50_000, "they come together: {waits:?}");
}

#[test]
fn a_stopping_worker_takes_nothing_new() {
    let mut desk = Desk::new(4);
    let key = desk.start_one();
    desk.scheduler.stop();
    assert!(desk.deliver(DeliverySource::Fresh, &["a"]).asked.is_empty());
    assert!(!desk.scheduler.is_idle());
    assert_eq!(desk.ended(key, Outcome::Done).acked, [1]);
    assert!(desk.scheduler.is_idle());
}

#[test]
fn a_stopping_worker_with_jobs_without_a_slot_waits_for_running_calls() {
    let mut desk = Desk::new(2);
    desk.deliver(DeliverySource::Fresh, &["a"; 80]);
    desk.answer(MS, vec![vec![START, START]]);
    desk.scheduler.stop();
    desk.step(Duration::from_secs(1));
    let next = desk.scheduler.next_tick(desk.now);
    assert!(
        next.is_none_or(|at| at > desk.now),
        "a tick that is due and does nothing: the worker spins until its jobs have ended"
    );
}

fn policy(max: u64) -> Arc<Policy> {
    let guard = Duration::from_millis(50);
    let limit = Limit::new("default", Algorithm::SlidingWindow, max, MS * 1000, guard);
    Arc::new(limit.expect("a limit").into())
}

/// Returns the policies of a worker with 20 per second next to one with `max` per second.
fn fleet_with(max: u64) -> EnforcedPolicies {
    let mut known = RegistryKnowledge::default();
    let other = RegisteredPolicy {
        id: "other".to_owned(),
        policy: policy(max),
        since_ms: STORE_MS,
        used_ms: STORE_MS,
    };
    known.learn(vec![other], STORE_MS);
    known.fleet(policy(20), "own", STORE_MS)
}

#[test]
fn a_worker_asks_only_while_it_agrees_with_the_others() {
    let mut desk = Desk::new(4);
    let scheduler = std::mem::replace(&mut desk.scheduler, Desk::new(4).scheduler);
    desk.scheduler = scheduler.must_agree();
    assert!(desk.deliver(DeliverySource::Fresh, &["a"]).asked.is_empty());
    let until = desk.now + MS * 100;
    assert!(
        desk.scheduler
            .next_tick(desk.now)
            .is_none_or(|at| at > desk.now),
        "it does not spin"
    );
    desk.scheduler.agreed(Some(fleet_with(4)), until);
    let asked = desk.step(MS).asked;
    assert_eq!((asked.len(), asked[0].limits[0].max()), (1, 4));
    desk.answer(MS, vec![vec![START]]);

    assert!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.len() == 1);
    desk.answer(MS, vec![vec![START]]);
    desk.step(until - desk.now);
    assert!(desk.deliver(DeliverySource::Fresh, &["c"]).asked.is_empty());
    desk.scheduler.agreed(None, desk.now + MS * 100);
    assert_eq!(desk.step(MS).asked[0].limits[0].max(), 4, "as it was");
}

#[test]
fn each_dead_letter_has_the_time_of_its_death() {
    let invalid = || vec![message(&[])];
    let died = |done: &Done| {
        let (_, outgoing) = done.published.first().expect("a dead letter");
        assert_eq!(&*outgoing.queue, "jobs.dead");
        match outgoing.message.header(headers::DIED) {
            Field::Int(ms) => ms,
            other => panic!("{other:?}"),
        }
    };
    let mut desk = Desk::new(4);
    let scheduler = std::mem::replace(&mut desk.scheduler, Desk::new(4).scheduler);
    desk.scheduler = scheduler.must_agree();
    let done = desk.deliver_messages(DeliverySource::Fresh, invalid());
    assert!(done.published.is_empty(), "the clock is not known");
    assert_eq!(desk.scheduler.in_memory(), 1);
    let until = desk.now + MS * 60_000;
    desk.scheduler
        .clock_is(desk.now, STORE_MS, (Duration::ZERO, Duration::ZERO));
    desk.scheduler.agreed(None, until);
    assert_eq!(died(&desk.step(MS * 3)), STORE_MS as i64 + 3);

    // The gate was never asked.
    desk.step(MS * 100);
    let done = desk.deliver_messages(DeliverySource::Fresh, invalid());
    assert_eq!(died(&done), STORE_MS as i64 + 103);
    assert_eq!(desk.scheduler.asked(), 0);
}

#[test]
fn a_worker_without_agreement_returns_invalid_messages() {
    let mut desk = Desk::new(4);
    let scheduler = std::mem::replace(&mut desk.scheduler, Desk::new(4).scheduler);
    desk.scheduler = scheduler.must_agree();
    desk.deliver_messages(DeliverySource::Fresh, vec![message(&[])]);
    let done = desk.step(MS * 6_000);
    assert_eq!((done.rests, done.published.len()), (1, 0));
    desk.scheduler.session_down();
    assert_eq!(desk.scheduler.in_memory(), 0);
}

#[test]
fn a_cost_above_another_workers_limit_is_no_dead_letter() {
    let mut desk = Desk::new(4);
    let until = desk.now + MS * 1000;
    desk.scheduler.agreed(Some(fleet_with(4)), until);
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let job = |cost| message(&[("x-tenant", text("a")), ("x-cost", text(cost))]);
    let done = desk.deliver_messages(DeliverySource::Fresh, vec![job("10"), job("21")]);
    assert_eq!(
        (done.asked[0].asks.len(), done.asked[0].asks[0].cost),
        (1, 10)
    );
    assert_eq!(
        &*done.published[0].1.queue, "jobs.dead",
        "its own limit is 20"
    );
}

#[test]
fn settings_change_while_jobs_run() {
    let mut desk = Desk::new(1);
    let key = desk.start_one();
    assert!(desk.deliver(DeliverySource::Fresh, &["b"]).asked.is_empty());
    let open = kit::settings::open(2).live;
    let retry_policy = RetryPolicy {
        max_attempts: 1,
        ..open.retry
    };
    desk.scheduler.change(LiveSettings {
        retry: retry_policy,
        max_throttle: MS,
        ..open
    });
    let asked = desk.step(MS * 5).asked;
    assert_eq!((asked.len(), asked[0].budget), (1, 1), "a permit more");
    let published = desk.ended(key, retry("500")).published;
    assert_eq!(&*published[0].1.queue, "jobs.dead", "no second attempt");
}

#[test]
fn a_tenant_without_a_decision_waits_alone() {
    for (why, min, max) in [
        (GateError::Refused("WRONGTYPE".into()), 54_000, 60_000),
        (GateError::Unreachable("a shard".into()), 3_600, 5_000),
    ] {
        let mut desk = Desk::new(4);
        desk.deliver(DeliverySource::Fresh, &["a", "b"]);
        desk.answered(Ok(vec![Err(why), Ok(reply(vec![START]))]));
        let done = desk.actions();
        assert_eq!(done.dispatched[0].1.tenant.as_str(), "b");
        let wait = trip(&done.published[0].1.message).wait_ms;
        assert!((min..=max).contains(&wait), "{wait}");
    }
}

/// Runs a job of a tenant whose primary refuses with `why(the remaining time)` and opens after
/// `opens`. Returns its number of deliveries and when it starts.
fn outage(opens: Duration, why: impl Fn(Duration) -> GateError) -> (u32, Duration) {
    let mut desk = Desk::new(4);
    let began = desk.now;
    let store_ms = |desk: &Desk| STORE_MS + u64::try_from(desk.now.as_millis()).unwrap();
    let mut done = desk.deliver(DeliverySource::Fresh, &["a", "b"]);
    let mut deliveries = 1;
    loop {
        // Another tenant's answers provide the time.
        let now_ms = store_ms(&desk);
        let reply = |answers| TenantReply {
            now_ms,
            ..reply(answers)
        };
        let left = (began + opens).saturating_sub(desk.now);
        let of = |ask: &TenantAsk| match ask.tenant.as_str() {
            "a" if !left.is_zero() => Err(why(left)),
            _ => Ok(reply(vec![START; ask.asks.len()])),
        };
        let replies = done.asked.iter().map(of).collect();
        desk.answered(Ok(replies));
        done = desk.actions();
        if (done.dispatched.iter()).any(|(_, job, _)| job.tenant.as_str() == "a") {
            return (deliveries, desk.now - began);
        }
        while done.asked.is_empty() {
            if let Some((key, outgoing)) = done.published.pop() {
                desk.confirmed(key);
                deliveries += 1;
                done = desk.arrives(outgoing);
            } else {
                let next = desk.scheduler.next_tick(desk.now).expect("it waits");
                done = desk.step(next - desk.now);
            }
        }
    }
}

#[test]
fn a_job_of_a_cold_primary_returns_when_it_opens_and_rarely_before() {
    let cold = |wait| GateError::Cold {
        wait,
        why: "a test".to_owned(),
    };
    let away = |_| GateError::Unreachable("a test".to_owned());
    let secs = Duration::from_secs;
    // The longest delay queue takes 300 s. There are two more checks at the beginning, and one or
    // two remainders at the end.
    for (opens, max, late) in [(3, 3, 1), (60, 6, 7), (600, 9, 7), (3600, 22, 7)] {
        let (deliveries, at) = outage(secs(opens), cold);
        assert!(deliveries <= max, "{opens} s: {deliveries}");
        assert!(
            at >= secs(opens) && at <= secs(opens + late),
            "{opens}: {at:?}"
        );
    }
    // If it opens early, or at an unknown time, that is noticed soon at first, and later at least
    // once per longest delay queue.
    let early = |left: Duration| cold(left + secs(3600));
    for (opens, max, late) in [(3, 2, 5), (60, 4, 300), (3600, 20, 300)] {
        for (deliveries, at) in [outage(secs(opens), early), outage(secs(opens), away)] {
            assert!(deliveries <= max, "{opens} s: {deliveries}");
            assert!(
                at >= secs(opens) && at <= secs(opens + late),
                "{opens}: {at:?}"
            );
        }
    }
}

#[test]
fn briefly_undecided_jobs_ask_again_without_a_delay_queue() {
    let mut desk = Desk::new(40);
    let asked = desk.deliver(DeliverySource::Fresh, &["a"; 30]).asked;
    assert_eq!(asked[0].asks.len(), 30);
    let why = GateError::Cold {
        wait: MS * 50,
        why: "it changed during decisions".to_owned(),
    };
    desk.answered(Ok(vec![Err(why)]));
    let done = desk.step(MS * 49);
    assert!(done.published.is_empty() && done.asked.is_empty());
    assert_eq!(desk.step(MS).asked[0].asks.len(), 30);
    assert_eq!(desk.answer(MS, vec![vec![START; 30]]).dispatched.len(), 30);
}

#[test]
fn an_unreadable_clock_is_not_read_all_the_time() {
    let mut desk = Desk::new(4);
    let headers = vec![
        ("x-tenant", HeaderValue::Text("a".to_owned())),
        ("x-sluicegate-not-before", HeaderValue::Int(1)),
    ];
    let mut done = desk.deliver_messages(DeliverySource::Due, vec![message(&headers)]);
    for _ in 0..3 {
        assert_eq!(done.asked.len(), 1, "a question for the clock");
        assert!(done.asked[0].asks.is_empty());
        let why = GateError::Refused("WRONGTYPE".into());
        desk.answered(Ok(vec![Err(why)]));
        assert!(desk.step(Duration::from_millis(500)).asked.is_empty());
        done = desk.step(Duration::from_millis(600));
    }
    desk.answered(Ok(vec![Ok(reply(Vec::new()))]));
    assert_eq!(desk.step(MS * 5).asked[0].asks.len(), 1, "now for the job");
}

#[test]
fn an_unreadable_clock_is_reported_once_a_minute() {
    let mut desk = Desk::new(4);
    let headers = vec![
        ("x-tenant", HeaderValue::Text("a".to_owned())),
        ("x-sluicegate-not-before", HeaderValue::Int(1)),
    ];
    desk.deliver_messages(DeliverySource::Due, vec![message(&headers)]);
    for _ in 0..100 {
        let why = GateError::Refused("WRONGTYPE of a test".into());
        desk.answered(Ok(vec![Err(why)]));
        desk.step(Duration::from_millis(1_100));
    }
    let facts: Vec<Fact> = desk.facts();
    let facts = facts.into_iter().filter_map(|fact| match fact {
        Fact::Tenant(TenantFact::ClockUnreadable(tenant, jobs, why)) => {
            Some((tenant.to_string(), jobs, why.to_string()))
        }
        _ => None,
    });
    let facts: Vec<_> = facts.collect();
    let why = "Redis refused: WRONGTYPE of a test".to_owned();
    assert_eq!(facts, vec![("a".to_owned(), 1, why); 2]);
}

/// On a busy machine an answer takes a millisecond per job, so half a guard is enough for 25.
#[test]
fn jobs_start_in_smaller_rounds_if_one_round_would_be_too_late() {
    let mut desk = Desk::new(80);
    let tenants: Vec<String> = (0..80).map(|n| format!("t{n}")).collect();
    let tenants: Vec<&str> = tenants.iter().map(String::as_str).collect();
    let mut asked = desk.deliver(DeliverySource::Fresh, &tenants).asked;
    let mut rounds = Vec::new();
    let mut started = 0;
    while started < tenants.len() {
        assert!(rounds.len() < 100, "{rounds:?}");
        rounds.push(asked.len());
        let answers = vec![vec![START]; asked.len()];
        let done = desk.answer(MS * asked.len() as u32, answers);
        started += done.dispatched.len();
        // Unused permits are returned before any other question.
        let done = desk.step(MS * 5);
        asked = done.asked;
        if asked.is_empty() {
            desk.settled_all(done.settled.len());
            asked = desk.step(MS * 5).asked;
        }
    }
    assert_eq!(rounds[..3], [80, 40, 20]);
}

#[test]
fn failed_settlements_delay_no_job() {
    let mut desk = Desk::new(4);
    desk.deliver(DeliverySource::Fresh, &["a"]);
    let done = desk.answer(MS * 26, vec![vec![START]]);
    assert!(done.dispatched.is_empty(), "it came too late");
    assert_eq!(desk.step(MS * 5).settled.len(), 1);
    let why = GateError::Unreachable("refused".into());
    desk.settled(Err(why));
    let done = desk.step(MS);
    assert_eq!((done.asked.len(), done.settled.len()), (1, 0));
    let done = desk.step(MS * 200);
    assert_eq!(done.settled.len(), 1, "it is told again");
}

/// Redis may have charged an unanswered question. A lease is held for a minute unless it is
/// released.
#[test]
fn units_charged_by_a_lost_answer_are_returned_when_the_gate_answers() {
    let second = Duration::from_secs(1);
    let limit = |name, algorithm| Limit::new(name, algorithm, 20, second, Duration::ZERO);
    let strict = limit("strict", Algorithm::Strict).expect("a limit");
    let sliding = limit("sliding", Algorithm::SlidingWindow).expect("a limit");
    let both = Limits::new(vec![sliding, strict.clone()]).expect("limits");
    let mut desk = Desk::with(
        4,
        Policy::common(both),
        TenantField::Header("x-tenant".into()),
    );
    let names = |asked: &[TenantAsk]| asked[0].permits.clone();
    let mut lost = Vec::new();
    let mut asked = desk.deliver(DeliverySource::Fresh, &["a", "a"]).asked;
    for _ in 0..2 {
        lost.push(names(&asked));
        let why = GateError::Unreachable("timed out".into());
        desk.answered(Err(why));
        let done = desk.actions();
        assert!(done.settled.is_empty() && desk.scheduler.is_idle());
        let next = desk.scheduler.next_tick(desk.now).expect("it tries again");
        asked = desk.step(next - desk.now).asked;
    }
    desk.answer(MS, vec![vec![START, START]]);
    let settled = desk.step(MS).settled;
    let given_back: Vec<_> = settled.iter().flat_map(|one| &one.settled).collect();
    let permits: Vec<_> = given_back
        .iter()
        .map(|one| one.receipt.permit.clone())
        .collect();
    let expected = lost
        .iter()
        .flat_map(|name| [format!("{name}:0"), format!("{name}:1")]);
    assert_eq!(permits, expected.collect::<Vec<_>>());
    assert!(given_back.iter().all(|one| one.end == End::Unused));
    // It is unknown whether the others were charged, so they are left alone.
    assert!(
        settled
            .iter()
            .all(|one| one.limits == Limits::from(strict.clone()))
    );
    desk.settled_all(settled.len());
    assert_eq!(desk.step(MS * 300).settled, [], "once");
}

#[test]
fn advertised_limits_are_written_once_and_delay_no_job() {
    let mut desk = Desk::new(4);
    let mut advertisements = Vec::new();
    for _ in 0..3 {
        let key = desk.start_one();
        let seen = LimitInfo {
            quotas: Quotas::read("10/1"),
            ..LimitInfo::default()
        };
        let attempt = Attempt {
            seen,
            fate: Fate::Answered,
            ..Outcome::Done.into()
        };
        // The gate never answers this question.
        let done = desk.ended_within(MS, key, attempt);
        assert_eq!(done.acked.len(), 1);
        advertisements.extend(done.advertised);
    }
    let a = Tenant::parse("a").expect("a tenant");
    assert_eq!(advertisements, [(a, Quotas::read("10/1"))]);
    desk.scheduler.stop();
    assert!(desk.scheduler.is_idle());
}
