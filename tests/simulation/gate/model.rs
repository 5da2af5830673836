//! No random history on the model exceeds a limit. tests/it/gate/model.rs shows that scripts and
//! model are equal.

use std::collections::HashMap;

use gate::{End, Question, Receipt, StartSettlement};
use kit::gate::BEGIN_US;
use kit::gate::history::{
    Family, IssuedTickets, RULE, Scale, Step, World, ask, history, labels_of,
};
use proptest::prelude::*;
use proptest::test_runner::Config;
use rules::decision::Answer;
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Unit};
use rules::tenant::Tenant;

use crate::gate::simulator::violations;

/// A start: time by the clock, time that really passed (they differ if the clock is stepped back),
/// cost and limit.
type Start = (u64, u64, u64, Limit);

fn scale() -> impl Strategy<Value = Scale> {
    prop::sample::select(&Scale::BOTH[..])
}

/// Prepares starts for [`violations`]: sliding windows by the time that really passed, fixed
/// windows by the clock. A clock that was stepped back passes through a window again. It is a
/// different window if at least its length has really passed since its starts.
fn judged(starts: Vec<Start>) -> Vec<(u64, u64, Limit)> {
    let mut passes = HashMap::new();
    let mut judged: Vec<_> = (starts.into_iter())
        .map(|(clock, real, units, limit)| {
            if !limit.algorithm().facts().is_aligned {
                return (real, units, limit);
            }
            let window = limit.window_ms() * 1000;
            let (pass, last) = passes.entry(clock / window).or_insert((0, real));
            if real - *last >= window {
                *pass += 1;
            }
            *last = real;
            (clock + *pass * window * 1_000_000, units, limit)
        })
        .collect();
    judged.sort_by_key(|(at, ..)| *at);
    judged
}

/// Starts by partition and name of the limit that counts them.
type ByPartition = HashMap<(Partition, String), Vec<Start>>;

/// Plays a history on the model alone, with one limit or several, and with several tenants if some
/// limits are shared. With several limits a call uses what it was charged and ends when the history
/// says so. Jobs may cost more than some limits allow, because an operator or other workers can
/// lower a limit.
fn starts(family: Family, (which, scale): (usize, Scale), steps: &[Step]) -> ByPartition {
    let limits = scale.sets(family).remove(which);
    let steps = &scale.steps(steps);
    let has_one = matches!(family, Family::Of(_));
    let tenants = ["t0", "t1", "t2"].map(|id| Tenant::parse(id).expect("a plain id"));
    let mut world = World::default();
    let mut all_given: HashMap<usize, IssuedTickets> = HashMap::new();
    let (mut clock, mut real, mut now_of) = (BEGIN_US, BEGIN_US, 0);
    let mut started = ByPartition::new();
    for (number, step) in steps.iter().enumerate() {
        let now = Clock::from_micros(clock);
        let tenant = &tenants[now_of / 4];
        let labels = labels_of(&limits, now_of);
        let layout = Layout::of(&limits, tenant, &labels);
        let IssuedTickets { tickets, receipts } = all_given.entry(now_of).or_default();
        match step {
            Step::Ask { budget, jobs } => {
                let generation = world.at(&layout.waitlist).waitlist.generation;
                let asked = jobs.iter().map(|j| ask(j, tickets, generation));
                let charged = asked.map(|ask| match has_one {
                    true => ask,
                    false => Question {
                        cost: ask.cost.max(1),
                        ..ask
                    },
                });
                let asks: Vec<Question> = charged.collect();
                let permits = format!("p{number}");
                let (answers, _) = world.with(&layout, |scopes| {
                    scopes.ask(&limits, now, *budget, &permits, &asks)
                });
                for (place, (ask, answer)) in asks.iter().zip(answers).enumerate() {
                    let sequences = match answer {
                        Answer::Start { sequences, .. } => sequences,
                        Answer::Wait { ticket, .. } => {
                            tickets.push((ticket, ask.cost));
                            continue;
                        }
                        Answer::Capacity => continue,
                    };
                    receipts.push(Receipt {
                        permit: format!("{permits}:{place}"),
                        started_ms: now.now_ms,
                        sequences,
                        cost: ask.cost,
                    });
                    for partition in 0..=layout.shared.len() {
                        for limit in layout.limits_in(partition, &limits).into_owned() {
                            let units = match limit.unit() {
                                Unit::Calls => 1,
                                Unit::Cost => ask.cost.clamp(1, limit.capacity()),
                            };
                            let counted =
                                (layout.partition(partition).clone(), limit.name().to_owned());
                            let of_one = started.entry(counted).or_default();
                            of_one.push((clock, real, units, limit));
                        }
                    }
                }
            }
            Step::Settle { which, .. } if !receipts.is_empty() && !has_one => {
                let receipt = which.get(receipts.as_slice()).clone();
                let end = End::Cost(receipt.cost);
                let settled = [StartSettlement { receipt, end }];
                let call = format!("c{number}");
                world.with(&layout, |scopes| {
                    scopes.settle(&limits, now, &call, &settled);
                });
            }
            Step::Block { millis } => {
                let own = Partition::Tenant(tenant.clone());
                world.at(&own).block(now.now_ms, *millis, "test");
            }
            Step::Report { event, millis_ago } if has_one => {
                let event = event.event(now.now_ms - millis_ago);
                world.at(&layout.waitlist).report(now.now_ms, &RULE, &event);
            }
            Step::Forget if family == Family::Of(Algorithm::SlidingWindow) => {
                world.at(&layout.waitlist).forget_waitlist();
            }
            Step::Forward { micros } => (clock, real) = (clock + micros, real + micros),
            Step::Back { micros } => clock -= micros,
            Step::Turn { who } if family == Family::Shared => now_of = *who,
            _ => {}
        }
    }
    started
}

/// Returns true if a start counts in a window only. The worst case of other algorithms covers more
/// than one window.
fn has_windows(algorithm: Algorithm) -> bool {
    let facts = algorithm.facts();
    !facts.saves_up && !facts.holds_leases
}

/// Counts violations of all windows: sliding ones, fixed ones, and others.
fn violations_of(family: Family, which: (usize, Scale), steps: &[Step]) -> usize {
    let mut all = starts(family, which, steps);
    all.retain(|_, starts| has_windows(starts[0].3.algorithm()));
    let count = |starts: Vec<Start>| violations(&judged(starts));
    all.into_values().map(count).sum()
}

proptest! {
    #![proptest_config(Config { cases: kit::histories(50), ..Config::with_source_file(file!()) })]

    #[test]
    fn no_history_exceeds_a_window(which in 0..4usize, scale in scale(), steps in history()) {
        for algorithm in Algorithm::EVERY.into_iter().filter(|it| has_windows(*it)) {
            let violations = violations_of(Family::Of(algorithm), (which, scale), &steps);
            prop_assert_eq!(violations, 0, "{:?}", algorithm);
        }
    }

    #[test]
    fn no_history_exceeds_one_of_several_limits(which in 0..4usize, scale in scale(), steps in history()) {
        prop_assert_eq!(violations_of(Family::Several, (which, scale), &steps), 0);
    }

    #[test]
    fn no_history_exceeds_a_shared_partition(which in 0..4usize, scale in scale(), steps in history()) {
        prop_assert_eq!(violations_of(Family::Shared, (which, scale), &steps), 0);
    }
}
