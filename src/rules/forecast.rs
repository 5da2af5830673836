//! When a backlog ends: as things stand, and if something were different.
//!
//! The gate says of its own state when units of a waitlist have their turns as far as each limit goes ([`Schedule`]:
//! `Scopes::schedule` in the model, `lua/forecast.lua` over Redis). Limits that are enforced together hold each other up: what one of them
//! makes wait uses the others later. So here the jobs start one by one, at the earliest moment that all limits allow, and the limits' own
//! [algorithms](crate::rules::algorithms) count them.

use crate::rules::decision::Ticket;
use crate::rules::limit::{Algorithm, Limit};
use crate::rules::usage::{Clock, PartitionUsage};

/// Of so many units of a waitlist the gate is asked, evenly spread; of all where fewer wait.
pub(crate) const POINTS: u64 = 64;
/// So many jobs start one by one at most; the others follow at the pace of the limits.
const MOST_STEPS: u64 = 20_000;
/// A start is looked for so often: each look is at a later moment, and one for each limit is the usual.
const MOST_LOOKS: usize = 256;

/// When the tenant is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// When what suspends it ends.
    AsItIs,
    /// Now: as if an operator resumed it.
    Now,
    /// After so many milliseconds: as if an operator paused it for so long.
    In(u64),
}

/// Up to where in the waitlist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// All of it.
    Last,
    /// Up to a job of this cost, with the ticket that it was given, or as a new one behind all that wait.
    Job(Option<Ticket>, u32),
}

/// For which limits the gate is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// These.
    pub limits: Vec<Limit>,
    /// Of each whether its `max` is meant, and not what an operator set instead.
    pub as_said: Vec<bool>,
    /// From when on jobs start,
    pub opens: Opens,
    /// and not before (ms), for what the tenant's own state does not know; 0: there is nothing.
    pub not_before_ms: u64,
    /// Whose turn is asked for.
    pub place: Place,
}

impl Asked {
    /// What is enforced.
    pub fn as_it_is(limits: &[Limit], not_before_ms: u64) -> Self {
        Self {
            limits: limits.to_vec(),
            as_said: vec![false; limits.len()],
            opens: Opens::AsItIs,
            not_before_ms,
            place: Place::Last,
        }
    }
}

/// When the units of a waitlist have their turns, as far as each limit goes on its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Nobody starts before.
    pub opens_ms: u64,
    /// Units that wait in all.
    pub waiting: u64,
    /// Those up to the place that was asked for, its own among them.
    pub units: u64,
    /// How many jobs have these, about.
    pub jobs: u64,
    /// The `max` of each limit that is in force.
    pub max: Vec<u32>,
    /// Of each the `max` that is set, whatever was learned.
    pub set: Vec<u32>,
    /// Of some units, in their order and the last of them among them, when each limit lets them start.
    pub turns: Vec<Turn>,
}

/// When one unit of a waitlist may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Which, from 1.
    pub unit: u64,
    /// As far as each limit goes, in milliseconds since the epoch.
    pub at: Vec<u64>,
}

impl Turn {
    /// As far as all of them go.
    fn latest(&self) -> u64 {
        self.at.iter().copied().max().unwrap_or(0)
    }
}

/// How sure a forecast is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sure {
    /// By the gate's own count: it is so while the limits and those ahead stay what they are.
    Exact,
    /// It also depends on what nobody knows: how long calls take, what others who share a limit do, what each job costs, how a limit that
    /// has learned rises; or a sliding counter is one of several limits.
    Estimated,
    /// Nobody can say.
    Unknown,
}

impl Sure {
    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Estimated => "estimated",
            Self::Unknown => "unknown",
        }
    }
}

/// What a forecast depends on that nobody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubts {
    /// How long calls take: a limit counts those in flight.
    pub leases: bool,
    /// What each job costs: only the sum is known.
    pub costs: bool,
    /// What others do that share a limit, or jobs of other levels.
    pub others: bool,
    /// How a limit rises that has learned.
    pub learned: bool,
    /// What a sliding counter weighs beside other limits.
    pub counter: bool,
}

impl Doubts {
    /// Those of both.
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

    /// For people: `how long calls take, what each job costs: that is not known`.
    pub fn words(self) -> String {
        let all = [
            (self.leases, "how long calls take"),
            (self.costs, "what each job costs"),
            (self.others, "what others do that share a limit"),
            (self.learned, "how a limit rises that has learned"),
            (
                self.counter,
                "what a sliding counter beside other limits will weigh",
            ),
        ];
        let words: Vec<&str> = (all.iter())
            .filter(|(is_so, _)| *is_so)
            .map(|(_, words)| *words)
            .collect();
        format!("{}: that is not known", words.join(", "))
    }

    fn sure(self) -> Sure {
        match self == Self::default() {
            true => Sure::Exact,
            false => Sure::Estimated,
        }
    }
}

/// When the last of a waitlist starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// In milliseconds since the epoch; now, where nobody waits.
    pub at_ms: u64,
    /// The limit that allows it last; `None`: nobody waits.
    pub limit: Option<usize>,
    /// How sure that is,
    pub sure: Sure,
    /// and why it is not exact.
    pub doubts: Doubts,
}

/// The units of which the gate is asked where it is asked for the turn of so many.
pub(crate) fn points(units: u64) -> impl Iterator<Item = u64> {
    let number = units.min(POINTS);
    (1..=number).map(move |point| units * point / number)
}

/// When the last unit of `schedule` starts, which was asked for the limits `asked`. `shares`: some of them count what other waitlists
/// start, too.
pub fn end(asked: &[Limit], schedule: &Schedule, shares: bool) -> End {
    let Some(last) = schedule.turns.last() else {
        return End {
            at_ms: schedule.now_ms,
            limit: None,
            sure: Sure::Exact,
            doubts: Doubts::default(),
        };
    };
    let in_force = |(limit, max): (&Limit, &u32)| limit.clone().with_max(*max);
    let limits: Vec<Limit> = asked.iter().zip(&schedule.max).map(in_force).collect();
    let holds = |limit: &Limit| limit.algorithm().holds_leases();
    let own: Vec<Limit> = (limits.iter().filter(|limit| !holds(limit)).cloned()).collect();
    // A counter weights what started before now and what will start together: with the turns by each alone that is not known.
    let weighs = |limit: &Limit| limit.algorithm() == Algorithm::SlidingCounter;
    let mixed = own.len() > 1 && own.iter().any(weighs);
    let doubts = Doubts {
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
        return End {
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
    End {
        at_ms,
        limit: held_up_by.and_then(index).or(latest),
        sure,
        doubts,
    }
}

/// The jobs start one by one: when the last does, and which limit let it start last. What was started before now counts by the turns that
/// the gate said; what starts from now on is counted here. While the limit still counts the one, all of the other count as well, so the
/// later of both is right.
fn one_by_one(limits: &[Limit], schedule: &Schedule) -> (u64, Option<usize>) {
    let jobs = schedule.jobs.clamp(1, schedule.units);
    let mut usage = PartitionUsage::default();
    let mut turns = schedule.turns.iter().peekable();
    let (mut at, mut by) = (schedule.opens_ms, None);
    let (mut units, mut told) = (0, 0);
    for job in 0..jobs.min(MOST_STEPS) {
        // As even as whole units can be.
        let until = schedule.units * (job + 1) / jobs;
        let cost = until - units;
        units = until;
        while let Some(turn) = turns.next_if(|turn| turn.unit <= units) {
            told = told.max(turn.latest());
        }
        if told > at {
            (at, by) = (told, None);
        }
        for _ in 0..MOST_LOOKS {
            let clock = clock(at);
            usage.load(limits, clock, 1);
            let allowed = limits.iter().map(|limit| {
                let units = limit.unit().of(cost).min(limit.capacity().into());
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
        Some(last) if jobs > MOST_STEPS => (last.latest() + late, by),
        _ => (at, by),
    }
}

fn clock(at_ms: u64) -> Clock {
    Clock {
        now_ms: at_ms,
        stamp_ms: at_ms,
    }
}
