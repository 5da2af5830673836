//! Jobs that kill their worker whenever their call arrives. Simulations with seeds from [`CRASHES`]
//! have them or only lost sessions, and count crashes; histories of lower seeds are unchanged.

use std::collections::BTreeSet;
use std::time::Duration;

use gate::LEASE_MS;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::failures::crash::NOTE_LEASE_MS;

use super::history::History;
use super::plan::{Planned, Trouble, ms};
use super::starts::STARTS;
use super::world::Life;

/// First seed with the crashes of this module.
pub const CRASHES: u64 = 8_000_000;
/// Maximum time until the broker knows that a worker is gone and the next one has started.
const BACK_MS: u64 = 25_000;
/// Maximum number of a job's crashes without a note that follow a call with one.
const MAX_UNNOTED: u32 = 1;

/// The crash limit and the jobs that kill their worker.
#[derive(Debug, Clone, Default)]
pub struct Crashes {
    /// Number of crashes after which a job is dead; 0 if crashes are not counted.
    pub max: u32,
    guilty: BTreeSet<String>,
}

impl Crashes {
    /// Draws from a random stream of its own. Without trouble there are no crashes.
    pub fn new(seed: u64, jobs: &[Planned], troubled: bool) -> Self {
        if !(CRASHES..STARTS).contains(&seed) {
            return Self::default();
        }
        let mut random = SmallRng::seed_from_u64(seed.rotate_left(40) ^ 0xC4A5);
        let number = if troubled {
            random.random_range(0..=2)
        } else {
            0
        };
        let usable: Vec<_> = jobs.iter().filter(|job| job.tenant.is_some()).collect();
        let mut guilty = BTreeSet::new();
        for _ in 0..number.min(usable.len()) {
            let job = usable[random.random_range(0..usable.len())];
            guilty.insert(job.id.clone());
        }
        // A job that runs beside a guilty job is counted with its first call, which has no note,
        // with its first call that is noted, and with the first calls of its copies.
        let beside: u32 = (jobs.iter().filter(|job| guilty.contains(&job.id)))
            .map(|job| 1 + job.copies)
            .sum();
        Self {
            max: beside + random.random_range(1..=3),
            guilty,
        }
    }

    pub fn is_guilty(&self, id: &str) -> bool {
        self.guilty.contains(id)
    }

    pub fn is_empty(&self) -> bool {
        self.guilty.is_empty()
    }

    /// Returns the additional time that the remaining jobs may need: each crash is recognized after
    /// a lease, and leaves a lease taken.
    pub fn patience(&self) -> Duration {
        let crashes = self.guilty.len() as u64 * u64::from(self.max + 4);
        ms(crashes * (NOTE_LEASE_MS + LEASE_MS + BACK_MS) * 2)
    }
}

/// Limits the trouble to crashes by these jobs, with no loss of workers' last reports. Then no
/// other job's calls are counted.
pub fn calm(trouble: &mut Trouble, seed: u64) {
    if !(CRASHES..STARTS).contains(&seed) {
        return;
    }
    let fails = trouble.gate_fails_before + trouble.gate_fails_after > 0.0;
    if fails {
        (trouble.soft_stop, trouble.hard_stop) = (0.0, 0.0);
    }
    (trouble.kill, trouble.freeze, trouble.gate_slow) = (0.0, 0.0, 0.0);
    // A panic is reported by the worker, and resets the count.
    trouble.panic = 0.0;
    trouble.later.at_poll = 0.0;
    (trouble.strikes_every, trouble.later.outages_every) = (Duration::ZERO, Duration::ZERO);
}

/// A guilty job's call that has arrived.
pub struct GuiltyCall {
    /// Whether its worker awaits the answer.
    pub is_awaited: bool,
    /// Whether it arrived after the time in which its worker awaits one.
    pub is_late: bool,
}

/// Kills the worker and everything it has begun as soon as the call of a guilty job arrives. A
/// worker that awaits no answer has given the call up before the crash, which it does only if it
/// stops in order, is dead, or has waited for too long. A worker that awaits it, but whose last note
/// ended an earlier call, has made this call without a note.
pub fn crash(life: &Life, id: &str, call: GuiltyCall) {
    let name = &life.name;
    let stops = [&life.stop.soft, &life.stop.hard, &life.killed];
    let mut history = life.world.history();
    if !call.is_awaited {
        if !call.is_late && !stops.iter().any(|stop| stop.is_cancelled()) {
            history.wrong(format_args!("{name} gave up its call of {id}"));
        }
    } else if life.has_ended(id) {
        history.job(id).unnoted_crashes += 1;
    } else {
        history.job(id).crashes += 1;
    }
    drop(history);
    life.world.fault(format_args!("{name} is killed by {id}"));
    life.killed.cancel();
}

/// Checks how often a guilty job crashed its worker before it became a dead letter: as often as it
/// may, once more for each copy, whose first call has no note, and once more for each further
/// delivery of its dead letter.
pub fn ends(crashes: &Crashes, history: &mut History, letters: impl Fn(&str) -> usize) {
    for id in &crashes.guilty {
        let unnoted = history.job(id).unnoted_crashes;
        if unnoted > MAX_UNNOTED {
            history.wrong(format_args!(
                "{id} crashed {unnoted} workers without a note"
            ));
        }
        let (number, letters) = (history.job(id).crashes as usize, letters(id));
        let max = crashes.max as usize + (2 * letters).saturating_sub(1);
        if letters > 0 && number > max {
            history.wrong(format_args!(
                "{id} crashed {number} workers, and {max} at most was expected of {letters} letters"
            ));
        }
    }
}

#[test]
fn a_call_that_a_stopped_worker_gave_up_is_no_crash() {
    super::found(CRASHES + 814);
}
