//! Jobs that end their worker each time that a call of theirs arrives. Simulations from [`CRASHES`] on have them, or only lost
//! sessions, and count crashes; those below keep the histories that they had.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluicegate::gate::LEASE_MS as PLACE_MS;
use sluicegate::rules::crash::LEASE_MS;

use super::history::History;
use super::plan::{Planned, Trouble, ms};
use super::starts::STARTS;
use super::world::Life;

/// Simulations from this seed on have what this module adds.
pub const CRASHES: u64 = 8_000_000;
/// After this the broker knows at the latest that a worker is gone, and the next one has begun.
const BACK_MS: u64 = 25_000;

/// What a seed adds to a plan.
#[derive(Debug, Clone, Default)]
pub struct Crashes {
    /// After so many a job is dead; 0: nobody counts.
    pub most: u32,
    guilty: BTreeSet<String>,
}

impl Crashes {
    /// From a stream of its own. Where all is well, nobody crashes.
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
        // Whoever is beside a guilty job is counted with its first call, of which nobody knows, and with its first one that is noted; and
        // with the first calls of its copies.
        let beside: u32 = (jobs.iter().filter(|job| guilty.contains(&job.id)))
            .map(|job| 1 + job.copies)
            .sum();
        Self {
            most: beside + random.random_range(1..=3),
            guilty,
        }
    }

    pub fn is_guilty(&self, id: &str) -> bool {
        self.guilty.contains(id)
    }

    pub fn is_nobody(&self) -> bool {
        self.guilty.is_empty()
    }

    /// How long the rest may take because of it: each crash is known after a lease, and leaves a lease taken.
    pub fn patience(&self) -> Duration {
        let crashes = self.guilty.len() as u64 * u64::from(self.most + 4);
        ms(crashes * (LEASE_MS + PLACE_MS + BACK_MS) * 2)
    }
}

/// Workers die of these jobs alone, and what they say at their end is heard: so nobody else's calls count.
pub fn calm(trouble: &mut Trouble, seed: u64) {
    if !(CRASHES..STARTS).contains(&seed) {
        return;
    }
    let fails = trouble.gate_fails_before + trouble.gate_fails_after > 0.0;
    if fails {
        (trouble.soft_stop, trouble.hard_stop) = (0.0, 0.0);
    }
    (trouble.kill, trouble.freeze, trouble.gate_slow) = (0.0, 0.0, 0.0);
    // Whoever panics instead is answered for, and counts anew.
    trouble.panic = 0.0;
    trouble.later.at_poll = 0.0;
    (trouble.strikes_every, trouble.later.outages_every) = (Duration::ZERO, Duration::ZERO);
}

/// The call of such a job has arrived: its worker is gone, at once and with all that it has begun.
pub fn crash(life: &Life, id: &str) {
    let name = &life.name;
    life.world.fault(format_args!("{name} is killed by {id}"));
    life.killed.cancel();
}

/// Such a job ends, after as many crashes as it may have and one call for each copy of it of which nothing was known: it is not
/// counted with its first call, and a dead letter that comes again has one more.
pub fn ends(crashes: &Crashes, history: &mut History, letters: impl Fn(&str) -> usize) {
    for id in &crashes.guilty {
        let (calls, letters) = (history.job(id).calls as usize, letters(id));
        let most = crashes.most as usize + (2 * letters).saturating_sub(1);
        if letters > 0 && calls > most {
            history.wrong(format_args!(
                "{id} was called {calls} times, and {most} at most was expected of {letters} letters"
            ));
        }
    }
}
