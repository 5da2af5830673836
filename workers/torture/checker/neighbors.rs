//! The jobs of other tenants while a neighbor is rude.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Checker, Violation};
use crate::faults::FaultKind;
use crate::history::EventKind;

/// Length of the spans in which jobs are counted, in nanoseconds.
const SPAN: u64 = 10_000_000_000;
/// Divisor of the limit: in each span, a tenant must have 1 / `PART` of the allowed jobs done. A
/// tenant that feels its neighbor has next to none.
const PART: u64 = 8;
/// Beginning of a fault that does not count, in nanoseconds: workers still call the jobs that they
/// hold.
const SUPPLY: u64 = 5_000_000_000;
/// Time until workers know that a queue for results confirms nothing, in nanoseconds. Until then
/// its results may fill the prefetch.
const SILENCE: u64 = 11_000_000_000;
/// Maximum time that other faults have an effect after their end: a strict guard holds the units of
/// a killed worker's calls for a minute.
const AFTERMATH: Duration = Duration::from_secs(65);

impl Checker<'_> {
    /// Finds tenants with few jobs done while a neighbor was rude and nothing else was broken. A
    /// job counts once, even if it was called again. Finds also that no neighbor was rude long
    /// enough although some had to be.
    pub(super) fn neighbors(&mut self) {
        let mut max = None;
        let mut draining = u64::MAX;
        for event in self.events {
            match event.what {
                EventKind::Limit { max: first } => max = max.or(Some(first)),
                EventKind::Draining => draining = event.at,
                _ => {}
            }
        }
        let allowed = SPAN / self.rules.window * max.unwrap_or_default();
        let mut done: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (job, life) in &self.lives.jobs {
            let first = life.calls.iter().find(|call| call.is_done());
            done.entry(job.tenant)
                .or_default()
                .extend(first.map(|call| call.at));
        }
        done.values_mut().for_each(|times| times.sort_unstable());
        for fault in self.broken.all().filter(|fault| fault.kind.is_rude()) {
            let kind = fault.kind;
            let silence = match kind {
                FaultKind::RudeReplies => SILENCE,
                _ => 0,
            };
            let (from, to) = (fault.begins + SUPPLY + silence, fault.ends.min(draining));
            if (self.broken).any(from, to, AFTERMATH, |kind| !kind.is_rude()) {
                continue;
            }
            for (tenant, times) in &done {
                let Some((at, done)) = fewest(times, from, to) else {
                    continue;
                };
                // A neighbor whose jobs were not published was not rude.
                if !fault.missed {
                    let min = self.verdict.neighbors.get_or_insert((done, allowed));
                    min.0 = done.min(min.0);
                }
                if done * PART < allowed {
                    self.find(Violation::Starved {
                        tenant: *tenant,
                        kind,
                        at,
                        done,
                        allowed,
                    });
                }
            }
        }
        if self.rules.neighbors && self.verdict.neighbors.is_none() {
            self.find(Violation::NoNeighbor);
        }
    }
}

/// Returns the beginning of the span between `from` and `to` that has the fewest of the sorted
/// `times`, and their number; `None` if there is no room for a span.
fn fewest(times: &[u64], from: u64, to: u64) -> Option<(u64, u64)> {
    let until = |at: u64| times.partition_point(|time| *time < at) as u64;
    // The span with the fewest begins at `from` or right after one of the times.
    let begins = times.iter().map(|time| time + 1).filter(|at| *at > from);
    [from]
        .into_iter()
        .chain(begins)
        .filter(|at| at + SPAN <= to)
        .map(|at| (at, until(at + SPAN) - until(at)))
        .min_by_key(|(_, done)| *done)
}
