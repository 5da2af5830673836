//! The schedule of faults, decided by a seed. Pure.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::faults::{FaultKind, FaultTarget};

/// A fault of the schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScheduledFault {
    pub kind: FaultKind,
    /// The affected worker, for kinds that affect one.
    pub worker: usize,
    /// Duration, for kinds without a fixed one.
    pub lasts: Duration,
    /// A choice from 0 to 2, for kinds with several variants.
    pub way: u8,
}

/// Faults that begin together after a pause.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultGroup {
    pub pause: Duration,
    pub faults: Vec<ScheduledFault>,
}

/// The endless schedule of a seed.
pub struct FaultSchedule {
    random: StdRng,
    kinds: Vec<FaultKind>,
    /// Kinds that have not yet come in this round. Each kind comes once per round, except rare
    /// ones.
    round: Vec<FaultKind>,
    pace: Pace,
}

/// The parameters of a schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Number of workers that can be affected.
    pub workers: usize,
    /// Maximum pause before a step.
    pub pause: Duration,
    /// Maximum duration of a fault.
    pub longest: Duration,
    /// After a loss of data, no job starts for a minute, so that other faults have nothing to
    /// break. Such faults come in one of four rounds on average.
    pub losses_are_rare: bool,
}

/// Share of steps that have two faults at the same time.
const TWO_AT_ONCE: f64 = 0.25;

impl FaultSchedule {
    /// Creates a schedule with faults of `kinds`.
    pub fn new(seed: u64, kinds: &[FaultKind], pace: Pace) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed ^ 0xfa_017),
            kinds: kinds.to_vec(),
            round: Vec::new(),
            pace,
        }
    }

    fn kind(&mut self, beside: Option<FaultTarget>) -> Option<FaultKind> {
        let only_losses = self.kinds.iter().all(|kind| kind.forgets());
        while self.round.is_empty() && !self.kinds.is_empty() {
            let rare = self.pace.losses_are_rare && !only_losses;
            let skipped = rare && self.random.random_ratio(3, 4);
            self.round = self.kinds.clone();
            self.round.retain(|kind| !(skipped && kind.forgets()));
        }
        let fits: Vec<FaultKind> = (self.round.iter().copied())
            .filter(|kind| beside.is_none_or(|part| part != kind.part()))
            .collect();
        let kind = *fits.choose(&mut self.random)?;
        self.round.retain(|other| *other != kind);
        Some(kind)
    }

    fn fault(&mut self, kind: FaultKind) -> ScheduledFault {
        // The cube makes most faults short: half of them last less than an eighth of the range.
        let part = self.random.random_range(0.0..1.0_f64);
        let shortest = Duration::from_millis(500).min(self.pace.longest);
        let lasts = shortest + (self.pace.longest - shortest).mul_f64(part * part * part);
        ScheduledFault {
            kind,
            worker: self.random.random_range(0..self.pace.workers),
            lasts,
            way: self.random.random_range(0..3),
        }
    }
}

impl Iterator for FaultSchedule {
    type Item = FaultGroup;

    /// Returns the next step; `None` only if there are no kinds.
    fn next(&mut self) -> Option<FaultGroup> {
        let pause = (self.pace.pause).mul_f64(self.random.random_range(0.1..=1.0));
        let first = self.kind(None)?;
        let mut faults = vec![self.fault(first)];
        if self.random.random_bool(TWO_AT_ONCE)
            && let Some(second) = self.kind(Some(first.part()))
        {
            faults.push(self.fault(second));
        }
        Some(FaultGroup { pause, faults })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PACE: Pace = Pace {
        workers: 3,
        pause: Duration::from_secs(5),
        longest: Duration::from_secs(30),
        losses_are_rare: true,
    };

    fn steps(seed: u64, kinds: &[FaultKind]) -> Vec<FaultGroup> {
        FaultSchedule::new(seed, kinds, PACE).take(200).collect()
    }

    #[test]
    fn a_seed_decides_everything() {
        assert_eq!(steps(7, FaultKind::all()), steps(7, FaultKind::all()));
        assert_ne!(steps(7, FaultKind::all()), steps(8, FaultKind::all()));
    }

    #[test]
    fn every_kind_occurs_and_simultaneous_faults_hit_two_parts() {
        let steps = steps(1, FaultKind::all());
        let seen: HashSet<_> = steps
            .iter()
            .flat_map(|s| &s.faults)
            .map(|f| f.kind)
            .collect();
        assert_eq!(seen.len(), FaultKind::all().len());
        let pairs: Vec<_> = steps.iter().filter(|step| step.faults.len() == 2).collect();
        assert!(!pairs.is_empty());
        for pair in pairs {
            assert_ne!(pair.faults[0].kind.part(), pair.faults[1].kind.part());
        }
        for fault in steps.iter().flat_map(|step| &step.faults) {
            assert!(
                fault.worker < 3 && fault.lasts <= PACE.longest && fault.way < 3,
                "{fault:?}"
            );
        }
    }

    #[test]
    fn data_losses_are_rare_if_they_cost_a_minute() {
        let losses = |losses_are_rare| {
            let pace = Pace {
                losses_are_rare,
                ..PACE
            };
            let all = FaultSchedule::new(3, FaultKind::all(), pace)
                .take(2000)
                .flat_map(|step| step.faults);
            all.filter(|fault| fault.kind.forgets()).count()
        };
        let (rare, often) = (losses(true), losses(false));
        assert!(rare > 0 && rare * 2 < often, "{rare} {often}");
        let steps = steps(1, &[FaultKind::RedisFlush, FaultKind::RedisWipe]);
        assert_eq!(steps.len(), 200, "alone they are not left out");
    }

    #[test]
    fn one_kind_occurs_alone_and_no_kinds_yield_no_faults() {
        let steps = steps(1, &[FaultKind::RedisCut]);
        assert!(steps.iter().all(|step| step.faults.len() == 1));
        assert_eq!(FaultSchedule::new(1, &[], PACE).next(), None);
    }
}
