//! Throughput: the used share of the limits while nothing was broken, and the time to recover after
//! a fault. These figures are for the reader only. A slow machine makes them worse, so no run
//! passes or fails by them.

use std::collections::BTreeMap;

use crate::checker::{FaultInterval, FaultIntervals};
use crate::clusters::is_ours;
use crate::faults::FaultKind;
use crate::history::{EventKind, HistoryEvent};
use crate::run_plan::{MAX, RunPlan};

/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// How long a fault costs throughput after it is mended: reconnects back off up to 10 s.
const RECOVERY: u64 = 12 * SECOND;
/// How long the calls of a killed worker hold their units: a minute. Usage lost by Redis counts for
/// as long.
const HELD: u64 = 65 * SECOND;
/// Beginning of a run that is not measured, in which the first jobs start.
const BEGIN: u64 = 3 * SECOND;
/// Span over which throughput is measured.
const SPAN: u64 = 2 * SECOND;
/// Share of the usual throughput that counts as recovered.
const BACK: f64 = 0.95;

/// A run as a sequence of calls, with faults.
pub struct Run {
    /// Arrival times of calls while jobs were published, sorted.
    calls: Vec<u64>,
    faults: Vec<FaultInterval>,
    begins: u64,
    ends: u64,
    strict: bool,
    /// Calls per second that the limits allow.
    allowed: f64,
}

/// Calls made and allowed in the seconds in which nothing was broken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UndisturbedUsage {
    pub seconds: usize,
    pub calls: usize,
    pub allowed: f64,
}

impl Run {
    /// Reads the part of `events` in which jobs were published.
    pub fn new(events: &[HistoryEvent], plan: &RunPlan) -> Self {
        let at =
            |which: fn(&EventKind) -> bool| events.iter().find(|e| which(&e.what)).map(|e| e.at);
        let first = at(|what| matches!(what, EventKind::Confirmed { .. })).unwrap_or(0);
        let ends = at(|what| matches!(what, EventKind::Draining)).unwrap_or(0);
        let calls = events.iter().filter(|event| {
            let arrived = matches!(event.what, EventKind::Arrived { .. });
            arrived && event.at < ends
        });
        let each = MAX as f64 / plan.period().as_secs_f64();
        Self {
            calls: calls.map(|event| event.at).collect(),
            faults: FaultIntervals::of(events).all().collect(),
            begins: first + BEGIN,
            ends,
            strict: plan.guard.is_none(),
            allowed: each * f64::from(plan.tenants),
        }
    }

    fn between(&self, from: u64, to: u64) -> usize {
        self.calls.partition_point(|at| *at < to) - self.calls.partition_point(|at| *at < from)
    }

    /// Returns true if a fault or its consequences affect the time between `from` and `to`.
    fn is_broken(&self, from: u64, to: u64) -> bool {
        self.faults.iter().any(|fault| {
            let holds = fault.kind.forgets() || fault.kind.kills() && self.strict;
            let after = if holds { HELD } else { RECOVERY };
            fault.begins < to && fault.ends.saturating_add(after) > from
        })
    }

    /// Counts whole seconds.
    pub fn used(&self) -> UndisturbedUsage {
        let mut used = UndisturbedUsage {
            seconds: 0,
            calls: 0,
            allowed: 0.0,
        };
        let mut from = self.begins;
        while from + SECOND <= self.ends {
            if !self.is_broken(from, from + SECOND) {
                used.seconds += 1;
                used.calls += self.between(from, from + SECOND);
            }
            from += SECOND;
        }
        used.allowed = self.allowed * used.seconds as f64;
        used
    }

    /// Returns, for each kind, the seconds from the end of a fault until throughput was as high as
    /// without faults. Counts only faults without another one up to `RECOVERY` later. Without a
    /// recovery in that time, the whole time counts.
    pub fn recoveries(&self) -> BTreeMap<FaultKind, Vec<f64>> {
        self.back(|fault| Some(fault.ends))
    }

    /// Returns the same times from the begin of faults of one of several servers: how long the
    /// others need to take over.
    pub fn takeovers(&self) -> BTreeMap<FaultKind, Vec<f64>> {
        self.back(|fault| is_ours(fault.kind).then_some(fault.begins))
    }

    /// Returns, for each kind, the seconds from `since` until throughput was back.
    fn back(&self, since: impl Fn(&FaultInterval) -> Option<u64>) -> BTreeMap<FaultKind, Vec<f64>> {
        let used = self.used();
        let mut all: BTreeMap<FaultKind, Vec<f64>> = BTreeMap::new();
        if used.seconds == 0 {
            return all;
        }
        let usual = used.calls as f64 / used.seconds as f64 * (SPAN as f64 / SECOND as f64);
        for (at, fault) in self.faults.iter().enumerate() {
            let Some(since) = since(fault) else { continue };
            let until = fault.ends.saturating_add(RECOVERY);
            let alone = |(other_at, other): (usize, &FaultInterval)| {
                other_at == at || other.begins > until || other.ends < fault.begins
            };
            if until > self.ends || !self.faults.iter().enumerate().all(alone) {
                continue;
            }
            let is_back = |from: &u64| self.between(*from, from + SPAN) as f64 >= BACK * usual;
            let tries = (since..=until - SPAN).step_by(SECOND as usize / 10);
            let back = tries.into_iter().find(is_back).unwrap_or(until);
            let seconds = (back - since) as f64 / SECOND as f64;
            all.entry(fault.kind).or_default().push(seconds);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::history::JobId;
    use crate::run_plan::Args;

    fn plan() -> RunPlan {
        let args = Args::try_parse_from(["torture", "--tenants", "1", "--guard", "100"]);
        RunPlan::new(&args.expect("arguments")).expect("a plan")
    }

    /// Returns a run of 100 s with 11 calls a second, where the limit is 10 in 1.1 s, and with a
    /// fault from 10 to 20 s. After it, no call runs until `back` s.
    fn run(kind: FaultKind, back: u64) -> Run {
        let job = JobId::new(0, 0);
        let mut events = vec![HistoryEvent {
            at: 0,
            what: EventKind::Confirmed { job },
        }];
        for call in 0..1100 {
            let at = call * SECOND / 11;
            if (10 * SECOND..back * SECOND).contains(&at) {
                continue;
            }
            let (attempt, worker, life) = (1, 0, 1);
            let what = EventKind::Arrived {
                call,
                job,
                attempt,
                worker,
                life,
            };
            events.push(HistoryEvent { at, what });
        }
        let (fault, worker, how) = (1, None, String::new());
        events.push(HistoryEvent {
            at: 10 * SECOND,
            what: EventKind::Broken {
                fault,
                kind,
                worker,
                how,
            },
        });
        events.push(HistoryEvent {
            at: 20 * SECOND,
            what: EventKind::Mended { fault },
        });
        events.push(HistoryEvent {
            at: 100 * SECOND,
            what: EventKind::Draining,
        });
        events.sort_by_key(|event| event.at);
        Run::new(&events, &plan())
    }

    #[test]
    fn seconds_in_which_something_was_broken_do_not_count() {
        // The seconds from 3 to 10 and from 32 to 100; from 85 if Redis lost data.
        let used = run(FaultKind::RedisCut, 20).used();
        assert_eq!((used.seconds, used.calls), (75, 825));
        assert!((used.allowed - 75.0 * 10.0 / 1.1).abs() < 1e-6);
        assert_eq!(run(FaultKind::RedisFlush, 20).used().seconds, 22);
    }

    #[test]
    fn a_recovery_lasts_from_the_mending_until_as_much_is_used_again() {
        let seconds =
            |back| run(FaultKind::RedisCut, back).recoveries()[&FaultKind::RedisCut].clone();
        assert_eq!(seconds(20), [0.0]);
        // A twentieth of two seconds may be missing.
        assert_eq!(seconds(25), [4.9]);
        assert_eq!(seconds(60), [12.0]);
        assert!(run(FaultKind::RedisCut, 20).takeovers().is_empty());
        let others = run(FaultKind::RabbitNodeKill, 15).takeovers();
        assert_eq!(others[&FaultKind::RabbitNodeKill], [4.9]);
    }
}
