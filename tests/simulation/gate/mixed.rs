//! Jobs of one tenant under different limits: plans, tenants' own limits, changed configurations.
//! No limit forgets what another one counts. tests/it/gate/mixed.rs shows the same on Redis.

use std::collections::HashMap;

use gate::{Answer, Question};
use kit::gate::{FRESH, guarded_limit as limit, tenant};
use proptest::prelude::*;
use proptest::test_runner::Config;
use rules::gate::model::{HeldState, Scopes};
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Limits, Unit};
use rules::scope::{Labels, Scope};

/// The kinds of limits that jobs can have.
#[derive(Debug, Clone, Copy)]
enum Family {
    /// One limit each, with the same algorithm and name and different numbers.
    Of(Algorithm),
    /// Several limits each: of the tenant, of its parts, and of all tenants.
    Several,
}

fn sets(family: Family) -> Vec<Limits> {
    use Algorithm::{FixedWindow, SlidingCounter, SlidingWindow, TokenBucket};
    let set = |limits| Limits::new(limits).expect("their names differ");
    match family {
        Family::Of(algorithm) => [(100, 1000, 0), (3, 1000, 0), (3, 30_000, 50), (7, 5000, 0)]
            .map(|numbers| limit("default", algorithm, numbers).into())
            .to_vec(),
        Family::Several => {
            let path = Scope::Header("path".to_owned());
            vec![
                set(vec![
                    limit("second", SlidingWindow, (9, 1000, 0)),
                    limit("calls", SlidingWindow, (7, 1000, 50)).with_unit(Unit::Calls),
                ]),
                set(vec![
                    limit("minute", SlidingWindow, (20, 60_000, 0)),
                    limit("all", SlidingWindow, (30, 2000, 0)).with_scope(Scope::Global),
                    limit("bucket", TokenBucket, (5, 2000, 0)),
                ]),
                set(vec![
                    limit("path", SlidingWindow, (8, 20_000, 0)).with_scope(path),
                    limit("second", SlidingWindow, (9, 2000, 0)),
                    limit("day", FixedWindow, (40, 40_000, 0)),
                ]),
                set(vec![
                    limit("all", SlidingWindow, (60, 9000, 0)).with_scope(Scope::Global),
                    limit("bucket", TokenBucket, (50, 2000, 0)),
                    limit("counter", SlidingCounter, (50, 2000, 0)),
                ]),
            ]
        }
    }
}

/// One question.
#[derive(Debug, Clone)]
struct Step {
    /// Pause before the question, in milliseconds.
    pause: u64,
    /// Index of the set of limits.
    set: usize,
    /// Indexes of the tenant and of the header's value.
    who: (usize, usize),
    /// Costs of new jobs. Jobs that were denied before ask again after them.
    costs: Vec<u64>,
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![
        5 => 0..50u64,
        4 => 100..1_500u64,
        2 => 1_000..12_000u64,
        1 => 10_000..90_000u64,
    ];
    let costs = prop_oneof![4 => Just(vec![1]), 2 => prop::collection::vec(1..5u64, 0..4)];
    let step = (pause, 0..4usize, (0..2usize, 0..2usize), costs);
    let step = step.prop_map(|(pause, set, who, costs)| Step {
        pause,
        set,
        who,
        costs,
    });
    prop::collection::vec(step, 1..80)
}

/// A start, and the limits in force for it.
struct Start {
    at_ms: u64,
    cost: u64,
    limits: Limits,
    layout: Layout,
}

/// Plays `steps` on the model. Returns all starts, and when each limit was asked with, by
/// partition.
fn play(sets: &[Limits], steps: &[Step]) -> (Vec<Start>, Vec<(u64, Partition, Limit)>) {
    let mut states: HashMap<Partition, HeldState> = HashMap::new();
    let mut waiting: HashMap<(usize, (usize, usize)), Vec<Question>> = HashMap::new();
    let (mut starts, mut asked, mut now) = (Vec::new(), Vec::new(), 1_700_000_000_000);
    for step in steps {
        now += step.pause;
        let limits = &sets[step.set];
        let labels = Labels::of(limits, |_| step.who.1.to_string());
        let layout = Layout::of(limits, &tenant(format!("t{}", step.who.0)), &labels);
        for (limit, partition) in limits.iter().zip(&layout.partitions) {
            asked.push((now, layout.partition(*partition).clone(), limit.clone()));
        }
        let mut asks = std::mem::take(waiting.entry((step.set, step.who)).or_default());
        let fresh = step.costs.iter();
        asks.extend(fresh.map(|cost| Question {
            cost: *cost,
            ..FRESH
        }));
        let take = |partition| {
            states
                .remove(layout.partition(partition))
                .unwrap_or_default()
        };
        let mut scopes = Scopes::take(&layout, take);
        let clock = Clock::from_micros(now * 1000);
        let (answers, _) = scopes.ask(limits, clock, 100, "permit", &asks);
        for (partition, mut state) in scopes.into_states().into_iter().enumerate() {
            // Expires state as a store would.
            state.expire(now);
            states.insert(layout.partition(partition).clone(), state);
        }
        for (ask, answer) in asks.into_iter().zip(answers) {
            match answer {
                Answer::Start { .. } => starts.push(Start {
                    at_ms: now,
                    cost: ask.cost,
                    limits: limits.clone(),
                    layout: layout.clone(),
                }),
                Answer::Wait { ticket, .. } => {
                    let again = Question {
                        ticket: Some(ticket),
                        ..ask
                    };
                    let waiting = waiting.entry((step.set, step.who)).or_default();
                    waiting.push(again);
                }
                Answer::Capacity => {}
            }
        }
    }
    (starts, asked)
}

impl Start {
    /// Returns the units charged to `limit` in `partition`; 0 if it was not charged there.
    fn units(&self, limit: &Limit, partition: &Partition) -> u64 {
        let counts = |(own, number): (&Limit, &usize)| {
            let sliding =
                [own, limit].map(|limit| limit.algorithm()) == [Algorithm::SlidingWindow; 2];
            self.layout.partition(*number) == partition && (sliding || own.shares_state(limit))
        };
        let mut all = self.limits.iter().zip(&self.layout.partitions);
        match all.any(counts) {
            true => limit.unit().of(self.cost),
            false => 0,
        }
    }
}

/// Returns the first start that its own limits do not allow. Every start of the last window counts,
/// but only since the limit was first asked with: before that, the gate could not know that it
/// would count.
fn violation(sets: &[Limits], steps: &[Step]) -> Option<String> {
    let (starts, asked) = play(sets, steps);
    for (index, start) in starts.iter().enumerate() {
        for (limit, number) in start.limits.iter().zip(&start.layout.partitions) {
            let (partition, now) = (start.layout.partition(*number), start.at_ms);
            let is_aligned = limit.algorithm().facts().is_aligned;
            let since = match is_aligned {
                true => now / limit.span() * limit.span(),
                false => now + 1 - limit.window_ms() - limit.guard_ms(),
            };
            let mut uses = asked.iter().filter(|(at, at_partition, other)| {
                (since..=now).contains(at) && at_partition == partition && other == limit
            });
            let known = uses.next().map_or(now, |(at, ..)| *at);
            let before = starts[..index].iter();
            let before = match limit.algorithm() {
                // The counter's own estimate of the last window is checked. Its worst case holds
                // only for jobs that it limits itself.
                Algorithm::SlidingCounter => {
                    let (span, sight) = (limit.span(), limit.span() - limit.lateness_ms());
                    let in_window = |window: u64| -> u64 {
                        let there = before.clone().filter(|other| other.at_ms / span == window);
                        there.map(|other| other.units(limit, partition)).sum()
                    };
                    let weighted = in_window(now / span - 1) * sight.saturating_sub(now % span);
                    in_window(now / span) + weighted.div_ceil(sight)
                }
                algorithm => {
                    let since = match algorithm {
                        Algorithm::SlidingWindow => known,
                        _ => since,
                    };
                    // In two successive windows, only jobs with this limit are bounded.
                    let counts_all =
                        is_aligned || algorithm.has_burst() || limit.worst_case() == limit.max();
                    let counted = before.filter(|other| {
                        other.at_ms >= since && (counts_all || other.limits.all().contains(limit))
                    });
                    counted.map(|other| other.units(limit, partition)).sum()
                }
            };
            // A job that costs more than the whole limit starts alone.
            let own = limit.unit().of(start.cost).min(limit.capacity());
            let max = match limit.algorithm() {
                Algorithm::SlidingCounter => limit.max(),
                _ if is_aligned => limit.max(),
                _ => limit.worst_case(),
            };
            if before > 0 && before + own > max {
                return Some(format!(
                    "{now}: {before} and {own} of {limit:?} in {partition:?}"
                ));
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(Config { cases: kit::histories(34), ..Config::with_source_file(file!()) })]

    #[test]
    fn no_mixture_forgets_what_an_algorithm_counts(steps in history()) {
        let all = Algorithm::EVERY.into_iter();
        for algorithm in all.filter(|algorithm| !algorithm.holds_leases()) {
            let sets = sets(Family::Of(algorithm));
            prop_assert_eq!(violation(&sets, &steps), None);
        }
    }

    #[test]
    fn no_mixture_forgets_what_several_limits_count(steps in history()) {
        prop_assert_eq!(violation(&sets(Family::Several), &steps), None);
    }
}
