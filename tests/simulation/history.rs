//! What happened in a simulation, what it is counted by, and a hash that says whether it was the same twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use sluicegate::gate::End;
use sluicegate::rules::limit::Unit;
use tokio::time::Instant;

use super::scopes::Partition;

/// A permit that the gate gave, or a call that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Microseconds since the epoch of the gate's clock.
    pub at_us: u64,
    /// An arrival has what it costs in fact.
    pub cost: u64,
    /// Its job names the plan.
    pub names_plan: bool,
}

/// Calls and what they cost.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    pub calls: i64,
    pub cost: i64,
}

impl Sum {
    pub fn add(&mut self, calls: i64, cost: i64) {
        self.calls += calls;
        self.cost += cost;
    }

    pub fn of(self, unit: Unit) -> i64 {
        match unit {
            Unit::Calls => self.calls,
            Unit::Cost => self.cost,
        }
    }
}

/// What was drawn from one partition.
#[derive(Debug, Default)]
pub struct PartitionRecord {
    pub started: u64,
    pub arrivals: Vec<Call>,
    /// Calls under way at the downstream, and the most of them; of jobs that name the plan by themselves.
    pub under_way: [u64; 2],
    pub most_under_way: [u64; 2],
    /// What the gate was told to charge: starts, and corrections as they come in for the first time.
    pub charged: Sum,
    /// What counts for limits that hold leases alone: starts in answers that were lost are given back, and a renewal that
    /// arrives after its call's end takes a lease for which nobody calls.
    pub doubted: Sum,
    /// What the handlers say that they used.
    pub used: Sum,
}

/// Until when a tenant is closed, in milliseconds of the gate's clock.
#[derive(Debug, Default)]
pub struct TenantRecord {
    pub paused_until: u64,
    pub closed_until: u64,
    /// Handlers were told 429 so often, and workers began so often to close it for that.
    pub throttled: u64,
    pub closings: u64,
}

#[derive(Debug, Default)]
pub struct JobRecord {
    /// The broker confirmed it to its publisher.
    pub confirmed: bool,
    pub done: bool,
    pub rejected: bool,
    /// Failures that its workers were told of.
    pub failures: u32,
    pub throttles: u32,
    /// Its calls that arrived.
    pub calls: u32,
    /// When it was first published, by the gate's clock.
    pub published_ms: Option<u64>,
    /// The most attempts that had been used when it was called, or had become a dead letter.
    pub attempts_used: u32,
}

pub struct History {
    began: Instant,
    hash: DefaultHasher,
    lines: Option<Vec<String>>,
    pub events: u64,
    pub faults: u64,
    /// Starts that count from when they came, and not from when they were to.
    pub late: u64,
    /// Failures that met, and left, all breakers closed.
    pub closed_failures: u64,
    /// Workers began so often to close all tenants after a 429.
    pub closings_of_all: u64,
    /// Handlers at work.
    pub running: u64,
    /// Batches on their way to the broker.
    pub sent: u64,
    /// The highest `max` that an operator set, by the limit's name.
    pub most: BTreeMap<String, u32>,
    /// What the gate was told, by the calls' names.
    pub told: BTreeSet<String>,
    /// How starts ended whose leases may be renewed too late.
    pub ended: BTreeMap<String, End>,
    /// The permits of starts that hold leases, until they are doubted.
    pub permits: BTreeSet<String>,
    pub tenants: BTreeMap<String, TenantRecord>,
    pub partitions: BTreeMap<Partition, PartitionRecord>,
    /// Whose each arrival was.
    pub arrived: Vec<String>,
    pub jobs: BTreeMap<String, JobRecord>,
    /// What must never happen and did.
    pub wrongs: BTreeSet<String>,
}

/// Hashes a text while it is formatted, so that nothing is allocated for it.
struct Hashed<'a>(&'a mut DefaultHasher);

impl Write for Hashed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl History {
    /// `keep`: all lines, to be read by somebody.
    pub fn new(keep: bool) -> Self {
        Self {
            began: Instant::now(),
            hash: DefaultHasher::new(),
            lines: keep.then(Vec::new),
            events: 0,
            faults: 0,
            late: 0,
            closed_failures: 0,
            closings_of_all: 0,
            running: 0,
            sent: 0,
            most: BTreeMap::new(),
            told: BTreeSet::new(),
            ended: BTreeMap::new(),
            permits: BTreeSet::new(),
            tenants: BTreeMap::new(),
            partitions: BTreeMap::new(),
            arrived: Vec::new(),
            jobs: BTreeMap::new(),
            wrongs: BTreeSet::new(),
        }
    }

    /// Notes one event at its time.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        let at = self.began.elapsed();
        self.events += 1;
        self.hash.write_u128(at.as_nanos());
        let _ = Hashed(&mut self.hash).write_fmt(what);
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>10.3} {what}", at.as_secs_f64()));
        }
    }

    pub fn wrong(&mut self, what: fmt::Arguments<'_>) {
        self.note(format_args!("WRONG {what}"));
        self.wrongs.insert(what.to_string());
    }

    pub fn tenant(&mut self, name: &str) -> &mut TenantRecord {
        if !self.tenants.contains_key(name) {
            self.tenants
                .insert(name.to_owned(), TenantRecord::default());
        }
        self.tenants.get_mut(name).expect("it is there now")
    }

    pub fn partition(&mut self, partition: &Partition) -> &mut PartitionRecord {
        if !self.partitions.contains_key(partition) {
            self.partitions
                .insert(partition.clone(), PartitionRecord::default());
        }
        self.partitions.get_mut(partition).expect("it is there now")
    }

    pub fn job(&mut self, id: &str) -> &mut JobRecord {
        if !self.jobs.contains_key(id) {
            self.jobs.insert(id.to_owned(), JobRecord::default());
        }
        self.jobs.get_mut(id).expect("it is there now")
    }

    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
