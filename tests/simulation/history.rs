//! The events of a simulation, its counters, and a hash that shows whether two runs were the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};

use gate::End;
use rules::limit::Unit;
use tokio::time::Instant;

use super::scopes::Partition;

/// A permit from the gate, or a call that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Time by the gate's clock, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// Units. For an arrival, the actual cost.
    pub cost: u64,
    /// Whether its job names the plan.
    pub names_plan: bool,
}

/// Number of calls and their cost.
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

/// Usage of one partition.
#[derive(Debug, Default)]
pub struct PartitionRecord {
    pub started: u64,
    pub arrivals: Vec<Call>,
    /// Calls running at the API now, and the maximum, for jobs without and with a plan.
    pub in_flight: [u64; 2],
    pub max_in_flight: [u64; 2],
    /// Charges reported to the gate: starts, and corrections when they first arrive.
    pub charged: Sum,
    /// Changes that only count for limits that hold leases: starts in lost answers are given back,
    /// and a renewal that arrives after its call's end takes a lease without a call.
    pub doubted: Sum,
    /// Actual cost that the handlers report.
    pub used: Sum,
}

/// End of a tenant's closing, in milliseconds of the gate's clock.
#[derive(Debug, Default)]
pub struct TenantRecord {
    pub paused_until: u64,
    pub closed_until: u64,
    /// Number of 429s that handlers received, and of times that workers began to close the tenant.
    pub throttled: u64,
    pub closings: u64,
}

#[derive(Debug, Default)]
pub struct JobRecord {
    /// Whether the broker confirmed it to its publisher.
    pub confirmed: bool,
    pub done: bool,
    pub rejected: bool,
    /// Failures that its workers received.
    pub failures: u32,
    pub throttles: u32,
    /// Calls that arrived.
    pub calls: u32,
    /// Calls that crashed their worker.
    pub crashes: u32,
    /// Crashes by calls without a note, after a call with one.
    pub unnoted_crashes: u32,
    /// First publish, by the gate's clock.
    pub published_ms: Option<u64>,
    /// The most attempts that had been used when it was called or became a dead letter.
    pub attempts_used: u32,
}

/// The detail in which a history keeps its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Their number alone. Formatting and hashing would take a tenth of a simulation's time.
    Number,
    /// Also a hash.
    Hash,
    /// Also a hash, and a line for each event.
    Lines,
}

pub struct History {
    began: Instant,
    hash: Option<DefaultHasher>,
    lines: Option<Vec<String>>,
    pub events: u64,
    pub faults: u64,
    /// Starts that count from their arrival instead of their permit.
    pub late: u64,
    /// Failures with all breakers closed before and after.
    pub closed_failures: u64,
    /// Number of times that workers began to close all tenants after a 429.
    pub closings_of_all: u64,
    /// Running handlers.
    pub running: u64,
    /// Batches on their way to the broker.
    pub sent: u64,
    /// The highest `max` that an operator set, by limit name.
    pub max: BTreeMap<String, u64>,
    /// Settled calls, by name.
    pub settled: BTreeSet<String>,
    /// Ends of starts whose leases may be renewed too late.
    pub ended: BTreeMap<String, End>,
    /// Permits of starts that hold leases, until they are doubted.
    pub permits: BTreeSet<String>,
    pub tenants: BTreeMap<String, TenantRecord>,
    pub partitions: BTreeMap<Partition, PartitionRecord>,
    /// Tenant of each arrival.
    pub arrived: Vec<String>,
    pub jobs: BTreeMap<String, JobRecord>,
    /// Violations found so far.
    pub wrongs: BTreeSet<String>,
}

/// Hashes a text while it is formatted, without allocating.
struct Hashed<'a>(&'a mut DefaultHasher);

impl Write for Hashed<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl History {
    /// Returns an empty history.
    pub fn new(detail: Detail) -> Self {
        Self {
            began: Instant::now(),
            hash: (detail != Detail::Number).then(DefaultHasher::new),
            lines: (detail == Detail::Lines).then(Vec::new),
            events: 0,
            faults: 0,
            late: 0,
            closed_failures: 0,
            closings_of_all: 0,
            running: 0,
            sent: 0,
            max: BTreeMap::new(),
            settled: BTreeSet::new(),
            ended: BTreeMap::new(),
            permits: BTreeSet::new(),
            tenants: BTreeMap::new(),
            partitions: BTreeMap::new(),
            arrived: Vec::new(),
            jobs: BTreeMap::new(),
            wrongs: BTreeSet::new(),
        }
    }

    /// Records one event with its time.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        self.events += 1;
        let Some(hash) = &mut self.hash else { return };
        let at = self.began.elapsed();
        hash.write_u128(at.as_nanos());
        let _ = Hashed(hash).write_fmt(what);
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

    /// Returns the hash, or 0 if the history has none.
    pub fn hash(&self) -> u64 {
        self.hash.as_ref().map_or(0, DefaultHasher::finish)
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}
