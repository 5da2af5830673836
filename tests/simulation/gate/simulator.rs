//! Simulates jobs that arrive, wait in delay queues and return, in simulated time. The gate's model
//! is real, RabbitMQ is played.
//!
//! A worker holds the jobs of a delay queue. Such a job asks as early as [`lead_ms`] says, and up
//! to 10 ms later. A wait longer than `max_delay` is split and spread.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use kit::gate::named_limit;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rules::decision::{Answer, Change, Question, Ticket};
use rules::delays::{lead_ms, stay_ms};
use rules::gate::model::{HeldState, Scopes};
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Limits};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Maximum wait that is spent in the worker, in microseconds.
const HOLD: u64 = 500_000;
/// Start of the simulation, in microseconds since the Unix epoch; shortly after a whole second.
const BEGIN: u64 = 1_700_000_000_000_123;

/// Input of a simulation. All times are microseconds after its start.
pub struct Scenario {
    pub limits: Limits,
    /// When each job is published, in order.
    pub arrivals: Vec<u64>,
    /// Units of each job.
    pub cost: fn(usize) -> u64,
    /// Tenant and header value of each job.
    pub of: fn(usize) -> (usize, usize),
    /// Maximum trip through a delay queue.
    pub max_delay: u64,
    /// Period in which no job asks.
    pub outage: Option<(u64, u64)>,
    /// New limits with the same names, and when each set takes effect; in order.
    pub changes: Vec<(u64, Limits)>,
    /// An operator's change to the tenant, and when it is made.
    pub operator: Option<(u64, Change)>,
    /// Fraction of trips that take 0.5 to 1.2 s longer.
    pub late: f64,
    /// Fraction of waiting jobs that never return.
    pub lost: f64,
    /// Whether a job vanishes once it waits.
    pub vanished: fn(usize) -> bool,
    /// Fraction of waiting jobs that return twice.
    pub duplicated: f64,
}

impl Scenario {
    pub fn new(limits: impl Into<Limits>, arrivals: Vec<u64>) -> Self {
        Self {
            limits: limits.into(),
            arrivals,
            cost: |_| 1,
            of: |_| (0, 0),
            max_delay: 300_000_000,
            outage: None,
            changes: Vec::new(),
            operator: None,
            late: 0.0,
            lost: 0.0,
            vanished: |_| false,
            duplicated: 0.0,
        }
    }
}

/// Results of a simulation.
#[derive(Debug)]
pub struct Outcome {
    /// Jobs that started.
    pub started: usize,
    /// Time of the last start, in seconds.
    pub end: f64,
    /// Earliest possible end, in seconds: when the most used limit would have been used up.
    pub ideal: f64,
    /// Deliveries per started job, without waits in the worker.
    pub deliveries: f64,
    /// Deliveries per started job that end a trip of a wait longer than `max_delay`.
    pub rechecks: f64,
    /// Questions per started job.
    pub questions: f64,
    /// Maximum deliveries of any job.
    pub worst: u32,
    /// Starts that a limit does not allow.
    pub violations: usize,
    /// Maximum difference between a job's start and its turn in order of arrival, in seconds.
    pub out_of_order: f64,
    /// Maximum number of jobs held in the worker at once.
    pub held: u32,
    /// Start time of each job, in seconds.
    pub starts: Starts,
}

/// Start time of each job, in seconds, or `None` if it did not start.
pub struct Starts(pub Vec<Option<f64>>);

impl std::fmt::Debug for Starts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} jobs", self.0.len())
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    sequence: u64,
    job: usize,
    ticket: Option<(u64, u64)>,
    comes: From,
    /// The time until which the worker may hold a job from a delay queue.
    stays: u64,
}

/// Where a job waited since its last question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    /// In a queue. It has to be delivered.
    Queue,
    /// In the worker's memory.
    Hold,
    /// In the worker, within the delivery window of its delay queue.
    Window,
}

/// Plays `scenario` to its end.
pub fn run(scenario: Scenario) -> Outcome {
    let mut random = StdRng::seed_from_u64(1);
    let mut limits = scenario.limits.clone();
    let mut changes = scenario.changes.into_iter().peekable();
    let mut operator = scenario.operator;
    let mut states: HashMap<Partition, HeldState> = HashMap::new();
    let mut sequence = scenario.arrivals.len() as u64;
    let mut events: BinaryHeap<Reverse<Event>> = scenario
        .arrivals
        .iter()
        .enumerate()
        .map(|(job, at)| {
            Reverse(Event {
                at: *at,
                sequence: job as u64,
                job,
                ticket: None,
                comes: From::Queue,
                stays: 0,
            })
        })
        .collect();
    let mut deliveries = vec![0u32; scenario.arrivals.len()];
    let mut starts: Vec<Option<u64>> = vec![None; scenario.arrivals.len()];
    let mut done: Vec<Done> = Vec::new();
    let (mut holding, mut held, mut rechecks, mut questions) = (0u32, 0u32, 0u32, 0u32);

    while let Some(Reverse(event)) = events.pop() {
        let mut again = |at: u64, job, ticket, comes, stays| {
            sequence += 1;
            events.push(Reverse(Event {
                at,
                sequence,
                job,
                ticket,
                comes,
                stays,
            }));
        };
        let now = event.at;
        if let Some((from, to)) = scenario.outage
            && (from..to).contains(&now)
        {
            holding -= u32::from(event.comes == From::Hold);
            again(
                to + random.random_range(0..200_000),
                event.job,
                event.ticket,
                From::Queue,
                event.stays,
            );
            continue;
        }
        while let Some((_, changed)) = changes.next_if(|(at, _)| now >= *at) {
            limits = changed;
        }
        let job = event.job;
        match event.comes {
            From::Queue => deliveries[job] += 1,
            From::Hold => holding -= 1,
            From::Window => {}
        }
        questions += 1;

        let ask = Question {
            ticket: event
                .ticket
                .map(|(generation, number)| Ticket { generation, number }),
            cost: (scenario.cost)(job),
            readmitted: false,
        };
        let clock = Clock::from_micros(BEGIN + now);
        let (tenant, value) = (scenario.of)(job);
        let tenant = Tenant::parse(&format!("t{tenant}")).expect("a good id");
        let labels = Labels::of(&limits, |_| value.to_string());
        let layout = Layout::of(&limits, &tenant, &labels);
        if let Some((_, change)) = operator.take_if(|(at, _)| now >= *at) {
            let control = layout.partition(layout.control).clone();
            let state = states.entry(control).or_default();
            state.change(clock.now_ms, &change);
        }
        let mut scopes = Scopes::take(&layout, |partition| {
            states
                .remove(layout.partition(partition))
                .unwrap_or_default()
        });
        let (answers, _) = scopes.ask(&limits, clock, 1, "", &[ask]);
        for (partition, state) in scopes.into_states().into_iter().enumerate() {
            states.insert(layout.partition(partition).clone(), state);
        }
        let (ttl, ticket) = match answers[0] {
            Answer::Start { .. } => {
                let at = BEGIN + now;
                done.push(Done {
                    at,
                    cost: ask.cost,
                    limits: limits.clone(),
                    layout,
                });
                starts[job].get_or_insert(now);
                continue;
            }
            Answer::Wait { ttl_ms, ticket, .. } => (ttl_ms * 1000, ticket),
            Answer::Capacity => unreachable!("the budget is 1"),
        };
        let number = ticket.number;
        let ticket = Some((ticket.generation, number));
        if ttl <= HOLD {
            holding += 1;
            held = held.max(holding);
            // Jobs held until the same millisecond ask together, in order of their tickets.
            events.push(Reverse(Event {
                at: (now + ttl).next_multiple_of(1000) + 500,
                sequence: number,
                job,
                ticket,
                comes: From::Hold,
                stays: event.stays,
            }));
            continue;
        }
        if deliveries[job] == 1 && ((scenario.vanished)(job) || random.random_bool(scenario.lost)) {
            continue;
        }
        let whole = ttl <= scenario.max_delay;
        let wait = match whole {
            true => ttl,
            false => random.random_range(scenario.max_delay / 2..scenario.max_delay),
        };
        let stays = now + ttl <= event.stays;
        let (comes, until) = match stays {
            true => (From::Window, event.stays),
            false => (From::Queue, now + wait + stay_ms(wait)),
        };
        rechecks += u32::from(!whole);
        let mut trip = match whole {
            true => wait - lead_ms(wait / 1000, random.random()) * 1000,
            false => wait,
        };
        trip += random.random_range(0..10_000);
        if random.random_bool(scenario.late) {
            trip += random.random_range(500_000..1_200_000);
        }
        again(now + trip, job, ticket, comes, until);
        if deliveries[job] == 1 && random.random_bool(scenario.duplicated) {
            again(now + trip + 10_000, job, ticket, From::Queue, until);
        }
    }

    let mut sorted: Vec<u64> = starts.iter().flatten().copied().collect();
    sorted.sort_unstable();
    let out_of_order = starts
        .iter()
        .flatten()
        .zip(&sorted)
        .map(|(start, turn)| start.abs_diff(*turn))
        .max()
        .unwrap_or(0);
    let jobs = sorted.len().max(1) as f64;
    Outcome {
        started: sorted.len(),
        end: done
            .last()
            .map_or(0.0, |last| (last.at - BEGIN) as f64 / 1e6),
        ideal: ideal(&scenario.limits, &done),
        deliveries: f64::from(deliveries.iter().sum::<u32>()) / jobs,
        rechecks: f64::from(rechecks) / jobs,
        questions: f64::from(questions) / jobs,
        worst: deliveries.iter().copied().max().unwrap_or(0),
        violations: (0..scenario.limits.len())
            .flat_map(|which| of_limit(&done, which).into_values())
            .map(|of_one| violations(&of_one))
            .sum(),
        out_of_order: out_of_order as f64 / 1e6,
        held,
        starts: Starts(
            (starts.iter())
                .map(|start| start.map(|at| at as f64 / 1e6))
                .collect(),
        ),
    }
}

/// One start.
struct Done {
    at: u64,
    cost: u64,
    limits: Limits,
    layout: Layout,
}

/// Returns the units that each start used of one limit, by partition.
fn of_limit(done: &[Done], which: usize) -> BTreeMap<Partition, Vec<(u64, u64, Limit)>> {
    let mut used: BTreeMap<Partition, Vec<_>> = BTreeMap::new();
    for one in done {
        let limit = one.limits[which].clone();
        let partition = one.layout.partition(one.layout.partitions[which]).clone();
        let units = limit.unit().of(one.cost);
        used.entry(partition)
            .or_default()
            .push((one.at, units, limit));
    }
    used
}

/// Returns when all starts could have been made, in seconds, if only the limits took time and costs
/// filled them without gaps.
fn ideal(limits: &Limits, done: &[Done]) -> f64 {
    let end = |(which, limit): (usize, &Limit)| {
        let sum = |used: &Vec<(u64, u64, Limit)>| -> u64 {
            used.iter().map(|(_, units, _)| *units).sum()
        };
        let units = of_limit(done, which).values().map(sum).max().unwrap_or(0);
        let (units, max) = (units as f64, limit.max() as f64);
        let spans = match limit.algorithm() {
            Algorithm::Concurrency => 0.0,
            Algorithm::SlidingCounter => units / max - 1.0,
            bucket if bucket.has_burst() => (units - limit.burst() as f64) / max,
            // A window's units start together.
            _ => (units / max).ceil() - 1.0,
        };
        spans * (limit.window_ms() + limit.guard_ms()) as f64 / 1000.0
    };
    limits.iter().enumerate().map(end).fold(0.0, f64::max)
}

/// Counts starts that exceed the limit in force when they started, with zero tolerance. Starts that
/// an earlier limit allowed are no violation; only the sliding window counts all of them against
/// the new limit.
pub fn violations(done: &[(u64, u64, Limit)]) -> usize {
    done.iter()
        .enumerate()
        .filter(|(index, (at, _, limit))| {
            let window = limit.window_ms() * 1000;
            let fixed = limit.algorithm().facts().is_aligned;
            let counts = |earlier: u64| match fixed {
                true => earlier / window == at / window,
                false => earlier + window + limit.guard_ms() * 1000 > *at,
            };
            let (mut held, mut max) = (0, 0);
            for (_, units, limit) in done[..=*index]
                .iter()
                .rev()
                .take_while(|(earlier, ..)| counts(*earlier))
            {
                held += units;
                max = max.max(if fixed {
                    limit.max()
                } else {
                    limit.worst_case()
                });
            }
            if limit.algorithm() == Algorithm::SlidingWindow {
                max = limit.worst_case();
            }
            let closing = limit.guard_ms() * 1000;
            held > max || fixed && at % window >= window - closing
        })
        .count()
}

/// Returns a limit of `max` per window of `seconds`, without a guard.
pub fn limit(algorithm: Algorithm, max: u64, seconds: u64) -> Limit {
    named_limit("default", algorithm, max, Duration::from_secs(seconds))
}
