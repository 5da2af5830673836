//! The scripts give the model's answers, for random histories on a real Redis; and the model never exceeds a limit.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kit::servers::{shared_redis, unique};
use kit::steadily;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use redis::Commands;
use sluicegate::config::SecretUrl;
use sluicegate::gate::keys::Keys;
use sluicegate::gate::redis::RedisGate;
use sluicegate::gate::scripts::Shortcut;
use sluicegate::gate::{
    Ask, Change, End, Event, Evidence, Gate, LEASE_MS, Lesson, Receipt, Rule, Settled, TenantAsk,
    TenantSettled, Ticket, Whose,
};
use sluicegate::rules::answers::Quotas;
use sluicegate::rules::decision::Answer;
use sluicegate::rules::forecast::{Asked, Opens, Place};
use sluicegate::rules::layout::{Layout, Partition};
use sluicegate::rules::limit::{Algorithm, Limit, Limits, Unit};
use sluicegate::rules::model::{Scopes, State};
use sluicegate::rules::scope::{Labels, Scope};
use sluicegate::rules::tenant::Tenant;
use sluicegate::rules::usage::Clock;

use crate::gate_simulator::violations;

/// A day ahead of the real clock, so that no key expires in Redis while a history runs.
pub(crate) fn begin() -> u64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    now.as_micros() as u64 + 86_400_000_000
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Ask {
        budget: u32,
        jobs: Vec<Job>,
    },
    /// The downstream closes the tenant, and says what its limits are.
    Block {
        millis: u64,
    },
    /// The breaker is told of a call that began so long ago, or asked.
    Report {
        event: Told,
        millis_ago: u64,
    },
    Forward {
        micros: u64,
    },
    Back {
        micros: u64,
    },
    Limit {
        which: usize,
    },
    /// Another writer's entry in the sliding log, this much before now or (negative) after.
    Foreign {
        millis_ago: i64,
    },
    /// The waitlist is gone, and who waits for what it shares.
    Forget,
    /// From here on it is about another tenant, or another part of its jobs, where limits tell them apart.
    Turn {
        who: usize,
    },
    Change {
        change: Change,
    },
    /// An answer of the API says something of limits: it refused one of those that started, or the last that could have, or it
    /// advertises what so many units of each limit keep.
    Learn {
        which: Option<prop::sample::Index>,
        after_ms: u64,
        told: Vec<u32>,
    },
    /// One of those that started ends, or says that it runs; told twice when `again`.
    Settle {
        which: prop::sample::Index,
        end: End,
        again: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Told {
    Failed { of: &'static str, jitter: u32 },
    Sound,
    Probe,
    Release,
    Look,
}

impl Told {
    pub(crate) fn event(self, started_ms: u64) -> Event {
        match self {
            Self::Failed { of, jitter } => Event::Failed {
                started_ms,
                of: of.to_owned(),
                by: format!("502, {started_ms}"),
                jitter,
            },
            Self::Sound => Event::Sound,
            Self::Probe => Event::Probe,
            Self::Release => Event::Release { started_ms },
            Self::Look => Event::Look,
        }
    }
}

/// Short, so that histories see all of it.
pub(crate) const RULE: Rule = Rule {
    failures: 2,
    first_wait_ms: 300,
    longest_wait_ms: 1_000,
    lease_ms: 1_500,
};

fn told() -> impl Strategy<Value = Told> {
    let of = prop::sample::select(vec!["", "", "a", "b"]);
    prop_oneof![
        6 => (of, 0..1_100u32).prop_map(|(of, jitter)| Told::Failed { of, jitter }),
        1 => Just(Told::Sound),
        1 => Just(Told::Probe),
        1 => Just(Told::Release),
        1 => Just(Told::Look),
    ]
}

#[derive(Debug, Clone)]
pub(crate) enum Job {
    Fresh {
        cost: u32,
    },
    /// Shows one of the tickets that were given out; shown twice it is a duplicate.
    Return {
        which: prop::sample::Index,
    },
    Forged {
        generation: i64,
        number: u64,
        cost: u32,
    },
    /// Started before, without a ticket, and did not call.
    HadItsTurn {
        cost: u32,
    },
}

fn job() -> impl Strategy<Value = Job> {
    let cost = || prop_oneof![6 => Just(1u32), 3 => 0..6u32, 1 => 0..40u32];
    prop_oneof![
        4 => cost().prop_map(|cost| Job::Fresh { cost }),
        5 => any::<prop::sample::Index>().prop_map(|which| Job::Return { which }),
        1 => (-1..2i64, 0..40u64, cost())
            .prop_map(|(generation, number, cost)| Job::Forged { generation, number, cost }),
        1 => cost().prop_map(|cost| Job::HadItsTurn { cost }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    let name = || {
        prop_oneof![
            Just("default"),
            Just("second"),
            Just("cost"),
            Just("bucket")
        ]
        .prop_map(str::to_owned)
    };
    prop_oneof![
        (0..4000u64).prop_map(|duration_ms| Change::Pause { duration_ms }),
        Just(Change::Resume),
        (name(), 1..30u32, 0..9000u64).prop_map(|(name, max, duration_ms)| Change::Limit {
            name,
            max,
            duration_ms
        }),
        name().prop_map(|name| Change::Unlimit { name }),
        Just(Change::Reset),
    ]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Cost(1)),
        2 => (0..9u32).prop_map(End::Cost),
        1 => Just(End::Unused),
        1 => Just(End::Running),
        1 => Just(End::Abandoned { for_ms: 0 }),
        1 => (0..2 * LEASE_MS).prop_map(|ms| match ms % 2 {
            0 => End::Abandoned { for_ms: ms },
            _ => End::Late,
        }),
    ]
}

fn learn() -> impl Strategy<Value = Step> {
    let which = prop::option::weighted(0.8, any::<prop::sample::Index>());
    let after = prop_oneof![2 => Just(0), 1 => 0..9_000u64];
    let told = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(prop_oneof![Just(0), 1..30u32], 1..7)
    ];
    (which, after, told).prop_map(|(which, after_ms, told)| Step::Learn {
        which,
        after_ms,
        told,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..9u32, prop::collection::vec(job(), 0..9))
            .prop_map(|(budget, jobs)| Step::Ask { budget, jobs }),
        1 => (0..4000u64).prop_map(|millis| Step::Block { millis }),
        3 => (told(), prop_oneof![2 => Just(0), 1 => 0..2_000u64])
            .prop_map(|(event, millis_ago)| Step::Report { event, millis_ago }),
        4 => (0..400_000u64).prop_map(|micros| Step::Forward { micros }),
        3 => (0..4_000_000u64).prop_map(|micros| Step::Forward { micros }),
        1 => (0..3_000_000_000u64).prop_map(|micros| Step::Forward { micros }),
        1 => (0..3_000_000u64).prop_map(|micros| Step::Back { micros }),
        3 => (0..4usize).prop_map(|which| Step::Limit { which }),
        1 => (-2000..2000i64).prop_map(|millis_ago| Step::Foreign { millis_ago }),
        1 => Just(Step::Forget),
        8 => (0..12usize).prop_map(|who| Step::Turn { who }),
        1 => change().prop_map(|change| Step::Change { change }),
        4 => learn(),
        5 => (any::<prop::sample::Index>(), end(), prop::bool::weighted(0.1))
            .prop_map(|(which, end, again)| Step::Settle { which, end, again }),
    ]
}

pub(crate) fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..50)
}

/// What a history is played with: four sets of limits that it switches between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// One limit of one algorithm.
    Of(Algorithm),
    /// Several at once.
    Several,
    /// Some of them of partitions that are shared.
    Shared,
    /// Some of them shadows, of these partitions and of others.
    Shadowed,
}

/// What [`Step::Learn`] says, of the call that `started`.
pub(crate) fn evidence(
    started: Option<&Receipt>,
    now_ms: u64,
    after_ms: u64,
    told: &[u32],
) -> Evidence {
    match told.is_empty() {
        true => Evidence::Refused {
            started_ms: started.map_or(now_ms, |one| one.started_ms),
            cost: started.map_or(1, |one| one.cost),
            after_ms,
            closed_ms: 3 * after_ms,
        },
        false => Evidence::Advertised(told.to_vec()),
    }
}

/// One that learns, but for a few.
fn limit(name: &str, algorithm: Algorithm, (max, window, guard): (u64, u64, u64)) -> Limit {
    let (window, guard) = (Duration::from_millis(window), Duration::from_millis(guard));
    let limit = Limit::new(name, algorithm, max, window, guard).expect("in range");
    match max {
        9 => limit,
        max => limit.with_band(if max > 20 { 30 } else { 10 }),
    }
}

pub(crate) fn sets(family: Family) -> Vec<Limits> {
    let numbers = [(3, 1000, 50), (20, 1000, 0), (2, 3000, 100), (150, 700, 7)];
    match family {
        Family::Of(algorithm) => {
            let one = |(index, numbers): (usize, _)| {
                let limit = limit("default", algorithm, numbers);
                // The bursts differ from their defaults for half of them.
                match (algorithm.has_burst(), index % 2) {
                    (true, 1) => limit.with_burst(index as u64 * 3).expect("in range"),
                    _ => limit,
                }
            };
            numbers
                .into_iter()
                .enumerate()
                .map(|numbered| one(numbered).into())
                .collect()
        }
        Family::Shared => {
            use Algorithm::{
                FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, Strict, TokenBucket,
            };
            let of = |name, algorithm, scope: &Scope, numbers| {
                limit(name, algorithm, numbers).with_scope(scope.clone())
            };
            let (path, all) = (Scope::Header("path".to_owned()), Scope::Global);
            let shared = [
                vec![
                    of("second", SlidingWindow, &Scope::Tenant, (3, 1000, 50)),
                    of("all", SlidingWindow, &all, (5, 1000, 50)),
                ],
                vec![
                    of("path", SlidingWindow, &path, (2, 800, 0)),
                    of("day", FixedWindow, &Scope::Tenant, (6, 1500, 20)),
                    of("all", TokenBucket, &all, (20, 2000, 20)).with_unit(Unit::Calls),
                ],
                vec![
                    of("path", Strict, &path, (9, 900, 20)),
                    of("key", SlidingCounter, &Scope::RoutingKey, (12, 700, 0)),
                    of("second", SlidingWindow, &Scope::Tenant, (15, 1000, 50)),
                    of("day", FixedWindow, &all, (30, 2000, 10)),
                    of("cost", SlidingWindow, &all, (20, 1000, 10)),
                    (Limit::concurrent("running", 7).expect("in range")).with_scope(all.clone()),
                ],
                vec![
                    of("even", LeakyBucket, &all, (20, 1000, 10))
                        .with_burst(5)
                        .expect("in range"),
                ],
            ];
            shared
                .map(|limits| Limits::new(limits).expect("their names differ"))
                .to_vec()
        }
        Family::Shadowed => shadowed(),
        Family::Several => {
            use Algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
            let several = [
                vec![
                    limit("second", SlidingWindow, (3, 1000, 50)),
                    limit("minute", SlidingWindow, (9, 6000, 50)).with_unit(Unit::Calls),
                ],
                vec![
                    limit("calls", SlidingWindow, (4, 800, 0)).with_unit(Unit::Calls),
                    limit("cost", SlidingWindow, (40, 3000, 0)),
                    limit("day", FixedWindow, (60, 9000, 10)),
                ],
                vec![
                    limit("bucket", TokenBucket, (20, 2000, 20)),
                    limit("even", LeakyBucket, (30, 1000, 20)).with_unit(Unit::Calls),
                    limit("second", FixedWindow, (6, 1000, 20)).with_unit(Unit::Calls),
                    Limit::concurrent("running", 5).expect("in range"),
                ],
                Algorithm::ALL
                    .map(|algorithm| {
                        let name = algorithm.name().trim_end_matches("-algo");
                        let limit = limit(name, algorithm, (12, 1500, 30));
                        match algorithm.has_burst() {
                            true => limit.with_burst(5).expect("in range"),
                            false => limit.with_unit(Unit::Calls),
                        }
                    })
                    .to_vec(),
            ];
            several
                .map(|limits| Limits::new(limits).expect("their names differ"))
                .to_vec()
        }
    }
}

/// Shadows of all algorithms beside limits that are enforced: of one partition, of wider and narrower ones, and of the same limits.
fn shadowed() -> Vec<Limits> {
    use Algorithm::{FixedWindow, LeakyBucket, SlidingSegments, SlidingWindow, TokenBucket};
    let shadow = |limit: Limit| limit.in_shadow().expect("it holds no leases");
    let (path, key) = (Scope::Header("path".to_owned()), Scope::RoutingKey);
    let all_algorithms = Algorithm::ALL.map(|algorithm| {
        let name = algorithm.name().trim_end_matches("-algo");
        let limit = limit(name, algorithm, (4, 1500, 30));
        match algorithm.has_burst() {
            true => limit.with_burst(3).expect("in range"),
            false => limit,
        }
    });
    let second = || limit("second", SlidingWindow, (3, 1000, 50));
    let minute = || limit("minute", SlidingWindow, (4, 3000, 100)).with_unit(Unit::Calls);
    let bucket = || limit("bucket", TokenBucket, (5, 2000, 20));
    let day = || limit("day", FixedWindow, (6, 1500, 20));
    let all = || limit("all", LeakyBucket, (20, 1000, 10)).with_scope(Scope::Global);
    let everybody = || limit("everybody", SlidingWindow, (9, 2000, 10)).with_scope(Scope::Global);
    let running = Limit::concurrent("running", 7).expect("in range");
    let sets = [
        vec![
            second(),
            running.clone(),
            shadow(minute()),
            shadow(bucket()),
            shadow(day()),
        ],
        // What was a shadow is enforced, and the other way round.
        vec![
            minute(),
            bucket(),
            day(),
            shadow(second()),
            shadow(everybody()),
        ],
        vec![
            all(),
            limit("second", SlidingWindow, (15, 1000, 50)),
            limit("path", SlidingWindow, (9, 900, 20)).with_scope(path.clone()),
            shadow(limit("paths", FixedWindow, (2, 700, 20)).with_scope(path)),
            shadow(limit("key", SlidingSegments, (3, 1200, 0)).with_scope(key.clone())),
            shadow(limit("keys", SlidingWindow, (3, 4000, 0)).with_scope(key)),
            shadow(everybody()),
            shadow(minute()),
        ],
        [limit("most", SlidingWindow, (150, 700, 7))]
            .into_iter()
            .chain(all_algorithms.map(shadow))
            .collect(),
    ];
    let mut sets = sets.map(|limits| Limits::new(limits).expect("their names differ"));
    // What operators try of what is enforced, whether it is a shadow besides or not.
    sets[1] = sets[1].trying([("minute", 3), ("bucket", 2), ("day", 4)]);
    sets[2] = sets[2].trying([("second", 9), ("path", 4)]);
    sets.to_vec()
}

/// Which of the tenants' waitlists number `who` is: of each tenant four, as the path and the routing key of its jobs have one of
/// two values each, so that waitlists share the partition of a path, that of a key, both or none.
pub(crate) fn labels_of(limits: &[Limit], who: usize) -> Labels {
    Labels::of(limits, |scope| match scope {
        Scope::RoutingKey => (who / 2 % 2).to_string(),
        _ => (who % 2).to_string(),
    })
}

/// The job as it is asked, once the tickets are known that were given out.
pub(crate) fn ask(job: &Job, tickets: &[(Ticket, u32)], generation: u64) -> Ask {
    match job {
        Job::Return { which } if !tickets.is_empty() => {
            let (ticket, cost) = *which.get(tickets);
            Ask {
                ticket: Some(ticket),
                cost,
                again: ticket.number.is_multiple_of(2),
            }
        }
        Job::Return { .. } => Ask {
            ticket: None,
            cost: 1,
            again: false,
        },
        Job::Fresh { cost } => Ask {
            ticket: None,
            cost: *cost,
            again: cost.is_multiple_of(3),
        },
        Job::HadItsTurn { cost } => Ask {
            ticket: Some(Ticket::HAD_ITS_TURN),
            cost: *cost,
            again: false,
        },
        Job::Forged {
            generation: off,
            number,
            cost,
        } => {
            let generation = generation.saturating_add_signed(*off);
            Ask {
                ticket: Some(Ticket {
                    generation,
                    number: *number,
                }),
                cost: *cost,
                again: number.is_multiple_of(2),
            }
        }
    }
}

/// What `lua/corrections.lua` promises of the fields beside a log with these members: behind the oldest entry every sum is that of
/// its entries, and every entry that was corrected is there.
fn sums_are_those_of_the_entries(
    members: &[Vec<u8>],
    fields: &HashMap<String, Vec<u8>>,
) -> Result<(), TestCaseError> {
    let number = |bytes: &[u8]| (bytes.iter()).fold(0, |sum, byte| sum << 8 | i64::from(*byte));
    // Six bytes with a sign.
    let signed = |bytes: &[u8]| number(bytes) << 16 >> 16;
    let ours = members.iter().filter(|m| m.len() == 19 && m[0] == 1);
    let costs: HashMap<i64, i64> = (ours.map(|m| (number(&m[1..7]), number(&m[15..19])))).collect();
    let oldest = costs.keys().copied().min().unwrap_or(i64::MAX);
    let sums = fields.iter().filter_map(|(name, sum)| {
        let (level, index) = name.split_once(':')?;
        let place: (u32, i64) = (level.parse().ok()?, index.parse().ok()?);
        Some((place, (signed(&sum[..6]), signed(&sum[6..]))))
    });
    let sums: HashMap<(u32, i64), (i64, i64)> = sums.collect();
    let mut expected: HashMap<(u32, i64), (i64, i64)> = HashMap::new();
    for (&(level, entry), &(units, calls)) in &sums {
        if level == 0 && entry >= oldest {
            let cost = costs.get(&entry).copied();
            prop_assert!(cost.is_some(), "entry {} is not there", entry);
            prop_assert!(cost.unwrap_or(0) + units >= 0 && (-1..=0).contains(&calls));
            for level in 0..10 {
                let sum = expected.entry((level, entry >> (2 * level))).or_default();
                *sum = (sum.0 + units, sum.1 + calls);
            }
        }
    }
    for (place, sum) in sums
        .iter()
        .filter(|((level, index), _)| index << (2 * level) >= oldest)
    {
        prop_assert_eq!(expected.get(place), Some(sum), "{:?}", place);
    }
    for place in expected.keys() {
        prop_assert!(sums.contains_key(place), "{:?} is missing", place);
    }
    Ok(())
}

/// What the store keeps, as the model says.
#[derive(Default)]
pub(crate) struct World(HashMap<Partition, State>);

impl World {
    pub(crate) fn with<T>(&mut self, layout: &Layout, run: impl FnOnce(&mut Scopes<'_>) -> T) -> T {
        let take = |partition| {
            self.0
                .remove(layout.partition(partition))
                .unwrap_or_default()
        };
        let mut scopes = Scopes::take(layout, take);
        let result = run(&mut scopes);
        for (partition, state) in scopes.into_states().into_iter().enumerate() {
            self.0.insert(layout.partition(partition).clone(), state);
        }
        result
    }

    pub(crate) fn at(&mut self, partition: &Partition) -> &mut State {
        self.0.entry(partition.clone()).or_default()
    }
}

/// What was given out to the jobs of one waitlist.
#[derive(Default)]
struct Given {
    tickets: Vec<(Ticket, u32)>,
    receipts: Vec<Receipt>,
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let clock = Arc::new(AtomicU64::new(begin()));
        let prefix = unique("model");
        let url = shared_redis().url();
        let micros = Arc::clone(&clock);
        Self {
            runtime,
            gate: RedisGate::connect(&SecretUrl::new(url), &prefix)
                .expect("a good url")
                .with_test_clock(Arc::new(move || micros.load(Ordering::SeqCst))),
            keys: Keys::new(&prefix),
            prefix,
            redis: redis::Client::open(url).expect("a good url"),
            clock,
        }
    }

    /// Plays a history with limits of `sets`, of which some are `shared`.
    fn play(&self, sets: &[Limits], shared: bool, steps: &[Step]) -> Result<(), TestCaseError> {
        let tenants = [0; 3].map(|_| Tenant::parse(&unique("t")).expect("a plain id"));
        let gate = &self.gate;
        let mut world = World::default();
        let mut all_given: HashMap<(Tenant, Labels), Given> = HashMap::new();
        let mut now_of = 0;
        let mut calls = 0;
        let mut raw = self.redis.get_connection().expect("Redis answers");
        // What all tenants share is there for the next history, and after one that failed.
        for key in self.all_keys(&mut raw) {
            let _: () = raw.del(key).expect("Redis answers");
        }
        let (mut which, mut foreign) = (0, 0);
        let mut windows: Vec<(u64, String)> = Vec::new();
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
            let Given { tickets, receipts } = given;
            if let Step::Ask { .. } | Step::Settle { .. } = step {
                // Redis's clock is a day behind the test's: windows that ended are deleted here.
                for state in world.0.values_mut() {
                    state.usage.load_own(&[], clock, 0);
                }
                for (_, ended) in windows.extract_if(.., |(end, _)| *end <= clock.now_ms) {
                    let _: () = redis::cmd("DEL")
                        .arg(ended)
                        .query(&mut raw)
                        .expect("Redis answers");
                }
                // What is asked counts in this window, what came late perhaps in the next one.
                for (limit, place) in limits.all().iter().zip(&keys.limits) {
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
                    let asks: Vec<Ask> =
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
                    let reply = self
                        .runtime
                        .block_on(gate.ask(&batch))
                        .expect("Redis answers")
                        .remove(0)
                        .expect("a decision");
                    prop_assert_eq!(&reply.answers, &answers);
                    prop_assert_eq!(&reply.shadows, &tallies);
                    let failures = world.with(&layout, |scopes| scopes.has_failures());
                    prop_assert_eq!(
                        (reply.now_ms, reply.blocked_until_ms, reply.has_failures),
                        (clock.now_ms, blocked, failures)
                    );
                    for (number, (ask, answer)) in asks.iter().zip(&answers).enumerate() {
                        if let Answer::Start { sequences, .. } = answer {
                            receipts.push(Receipt {
                                permit: format!("{permits}:{number}"),
                                started_ms: clock.now_ms,
                                sequences: sequences.clone(),
                                cost: ask.cost,
                            });
                        }
                        if let Answer::Wait { ticket, .. } = answer
                            && !tickets.contains(&(*ticket, ask.cost))
                        {
                            tickets.push((*ticket, ask.cost));
                        }
                    }
                }
                Step::Block { millis } => {
                    let by = format!("{millis}");
                    world.at(&own).block(clock.now_ms, *millis, &by);
                    self.runtime
                        .block_on(gate.block(
                            &tenant.clone().into(),
                            Duration::from_millis(*millis),
                            &by,
                        ))
                        .expect("Redis answers");
                    let quotas = Quotas::read(&format!("{millis}/{},7/9", millis % 5));
                    world.at(&own).advertised(clock.now_ms, quotas);
                    let said = [(tenant.clone(), quotas)];
                    self.runtime
                        .block_on(gate.advertised(&said))
                        .expect("Redis answers");
                }
                Step::Report { event, millis_ago } => {
                    let event = event.event(clock.now_ms - millis_ago);
                    let standing = world.at(&own).report(clock.now_ms, &RULE, &event);
                    let batch = [(Whose::Tenant(tenant.clone()), event)];
                    let told = self.runtime.block_on(gate.report(&RULE, &batch));
                    let told = told.expect("Redis answers").remove(0);
                    prop_assert_eq!(told.expect("Redis answers"), standing);
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
                    let told = self
                        .runtime
                        .block_on(gate.change(&tenant.clone().into(), change));
                    prop_assert_eq!(told.expect("Redis answers"), until);
                }
                Step::Learn {
                    which,
                    after_ms,
                    told,
                } => {
                    let started = which.filter(|_| !receipts.is_empty());
                    let started = started.map(|which| which.get(receipts.as_slice()));
                    let evidence = evidence(started, clock.now_ms, *after_ms, told);
                    let expected =
                        world.with(&layout, |scopes| scopes.learn(limits, clock, &evidence));
                    let lesson = Lesson {
                        tenant: tenant.clone(),
                        labels: labels.clone(),
                        limits: limits.clone(),
                        evidence,
                    };
                    let told = self.runtime.block_on(gate.learn(&[lesson]));
                    let sunk = told.expect("Redis answers").remove(0);
                    prop_assert_eq!(sunk.expect("it is heard"), expected);
                }
                Step::Settle { .. } if receipts.is_empty() => {}
                Step::Settle { which, end, again } => {
                    calls += 1;
                    let settled = TenantSettled {
                        tenant: tenant.clone(),
                        labels: labels.clone(),
                        limits: limits.clone(),
                        call: format!("c{calls}"),
                        settled: vec![Settled {
                            receipt: which.get(receipts.as_slice()).clone(),
                            end: *end,
                        }],
                    };
                    for _ in 0..=usize::from(*again) {
                        world.with(&layout, |scopes| {
                            scopes.settle(limits.all(), clock, &settled.call, &settled.settled);
                        });
                        self.runtime
                            .block_on(gate.settle(std::slice::from_ref(&settled)))
                            .expect("Redis answers");
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
            let shown = self
                .runtime
                .block_on(gate.inspect(tenant, &labels, limits))
                .expect("Redis answers");
            let layout = Layout::of(limits.all(), tenant, &labels);
            let expected = world.with(&layout, |scopes| scopes.inspect(limits.all(), clock));
            prop_assert_eq!(shown, expected);
            let given = all_given.get(&(tenant.clone(), labels.clone()));
            let ticket = given.and_then(|given| given.tickets.last());
            let [as_it_is, would_be] = what_if(limits, clock, ticket);
            let told = (self.runtime)
                .block_on(gate.forecast((tenant, &labels), limits, &would_be))
                .expect("Redis answers");
            let expected = [as_it_is, would_be]
                .map(|asked| world.with(&layout, |scopes| scopes.schedule(&asked, clock)));
            prop_assert_eq!(told, expected);
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

/// What is asked of the gate as things stand, and if something were different: by the clock now this and now that.
fn what_if(limits: &[Limit], clock: Clock, ticket: Option<&(Ticket, u32)>) -> [Asked; 2] {
    let turn = clock.now_ms as usize;
    let place = match (turn % 3, ticket) {
        (0, Some((ticket, cost))) => Place::Job(Some(*ticket), *cost),
        (1, Some((_, cost))) => Place::Job(None, *cost),
        _ => Place::Last,
    };
    let not_before_ms = clock.now_ms - 500 + clock.now_ms % 1_000;
    let as_it_is = Asked {
        place,
        ..Asked::as_it_is(limits, not_before_ms)
    };
    let half = |limit: &Limit| limit.clone().with_max(limit.max() / 2 + 1);
    let would_be = Asked {
        limits: limits.iter().map(half).collect(),
        as_said: (0..limits.len())
            .map(|at| (at + turn).is_multiple_of(2))
            .collect(),
        opens: [Opens::AsItIs, Opens::Now, Opens::In(777)][turn % 3],
        ..as_it_is.clone()
    };
    [as_it_is, would_be]
}

fn play_random_histories(family: Family, shortcut: Shortcut) {
    let (mut bench, sets) = (Bench::new(), sets(family));
    if shortcut == Shortcut::Left {
        bench.gate = bench.gate.without_shortcuts();
    }
    let config = Config {
        cases: 200,
        max_shrink_iters: 2000,
        ..Config::with_source_file(file!())
    };
    TestRunner::new(config)
        .run(&history(), |steps| {
            bench.play(
                &sets,
                matches!(family, Family::Shared | Family::Shadowed),
                &steps,
            )
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// The gate gives an answer up after two seconds, also in the middle of a history.
async fn scripts_equal_the_model(family: Family, shortcut: Shortcut) {
    steadily(Duration::from_millis(500), move || async move {
        let play = move || play_random_histories(family, shortcut);
        let played = tokio::task::spawn_blocking(play).await;
        played.unwrap_or_else(|failure| resume_unwind(failure.into_panic()));
    })
    .await;
}

#[tokio::test]
async fn the_script_of_each_algorithm_equals_the_model() {
    for algorithm in Algorithm::EVERY {
        println!("{}", algorithm.name());
        scripts_equal_the_model(Family::Of(algorithm), Shortcut::Taken).await;
        if algorithm.rules().shortcut().is_some() {
            scripts_equal_the_model(Family::Of(algorithm), Shortcut::Left).await;
        }
    }
}

#[tokio::test]
async fn the_scripts_of_several_limits_equal_the_model() {
    scripts_equal_the_model(Family::Several, Shortcut::Taken).await;
}

#[tokio::test]
async fn the_scripts_of_shared_partitions_equal_the_model() {
    scripts_equal_the_model(Family::Shared, Shortcut::Taken).await;
}

#[tokio::test]
async fn the_scripts_of_shadows_equal_the_model() {
    scripts_equal_the_model(Family::Shadowed, Shortcut::Taken).await;
}

fn any_index() -> prop::sample::Index {
    let any = any::<prop::sample::Index>().new_tree(&mut TestRunner::deterministic());
    any.expect("any will do").current()
}

/// It counted in a window in which nothing was asked. Where the clock comes by again, and nobody knows of that, both have forgotten it.
#[test]
fn what_came_late_goes_with_its_fixed_window() {
    let window = 1_000_000;
    let sets = vec![limit("default", Algorithm::FixedWindow, (9, 1000, 0)).into()];
    let ask = |jobs: usize| Step::Ask {
        budget: 9,
        jobs: vec![Job::Fresh { cost: 1 }; jobs],
    };
    let late = Step::Settle {
        which: any_index(),
        end: End::Late,
        again: false,
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

/// A call may cost a thousand times what it was charged, and a worker sends no larger number than a billion.
#[test]
fn a_bucket_that_a_call_left_far_below_empty_is_the_models() {
    let bucket = |algorithm, max, days: u64| {
        limit("default", algorithm, (max, days * 86_400_000, 50)).with_burst(max)
    };
    let sets: Vec<Limits> = [
        bucket(Algorithm::TokenBucket, 300, 1),
        bucket(Algorithm::LeakyBucket, 1_000_000, 31),
        bucket(Algorithm::TokenBucket, 1, 31),
        bucket(Algorithm::TokenBucket, 1_000_000, 1),
        // Once empty it is full again in 80,000 years.
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
    for (which, used) in [300_000_001, 975_000_000, 1_000_000_000]
        .into_iter()
        .flat_map(|used| (0..5).map(move |which| (which, used)))
    {
        let end = || Step::Settle {
            which: first,
            end: End::Cost(used),
            again: false,
        };
        let steps = [
            Step::Limit { which },
            fresh(),
            // Once just below empty, and once when it is there already.
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

/// Thousands of waitlists, never the same, start at once while two others wait, of which one has vanished: what is known of
/// those that do not wait is bounded, and nobody who waits is forgotten.
#[test]
fn lines_that_start_at_once_do_not_pile_up_where_others_wait() {
    let bench = Bench::new();
    let all = limit("all", Algorithm::SlidingWindow, (5_000, 1000, 0)).with_scope(Scope::Global);
    let limits: Limits = all.into();
    let mut world = World::default();
    let mut ask = |ids: Vec<String>, ask: Ask| -> Vec<Answer> {
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
        // Few enough for Redis to answer in time on a busy machine.
        let replies = batch.chunks(250).flat_map(|few| {
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
    let costs = |cost| Ask {
        ticket: None,
        cost,
        again: false,
    };
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
    let back = Ask {
        ticket: Some(ticket),
        cost: 1,
        again: false,
    };
    let answers = ask(vec!["waits".to_owned()], back);
    assert!(starts(&answers[0]), "{answers:?}");
}

/// What started when, by the clock and by the time that really passed: the clock may be stepped back meanwhile.
type Start = (u64, u64, u32, Limit);

/// What [`violations`] judges: sliding windows by the time that really passed, fixed ones by the clock. One that was stepped back
/// comes through a window again, which is another one if as much time has really passed since the starts in it.
fn judged(starts: Vec<Start>) -> Vec<(u64, u32, Limit)> {
    let mut passes = HashMap::new();
    let mut judged: Vec<_> = (starts.into_iter())
        .map(|(clock, real, units, limit)| {
            if limit.algorithm() != Algorithm::FixedWindow {
                return (real, units, limit);
            }
            let window = limit.window_ms() * 1000;
            let (pass, last) = passes.entry(clock / window).or_insert((0, real));
            if real - *last >= window {
                *pass += 1;
            }
            *last = real;
            (clock + *pass * window * 1_000_000, units, limit)
        })
        .collect();
    judged.sort_by_key(|(at, ..)| *at);
    judged
}

/// Plays a history on the model alone, with one limit, and gives what started.
fn starts(algorithm: Algorithm, which: usize, steps: &[Step]) -> Vec<Start> {
    let limits = sets(Family::Of(algorithm)).remove(which);
    let limit = &limits[0];
    let mut state = State::default();
    let (mut clock, mut real) = (begin(), begin());
    let mut tickets: Vec<(Ticket, u32)> = Vec::new();
    let mut started = Vec::new();
    for step in steps {
        match step {
            Step::Ask { budget, jobs } => {
                let asks: Vec<Ask> = jobs
                    .iter()
                    .map(|j| ask(j, &tickets, state.waitlist.generation))
                    .collect();
                let now = Clock::from_micros(clock);
                let (answers, _) = state.alone(&limits, |scopes| {
                    scopes.ask(&limits, now, *budget, "", &asks)
                });
                for (ask, answer) in asks.iter().zip(answers) {
                    match answer {
                        Answer::Start { .. } => {
                            let units = ask.cost.clamp(1, limit.capacity());
                            started.push((clock, real, units, limit.clone()));
                        }
                        Answer::Wait { ticket, .. } => tickets.push((ticket, ask.cost)),
                        Answer::Capacity => {}
                    }
                }
            }
            Step::Block { millis } => state.block(clock / 1000, *millis, "test"),
            Step::Report { event, millis_ago } => {
                let now = clock / 1000;
                state.report(now, &RULE, &event.event(now - millis_ago));
            }
            Step::Forward { micros } => (clock, real) = (clock + micros, real + micros),
            Step::Back { micros } => clock -= micros,
            Step::Forget if algorithm == Algorithm::SlidingWindow => state.forget_waitlist(),
            Step::Forget
            | Step::Limit { .. }
            | Step::Foreign { .. }
            | Step::Change { .. }
            | Step::Learn { .. }
            | Step::Turn { .. }
            | Step::Settle { .. } => {}
        }
    }
    started
}

proptest! {
    #![proptest_config(Config { cases: 600, ..Config::with_source_file(file!()) })]

    #[test]
    fn no_history_exceeds_a_sliding_window(which in 0..4usize, steps in history()) {
        let started = judged(starts(Algorithm::SlidingWindow, which, &steps));
        prop_assert_eq!(violations(&started), 0);
    }

    #[test]
    fn no_history_exceeds_a_fixed_window(which in 0..4usize, steps in history()) {
        let started = judged(starts(Algorithm::FixedWindow, which, &steps));
        prop_assert_eq!(violations(&started), 0);
    }
}

/// What started, by the partition and the name of the limit that counts it.
type ByPartition = HashMap<(Partition, String), Vec<Start>>;

/// As [`starts`], with one of the sets of several limits, and for several tenants where some are shared. Each call costs what
/// it was charged and ends when the history says so. Jobs may cost more than some of the limits allow: those of an operator, or of
/// other workers.
fn starts_of_several(family: Family, which: usize, steps: &[Step]) -> ByPartition {
    let limits = sets(family).remove(which);
    let tenants = ["t0", "t1", "t2"].map(|id| Tenant::parse(id).expect("a plain id"));
    let mut world = World::default();
    let mut all_given: HashMap<usize, Given> = HashMap::new();
    let (mut clock, mut real, mut now_of) = (begin(), begin(), 0);
    let mut started = ByPartition::new();
    for (number, step) in steps.iter().enumerate() {
        let now = Clock::from_micros(clock);
        let tenant = &tenants[now_of / 4];
        let labels = labels_of(&limits, now_of);
        let layout = Layout::of(&limits, tenant, &labels);
        let Given { tickets, receipts } = all_given.entry(now_of).or_default();
        match step {
            Step::Ask { budget, jobs } => {
                let generation = world.at(&layout.waitlist).waitlist.generation;
                let asked = jobs.iter().map(|j| ask(j, tickets, generation));
                let asks: Vec<Ask> = asked
                    .map(|ask| Ask {
                        cost: ask.cost.max(1),
                        ..ask
                    })
                    .collect();
                let permits = format!("p{number}");
                let (answers, _) = world.with(&layout, |scopes| {
                    scopes.ask(&limits, now, *budget, &permits, &asks)
                });
                for (place, (ask, answer)) in asks.iter().zip(answers).enumerate() {
                    let sequences = match answer {
                        Answer::Start { sequences, .. } => sequences,
                        Answer::Wait { ticket, .. } => {
                            tickets.push((ticket, ask.cost));
                            continue;
                        }
                        Answer::Capacity => continue,
                    };
                    receipts.push(Receipt {
                        permit: format!("{permits}:{place}"),
                        started_ms: now.now_ms,
                        sequences,
                        cost: ask.cost,
                    });
                    for partition in 0..=layout.shared.len() {
                        for limit in layout.limits_in(partition, &limits).into_owned() {
                            let units = match limit.unit() {
                                Unit::Calls => 1,
                                Unit::Cost => ask.cost.clamp(1, limit.capacity()),
                            };
                            let counted =
                                (layout.partition(partition).clone(), limit.name().to_owned());
                            let of_one = started.entry(counted).or_default();
                            of_one.push((clock, real, units, limit));
                        }
                    }
                }
            }
            Step::Settle { which, .. } if !receipts.is_empty() => {
                let receipt = which.get(receipts.as_slice()).clone();
                let end = End::Cost(receipt.cost);
                let settled = [Settled { receipt, end }];
                let call = format!("c{number}");
                world.with(&layout, |scopes| {
                    scopes.settle(&limits, now, &call, &settled);
                });
            }
            Step::Block { millis } => {
                let own = Partition::Tenant(tenant.clone());
                world.at(&own).block(now.now_ms, *millis, "test");
            }
            Step::Forward { micros } => (clock, real) = (clock + micros, real + micros),
            Step::Back { micros } => clock -= micros,
            Step::Turn { who } if family == Family::Shared => now_of = *who,
            _ => {}
        }
    }
    started
}

/// Of all sliding windows, in segments too, and fixed ones, the others' worst case being a matter of more than one window.
fn violations_of_several(family: Family, which: usize, steps: &[Step]) -> usize {
    let mut all = starts_of_several(family, which, steps);
    let windows = [
        Algorithm::SlidingWindow,
        Algorithm::SlidingSegments,
        Algorithm::FixedWindow,
    ];
    all.retain(|_, starts| windows.contains(&starts[0].3.algorithm()));
    let count = |starts: Vec<Start>| violations(&judged(starts));
    all.into_values().map(count).sum()
}

proptest! {
    #![proptest_config(Config { cases: 600, ..Config::with_source_file(file!()) })]

    #[test]
    fn no_history_exceeds_one_of_several_limits(which in 0..4usize, steps in history()) {
        prop_assert_eq!(violations_of_several(Family::Several, which, &steps), 0);
    }

    #[test]
    fn no_history_exceeds_a_shared_partition(which in 0..4usize, steps in history()) {
        prop_assert_eq!(violations_of_several(Family::Shared, which, &steps), 0);
    }
}
