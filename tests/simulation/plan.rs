//! The plan of one simulation, derived from its seed: jobs, limits, workers and faults.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::answers::ThrottleScope;
use rules::failures::retry::RetryPolicy;
use rules::limit::{Limit, Limits};

use super::away::Away;
use super::closing;
use super::crashes::{self, Crashes};
use super::handed::Handed;
use super::later;
use super::limits::pick_limits;
use super::mixed;
use super::prepared::Connections;
use super::scopes;
use super::starts::{self, Start};
use super::steering;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One job to publish.
pub struct Planned {
    pub at: Duration,
    pub id: String,
    /// `None` if the job is invalid.
    pub tenant: Option<String>,
    pub cost: u64,
    pub copies: u32,
    /// Value of the header that scopes use; empty if the job has none.
    pub part: &'static str,
    pub routing_key: &'static str,
    /// Whether the job names a plan, which has limits of its own.
    pub names_plan: bool,
    /// When the job may start, and its dedupe key.
    pub start: Start,
}

/// Probability of each fault, each time that it could happen. A seed has some kinds of faults and
/// not others, so that each kind also occurs without those that would hide it.
#[derive(Debug, Default, Clone)]
pub struct Trouble {
    pub gate_fails_before: f64,
    pub gate_fails_after: f64,
    pub gate_slow: f64,
    pub nack: f64,
    pub return_: f64,
    pub lose_confirm: f64,
    pub lose_publish: f64,
    pub disconnect: f64,
    pub publish_slow: f64,
    pub ack_slow: f64,
    pub event_slow: f64,
    /// At every await point.
    pub kill: f64,
    pub freeze: f64,
    pub cut: f64,
    pub soft_stop: f64,
    pub hard_stop: f64,
    pub pause: f64,
    pub throttle: f64,
    pub fail: f64,
    pub reject: f64,
    pub panic: f64,
    pub prepare_slow: f64,
    pub answer_slow: f64,
    /// The API's answer says that no quota is left.
    pub used_up: f64,
    /// A settlement arrives once more, later.
    pub settle_twice: f64,
    /// One tenant's settlement does not arrive.
    pub settle_misses: f64,
    /// Faults of [`later`].
    pub later: later::Trouble,
    /// Mean time between faults at random times; zero means none.
    pub strikes_every: Duration,
}

pub struct Plan {
    pub seed: u64,
    pub limits: Limits,
    /// Limits of jobs that name the plan.
    pub others: Option<Limits>,
    pub jobs: Vec<Planned>,
    /// How long a dedupe key counts.
    pub dedupe_for_ms: u64,
    pub workers: usize,
    pub prefetch: u16,
    pub concurrency: usize,
    pub hold: Duration,
    pub max_delay: Duration,
    pub max_throttle: Duration,
    /// Whether workers may ask the gate only after an exchange with each other.
    pub agreed: bool,
    pub shutdown_timeout: Duration,
    pub retry: RetryPolicy,
    /// The gate's clock at the beginning, in microseconds since the Unix epoch.
    pub epoch_us: u64,
    /// Network delay to the API, and its maximum variation.
    pub latency_ms: u64,
    pub jitter_ms: u64,
    /// Maximum delay in each direction to the gate.
    pub gate_ms: u64,
    /// Maximum time that the API takes.
    pub answer_ms: u64,
    pub trouble: Trouble,
    pub trouble_until: Duration,
    /// Maximum number of faults. Each may copy a job, and each copy meets faults, so the simulation
    /// would not end without it.
    pub max_faults: u64,
    /// Whether only the API fails. Then the number of each job's calls is known in advance.
    pub whole: bool,
    /// Whether all jobs cost 1 and arrive at once, without faults and other limits. P3 and P4 are
    /// measured then.
    pub ideal: bool,
    /// Whether calls take too long to arrive for any guard. Then only promises that need no guard
    /// are checked.
    pub far: bool,
    /// Time that the handler waits for an answer.
    pub timeout: Duration,
    /// Maximum time that the API stands still without noticing that its caller gave up; zero if it
    /// notices immediately.
    pub stands_still_ms: u64,
    pub costs: Costs,
    /// Mean time between an operator's changes; zero means none.
    pub operator_every: Duration,
    /// The breakers and the API's outages.
    pub away: Away,
    /// Which tenants a 429 closes.
    pub throttle_scope: ThrottleScope,
    /// Jobs that kill their worker.
    pub crashes: Crashes,
    /// Faults in other workers' reports.
    pub handed: Handed,
    /// The connections that calls need.
    pub connections: Connections,
}

/// Actual cost of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    AsAsked,
    /// At most the requested cost.
    Less,
    Any,
}

/// Maximum number of trips through delay queues during which the jobs of one tenant wait, unless
/// the API or an operator slows them down.
const MAX_TRIPS: u64 = 50;

pub fn pick<T: Copy>(random: &mut SmallRng, choices: &[T]) -> T {
    choices[random.random_range(0..choices.len())]
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        // Multiplied, so that neighboring seeds share nothing with the streams drawn from them.
        let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let ideal = seed.is_multiple_of(8);
        let troubled = !seed.is_multiple_of(4);
        let witness = !ideal && random.random_bool(0.5);
        let mut limits = pick_limits(&mut random, ideal, witness);
        // A stream of its own: seeds without scopes keep their histories.
        let mut scoped = scopes::are_in(seed).then(|| SmallRng::seed_from_u64(!seed));
        if let Some(random) = &mut scoped {
            limits = scopes::scoped(random, &limits, ideal);
        }
        let guard = limits.guard_ms();
        let rounds = random.random_range(1..=4);
        let tenants = random.random_range(1..=4);
        let wide = !ideal && random.random_bool(0.5);
        let mut jobs = jobs(&mut random, &limits, tenants, rounds, ideal, wide, troubled);
        if let Some(random) = &mut scoped {
            scopes::uneven(random, &mut jobs);
        }
        let others = mixed::mix(seed, ideal, &limits, &mut jobs);
        let dedupe_for_ms = starts::pick(seed, ideal, &mut jobs);
        let in_force = || {
            limits
                .iter()
                .chain(others.iter().flat_map(|all| all.iter()))
        };
        let mut trouble = if troubled {
            trouble(&mut random)
        } else {
            Trouble::default()
        };
        if troubled && seed >= later::LATER {
            later::add(&mut trouble, seed);
        }
        let stands_still = troubled && seed >= later::STANDS_STILL;
        if stands_still {
            trouble.answer_slow = trouble.answer_slow.max(0.05);
        }
        if seed % 16 == 5 {
            // No settlement is lost, so the gate's final counts equal actual usage.
            trouble.later.lossless();
            trouble = Trouble {
                gate_fails_after: 0.0,
                gate_slow: 0.0,
                kill: 0.0,
                soft_stop: 0.0,
                hard_stop: 0.0,
                strikes_every: Duration::ZERO,
                settle_twice: 0.3,
                prepare_slow: 0.2,
                ..trouble
            };
        }
        let rude = seed % 16 == 12;
        if rude {
            trouble = Trouble {
                // Often enough to use up attempts.
                fail: 0.5,
                throttle: 0.05,
                reject: 0.05,
                ..Trouble::default()
            };
        }
        crashes::calm(&mut trouble, seed);
        let crashes = Crashes::new(seed, &jobs, troubled);
        let last = jobs.last().map_or(Duration::ZERO, |job| job.at);
        let trouble_until = match troubled || rude {
            true => (last + ms(random.random_range(0..60_000))).min(ms(120_000)),
            false => Duration::ZERO,
        };
        let prefetch = pick(&mut random, &[2_u16, 8, 20, 50, 200]);
        let concurrency = pick(&mut random, &[1_usize, 2, 4, 16, 64]);
        // If the longest trip is much shorter than the window, trips with their duplicates never
        // end.
        let halves = pick(&mut random, &[1, 2, 4, 20]);
        let longest = match scoped {
            Some(_) => scopes::longest(&limits),
            None => limits[0].span(),
        };
        let shortest = in_force().map(|limit| spent_ms(&jobs, limit) / MAX_TRIPS);
        let max_delay = ms(longest * halves / 2).max(ms(shortest.max().unwrap_or(0).max(2000)));
        let guarded = in_force().any(|limit| limit.guard_ms() > 0);
        let far = !ideal && (!guarded || random.random_bool(0.1));
        // A fixed window is aligned, so the network delay counts in full.
        let aligned = |limit: &Limit| limit.algorithm().facts().is_aligned;
        let latency_ms = match in_force().any(aligned) {
            true => 0,
            false => random.random_range(0..50),
        };
        // These calls need their leases renewed, so no fault may keep a worker from it.
        let long = !troubled && !ideal && !guarded && random.random_bool(0.3);
        let operated = troubled && random.random_bool(0.4);
        Self {
            seed,
            workers: random.random_range(1..=3),
            prefetch: if ideal { 200 } else { prefetch },
            // Enough for all jobs that a tenant's parts may start at once.
            concurrency: match (ideal, scoped) {
                (true, Some(_)) => 200,
                (true, None) => 64,
                (false, _) => concurrency,
            },
            hold: ms(pick(&mut random, &[100, 500, 500, 2000])),
            max_delay: if ideal { ms(300_000) } else { max_delay },
            max_throttle: ms(pick(&mut random, &[1000, 10_000, 60_000])),
            agreed: seed >= later::LATER
                && !ideal
                && (seed.is_multiple_of(3) || seed >= steering::STEERED),
            shutdown_timeout: ms(pick(&mut random, &[100, 1000, 10_000])),
            retry: RetryPolicy {
                max_attempts: random.random_range(1..=5),
                initial_interval: ms(pick(&mut random, &[50, 1000, 5000])),
                max_interval: ms(pick(&mut random, &[5000, 60_000])),
                give_up_after: Duration::from_secs(7 * 86_400),
                max_crashes: crashes.max,
            },
            epoch_us: 1_700_000_000_000_000 + random.random_range(0..120_000_000),
            latency_ms,
            jitter_ms: match far {
                true => 8000,
                false => random.random_range(0..=guard / 2),
            },
            gate_ms: if ideal {
                1
            } else {
                random.random_range(0..=guard.max(60) / 6)
            },
            answer_ms: match (ideal, long) {
                (true, _) => pick(&mut random, &[5, 200]),
                (_, true) => 150_000,
                _ => pick(&mut random, &[0, 5, 50, 1000]),
            },
            timeout: ms(if long { 200_000 } else { 10_000 }),
            stands_still_ms: if stands_still { 40_000 } else { 0 },
            costs: match ideal {
                true => Costs::AsAsked,
                false => pick(&mut random, &[Costs::AsAsked, Costs::Less, Costs::Any]),
            },
            operator_every: match operated {
                true => ms(pick(&mut random, &[1000, 5000, 20_000])),
                false => Duration::ZERO,
            },
            // A job whose call failed has not crashed, and resets the count.
            away: Away::new(seed, ideal || seed >= crashes::CRASHES),
            throttle_scope: closing::scope(seed),
            crashes,
            handed: Handed::new(seed, troubled),
            connections: Connections::new(seed, troubled),
            trouble,
            trouble_until,
            max_faults: pick(&mut random, &[10, 50, 200]),
            whole: !troubled,
            ideal,
            far,
            limits,
            others,
            jobs,
            dedupe_for_ms,
        }
    }

    /// Returns the job with this id.
    pub fn job(&self, id: &str) -> &Planned {
        let found = self.jobs.iter().find(|job| job.id == id);
        found.expect("nobody else publishes")
    }

    /// Returns the maximum duration of a call without faults, network delay included.
    pub fn call_ms(&self) -> u64 {
        self.latency_ms + self.jitter_ms + self.answer_ms
    }
}

/// Returns how long the limit makes the jobs of the tenant with the most units wait.
fn spent_ms(jobs: &[Planned], limit: &Limit) -> u64 {
    let mut units: BTreeMap<Option<&str>, u64> = BTreeMap::new();
    for job in jobs {
        *units.entry(job.tenant.as_deref()).or_default() += job.cost;
    }
    units.into_values().max().unwrap_or(0) / limit.max() * limit.span()
}

fn jobs(
    random: &mut SmallRng,
    limits: &Limits,
    tenants: usize,
    rounds: u64,
    ideal: bool,
    wide: bool,
    troubled: bool,
) -> Vec<Planned> {
    let bad = if !ideal && random.random_bool(0.3) {
        0.05
    } else {
        0.0
    };
    let twice = if troubled && random.random_bool(0.3) {
        0.1
    } else {
        0.0
    };
    let spread = if ideal || random.random_bool(0.4) {
        0
    } else {
        limits[0].span().max(1000) * rounds
    };
    let mut jobs = Vec::new();
    for tenant in 0..tenants {
        let units = (limits[0].max() * rounds * random.random_range(1..=3)).clamp(2, 60);
        let mut left = units;
        for number in 0.. {
            if left == 0 {
                break;
            }
            let cost = if wide {
                random.random_range(1..=limits.max_cost().min(12).min(left))
            } else {
                1
            };
            left -= cost;
            let at = if spread == 0 {
                0
            } else {
                random.random_range(0..=spread)
            };
            jobs.push(Planned {
                at: ms(at),
                id: format!("{tenant}-{number}"),
                tenant: (!random.random_bool(bad)).then(|| format!("t{tenant}")),
                cost,
                copies: 1 + u32::from(random.random_bool(twice)),
                part: "",
                routing_key: "jobs",
                names_plan: false,
                start: Start::default(),
            });
        }
    }
    // The sort is stable: jobs of one moment are in order of their tenants.
    jobs.sort_by_key(|job| job.at);
    jobs
}

fn trouble(random: &mut SmallRng) -> Trouble {
    let often = pick(random, &[0.1, 0.5, 1.0]);
    let mut rate = |max: f64| {
        let on = random.random_bool(0.4);
        if on {
            (random.random_range(0.0..max) * often).min(0.9)
        } else {
            0.0
        }
    };
    let mut trouble = Trouble {
        gate_fails_before: rate(0.2),
        gate_fails_after: rate(0.2),
        gate_slow: rate(0.2),
        nack: rate(0.1),
        return_: rate(0.1),
        lose_confirm: rate(0.1),
        lose_publish: rate(0.1),
        disconnect: rate(0.02),
        publish_slow: rate(0.2),
        ack_slow: rate(0.3),
        event_slow: rate(0.1),
        kill: rate(0.01),
        freeze: rate(0.01),
        cut: rate(0.01),
        soft_stop: rate(0.01),
        hard_stop: rate(0.01),
        pause: rate(0.2),
        throttle: rate(0.1),
        fail: rate(0.2),
        reject: rate(0.05),
        panic: rate(0.1),
        prepare_slow: rate(0.2),
        answer_slow: rate(0.1),
        used_up: rate(0.1),
        settle_twice: rate(0.5),
        settle_misses: rate(0.2),
        later: later::Trouble::default(),
        strikes_every: Duration::ZERO,
    };
    if random.random_bool(0.6) {
        trouble.strikes_every = ms(pick(random, &[1000, 5000, 20_000]));
    }
    trouble
}
