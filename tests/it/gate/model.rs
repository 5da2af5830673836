//! The scripts give the model's answers for random histories on a real Redis.
//! tests/simulation/gate/model.rs shows that the model exceeds no limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use gate::keys::Keys;
use gate::redis::RedisGate;
use gate::{
    BreakerScope, Change, End, Gate, GateError, LimitEvidence, Question, StartSettlement,
    TenantAsk, TenantSettlements, Ticket,
};
use kit::gate::history::{
    Family, IssuedTickets, Job, RULE, Scale, Step, World, ask, evidence, history, labels_of, limit,
};
use kit::gate::rewritten::clocked_without_shortcut;
use kit::gate::{BEGIN_US, FRESH, clocked};
use kit::servers::{shared_redis, unique};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use redis::Commands;
use rules::answers::Quotas;
use rules::decision::Answer;
use rules::gate::forecast::{ForecastRequest, ForecastTarget, OpeningTime};
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Limits, MAX_REQUESTS};
use rules::scope::{Labels, Scope};
use rules::tenant::Tenant;

/// Checks the promises of `lua/corrections.lua` for the fields next to a log with these members: from
/// the oldest entry on, every corrected entry is present, and no correction returns more than it
/// cost.
fn sums_are_those_of_the_entries(
    members: &[Vec<u8>],
    fields: &HashMap<String, Vec<u8>>,
) -> Result<(), TestCaseError> {
    let number = |bytes: &[u8]| (bytes.iter()).fold(0_i64, |sum, byte| sum << 8 | i64::from(*byte));
    let ours = members.iter().filter(|m| m.len() == 21 && m[0] == 1);
    let costs: HashMap<i64, i64> = (ours.map(|m| (number(&m[1..7]), number(&m[15..21])))).collect();
    let oldest = costs.keys().copied().min().unwrap_or(i64::MAX);
    let sums: HashMap<i64, (i64, i64)> = (fields.iter())
        .filter_map(|(name, sum)| {
            let entry = name.parse().ok()?;
            // A signed number of six bytes.
            let calls = number(&sum[8..]) << 16 >> 16;
            Some((entry, (number(&sum[..8]), calls)))
        })
        .collect();
    for (&entry, &(mut units, mut calls)) in sums.iter().filter(|(entry, _)| **entry >= oldest) {
        // The field sums up the entries from its own on, as many as divide its number.
        let steps = (0..entry.trailing_zeros()).map(|level| 1 << level);
        for inside in steps.filter_map(|step: i64| sums.get(&(entry + step))) {
            (units, calls) = (units - inside.0, calls - inside.1);
        }
        let cost = costs.get(&entry).copied();
        let is_changed = (units, calls) != (0, 0);
        prop_assert!(
            cost.is_some() || !is_changed,
            "entry {} is not there",
            entry
        );
        prop_assert!(cost.unwrap_or(0) + units >= 0 && (-1..=0).contains(&calls));
    }
    Ok(())
}

/// Maximum number of attempts per history.
const TRIES: u32 = 5;

/// Returns the answer, or rejects the history if the answer timed out, which says nothing about the
/// scripts.
fn answered<T>(answer: Result<T, GateError>) -> Result<T, TestCaseError> {
    answer.map_err(|error| match error {
        GateError::Unreachable(why) => TestCaseError::reject(why),
        other => TestCaseError::fail(other.to_string()),
    })
}

struct Bench {
    runtime: tokio::runtime::Runtime,
    gate: RedisGate,
    prefix: String,
    keys: Keys,
    redis: redis::Client,
    clock: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        Self::on(clocked)
    }

    fn without_shortcut() -> Self {
        Self::on(clocked_without_shortcut)
    }

    fn on(gate: fn(&str, &str, &Arc<AtomicU64>) -> RedisGate) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let clock = Arc::new(AtomicU64::new(BEGIN_US));
        let prefix = unique("model");
        let url = shared_redis().url();
        Self {
            runtime,
            gate: gate(url, &prefix, &clock),
            keys: Keys::new(&prefix),
            prefix,
            redis: redis::Client::open(url).expect("a good url"),
            clock,
        }
    }

    /// Plays a history with limits of `sets`, some of which may be `shared`. The gate times out
    /// after four seconds; a history with a timeout is started again.
    fn play(&self, sets: &[Limits], shared: bool, steps: &[Step]) -> Result<(), TestCaseError> {
        for _ in 1..TRIES {
            match self.play_once(sets, shared, steps) {
                Err(TestCaseError::Reject(why)) => println!("begun anew: {why}"),
                played => return played,
            }
        }
        self.play_once(sets, shared, steps)
            .map_err(|error| TestCaseError::fail(error.to_string()))
    }

    fn answered_or_reject<T>(
        &self,
        answer: impl Future<Output = Result<T, GateError>>,
    ) -> Result<T, TestCaseError> {
        answered(self.runtime.block_on(answer))
    }

    fn play_once(
        &self,
        sets: &[Limits],
        shared: bool,
        steps: &[Step],
    ) -> Result<(), TestCaseError> {
        let tenants = [0; 3].map(|_| Tenant::parse(&unique("t")).expect("a plain id"));
        let gate = &self.gate;
        let mut world = World::default();
        let mut all_given: HashMap<(Tenant, Labels), IssuedTickets> = HashMap::new();
        let mut now_of = 0;
        let mut calls = 0;
        let mut raw = self.redis.get_connection().expect("Redis answers");
        // Keys that all tenants share would affect the next history, also after a failure.
        for key in self.all_keys(&mut raw) {
            let _: () = raw.del(key).expect("Redis answers");
        }
        let (mut which, mut foreign) = (0, 0);
        let mut windows: Vec<(u64, String)> = Vec::new();
        let mut calendars: HashMap<String, u64> = HashMap::new();
        for step in steps {
            let micros = self.clock.load(Ordering::SeqCst);
            let clock = Clock::from_micros(micros);
            let limits = &sets[which];
            let (tenant, labels) = (&tenants[now_of / 4], labels_of(limits.all(), now_of));
            let layout = Layout::of(limits.all(), tenant, &labels);
            let keys = self.keys.call(&layout, limits.all(), clock.now_ms);
            let own = Partition::Tenant(tenant.clone());
            let given = all_given
                .entry((tenant.clone(), labels.clone()))
                .or_default();
            let IssuedTickets { tickets, receipts } = given;
            if let Step::Ask { .. } | Step::Settle { .. } = step {
                // Redis's clock is far behind the test's, so expired windows are deleted here.
                for state in world.0.values_mut() {
                    state.usage.load_own(&[], clock, 0);
                }
                for (_, ended) in windows.extract_if(.., |(end, _)| *end <= clock.now_ms) {
                    let _: () = redis::cmd("DEL")
                        .arg(ended)
                        .query(&mut raw)
                        .expect("Redis answers");
                }
                for (key, span) in &calendars {
                    let window: Option<String> = raw.get(key).expect("Redis answers");
                    let end = window.and_then(|text| text.split(',').nth(1)?.parse().ok());
                    if end.is_some_and(|end: u64| end + span <= clock.now_ms) {
                        let _: () = raw.del(key).expect("Redis answers");
                    }
                }
                // Questions count in this window, and late calls perhaps in the next one.
                for (limit, place) in limits.all().iter().zip(&keys.limits) {
                    if limit.algorithm() == Algorithm::CalendarWindow {
                        calendars.insert(keys.names[place.first - 1].clone(), limit.span());
                    }
                    if limit.algorithm() == Algorithm::FixedWindow {
                        let ends = |later| (place.index + later) * limit.window_ms();
                        windows.push((ends(1), keys.names[place.first - 1].clone()));
                        windows.push((ends(2), keys.names[place.first].clone()));
                    }
                }
            }
            match step {
                Step::Ask { budget, jobs } => {
                    let generation = world.at(&layout.waitlist).waitlist.generation;
                    let asks: Vec<Question> =
                        (jobs.iter()).map(|j| ask(j, tickets, generation)).collect();
                    calls += 1;
                    let permits = format!("p{calls}");
                    let ((answers, blocked), tallies) = world.with(&layout, |scopes| {
                        let answers = scopes.ask(limits.all(), clock, *budget, &permits, &asks);
                        (answers, scopes.tallies().to_vec())
                    });
                    let batch = [TenantAsk {
                        tenant: tenant.clone(),
                        labels: labels.clone(),
                        limits: limits.clone(),
                        budget: *budget,
                        permits: permits.clone(),
                        asks: asks.clone(),
                    }];
                    let reply = answered(self.answered_or_reject(gate.ask(&batch))?.remove(0))?;
                    prop_assert_eq!(&reply.answers, &answers);
                    prop_assert_eq!(&reply.shadows, &tallies);
                    let failures = world.with(&layout, |scopes| scopes.has_failures());
                    prop_assert_eq!(
                        (reply.now_ms, reply.blocked_until_ms, reply.has_failures),
                        (clock.now_ms, blocked, failures)
                    );
                    given.add(&permits, &asks, &answers, clock.now_ms);
                }
                Step::Block { millis } => {
                    let by = format!("{millis}");
                    world.at(&own).block(clock.now_ms, *millis, &by);
                    let closed = Duration::from_millis(*millis);
                    self.answered_or_reject(gate.block(&tenant.clone().into(), closed, &by))?;
                    let quotas = Quotas::read(&format!("{millis}/{},7/9", millis % 5));
                    world.at(&own).advertised(clock.now_ms, quotas);
                    let advertised = [(tenant.clone(), quotas)];
                    self.answered_or_reject(gate.advertised(&advertised))?;
                }
                Step::Report { event, millis_ago } => {
                    let event = event.event(clock.now_ms - millis_ago);
                    let standing = world.at(&own).report(clock.now_ms, &RULE, &event);
                    let batch = [(BreakerScope::Tenant(tenant.clone()), event)];
                    let reported = self
                        .answered_or_reject(gate.report(&RULE, &batch))?
                        .remove(0);
                    prop_assert_eq!(answered(reported)?, standing);
                }
                Step::Forward { micros: by } => self.clock.store(micros + by, Ordering::SeqCst),
                Step::Back { micros: by } => self.clock.store(micros - by, Ordering::SeqCst),
                Step::Limit { which: other } => which = *other,
                Step::Foreign { millis_ago } => {
                    let mut places = limits.iter().zip(&keys.limits);
                    let sliding = places.find(|(l, _)| l.algorithm() == Algorithm::SlidingWindow);
                    let sliding = sliding.map(|(_, place)| &keys.names[place.first - 1]);
                    if let Some(log) = sliding.filter(|_| !shared) {
                        let score = clock.now_ms.saturating_add_signed(-millis_ago);
                        foreign += 1;
                        world.at(&layout.waitlist).usage.add_foreign(score);
                        let _: () = redis::pipe()
                            .zadd(log, format!("{score}-0.{foreign}"), score)
                            .cmd("PEXPIRE")
                            .arg(log)
                            .arg(86_400_000)
                            .query(&mut raw)
                            .expect("Redis answers");
                    }
                }
                Step::Change { change } => {
                    let until = world.at(&own).change(clock.now_ms, change);
                    if *change == Change::Reset {
                        let all = &mut world.at(&Partition::Global).fair_queue;
                        all.leave(&tenant.key(), clock.now_ms);
                    }
                    let until_ms =
                        self.answered_or_reject(gate.change(&tenant.clone().into(), change))?;
                    prop_assert_eq!(until_ms, until);
                }
                Step::Learn {
                    which,
                    after_ms,
                    maxima,
                } => {
                    let started = which.filter(|_| !receipts.is_empty());
                    let started = started.map(|which| which.get(receipts.as_slice()));
                    let evidence = evidence(started, clock.now_ms, *after_ms, maxima);
                    let expected =
                        world.with(&layout, |scopes| scopes.learn(limits, clock, &evidence));
                    let lesson = LimitEvidence {
                        tenant: tenant.clone(),
                        labels: labels.clone(),
                        limits: limits.clone(),
                        evidence,
                    };
                    let sunk = self.answered_or_reject(gate.learn(&[lesson]))?.remove(0);
                    prop_assert_eq!(answered(sunk)?, expected);
                }
                Step::Settle { .. } if receipts.is_empty() => {}
                Step::Settle { which, end, twice } => {
                    calls += 1;
                    let settled = TenantSettlements {
                        tenant: tenant.clone(),
                        labels: labels.clone(),
                        limits: limits.clone(),
                        call: format!("c{calls}"),
                        settled: vec![StartSettlement {
                            receipt: which.get(receipts.as_slice()).clone(),
                            end: *end,
                        }],
                    };
                    for _ in 0..=usize::from(*twice) {
                        world.with(&layout, |scopes| {
                            scopes.settle(limits.all(), clock, &settled.call, &settled.settled);
                        });
                        self.answered_or_reject(gate.settle(std::slice::from_ref(&settled)))?;
                    }
                }
                Step::Forget => {
                    for partition in 0..=layout.shared.len() {
                        world.at(layout.partition(partition)).forget_waitlist();
                    }
                    let queues = keys.shared.iter().flat_map(|first| first - 1..first + 4);
                    let gone: Vec<&String> = [0]
                        .into_iter()
                        .chain(queues)
                        .map(|at| &keys.names[at])
                        .collect();
                    let _: () = redis::cmd("DEL")
                        .arg(gone)
                        .query(&mut raw)
                        .expect("Redis answers");
                }
                Step::Turn { who } if shared => now_of = *who,
                Step::Turn { .. } => {}
            }
            let clock = Clock::from_micros(self.clock.load(Ordering::SeqCst));
            let (tenant, limits) = (&tenants[now_of / 4], &sets[which]);
            let labels = labels_of(limits.all(), now_of);
            let shown = self.answered_or_reject(gate.inspect(tenant, &labels, limits))?;
            let layout = Layout::of(limits.all(), tenant, &labels);
            let expected = world.with(&layout, |scopes| scopes.inspect(limits.all(), clock));
            prop_assert_eq!(shown, expected);
            let given = all_given.get(&(tenant.clone(), labels.clone()));
            let ticket = given.and_then(|given| given.tickets.last());
            let [as_it_is, would_be] = what_if(limits, clock, ticket);
            let schedules =
                self.answered_or_reject(gate.forecast((tenant, &labels), limits, &would_be))?;
            let expected = [as_it_is, would_be]
                .map(|asked| world.with(&layout, |scopes| scopes.schedule(&asked, clock)));
            prop_assert_eq!(schedules, expected);
        }
        for key in self.all_keys(&mut raw) {
            let left: i64 = raw.pttl(&key).expect("Redis answers");
            prop_assert!(left > 0, "{} has no expiry", key);
            if let Some(log) = key.strip_suffix(":spans") {
                let numbers: Vec<Vec<u8>> = raw.zrange(log, 0, -1).expect("Redis answers");
                let sums = raw.hgetall(&key).expect("Redis answers");
                sums_are_those_of_the_entries(&numbers, &sums)?;
            }
        }
        Ok(())
    }

    fn all_keys(&self, raw: &mut redis::Connection) -> Vec<String> {
        let pattern = format!("{}*", self.prefix);
        raw.keys(pattern).expect("Redis answers")
    }
}

/// Returns questions for forecasts as things stand and under other conditions, which vary with the
/// clock.
fn what_if(limits: &[Limit], clock: Clock, ticket: Option<&(Ticket, u64)>) -> [ForecastRequest; 2] {
    let turn = clock.now_ms as usize;
    let place = match (turn % 3, ticket) {
        (0, Some((ticket, cost))) => ForecastTarget::Job(Some(*ticket), *cost),
        (1, Some((_, cost))) => ForecastTarget::Job(None, *cost),
        _ => ForecastTarget::Last,
    };
    let not_before_ms = clock.now_ms - 500 + clock.now_ms % 1_000;
    let as_it_is = ForecastRequest {
        target: place,
        ..ForecastRequest::as_it_is(limits, not_before_ms)
    };
    let half = |limit: &Limit| limit.clone().with_max(limit.max() / 2 + 1);
    let would_be = ForecastRequest {
        limits: limits.iter().map(half).collect(),
        ignores_override: (0..limits.len())
            .map(|at| (at + turn).is_multiple_of(2))
            .collect(),
        opens: [OpeningTime::AsItIs, OpeningTime::Now, OpeningTime::In(777)][turn % 3],
        ..as_it_is.clone()
    };
    [as_it_is, would_be]
}

fn play_random_histories(family: Family, scale: Scale, bench: &Bench) {
    let sets = scale.sets(family);
    let config = Config {
        cases: kit::histories(10),
        max_shrink_iters: 2000,
        ..Config::with_source_file(file!())
    };
    TestRunner::new(config)
        .run(&history(), |steps| {
            bench.play(
                &sets,
                matches!(family, Family::Shared | Family::Shadowed),
                &scale.steps(&steps),
            )
        })
        .unwrap_or_else(|error| panic!("{scale:?}: {error}"));
}

fn scripts_equal_the_model(family: Family) {
    for scale in Scale::BOTH {
        play_random_histories(family, scale, &Bench::new());
        if let Family::Of(algorithm) = family
            && algorithm.facts().shortcut.is_some()
        {
            play_random_histories(family, scale, &Bench::without_shortcut());
        }
    }
}

#[test]
fn the_script_of_each_algorithm_equals_the_model() {
    // The histories run side by side, since they mostly wait for Redis. A failed thread has its
    // algorithm's name.
    thread::scope(|scope| {
        for algorithm in Algorithm::EVERY {
            let named = thread::Builder::new().name(algorithm.name().to_owned());
            let play = move || scripts_equal_the_model(Family::Of(algorithm));
            named.spawn_scoped(scope, play).expect("a thread");
        }
    });
}

#[test]
fn the_scripts_of_several_limits_equal_the_model() {
    scripts_equal_the_model(Family::Several);
}

#[test]
fn the_scripts_of_shared_partitions_equal_the_model() {
    scripts_equal_the_model(Family::Shared);
}

#[test]
fn the_scripts_of_shadows_equal_the_model() {
    scripts_equal_the_model(Family::Shadowed);
}

/// A waitlist and a fair queue of 4,500 jobs of 10^12 units, which use up their numbers.
#[test]
fn the_scripts_equal_the_model_where_their_numbers_end() {
    let limit = limit(
        "default",
        Algorithm::SlidingSegments,
        (MAX_REQUESTS, 60_000, 50),
    );
    let shared = limit.clone().with_scope(Scope::Global);
    let ask = |jobs| Step::Ask {
        budget: 1,
        jobs: vec![Job::Fresh { cost: MAX_REQUESTS }; jobs],
    };
    let steps = [
        ask(1),
        ask(10),
        Step::Forward { micros: 61_000_000 },
        Step::Ask {
            budget: 1,
            jobs: vec![Job::HadItsTurn { cost: MAX_REQUESTS }],
        },
        ask(1500),
        ask(1500),
        ask(1493),
        ask(1),
        ask(9),
    ];
    for limit in [limit, shared] {
        let is_shared = limit.is_global();
        let played = Bench::new().play(&[limit.into()], is_shared, &steps);
        played.unwrap_or_else(|why| panic!("{why}"));
    }
}

fn any_index() -> prop::sample::Index {
    let any = any::<prop::sample::Index>().new_tree(&mut TestRunner::deterministic());
    any.expect("any will do").current()
}

/// The call counted in a window without questions. When the clock passes it again unnoticed, both
/// have forgotten it.
#[test]
fn a_late_call_leaves_with_its_fixed_window() {
    let window = 1_000_000;
    let sets = vec![limit("default", Algorithm::FixedWindow, (9, 1000, 0)).into()];
    let ask = |jobs: usize| Step::Ask {
        budget: 9,
        jobs: vec![Job::Fresh { cost: 1 }; jobs],
    };
    let late = Step::Settle {
        which: any_index(),
        end: End::Late,
        twice: false,
    };
    let forward = || Step::Forward { micros: window };
    let back = Step::Back { micros: window };
    let steps = [
        ask(1),
        forward(),
        late,
        forward(),
        ask(0),
        Step::Forget,
        back,
    ];
    let played = Bench::new().play(&sets, false, &steps);
    played.unwrap_or_else(|why| panic!("{why}"));
}

/// A call may cost far more than it was charged, up to 10^12 units.
#[test]
fn a_bucket_far_below_empty_matches_the_model() {
    let bucket = |algorithm, max, days: u64| {
        limit("default", algorithm, (max, days * 86_400_000, 50)).with_burst(max)
    };
    let sets: Vec<Limits> = [
        bucket(Algorithm::TokenBucket, 300, 1),
        bucket(Algorithm::LeakyBucket, 1_000_000, 31),
        bucket(Algorithm::TokenBucket, 1, 31),
        bucket(Algorithm::TokenBucket, 1_000_000, 1),
        // Once empty, it takes 80,000 years to fill.
        bucket(Algorithm::TokenBucket, 1, 31)
            .map(|limit| limit.with_burst(1_000_000).expect("in range")),
    ]
    .map(|limit| limit.expect("in range").into())
    .to_vec();
    let fresh = || Step::Ask {
        budget: 9,
        jobs: vec![Job::Fresh { cost: 1 }; 2],
    };
    let day = 86_400_000_000;
    let first = any_index();
    for (which, used) in [300_000_001, 1_000_000_000, 1_000_000_000_000]
        .into_iter()
        .flat_map(|used| (0..5).map(move |which| (which, used)))
    {
        let end = || Step::Settle {
            which: first,
            end: End::Cost(used),
            twice: false,
        };
        let steps = [
            Step::Limit { which },
            fresh(),
            // Once just below empty, and once when it is already there.
            end(),
            fresh(),
            Step::Forward { micros: day / 2 },
            end(),
            fresh(),
            Step::Forward { micros: 40 * day },
            fresh(),
            Step::Back { micros: 40 * day },
            fresh(),
        ];
        let played = Bench::new().play(&sets, false, &steps);
        played.unwrap_or_else(|why| panic!("{which} {used}: {why}"));
    }
}

/// Thousands of waitlists, all different, start at once while two others wait, one of which has
/// vanished. The state of waitlists that don't wait is bounded, and no waiting one is lost.
#[test]
fn waitlists_that_start_at_once_do_not_pile_up_beside_waiting_ones() {
    let bench = Bench::new();
    let all = limit("all", Algorithm::SlidingWindow, (5_000, 1000, 0)).with_scope(Scope::Global);
    let limits: Limits = all.into();
    let mut world = World::default();
    let mut ask = |ids: Vec<String>, ask: Question| -> Vec<Answer> {
        let clock = Clock::from_micros(bench.clock.load(Ordering::SeqCst));
        let asks = vec![ask];
        let batch = ids.into_iter().map(|id| TenantAsk {
            tenant: Tenant::parse(&id).expect("a plain id"),
            labels: Labels::default(),
            limits: limits.clone(),
            budget: 1,
            permits: id,
            asks: asks.clone(),
        });
        let batch: Vec<_> = batch.collect();
        // Few enough for Redis to answer this and all other tests in time on a busy machine.
        let replies = batch.chunks(50).flat_map(|few| {
            let replies = bench.runtime.block_on(bench.gate.ask(few));
            replies.expect("Redis answers")
        });
        let answers = replies.zip(&batch).map(|(reply, ask)| {
            let layout = Layout::of(&limits, &ask.tenant, &ask.labels);
            let (answers, _) = world.with(&layout, |scopes| {
                scopes.ask(&limits, clock, 1, &ask.permits, &asks)
            });
            assert_eq!(reply.expect("a decision").answers, answers);
            answers[0].clone()
        });
        answers.collect()
    };
    let costs = |cost| Question { cost, ..FRESH };
    let starts = |answer: &Answer| matches!(answer, Answer::Start { .. });
    assert!(starts(&ask(vec!["first".to_owned()], costs(5_000))[0]));
    let waits = ask(vec!["waits".to_owned(), "vanished".to_owned()], costs(1));
    let Answer::Wait { ticket, .. } = waits[0] else {
        panic!("{waits:?}");
    };
    bench.clock.fetch_add(1_001_000, Ordering::SeqCst);
    let mut raw = bench.redis.get_connection().expect("Redis answers");
    for round in 0..12 {
        let ids = (0..400).map(|n| format!("at-once-{round}-{n}"));
        let answers = ask(ids.collect(), costs(5));
        assert!(answers.iter().all(starts), "{round}: {answers:?}");
        let flows: Vec<usize> = ["waiting", "started"]
            .map(|kind| format!("{}:%global:{kind}", bench.prefix))
            .iter()
            .map(|key| raw.zcard(key).expect("Redis answers"))
            .collect();
        assert!(
            flows.iter().sum::<usize>() <= 2 + 1024,
            "{round}: {flows:?}"
        );
        bench.clock.fetch_add(600_000, Ordering::SeqCst);
    }
    let back = Question {
        ticket: Some(ticket),
        ..FRESH
    };
    let answers = ask(vec!["waits".to_owned()], back);
    assert!(starts(&answers[0]), "{answers:?}");
}
