//! Faults that waited in vain, or could not be injected: the run did not test them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lives::{FaultInterval, FaultIntervals};
use super::{AFTERMATH, HistoryVerdict, Violation};
use crate::faults::{FaultKind, FaultTarget};

/// Minimum number of faults of a kind to judge whether the kind works at all.
const OFTEN: usize = 3;
/// How long no job may start after a fault of Redis: a strict guard waits for a minute.
const HELD: Duration = Duration::from_secs(65);

impl HistoryVerdict {
    /// Counts missed faults, and finds kinds of which all faults missed, although nothing else was
    /// broken often enough. A queue on a slow machine may never be empty, so that it is never
    /// deleted.
    pub(super) fn misses(&mut self, broken: &FaultIntervals) {
        let mut undisturbed: BTreeMap<FaultKind, usize> = BTreeMap::new();
        for fault in broken.all().filter(|fault| fault.missed) {
            *self.missed.entry(fault.kind).or_default() += 1;
            if fault.kind == FaultKind::WorkerConfig && !is_hindered(fault, broken) {
                let at = fault.begins;
                self.findings.push(Violation::NotReloaded { at });
            }
            if !is_disturbed(fault, broken) {
                *undisturbed.entry(fault.kind).or_default() += 1;
            }
        }
        for (kind, count) in undisturbed {
            let all = broken.all().filter(|fault| fault.kind == kind).count();
            let missed = self.missed.get(&kind) == Some(&all);
            if missed && count >= OFTEN && kind != FaultKind::RabbitDelete {
                self.findings
                    .push(Violation::AlwaysMissed { kind, count: all });
            }
        }
    }
}

/// Returns true if another fault can be the reason why this one missed.
fn is_disturbed(fault: FaultInterval, broken: &FaultIntervals) -> bool {
    let FaultInterval {
        kind, begins, ends, ..
    } = fault;
    let beside = broken.latest(begins, ends, Duration::ZERO, |other| other != kind);
    let of_redis = |other: FaultKind| other.forgets() || other.part() == FaultTarget::Redis;
    let held = broken.latest(begins, ends, HELD, of_redis);
    beside.or(held).is_some()
}

/// Returns true if another fault can be the reason why a worker did not apply a changed file: it
/// was starting, stopped, or waited for its servers.
fn is_hindered(fault: FaultInterval, broken: &FaultIntervals) -> bool {
    let hinders = |other: FaultKind| {
        other != FaultKind::WorkerConfig && other.part() != FaultTarget::Downstream
    };
    (broken.latest(fault.begins, fault.ends, AFTERMATH, hinders)).is_some()
}
