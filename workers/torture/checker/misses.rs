//! Faults that waited in vain, or could not be injected: the run did not test them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lives::{FaultInterval, FaultIntervals};
use super::{AFTERMATH, Checker, Violation};
use crate::faults::{FaultKind, FaultTarget};

/// Minimum number of faults of a kind to judge whether the kind works at all.
const OFTEN: usize = 3;
/// How long no job may start after a fault of Redis: a strict guard waits for a minute.
const HELD: Duration = Duration::from_secs(65);

impl Checker<'_> {
    /// Counts missed faults, and finds kinds of which all faults missed, although nothing else was
    /// broken often enough. A queue on a slow machine may never be empty, so that it is never
    /// deleted.
    pub(super) fn misses(&mut self) {
        let (broken, verdict) = (self.broken, &mut self.verdict);
        let mut undisturbed: BTreeMap<FaultKind, usize> = BTreeMap::new();
        for fault in broken.all().filter(|fault| fault.missed) {
            *verdict.missed.entry(fault.kind).or_default() += 1;
            if fault.kind == FaultKind::WorkerConfig && !is_hindered(fault, broken) {
                let at = fault.begins;
                verdict.findings.push(Violation::NotReloaded { at });
            }
            if !is_disturbed(fault, broken) {
                *undisturbed.entry(fault.kind).or_default() += 1;
            }
        }
        for (kind, count) in undisturbed {
            let all = broken.all().filter(|fault| fault.kind == kind).count();
            let missed = verdict.missed.get(&kind) == Some(&all);
            if missed && count >= OFTEN && kind != FaultKind::RabbitDelete {
                let finding = Violation::AlwaysMissed { kind, count: all };
                verdict.findings.push(finding);
            }
        }
    }
}

/// Returns true if another fault can be the reason why this one missed.
fn is_disturbed(fault: FaultInterval, broken: &FaultIntervals) -> bool {
    let FaultInterval {
        kind, begins, ends, ..
    } = fault;
    let of_redis = |other: FaultKind| other.forgets() || other.part() == FaultTarget::Redis;
    broken.any(begins, ends, Duration::ZERO, |other| other != kind)
        || broken.any(begins, ends, HELD, of_redis)
}

/// Returns true if another fault can be the reason why a worker did not apply a changed file: it
/// was starting, stopped, or waited for its servers.
fn is_hindered(fault: FaultInterval, broken: &FaultIntervals) -> bool {
    let hinders = |other: FaultKind| {
        other != FaultKind::WorkerConfig && other.part() != FaultTarget::Downstream
    };
    broken.any(fault.begins, fault.ends, AFTERMATH, hinders)
}
