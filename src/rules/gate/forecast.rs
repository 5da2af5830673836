//! Forecasts of when a backlog ends, as things are or under other assumptions.
//!
//! The gate computes from its own state when units of a waitlist have their turns under each limit
//! alone ([`Schedule`]: `Scopes::schedule` in the model, `lua/forecast.lua` over Redis). Limits
//! that are enforced together delay each other: a job that one limit delays uses the other limits
//! later, too. So here the jobs start one by one, each at the earliest moment that all limits
//! allow, and the limits' own [algorithms](crate::algorithms) count them.

use serde::{Deserialize, Serialize};

use crate::decision::Ticket;
use crate::gate::usage::{Clock, PartitionUsage};
use crate::limit::{Algorithm, Limit};

/// Maximum number of units of a waitlist that the gate is asked about, evenly spread.
pub const POINTS: u64 = 64;
/// Maximum number of jobs that start one by one in a forecast; the others follow at the pace of the
/// limits.
const MAX_STEPS: u64 = 20_000;
/// Maximum number of times that the earliest start of a job is computed. Each time gives a later
/// moment; one time per limit is usual.
const MAX_LOOKS: usize = 256;

/// When the tenant's jobs may start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpeningTime {
    /// When the present suspension ends.
    AsItIs,
    /// Now, as if an operator resumed the tenant.
    Now,
    /// In this many milliseconds, as if an operator paused the tenant until then.
    In(u64),
}

/// The unit whose turn is forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForecastTarget {
    /// The last unit of the waitlist.
    Last,
    /// A job of this cost, with the ticket that it was given, or a new job behind all waiting jobs.
    Job(Option<Ticket>, u64),
}

/// A request to the gate for a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForecastRequest {
    /// The limits to compute turns for.
    pub limits: Vec<Limit>,
    /// Whether to use each limit's own `max` even if an operator has set another one.
    pub ignores_override: Vec<bool>,
    /// When jobs may start.
    pub opens: OpeningTime,
    /// No job starts before this time (ms) either, for reasons that the tenant's state does not
    /// contain; 0 if there are none.
    pub not_before_ms: u64,
    /// The unit whose turn is requested.
    pub target: ForecastTarget,
}

impl ForecastRequest {
    /// Returns a request for the limits as they are enforced.
    pub fn as_it_is(limits: &[Limit], not_before_ms: u64) -> Self {
        Self {
            limits: limits.to_vec(),
            ignores_override: vec![false; limits.len()],
            opens: OpeningTime::AsItIs,
            not_before_ms,
            target: ForecastTarget::Last,
        }
    }
}

/// The turns of the units of a waitlist, under each limit on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// No job starts before this time.
    pub opens_ms: u64,
    /// Number of units in the whole waitlist.
    pub waiting: u64,
    /// Number of units up to the requested place, including its own.
    pub units: u64,
    /// Estimated number of jobs that these units belong to.
    pub jobs: u64,
    /// The effective `max` of each limit.
    pub max: Vec<u64>,
    /// The `max` that is set for each limit, ignoring learned values.
    pub set: Vec<u64>,
    /// The turns of some units, in order. The last unit is always included.
    pub turns: Vec<Turn>,
}

/// The turn of one unit of a waitlist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The unit's position, from 1.
    pub unit: u64,
    /// When each limit alone lets the unit start, in milliseconds since the epoch.
    pub at: Vec<u64>,
}

impl Turn {
    /// Returns when all limits let the unit start.
    fn latest(&self) -> u64 {
        self.at.iter().copied().max().unwrap_or(0)
    }
}

/// The certainty of a forecast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Counted by the gate, and correct while the limits and the jobs ahead do not change.
    Exact,
    /// Depends on something unknown: the duration of calls, what other waitlists of a shared limit
    /// do, the cost of each job, or how a learned limit rises. Or a sliding counter is one of
    /// several limits.
    Estimated,
    /// No forecast is possible.
    Unknown,
}

impl Certainty {
    /// Returns the name for programs.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Estimated => "estimated",
            Self::Unknown => "unknown",
        }
    }
}

/// The unknowns that a forecast depends on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForecastUnknowns {
    /// The duration of calls, because a limit counts calls in flight.
    pub leases: bool,
    /// The cost of each job, because only the sum is known.
    pub costs: bool,
    /// The behavior of other waitlists that share a limit, or of jobs of other levels.
    pub others: bool,
    /// The rise of a learned limit.
    pub learned: bool,
    /// The weights of a sliding counter that is combined with other limits.
    pub counter: bool,
}

impl ForecastUnknowns {
    /// Returns the doubts of both forecasts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            leases: self.leases || other.leases,
            costs: self.costs || other.costs,
            others: self.others || other.others,
            learned: self.learned || other.learned,
            counter: self.counter || other.counter,
        }
    }

    /// Returns a text for people: `the duration of calls, the cost of each job: that is not known`.
    pub fn words(self) -> String {
        let all = [
            (self.leases, "the duration of calls"),
            (self.costs, "the cost of each job"),
            (self.others, "other jobs that share a limit"),
            (self.learned, "the recovery of a learned limit"),
            (
                self.counter,
                "the weight of a sliding counter next to other limits",
            ),
        ];
        let words: Vec<&str> = (all.iter())
            .filter(|(is_so, _)| *is_so)
            .map(|(_, words)| *words)
            .collect();
        format!("depends on {}", words.join(", "))
    }

    fn sure(self) -> Certainty {
        match self == Self::default() {
            true => Certainty::Exact,
            false => Certainty::Estimated,
        }
    }
}

/// The forecast start of the last unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForecastEnd {
    /// The start in milliseconds since the epoch, or now if no job waits.
    pub at_ms: u64,
    /// The limit that allows the start last, or `None` if no job waits.
    pub limit: Option<usize>,
    /// The certainty of the forecast.
    pub sure: Certainty,
    /// The reasons why it is not exact.
    pub doubts: ForecastUnknowns,
}

/// Returns the units that the gate is asked about for a place of `units` units.
pub fn points(units: u64) -> impl Iterator<Item = u64> {
    let number = units.min(POINTS);
    (1..=number).map(move |point| units * point / number)
}

/// Returns when the last unit of `schedule` starts, which was requested for the limits `asked`.
/// `shares` means that some of them also count the starts of other waitlists.
pub fn end(asked: &[Limit], schedule: &Schedule, shares: bool) -> ForecastEnd {
    let Some(last) = schedule.turns.last() else {
        return ForecastEnd {
            at_ms: schedule.now_ms,
            limit: None,
            sure: Certainty::Exact,
            doubts: ForecastUnknowns::default(),
        };
    };
    let in_force = |(limit, max): (&Limit, &u64)| limit.clone().with_max(*max);
    let limits: Vec<Limit> = asked.iter().zip(&schedule.max).map(in_force).collect();
    let holds = |limit: &Limit| limit.algorithm().holds_leases();
    let own: Vec<Limit> = (limits.iter().filter(|limit| !holds(limit)).cloned()).collect();
    // A counter weights earlier starts together with future ones, which turns under each limit
    // alone do not show.
    let weighs = |limit: &Limit| limit.algorithm() == Algorithm::SlidingCounter;
    let mixed = own.len() > 1 && own.iter().any(weighs);
    let doubts = ForecastUnknowns {
        leases: own.len() < limits.len(),
        costs: schedule.jobs < schedule.units,
        others: shares,
        learned: schedule.max != schedule.set,
        counter: mixed,
    };
    let sure = doubts.sure();
    let by_turns = last.latest();
    let latest = last.at.iter().position(|at| *at == by_turns);
    let (at_ms, held_up_by) = match own.len() > 1 && !shares {
        true => one_by_one(&own, schedule),
        false => (0, None),
    };
    if at_ms <= by_turns {
        return ForecastEnd {
            at_ms: by_turns,
            limit: latest,
            sure,
            doubts,
        };
    }
    let index = |own_index: usize| {
        let name = own[own_index].name();
        limits.iter().position(|limit| limit.name() == name)
    };
    ForecastEnd {
        at_ms,
        limit: held_up_by.and_then(index).or(latest),
        sure,
        doubts,
    }
}

/// Starts the jobs one by one. Returns when the last one starts, and the limit that delayed it
/// last. The gate's turns cover the starts before now, and the starts from now on are counted here.
/// While a limit still counts an earlier start, it counts all later ones, too, so the later of both
/// times is correct.
fn one_by_one(limits: &[Limit], schedule: &Schedule) -> (u64, Option<usize>) {
    let jobs = schedule.jobs.clamp(1, schedule.units);
    let mut usage = PartitionUsage::default();
    let mut turns = schedule.turns.iter().peekable();
    let (mut at, mut by) = (schedule.opens_ms, None);
    let (mut units, mut promised) = (0, 0);
    for job in 0..jobs.min(MAX_STEPS) {
        // Costs are as even as whole units allow.
        let until = schedule.units * (job + 1) / jobs;
        let cost = until - units;
        units = until;
        while let Some(turn) = turns.next_if(|turn| turn.unit <= units) {
            promised = promised.max(turn.latest());
        }
        if promised > at {
            (at, by) = (promised, None);
        }
        for _ in 0..MAX_LOOKS {
            let clock = clock(at);
            usage.load(limits, clock, 1);
            let allowed = limits.iter().map(|limit| {
                let units = limit.unit().of(cost).min(limit.capacity());
                usage.nth(limit, at, units.max(1))
            });
            let Some((index, latest)) = allowed.enumerate().max_by_key(|(_, at)| *at) else {
                break;
            };
            if latest <= at {
                break;
            }
            (at, by) = (latest, Some(index));
        }
        usage.take(limits, clock(at), cost, "");
    }
    let behind = schedule.turns.iter().rfind(|turn| turn.unit <= units);
    let late = at.saturating_sub(behind.map_or(at, Turn::latest));
    match schedule.turns.last() {
        Some(last) if jobs > MAX_STEPS => (last.latest() + late, by),
        _ => (at, by),
    }
}

fn clock(at_ms: u64) -> Clock {
    Clock {
        now_ms: at_ms,
        stamp_ms: at_ms,
    }
}
