//! What happens in one simulation, all from its seed: the jobs, the limit, the workers, and what goes wrong.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluicegate::rules::answers::ThrottleScope;
use sluicegate::rules::limit::{Algorithm, Limit, Limits};
use sluicegate::rules::retry::RetryPolicy;

use super::away::Away;
use super::closing;
use super::crashes::{self, Crashes};
use super::handed::Handed;
use super::later;
use super::limits::pick_limits;
use super::mixed;
use super::scopes;
use super::starts::{self, Start};
use super::steering;

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// One job that is published.
pub struct Planned {
    pub at: Duration,
    pub id: String,
    /// `None`: it is no usable job.
    pub tenant: Option<String>,
    pub cost: u32,
    pub copies: u32,
    /// The value of its header that limits may tell jobs apart by; empty: it has none.
    pub part: &'static str,
    pub routing_key: &'static str,
    /// It is under other limits than those without a plan.
    pub names_plan: bool,
    /// When it is to run.
    pub start: Start,
}

/// How often each thing goes wrong, as a probability for each time it could. A seed has some kinds and not
/// others, so that each is also seen without those that would hide it.
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
    /// The answer says that nothing is left.
    pub used_up: f64,
    /// What the gate is told arrives once more, later.
    pub settle_twice: f64,
    /// What the gate is told of one tenant does not arrive.
    pub settle_misses: f64,
    /// See [`later`].
    pub later: later::Trouble,
    /// Mean time between faults that strike out of the blue; zero: there are none.
    pub strikes_every: Duration,
}

pub struct Plan {
    pub seed: u64,
    pub limits: Limits,
    /// Those of jobs that name the plan.
    pub others: Option<Limits>,
    pub jobs: Vec<Planned>,
    /// For how long a dedupe key counts.
    pub dedupe_for_ms: u64,
    pub workers: usize,
    pub prefetch: u16,
    pub concurrency: usize,
    pub hold: Duration,
    pub max_delay: Duration,
    pub max_throttle: Duration,
    /// The workers may ask the gate only after an exchange with each other.
    pub agreed: bool,
    pub shutdown_timeout: Duration,
    pub retry: RetryPolicy,
    /// The gate's clock when the simulation begins, in microseconds since the epoch.
    pub epoch_us: u64,
    /// The way to the downstream takes this long, and up to `way_varies` more.
    pub way_ms: u64,
    pub way_varies_ms: u64,
    /// The most that one way to the gate takes.
    pub gate_ms: u64,
    /// The most that the downstream takes.
    pub answer_ms: u64,
    pub trouble: Trouble,
    pub trouble_until: Duration,
    /// Each fault may copy a job, and each copy meets faults: without an end there would be ever more.
    pub most_faults: u64,
    /// Nothing goes wrong but at the downstream: each job's calls can be told beforehand.
    pub whole: bool,
    /// All jobs cost 1 and come at once, nothing goes wrong and nothing else limits: P3 and P4 are counted.
    pub ideal: bool,
    /// Calls take so long to arrive that no guard is kept: only what needs none is promised.
    pub far: bool,
    /// The handler waits this long for an answer.
    pub timeout: Duration,
    /// The downstream stands still for up to this, and does not see that its caller gave up; zero: it sees it at once.
    pub stands_still_ms: u64,
    pub costs: Costs,
    /// Mean time between an operator's changes; zero: there are none.
    pub operator_every: Duration,
    /// When the API is away, and the breakers.
    pub away: Away,
    /// Whom a 429 closes.
    pub throttle_scope: ThrottleScope,
    /// Who ends its worker.
    pub crashes: Crashes,
    /// What happens to what workers of others say.
    pub handed: Handed,
}

/// What calls cost in fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Costs {
    AsAsked,
    /// At most what was asked.
    Less,
    Any,
}

pub fn pick<T: Copy>(random: &mut SmallRng, choices: &[T]) -> T {
    choices[random.random_range(0..choices.len())]
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        // A multiplier, so that neighbouring seeds share nothing with the streams drawn from them.
        let mut random = SmallRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let ideal = seed.is_multiple_of(8);
        let troubled = !seed.is_multiple_of(4);
        let witness = !ideal && random.random_bool(0.5);
        let mut limits = pick_limits(&mut random, ideal, witness);
        // A stream of its own: seeds without scopes keep theirs.
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
            // Nothing that is told is lost: in the end the gate counts exactly what was used.
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
                // So often that attempts are used up.
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
        // Much shorter than the window, and the trips with their duplicates are without end.
        let halves = pick(&mut random, &[1, 2, 4, 20]);
        let longest = match scoped {
            Some(_) => scopes::longest(&limits),
            None => limits[0].span(),
        };
        let max_delay = ms(longest * halves / 2).max(ms(2000));
        let guarded = in_force().any(|limit| limit.guard_ms() > 0);
        let far = !ideal && (!guarded || random.random_bool(0.1));
        // A fixed window is aligned: the way counts in full.
        let aligned = |limit: &Limit| limit.algorithm() == Algorithm::FixedWindow;
        let way_ms = match in_force().any(aligned) {
            true => 0,
            false => random.random_range(0..50),
        };
        // Calls that need their leases renewed: nothing may keep a worker from that.
        let long = !troubled && !ideal && !guarded && random.random_bool(0.3);
        let operated = troubled && random.random_bool(0.4);
        Self {
            seed,
            workers: random.random_range(1..=3),
            prefetch: if ideal { 200 } else { prefetch },
            // Enough for what all parts of a tenant may start at once.
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
                max_crashes: crashes.most,
            },
            epoch_us: 1_700_000_000_000_000 + random.random_range(0..120_000_000),
            way_ms,
            way_varies_ms: match far {
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
            // Who was called in vain has not crashed, and counts anew.
            away: Away::new(seed, ideal || seed >= crashes::CRASHES),
            throttle_scope: closing::scope(seed),
            crashes,
            handed: Handed::new(seed, troubled),
            trouble,
            trouble_until,
            most_faults: pick(&mut random, &[10, 50, 200]),
            whole: !troubled,
            ideal,
            far,
            limits,
            others,
            jobs,
            dedupe_for_ms,
        }
    }

    /// The job that was published as `id`.
    pub fn job(&self, id: &str) -> &Planned {
        let found = self.jobs.iter().find(|job| job.id == id);
        found.expect("nobody else publishes")
    }

    /// What a call of the downstream takes at most, the way included, while nothing goes wrong.
    pub fn call_ms(&self) -> u64 {
        self.way_ms + self.way_varies_ms + self.answer_ms
    }
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
        let units = (u64::from(limits[0].max()) * rounds * random.random_range(1..=3)).clamp(2, 60);
        let mut left = units;
        for number in 0.. {
            if left == 0 {
                break;
            }
            let cost = if wide {
                random.random_range(1..=u64::from(limits.max_cost().min(12)).min(left))
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
                cost: u32::try_from(cost).expect("at most 12"),
                copies: 1 + u32::from(random.random_bool(twice)),
                part: "",
                routing_key: "jobs",
                names_plan: false,
                start: Start::default(),
            });
        }
    }
    // Stable: jobs of one moment come tenant by tenant.
    jobs.sort_by_key(|job| job.at);
    jobs
}

fn trouble(random: &mut SmallRng) -> Trouble {
    let often = pick(random, &[0.1, 0.5, 1.0]);
    let mut rate = |most: f64| {
        let on = random.random_bool(0.4);
        if on {
            (random.random_range(0.0..most) * often).min(0.9)
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
