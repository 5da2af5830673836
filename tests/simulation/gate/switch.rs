//! A fleet whose workers change their limits at different times, or never. Runs on the model, with
//! a clock of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gate::fleet::{
    AGREED_FOR_MS, EnforcedPolicies, MARGIN_MS, RegisteredPolicy, RegistryKnowledge, memory_ms,
};
use gate::{Answer, Change};
use kit::counts::sliding;
use kit::gate::{FRESH, guarded_limit};
use proptest::prelude::*;
use rules::gate::model::{HeldState, Scopes};
use rules::gate::usage::Clock;
use rules::layout::{Layout, Partition};
use rules::limit::{Algorithm, Limit, Limits};
use rules::policy::Policy;
use rules::scope::{Labels, Scope};
use rules::tenant::Tenant;

const EPOCH_MS: u64 = 1_700_000_000_000;
/// Interval at which workers ask and look at their clocks.
const STEP_MS: u64 = 20;

/// The policies that `lua/policies.lua` keeps.
#[derive(Default)]
struct SharedPartition(BTreeMap<usize, RegisteredPolicy>);

impl SharedPartition {
    fn exchange(
        &mut self,
        mine: &[usize],
        policies: &[Arc<Policy>],
        now_ms: u64,
    ) -> Vec<RegisteredPolicy> {
        let kept_ms = |known: &RegisteredPolicy| memory_ms(&known.policy) + MARGIN_MS;
        let longest = self.0.values().map(kept_ms).max().unwrap_or(0);
        let longest = mine.iter().fold(longest, |max, id| {
            max.max(memory_ms(&policies[*id]) + MARGIN_MS)
        });
        self.0.retain(|_, known| known.used_ms + longest >= now_ms);
        for &id in mine {
            let known = self.0.entry(id).or_insert_with(|| RegisteredPolicy {
                id: id.to_string(),
                policy: Arc::clone(&policies[id]),
                since_ms: now_ms,
                used_ms: now_ms,
            });
            known.used_ms = now_ms;
        }
        self.0.values().cloned().collect()
    }
}

struct Worker {
    policy: usize,
    known: RegistryKnowledge,
    fleet: EnforcedPolicies,
    agreed_ms: Option<u64>,
    next_exchange_ms: u64,
}

/// An event at one worker, in place of its usual work.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// The worker has this policy from now on.
    Reload(usize),
    /// The worker's exchanges fail for this many milliseconds.
    Cut(u64),
    /// The process ends. One with this policy starts after this many milliseconds.
    Restart(usize, u64),
}

struct World {
    policies: Vec<Arc<Policy>>,
    shared: SharedPartition,
    workers: Vec<Worker>,
    states: HashMap<Partition, HeldState>,
    /// Number of tenants, and of header values of each.
    tenants: usize,
    values: usize,
    now_ms: u64,
    /// Each start: time in milliseconds, tenant, header value.
    starts: Vec<(u64, usize, usize)>,
    /// Whether every worker enforces only its own policy. This must violate the bounds.
    alone: bool,
}

impl World {
    fn new(policies: Vec<Policy>, workers: &[usize]) -> Self {
        let policies: Vec<_> = policies.into_iter().map(Arc::new).collect();
        let worker = |(at, policy): (usize, &usize)| Worker {
            policy: *policy,
            known: RegistryKnowledge::default(),
            fleet: EnforcedPolicies::alone(Arc::clone(&policies[*policy])),
            agreed_ms: None,
            next_exchange_ms: EPOCH_MS + 300 * at as u64,
        };
        Self {
            workers: workers.iter().enumerate().map(worker).collect(),
            policies,
            shared: SharedPartition::default(),
            states: HashMap::new(),
            tenants: 1,
            values: 1,
            now_ms: EPOCH_MS,
            starts: Vec::new(),
            alone: false,
        }
    }

    /// Adds jobs of several tenants, with several header values each.
    fn of_many(self) -> Self {
        Self {
            tenants: 2,
            values: 2,
            ..self
        }
    }

    fn exchange(&mut self, worker: usize, next: usize) {
        let one = &mut self.workers[worker];
        let mut mine = vec![one.policy];
        if next != one.policy {
            mine.push(next);
        }
        let found = self.shared.exchange(&mine, &self.policies, self.now_ms);
        one.known.learn(found, self.now_ms);
        one.policy = next;
        let own = Arc::clone(&self.policies[next]);
        one.fleet = match self.alone {
            true => EnforcedPolicies::alone(own),
            false => one.known.fleet(own, &next.to_string(), self.now_ms),
        };
        one.agreed_ms = Some(self.now_ms);
        one.next_exchange_ms = self.now_ms + 1_000;
    }

    fn event(&mut self, worker: usize, event: Event) {
        match event {
            Event::Reload(next) => self.exchange(worker, next),
            Event::Cut(ms) => self.workers[worker].next_exchange_ms = self.now_ms + ms,
            Event::Restart(policy, ms) => {
                let own = Arc::clone(&self.policies[policy]);
                self.workers[worker] = Worker {
                    policy,
                    known: RegistryKnowledge::default(),
                    fleet: EnforcedPolicies::alone(own),
                    agreed_ms: None,
                    next_exchange_ms: self.now_ms + ms,
                };
            }
        }
    }

    /// Lets all workers take one step. Each has more jobs than may start.
    fn step(&mut self) {
        self.now_ms += STEP_MS;
        let order = (self.now_ms / STEP_MS) as usize;
        for at in 0..self.workers.len() {
            let at = (at + order) % self.workers.len();
            if self.workers[at].next_exchange_ms <= self.now_ms {
                self.exchange(at, self.workers[at].policy);
            }
            if self.workers[at]
                .agreed_ms
                .is_none_or(|agreed| agreed + AGREED_FOR_MS < self.now_ms)
            {
                continue;
            }
            for turn in 0..self.tenants * self.values {
                let turn = (turn + order) % (self.tenants * self.values);
                self.ask(at, turn / self.values, turn % self.values);
            }
        }
    }

    fn ask(&mut self, worker: usize, number: usize, value: usize) {
        let tenant = Tenant::parse(&format!("t{number}")).expect("a tenant");
        let limits = self.workers[worker].fleet.limits(&tenant, None);
        let labels = Labels::of(&limits, |_| value.to_string());
        let layout = Layout::of(&limits, &tenant, &labels);
        let mut scopes = Scopes::take(&layout, |partition| {
            self.states
                .remove(layout.partition(partition))
                .unwrap_or_default()
        });
        let clock = Clock::from_micros(self.now_ms * 1_000);
        let asks = [FRESH; 4];
        let (answers, _) = scopes.ask(&limits, clock, 4, "p", &asks);
        for (partition, mut state) in scopes.into_states().into_iter().enumerate() {
            // Empties the waitlist: this suite is about room alone.
            state.change(self.now_ms, &Change::Reset);
            self.states
                .insert(layout.partition(partition).clone(), state);
        }
        let started = answers.iter().filter(|a| matches!(a, Answer::Start { .. }));
        let now_ms = self.now_ms;
        self.starts.extend(started.map(|_| (now_ms, number, value)));
    }

    /// Plays events, each after a pause and at one of the workers. Policy numbers wrap around.
    fn play(&mut self, events: Vec<(u64, usize, Event)>) {
        let policies = self.policies.len();
        for (pause, worker, event) in events {
            self.run(pause);
            let event = match event {
                Event::Reload(next) => Event::Reload(next % policies),
                Event::Restart(next, ms) => Event::Restart(next % policies, ms),
                Event::Cut(ms) => Event::Cut(ms),
            };
            self.event(worker, event);
        }
    }

    fn run(&mut self, for_ms: u64) {
        for _ in 0..for_ms / STEP_MS {
            self.step();
        }
    }

    /// Returns the most starts of `whose` in any window of `ms`, wherever it begins.
    fn max_starts_in(&self, whose: Whose, ms: u64) -> u64 {
        let own = self.starts.iter().filter(|(_, tenant, value)| match whose {
            Whose::All => true,
            Whose::Tenant(of) => of == *tenant,
            Whose::Part(of, with) => (of, with) == (*tenant, *value),
        });
        let starts: Vec<_> = own.map(|(at, ..)| (*at, 1)).collect();
        sliding(&starts, ms).into_iter().max().unwrap_or(0)
    }

    fn starts_since(&self, ms: u64) -> usize {
        self.starts.iter().filter(|(at, ..)| *at > ms).count()
    }

    /// Returns the maximum number of starts of `whose` in any window of `ms` under `limits` alone.
    fn bound(&self, limits: &Limits, whose: Whose, ms: u64) -> u64 {
        let (tenants, values) = (self.tenants as u64, self.values as u64);
        let of = |limit: &Limit| {
            let partitions = match (whose, limit.scope()) {
                (_, Scope::Global) | (Whose::Part(..), _) | (Whose::Tenant(_), Scope::Tenant) => 1,
                (Whose::All, Scope::Tenant) => tenants,
                (Whose::Tenant(_), _) => values,
                (Whose::All, _) => tenants * values,
            };
            partitions * limit.worst_case() * ms.div_ceil(limit.window_ms())
        };
        limits.iter().map(of).min().expect("a limit")
    }

    /// Returns all groups of jobs that may have a quota of their own.
    fn scopes(&self) -> Vec<Whose> {
        let mut all = vec![Whose::All];
        for tenant in 0..self.tenants {
            all.push(Whose::Tenant(tenant));
            all.extend((0..self.values).map(|value| Whose::Part(tenant, value)));
        }
        all
    }
}

/// Jobs that may have a quota of their own.
#[derive(Debug, Clone, Copy)]
enum Whose {
    All,
    Tenant(usize),
    Part(usize, usize),
}

fn limit(name: &str, algorithm: Algorithm, max: u64, window_ms: u64) -> Limit {
    guarded_limit(name, algorithm, (max, window_ms, 0))
}

fn keeps_the_larger(world: &World) -> Result<(), TestCaseError> {
    for policy in &world.policies {
        for window in policy
            .default_limits()
            .iter()
            .map(|limit| limit.window_ms())
        {
            for whose in world.scopes() {
                let of = |p: &Arc<Policy>| world.bound(p.default_limits(), whose, window);
                let larger = world.policies.iter().map(of).max().expect("a policy");
                let max = world.max_starts_in(whose, window);
                prop_assert!(
                    max <= larger,
                    "{max} of {whose:?} in {window} ms, {larger} may be"
                );
            }
        }
    }
    Ok(())
}

fn some_limits() -> impl Strategy<Value = Limits> {
    let algorithm = prop::sample::select(&Algorithm::ALL[..]);
    let window = prop::sample::select(&[400_u64, 1_000, 3_000][..]);
    let name = prop::sample::select(&["default", "other"][..]);
    let one = (name, algorithm, 1..12_u64, window);
    prop::collection::vec(one, 1..3).prop_map(|limits| {
        let mut set = vec![];
        for (name, algorithm, max, window) in limits {
            let limit = limit(name, algorithm, max, window);
            if set.iter().all(|known: &Limit| known.name() != name) {
                set.push(limit);
            }
        }
        Limits::new(set).expect("names of their own")
    })
}

fn path() -> Scope {
    Scope::Header("x-path".to_owned())
}

fn some_scoped_limits() -> impl Strategy<Value = Limits> {
    let scope = prop::sample::select(vec![Scope::Tenant, Scope::Global, path()]);
    (some_limits(), prop::collection::vec(scope, 2)).prop_map(|(limits, scopes)| {
        let scoped = limits.iter().zip(scopes);
        let scoped = scoped.map(|(limit, scope)| limit.clone().with_scope(scope));
        Limits::new(scoped.collect()).expect("names of their own")
    })
}

fn some_event(policies: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..policies).prop_map(Event::Reload),
        1 => (1_000..9_000_u64).prop_map(Event::Cut),
        1 => (0..policies, 0..8_000_u64).prop_map(|(policy, ms)| Event::Restart(policy, ms)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Two workers change their policies at any time and one never does; exchanges fail and
    /// processes end.
    #[test]
    fn no_window_holds_more_than_the_larger_policy_allows(
        sets in prop::collection::vec(some_limits(), 2..4),
        events in prop::collection::vec((0..9_000_u64, 0..2_usize, some_event(3)), 3..9),
    ) {
        let policies: Vec<_> = sets.into_iter().map(Policy::common).collect();
        let mut world = World::new(policies, &[0, 0, 0]);
        world.play(events);
        world.run(18_000);
        keeps_the_larger(&world)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The same, with partitions of all tenants, of each tenant, and of parts of each.
    #[test]
    fn no_window_of_any_partition_holds_more_than_the_larger_policy_allows(
        sets in prop::collection::vec(some_scoped_limits(), 2..4),
        events in prop::collection::vec((0..9_000_u64, 0..2_usize, some_event(3)), 3..7),
    ) {
        let policies: Vec<_> = sets.into_iter().map(Policy::common).collect();
        let mut world = World::new(policies, &[0, 0, 0]).of_many();
        world.play(events);
        world.run(15_000);
        keeps_the_larger(&world)?;
    }
}

#[test]
fn changing_scopes_exceed_no_limit_and_waste_little() {
    let set = |limits: &[(&str, u64, Scope)], algorithm| -> Limits {
        let limit = |(name, max, scope): &(&str, u64, Scope)| {
            limit(name, algorithm, *max, 1_000).with_scope(scope.clone())
        };
        Limits::new(limits.iter().map(limit).collect()).expect("names of their own")
    };
    let own = || ("own", 4, Scope::Tenant);
    let all = |max| ("all", max, Scope::Global);
    let switches = [
        ("a global limit comes", vec![own()], vec![own(), all(8)]),
        ("it is lowered", vec![own(), all(9)], vec![own(), all(5)]),
        ("it is raised", vec![own(), all(5)], vec![own(), all(9)]),
        ("it goes", vec![own(), all(8)], vec![own()]),
        (
            "own becomes global",
            vec![own()],
            vec![("own", 8, Scope::Global)],
        ),
        (
            "global becomes own",
            vec![("own", 8, Scope::Global)],
            vec![own()],
        ),
        (
            "a header comes",
            vec![own()],
            vec![("own", 3, path()), all(9)],
        ),
        ("a header goes", vec![("own", 3, path())], vec![own()]),
    ];
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow,
        Algorithm::TokenBucket,
    ] {
        for (what, before, after) in &switches {
            let policies = [before, after].map(|limits| Policy::common(set(limits, algorithm)));
            let mut world = World::new(policies.to_vec(), &[0, 0]).of_many();
            world.run(3_310);
            world.event(0, Event::Reload(1));
            // Half of the workers have the old policy, for longer than any window.
            world.run(5_000);
            let half = world.starts_since(world.now_ms - 3_000);
            assert!(half > 0, "{what}: nothing starts");
            world.event(1, Event::Restart(1, 700));
            world.run(MARGIN_MS + 4_000);
            let recovered = world.now_ms;
            world.run(6_000);
            let what = format!("{}: {what}", algorithm.name());
            keeps_the_larger(&world).unwrap_or_else(|why| panic!("{what}: {why}"));
            let mut only = World::new(policies[1..].to_vec(), &[0, 0]).of_many();
            only.run(recovered - EPOCH_MS);
            only.run(6_000);
            let (used, full) = (world.starts_since(recovered), only.starts_since(recovered));
            assert!(full >= 4 * 5, "{what}: {full} alone");
            assert!(used * 100 >= full * 95, "{what}: {used} of {full}");
        }
    }
}

#[test]
fn every_pair_of_algorithms_switches_without_a_violation_and_recovers() {
    for before in Algorithm::ALL {
        for after in Algorithm::ALL {
            for (from, to) in [(4, 12), (12, 4)] {
                let policies = [(before, from), (after, to)];
                let policies =
                    policies.map(|(a, max)| Policy::from(limit("default", a, max, 1_000)));
                let mut world = World::new(policies.to_vec(), &[0, 0, 0]);
                world.run(3_310);
                world.event(0, Event::Reload(1));
                world.run(1_730);
                world.event(1, Event::Reload(1));
                world.run(8_000);
                world.event(2, Event::Restart(1, 700));
                // The old policy is forgotten after a window and the margin.
                world.run(MARGIN_MS + 4_000);
                let recovered = world.now_ms;
                world.run(10_000);
                let what = format!("{} {from} to {} {to}", before.name(), after.name());
                keeps_the_larger(&world).unwrap_or_else(|why| panic!("{what}: {why}"));
                // A fleet that never had the old policy uses the same amount.
                let mut only = World::new(policies[1..].to_vec(), &[0, 0, 0]);
                only.run(recovered - EPOCH_MS);
                only.run(10_000);
                let (used, full) = (world.starts_since(recovered), only.starts_since(recovered));
                assert!(full >= 7 * to as usize, "{what}: {full} alone");
                assert!(used * 100 >= full * 95, "{what}: {used} of {full}");
            }
        }
    }
}

#[test]
fn without_the_rule_a_fleet_exceeds_both_policies() {
    let policies = [Algorithm::TokenBucket, Algorithm::SlidingWindow];
    let policies = policies.map(|a| Policy::from(limit("default", a, 10, 1_000)));
    let mut world = World::new(policies.to_vec(), &[0, 1]);
    world.alone = true;
    world.run(5_000);
    assert!(
        keeps_the_larger(&world).is_err(),
        "each takes its own partition"
    );
    let mut world = World::new(policies.to_vec(), &[0, 1]);
    world.run(5_000);
    keeps_the_larger(&world).expect("both enforce both");
}

#[test]
fn a_raised_sliding_limit_waits_for_no_window() {
    let policies =
        [10, 20].map(|max| Policy::from(limit("default", Algorithm::SlidingWindow, max, 600_000)));
    let mut world = World::new(policies.to_vec(), &[0, 0]);
    world.run(5_000);
    assert_eq!(world.starts.len(), 10);
    world.event(0, Event::Reload(1));
    world.event(1, Event::Reload(1));
    world.run(5_000);
    assert_eq!(world.starts.len(), 10, "the old one may still be in use");
    world.run(MARGIN_MS);
    assert_eq!(world.starts.len(), 20);
}

#[test]
fn an_isolated_worker_stops_and_its_policy_outlives_a_lost_registry() {
    let policies = [(10, Algorithm::FixedWindow), (5, Algorithm::LeakyBucket)];
    let policies = policies.map(|(max, a)| Policy::from(limit("default", a, max, 1_000)));
    let mut world = World::new(policies.to_vec(), &[0]);
    world.run(2_000);
    world.event(0, Event::Cut(60_000));
    world.run(AGREED_FOR_MS + 100);
    let stopped = world.now_ms;
    world.run(20_000);
    assert_eq!(world.starts_since(stopped), 0);

    let mut world = World::new(policies.to_vec(), &[0]);
    world.run(2_000);
    world.event(0, Event::Reload(1));
    world.shared = SharedPartition::default();
    world.run(5_000);
    assert_eq!(world.workers[0].fleet.policies(), 2);
    world.run(MARGIN_MS);
    assert_eq!(world.workers[0].fleet.policies(), 1);
}
