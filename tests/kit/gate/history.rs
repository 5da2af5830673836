//! Random histories of a gate: their steps, their limits, and the state that a store keeps by the
//! model.

use std::collections::HashMap;

use gate::{
    Answer, BreakerEvent, Change, End, Evidence, LEASE_MS, Question, Receipt, Rule, Ticket,
};
use proptest::prelude::*;
use rules::gate::model::{HeldState, Scopes, State};
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Limits, MAX_REQUESTS, Unit};
use rules::scope::{Labels, Scope};

use super::{FRESH, guarded_limit, receipts};

#[derive(Debug, Clone)]
pub enum Step {
    Ask {
        budget: u32,
        jobs: Vec<Job>,
    },
    /// The downstream closes the tenant and advertises its limits.
    Block {
        millis: u64,
    },
    /// The breaker gets a report on a call that began `millis_ago`, or is asked.
    Report {
        event: BreakerReport,
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
    /// Another writer's entry in the sliding log, `millis_ago` before now, or after now if
    /// negative.
    Foreign {
        millis_ago: i64,
    },
    /// The waitlist is lost, with the queues of all partitions that it shares.
    Forget,
    /// The next steps concern another tenant, or another part of its jobs if limits tell the parts
    /// apart.
    Turn {
        who: usize,
    },
    Change {
        change: Change,
    },
    /// An API answer is evidence about limits. It refuses a started call or, without one, a call
    /// that starts now, or it advertises the `max` by which each limit keeps the API's own limits.
    Learn {
        which: Option<prop::sample::Index>,
        after_ms: u64,
        maxima: Vec<u64>,
    },
    /// A started call ends or reports that it runs; reported twice if `twice`.
    Settle {
        which: prop::sample::Index,
        end: End,
        twice: bool,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum BreakerReport {
    Failed { of: &'static str, jitter: u32 },
    Succeeded,
    Probe,
    Release,
    Read,
}

impl BreakerReport {
    pub fn event(self, started_ms: u64) -> BreakerEvent {
        match self {
            Self::Failed { of, jitter } => BreakerEvent::Failed {
                started_ms,
                of: of.to_owned(),
                reason: format!("502, {started_ms}"),
                jitter,
            },
            Self::Succeeded => BreakerEvent::Succeeded,
            Self::Probe => BreakerEvent::Probe,
            Self::Release => BreakerEvent::Release { started_ms },
            Self::Read => BreakerEvent::Read,
        }
    }
}

/// Short times, so that histories cover all states of a breaker.
pub const RULE: Rule = Rule {
    failures: 2,
    first_wait_ms: 300,
    longest_wait_ms: 1_000,
    lease_ms: 1_500,
};

fn reports() -> impl Strategy<Value = BreakerReport> {
    let of = prop::sample::select(vec!["", "", "a", "b"]);
    prop_oneof![
        6 => (of, 0..1_100u32).prop_map(|(of, jitter)| BreakerReport::Failed { of, jitter }),
        1 => Just(BreakerReport::Succeeded),
        1 => Just(BreakerReport::Probe),
        1 => Just(BreakerReport::Release),
        1 => Just(BreakerReport::Read),
    ]
}

#[derive(Debug, Clone)]
pub enum Job {
    Fresh {
        cost: u64,
    },
    /// Shows a ticket that was given out. A ticket shown twice is a duplicate.
    Return {
        which: prop::sample::Index,
    },
    Forged {
        generation: i64,
        number: u64,
        cost: u64,
    },
    /// A job that started before without a ticket and made no call.
    HadItsTurn {
        cost: u64,
    },
}

fn job() -> impl Strategy<Value = Job> {
    let cost = || prop_oneof![6 => Just(1u64), 3 => 0..6u64, 1 => 0..40u64];
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
        (name(), 1..30u64, 0..9000u64).prop_map(|(name, max, duration_ms)| Change::Limit {
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
        2 => (0..9u64).prop_map(End::Cost),
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
    let maxima = prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(prop_oneof![Just(0), 1..30u64], 1..7)
    ];
    (which, after, maxima).prop_map(|(which, after_ms, maxima)| Step::Learn {
        which,
        after_ms,
        maxima,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..9u32, prop::collection::vec(job(), 0..9))
            .prop_map(|(budget, jobs)| Step::Ask { budget, jobs }),
        1 => (0..4000u64).prop_map(|millis| Step::Block { millis }),
        3 => (reports(), prop_oneof![2 => Just(0), 1 => 0..2_000u64])
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
            .prop_map(|(which, end, twice)| Step::Settle { which, end, twice }),
    ]
}

pub fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..50)
}

/// The kind of limits in a history, which switches between four sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// One limit of one algorithm.
    Of(Algorithm),
    /// Several limits at once.
    Several,
    /// Several limits, some of shared partitions.
    Shared,
    /// Several limits, some of them shadows, of these partitions and of others.
    Shadowed,
}

/// The size of the units in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Limits of up to 150 units.
    Few,
    /// The same limits and costs multiplied, so that the highest limit is 10^12 units.
    Most,
}

impl Scale {
    pub const BOTH: [Self; 2] = [Self::Few, Self::Most];

    pub fn units(self, units: u64) -> u64 {
        match self {
            Self::Few => units,
            // Even costs fill even limits exactly, odd ones do not.
            Self::Most => units * (MAX_REQUESTS / 150) - units % 2 * units,
        }
    }

    /// Returns the sets of `family`.
    pub fn sets(self, family: Family) -> Vec<Limits> {
        let all = sets(family);
        match self {
            Self::Few => all,
            Self::Most => all.iter().map(|limits| self.limits(limits)).collect(),
        }
    }

    fn limits(self, limits: &Limits) -> Limits {
        let scaled = |limit: &Limit| {
            if limit.unit() == Unit::Calls {
                return limit.clone();
            }
            let burst = limit.burst();
            let mut scaled = limit.clone().with_max(self.units(limit.max()));
            // One token is a distance between starts, not an amount.
            if limit.algorithm().has_burst() && burst > 1 {
                scaled = scaled.with_burst(self.units(burst)).expect("in range");
            }
            match limit.band() {
                Some(percent) => scaled.with_band(percent),
                None => scaled,
            }
        };
        Limits::new(limits.all().iter().map(scaled).collect()).expect("their names differ")
    }

    pub fn steps(self, steps: &[Step]) -> Vec<Step> {
        let mut steps = steps.to_vec();
        for step in &mut steps {
            match step {
                Step::Ask { jobs, .. } => jobs.iter_mut().for_each(|job| self.job(job)),
                Step::Change {
                    change: Change::Limit { max, .. },
                } => *max = self.units(*max),
                Step::Learn { maxima, .. } => {
                    maxima.iter_mut().for_each(|max| *max = self.units(*max));
                }
                Step::Settle {
                    end: End::Cost(used),
                    ..
                } => *used = self.units(*used),
                _ => {}
            }
        }
        steps
    }

    fn job(self, job: &mut Job) {
        match job {
            Job::Fresh { cost } | Job::HadItsTurn { cost } => *cost = self.units(*cost),
            Job::Forged { number, cost, .. } => {
                (*number, *cost) = (self.units(*number), self.units(*cost));
            }
            Job::Return { .. } => {}
        }
    }
}

/// Returns the evidence of [`Step::Learn`] on the call `started`.
pub fn evidence(started: Option<&Receipt>, now_ms: u64, after_ms: u64, maxima: &[u64]) -> Evidence {
    match maxima.is_empty() {
        true => Evidence::Refused {
            started_ms: started.map_or(now_ms, |one| one.started_ms),
            cost: started.map_or(1, |one| one.cost),
            after_ms,
            closed_ms: 3 * after_ms,
        },
        // 7 stands for an answer that says nothing of the limit.
        false => {
            let max = |max: &u64| Some(*max).filter(|max| *max != 7);
            Evidence::Advertised(maxima.iter().map(max).collect())
        }
    }
}

/// Returns a limit that learns, unless `max` is 9.
pub fn limit(name: &str, algorithm: Algorithm, numbers: (u64, u64, u64)) -> Limit {
    let limit = guarded_limit(name, algorithm, numbers);
    match numbers.0 {
        9 => limit,
        max => limit.with_band(if max > 20 { 30 } else { 10 }),
    }
}

pub fn sets(family: Family) -> Vec<Limits> {
    let numbers = [(3, 1000, 50), (20, 1000, 0), (2, 3000, 100), (150, 700, 7)];
    match family {
        Family::Of(algorithm) => {
            let one = |(index, numbers): (usize, _)| {
                let limit = limit("default", algorithm, numbers);
                // Half of the buckets keep their starts further apart than the refill does.
                let limit = limit.with_spacing([0, 20_000, 200_000, 0][index]);
                // Half of the bursts differ from their defaults.
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
                CalendarWindow, FixedWindow, LeakyBucket, SlidingCounter, SlidingWindow, Strict,
                TokenBucket,
            };
            let of = |name, algorithm, scope: &Scope, numbers| {
                limit(name, algorithm, numbers).with_scope(scope.clone())
            };
            let (path, all) = (Scope::Header("path".to_owned()), Scope::Global);
            let mut shared = [
                vec![
                    of("second", SlidingWindow, &Scope::Tenant, (3, 1000, 50)),
                    of("all", SlidingWindow, &all, (5, 1000, 50)),
                ],
                vec![
                    of("path", SlidingWindow, &path, (2, 800, 0)),
                    of("week", CalendarWindow, &Scope::Tenant, (9, 2500, 20)),
                    of("day", FixedWindow, &Scope::Tenant, (6, 1500, 20)),
                    of("all", TokenBucket, &all, (20, 2000, 20)).with_unit(Unit::Calls),
                ],
                vec![
                    of("path", Strict, &path, (9, 900, 20)),
                    of("key", SlidingCounter, &Scope::RoutingKey, (12, 700, 0)),
                    of("second", SlidingWindow, &Scope::Tenant, (15, 1000, 50)),
                    of("day", FixedWindow, &all, (30, 2000, 10)),
                    of("month", CalendarWindow, &all, (40, 3000, 10)),
                    of("cost", SlidingWindow, &all, (20, 1000, 10)),
                    (Limit::concurrent("running", 7).expect("in range")).with_scope(all.clone()),
                ],
                vec![
                    of("even", LeakyBucket, &all, (20, 1000, 10))
                        .with_burst(5)
                        .expect("in range"),
                ],
            ];
            // The algorithms of `use-algo` that no limit above shares.
            for algorithm in Algorithm::ALL {
                let is_it = |limit: &Limit| limit.algorithm() == algorithm && limit.is_global();
                if !shared.iter().flatten().any(is_it) {
                    shared[1].push(of(algorithm.name(), algorithm, &all, (12, 2000, 20)));
                }
            }
            shared
                .map(|limits| Limits::new(limits).expect("their names differ"))
                .to_vec()
        }
        Family::Shadowed => shadowed(),
        Family::Several => {
            use Algorithm::{CalendarWindow, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
            let several = [
                vec![
                    limit("second", SlidingWindow, (3, 1000, 50)),
                    limit("minute", SlidingWindow, (9, 6000, 50)).with_unit(Unit::Calls),
                ],
                vec![
                    limit("calls", SlidingWindow, (4, 800, 0)).with_unit(Unit::Calls),
                    limit("cost", SlidingWindow, (40, 3000, 0)),
                    limit("day", FixedWindow, (60, 9000, 10)),
                    limit("month", CalendarWindow, (70, 12_000, 20)),
                ],
                vec![
                    limit("bucket", TokenBucket, (20, 2000, 20)),
                    limit("even", LeakyBucket, (30, 1000, 20))
                        .with_unit(Unit::Calls)
                        .with_spacing(7_000),
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

/// Returns shadows of all algorithms beside enforced limits: of the same partition, of wider and
/// narrower ones, and of the same limits.
fn shadowed() -> Vec<Limits> {
    use Algorithm::{
        CalendarWindow, FixedWindow, LeakyBucket, SlidingSegments, SlidingWindow, TokenBucket,
    };
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
            shadow(limit("month", CalendarWindow, (7, 2500, 20))),
        ],
        // The shadows of the first set are enforced, and its limit `second` is a shadow.
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
    // Operators try other maximums for enforced limits, some of which are shadows in other sets.
    sets[1] = sets[1].trying([("minute", 3), ("bucket", 2), ("day", 4)]);
    sets[2] = sets[2].trying([("second", 9), ("path", 4)]);
    sets.to_vec()
}

/// Returns the labels of waitlist number `who`. Each tenant has four waitlists: its jobs' path and
/// routing key have two values each, so that waitlists share the partition of a path, of a key,
/// both or none.
pub fn labels_of(limits: &[Limit], who: usize) -> Labels {
    Labels::of(limits, |scope| match scope {
        Scope::RoutingKey => (who / 2 % 2).to_string(),
        _ => (who % 2).to_string(),
    })
}

/// Returns the question of `job`, once the tickets that were given out are known.
pub fn ask(job: &Job, tickets: &[(Ticket, u64)], generation: u64) -> Question {
    match job {
        Job::Return { which } if !tickets.is_empty() => {
            let (ticket, cost) = *which.get(tickets);
            Question {
                ticket: Some(ticket),
                cost,
                readmitted: ticket.number.is_multiple_of(2),
            }
        }
        Job::Return { .. } => FRESH,
        Job::Fresh { cost } => Question {
            ticket: None,
            cost: *cost,
            readmitted: cost.is_multiple_of(3),
        },
        Job::HadItsTurn { cost } => Question {
            ticket: Some(Ticket::HAD_ITS_TURN),
            cost: *cost,
            readmitted: false,
        },
        Job::Forged {
            generation: off,
            number,
            cost,
        } => {
            let generation = generation.saturating_add_signed(*off);
            Question {
                ticket: Some(Ticket {
                    generation,
                    number: *number,
                }),
                cost: *cost,
                readmitted: number.is_multiple_of(2),
            }
        }
    }
}

/// The state that the store keeps according to the model.
#[derive(Default)]
pub struct World(pub HashMap<Partition, HeldState>);

impl World {
    pub fn with<T>(&mut self, layout: &Layout, run: impl FnOnce(&mut Scopes<'_>) -> T) -> T {
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

    pub fn at(&mut self, partition: &Partition) -> &mut State {
        self.0.entry(partition.clone()).or_default()
    }
}

/// Tickets and receipts given out to the jobs of one waitlist.
#[derive(Default)]
pub struct IssuedTickets {
    pub tickets: Vec<(Ticket, u64)>,
    pub receipts: Vec<Receipt>,
}

impl IssuedTickets {
    /// Adds the tickets and receipts in `answers`.
    pub fn add(&mut self, permits: &str, asks: &[Question], answers: &[Answer], now_ms: u64) {
        self.receipts
            .extend(receipts(permits, asks, answers, now_ms));
        for (ask, answer) in asks.iter().zip(answers) {
            if let Answer::Wait { ticket, .. } = answer
                && !self.tickets.contains(&(*ticket, ask.cost))
            {
                self.tickets.push((*ticket, ask.cost));
            }
        }
    }
}
