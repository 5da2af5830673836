//! Start times that publishers set. Simulations with seeds from [`STARTS`] have jobs with delayed
//! starts, and jobs that share a dedupe key; histories of lower seeds are unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use broker::Message;
use lapin::types::{AMQPValue, FieldTable};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::job::dedupe::DEDUPE_KEY;
use rules::job::start::{DELAY, NOT_BEFORE};

use super::history::History;
use super::plan::{Plan, Planned, ms};
use super::world::World;

/// First seed with the start times of this module.
pub const STARTS: u64 = 10_000_000;
/// Headers that such a job's publisher sets.
pub const HEADERS: [&str; 4] = [DELAY, TIMESTAMP, NOT_BEFORE, DEDUPE_KEY];
const TIMESTAMP: &str = "timestamp_in_ms";
/// The longest delay.
const MAX_MS: u64 = 30_000;
/// Longer than any simulation.
const FOR_EVER_MS: u64 = 7 * 86_400_000;

/// Start time and dedupe key of a job.
#[derive(Debug, Clone, Default)]
pub struct Start {
    delay_ms: Option<u64>,
    /// Whether the message carries its publish time.
    dated: bool,
    /// Time since the beginning of the simulation.
    not_before: Option<Duration>,
    key: Option<String>,
}

/// Draws start times and keys from a random stream of its own. Returns how long a dedupe key
/// counts, in milliseconds.
pub fn pick(seed: u64, ideal: bool, jobs: &mut [Planned]) -> u64 {
    if seed < STARTS || ideal {
        return 0;
    }
    let mut random = SmallRng::seed_from_u64(seed.rotate_left(17) ^ 0x57EE);
    let (delays, keys) = (random.random_bool(0.7), random.random_bool(0.7));
    let few = random.random_range(1..=8);
    for job in jobs {
        let start = &mut job.start;
        if delays && random.random_bool(0.4) {
            start.delay_ms = Some(random.random_range(1..=MAX_MS));
            start.dated = random.random_bool(0.5);
        }
        if delays && random.random_bool(0.2) {
            let after = random.random_range(0..=MAX_MS);
            start.not_before = Some(job.at + ms(after));
        }
        if keys && random.random_bool(0.6) {
            start.key = Some(format!("key {}", random.random_range(0..few)));
        }
    }
    match random.random_bool(0.7) {
        true => FOR_EVER_MS,
        false => random.random_range(1..=10_000),
    }
}

/// Returns the additional time that all jobs may need.
pub fn patience(plan: &Plan) -> Duration {
    match plan.seed {
        STARTS.. => ms(2 * MAX_MS) + plan.max_delay,
        _ => Duration::ZERO,
    }
}

/// Adds the headers of a job that is published now.
pub fn add(world: &World, planned: &Planned, headers: &mut FieldTable) {
    let (start, now_ms) = (&planned.start, world.now_us() / 1000);
    let mut number = |name: &str, ms: u64| {
        let ms = i64::try_from(ms).expect("in range");
        headers.insert(name.into(), AMQPValue::LongLongInt(ms));
    };
    if let Some(ms) = start.delay_ms {
        number(DELAY, ms);
        if start.dated {
            number(TIMESTAMP, now_ms);
        }
    }
    if let Some(after) = start.not_before {
        number(NOT_BEFORE, at_ms(&world.plan, after));
    }
    if let Some(key) = &start.key {
        let key = AMQPValue::LongString(key.as_str().into());
        headers.insert(DEDUPE_KEY.into(), key);
    }
    let mut history = world.history();
    let record = history.job(&planned.id);
    record.published_ms.get_or_insert(now_ms);
}

fn at_ms(plan: &Plan, after: Duration) -> u64 {
    plan.epoch_us / 1000 + u64::try_from(after.as_millis()).expect("in range")
}

/// Checks that a job is not called before its time.
pub fn look_at_call(plan: &Plan, history: &mut History, id: &str, at_us: u64) {
    let start = &plan.job(id).start;
    let published = history.job(id).published_ms.unwrap_or_default();
    let delayed = start.delay_ms.map_or(0, |ms| published + ms);
    let not_before = start.not_before.map_or(0, |after| at_ms(plan, after));
    let (at_ms, earliest) = (at_us / 1000, delayed.max(not_before));
    if at_ms < earliest {
        let early = earliest - at_ms;
        history.wrong(format_args!("{id} is called {early} ms before its time"));
    }
}

/// Reports whether another job with the same key has ended.
pub fn is_duplicate(
    plan: &Plan,
    history: &mut History,
    planned: &Planned,
    letters: &BTreeSet<&str>,
) -> bool {
    let others = plan.jobs.iter().filter(|it| it.id != planned.id);
    let mut same = others.filter(|it| is_same(it, planned));
    same.any(|it| history.job(&it.id).done || letters.contains(it.id.as_str()))
}

fn is_same(one: &Planned, two: &Planned) -> bool {
    one.start.key.is_some() && one.start.key == two.start.key && one.tenant == two.tenant
}

/// Checks that one job of each key is called, if keys never expire.
pub fn one_of_each(plan: &Plan, history: &mut History) {
    if plan.dedupe_for_ms != FOR_EVER_MS {
        return;
    }
    let mut called: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for planned in &plan.jobs {
        if let Some(key) = &planned.start.key
            && history.job(&planned.id).calls > 0
        {
            let of = called.entry((&planned.tenant, key)).or_default();
            of.insert(&planned.id);
        }
    }
    for ((tenant, key), ids) in called {
        if ids.len() > 1 {
            history.wrong(format_args!("of {key:?} of {tenant:?} are called: {ids:?}"));
        }
    }
}

/// Checks that a job with the result "duplicate" has a key.
pub fn may_be_duplicate(plan: &Plan, result: &Message) -> bool {
    let id = result.id().unwrap_or_default();
    plan.job(id).start.key.is_some()
}
