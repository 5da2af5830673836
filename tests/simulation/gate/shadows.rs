//! Shadows deny nothing: every decision is the same with and without them. tests/it/gate/model.rs
//! shows that scripts and model are equal.
//!
//! All sliding windows of a partition share one log, and a longer limit, shadow or not, keeps it
//! for longer. So histories leave out late calls and a clock that is stepped back, which bring back
//! what a shorter log has forgotten.

use std::collections::HashMap;

use gate::{End, Receipt, StartSettlement, Ticket};
use kit::gate::BEGIN_US;
use kit::gate::history::{Family, RULE, Step, World, ask, evidence, history, labels_of, sets};
use proptest::prelude::*;
use proptest::test_runner::Config;
use rules::decision::Answer;
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::Limit;
use rules::scope::Labels;
use rules::tenant::Tenant;

/// A world with the enforced limits alone, or with shadows beside them.
struct Side {
    world: World,
    limits: Vec<Vec<Limit>>,
    receipts: HashMap<(Tenant, Labels), Vec<Receipt>>,
}

impl Side {
    fn new(limits: Vec<Vec<Limit>>) -> Self {
        Self {
            world: World::default(),
            limits,
            receipts: HashMap::new(),
        }
    }
}

proptest! {
    #![proptest_config(Config { cases: kit::histories(84), ..Config::with_source_file(file!()) })]

    #[test]
    fn shadows_change_no_decision(which in 0..4_usize, steps in history()) {
        let tenants = ["t0", "t1", "t2"].map(|id| Tenant::parse(id).expect("a plain id"));
        let sets = sets(Family::Shadowed);
        let mut sides = [
            Side::new(sets.iter().map(|limits| limits.to_vec()).collect()),
            Side::new(sets.iter().map(|limits| limits.all().to_vec()).collect()),
        ];
        let (mut micros, mut now_of) = (BEGIN_US, 0);
        let mut tickets: HashMap<(Tenant, Labels), Vec<(Ticket, u64)>> = HashMap::new();
        for (number, step) in steps.iter().enumerate() {
            let clock = Clock::from_micros(micros);
            let tenant = &tenants[now_of / 4];
            let waiting = (tenant.clone(), labels_of(&sets[which], now_of));
            let tickets = tickets.entry(waiting.clone()).or_default();
            let (mut decisions, mut sunk) = (Vec::new(), Vec::new());
            for side in &mut sides {
                let limits = side.limits[which].clone();
                let labels = labels_of(&limits, now_of);
                let layout = Layout::of(&limits, tenant, &labels);
                let receipts = side.receipts.entry(waiting.clone()).or_default();
                let (world, own) = (&mut side.world, Partition::Tenant(tenant.clone()));
                match step {
                    Step::Ask { budget, jobs } => {
                        let generation = world.at(&layout.waitlist).waitlist.generation;
                        let asks: Vec<_> = (jobs.iter()).map(|j| ask(j, tickets, generation)).collect();
                        let permits = format!("p{number}");
                        let (answers, closed) = world
                            .with(&layout, |scopes| scopes.ask(&limits, clock, *budget, &permits, &asks));
                        receipts.extend(kit::gate::receipts(&permits, &asks, &answers, clock.now_ms));
                        // Sequences differ: a log that shadows keep for longer is numbered for
                        // longer.
                        let answers = answers.into_iter().map(|answer| match answer {
                            Answer::Start { .. } => None,
                            other => Some(other),
                        });
                        let costs: Vec<u64> = asks.iter().map(|ask| ask.cost).collect();
                        decisions.push((answers.collect::<Vec<_>>(), costs, closed));
                    }
                    Step::Block { millis } => world.at(&own).block(clock.now_ms, *millis, "test"),
                    Step::Report { event, millis_ago } => {
                        let event = event.event(clock.now_ms - millis_ago);
                        world.at(&own).report(clock.now_ms, &RULE, &event);
                    }
                    Step::Change { change } => {
                        world.at(&own).change(clock.now_ms, change);
                    }
                    Step::Learn { which, after_ms, maxima } => {
                        let which = which.filter(|_| !receipts.is_empty());
                        let started = which.map(|which| which.get(receipts.as_slice()));
                        let evidence = evidence(started, clock.now_ms, *after_ms, maxima);
                        sunk.push(world.with(&layout, |scopes| scopes.learn(&limits, clock, &evidence)));
                    }
                    Step::Settle { which, end, .. } if !receipts.is_empty() => {
                        let receipt = which.get(receipts.as_slice()).clone();
                        // A late call counts anew in a log that still has it.
                        let end = match end {
                            End::Late => End::Abandoned { for_ms: 0 },
                            other => *other,
                        };
                        let settled = [StartSettlement { receipt, end }];
                        world.with(&layout, |scopes| {
                            scopes.settle(&limits, clock, &format!("c{number}"), &settled);
                        });
                    }
                    Step::Forget => {
                        for partition in 0..=layout.shared.len() {
                            world.at(layout.partition(partition)).forget_waitlist();
                        }
                    }
                    Step::Settle { .. }
                    | Step::Foreign { .. }
                    | Step::Forward { .. }
                    | Step::Back { .. }
                    | Step::Limit { .. }
                    | Step::Turn { .. } => {}
                }
                let shown = world.with(&layout, |scopes| scopes.inspect(&limits, clock));
                prop_assert_eq!(shown.shadows.len(), limits.iter().filter(|l| l.is_shadow()).count());
            }
            if let [without, with] = sunk.as_slice() {
                prop_assert_eq!(without, with, "step {}: {:?}", number, step);
            }
            if let [without, with] = decisions.as_slice() {
                prop_assert_eq!(without, with, "step {}: {:?}", number, step);
                for (answer, cost) in without.0.iter().zip(&without.1) {
                    if let Some(Answer::Wait { ticket, .. }) = answer
                        && !tickets.contains(&(*ticket, *cost))
                    {
                        tickets.push((*ticket, *cost));
                    }
                }
            }
            match step {
                Step::Forward { micros: by } => micros += by,
                Step::Turn { who } => now_of = *who,
                _ => {}
            }
        }
    }
}
