//! Workers that look in turn at a server that lost data, restarted or was promoted.

mod slots;
mod spans;
mod storm;

use std::collections::BTreeMap;

use super::*;

const SPAN: u64 = 60_000;
/// The look-back of some questions.
const SHORT: u64 = 5_000;

fn memory(process: &str, history: &str, before: &str) -> ServerIdentity {
    ServerIdentity {
        process: process.to_owned(),
        history: history.to_owned(),
        before: before.to_owned(),
        evicted: 0,
        evicts: false,
    }
}

fn first() -> ServerIdentity {
    memory("p1", "h1", "0")
}

fn restarted() -> ServerIdentity {
    memory("p2", "h2", "0")
}

/// The hash and its server. Workers' steps are written as the script does it.
#[derive(Clone)]
struct EpochBed {
    now: u64,
    memory: ServerIdentity,
    fields: BTreeMap<String, String>,
    /// The hash after each write.
    written: Vec<BTreeMap<String, String>>,
    epochs: u32,
    /// The gap that each worker decides by, with the value of `cold` it belongs to.
    gaps: BTreeMap<String, (u64, Gap)>,
}

impl EpochBed {
    fn new() -> Self {
        Self {
            now: 1_000_000,
            memory: first(),
            fields: BTreeMap::new(),
            written: Vec::new(),
            epochs: 0,
            gaps: BTreeMap::new(),
        }
    }

    fn stored(&self) -> EpochFields {
        EpochFields::parse(&self.fields)
    }

    /// Takes a worker's steps for one look. Returns `None` if it may admit jobs, else until when it
    /// waits and why.
    fn take_steps(&mut self, worker: &mut WorkerKnowledge) -> Option<(u64, String)> {
        for _ in 0..6 {
            self.epochs += 1;
            let id = format!("e{}", self.epochs);
            worker.seen |= !self.stored().id.is_empty();
            match decide(&self.stored(), worker, &self.memory, self.now, &id) {
                NextStep::Admit { epoch, pulse } => {
                    worker.epoch = Some(epoch);
                    worker.pulse = pulse;
                    let stored = self.stored();
                    let gap = (stored.cold, stored.gap(self.now));
                    self.gaps.insert(worker.worker.clone(), gap);
                    return None;
                }
                NextStep::Wait { until, why } => return Some((until, why)),
                NextStep::Write(fields) => {
                    for (name, value) in fields {
                        if value.is_empty() {
                            self.fields.remove(&name);
                        } else {
                            self.fields.insert(name, value);
                        }
                    }
                    self.written.push(self.fields.clone());
                }
            }
        }
        panic!("no end: {:?}", self.fields);
    }

    /// Asks a question with the longest look-back, with the pulse that pulse.lua makes.
    fn pulse(&mut self, worker: &mut WorkerKnowledge) -> bool {
        self.asks(worker, SPAN)
    }

    /// Asks a question with the look-back `span`. Returns true if all usage that counts for it is
    /// known.
    fn asks(&mut self, worker: &mut WorkerKnowledge, span: u64) -> bool {
        let stored = self.stored();
        let known = Some((stored.id, stored.run.clone()));
        let sound = worker.epoch == known
            && stored.run == self.memory.text()
            && !self.memory.evicted_since(&stored.evicted)
            && self
                .gaps
                .get(&worker.worker)
                .is_some_and(|(cold, gap)| *cold == stored.cold && gap.opens_at(span) <= self.now);
        if sound {
            let own = stored.workers.get(&worker.worker);
            worker.pulse = own.map_or(0, |own| own.number) + 1;
            worker.idle_ms = Some(0);
            let text = format!("{}:{}", worker.pulse, self.now);
            self.fields.insert(format!("w:{}", worker.worker), text);
        }
        sound
    }

    fn pass(&mut self, millis: u64, workers: &mut [&mut WorkerKnowledge]) {
        self.now += millis;
        for worker in workers {
            worker.idle_ms = worker.idle_ms.map(|idle| idle + millis);
        }
    }
}

fn worker(name: &str, start: EarlierStarts) -> WorkerKnowledge {
    WorkerKnowledge {
        worker: name.to_owned(),
        span_ms: SPAN,
        shortest_ms: SPAN,
        start,
        ..WorkerKnowledge::default()
    }
}

/// Returns two workers that both have pulses.
fn running() -> (EpochBed, WorkerKnowledge, WorkerKnowledge) {
    let mut bed = EpochBed::new();
    let (mut a, mut b) = (
        worker("a", EarlierStarts::Idle),
        worker("b", EarlierStarts::Unknown),
    );
    for worker in [&mut a, &mut b] {
        assert_eq!(bed.take_steps(worker), None);
        assert!(bed.pulse(worker));
    }
    (bed, a, b)
}

#[test]
fn a_first_start_is_no_loss_and_an_unexplained_empty_redis_may_be_one() {
    for start in [EarlierStarts::Idle, EarlierStarts::Fresh] {
        assert_eq!(EpochBed::new().take_steps(&mut worker("a", start)), None);
    }
    let mut bed = EpochBed::new();
    let mut careful = worker("a", EarlierStarts::Unknown);
    let (until, why) = bed.take_steps(&mut careful).expect("it waits");
    assert_eq!(until, bed.now + SPAN);
    assert!(why.contains("--skip-recovery-wait"), "{why}");
    // An operator's declaration counts. That no job waits does not.
    assert!(
        bed.take_steps(&mut worker("b", EarlierStarts::Idle))
            .is_some()
    );
    assert_eq!(bed.take_steps(&mut worker("c", EarlierStarts::Fresh)), None);
    assert_eq!(bed.take_steps(&mut careful), None);
    bed.pass(SPAN, &mut []);
    assert_eq!(bed.take_steps(&mut careful), None);
}

#[test]
fn an_emptied_redis_is_cold_for_one_span() {
    let (mut bed, mut a, mut b) = running();
    bed.fields.clear();
    assert!(!bed.pulse(&mut a));
    let (until, why) = bed.take_steps(&mut a).expect("it waits");
    assert_eq!((until, why.as_str()), (bed.now + SPAN, EMPTIED));
    bed.pass(SPAN - 1, &mut [&mut a, &mut b]);
    assert_eq!(bed.take_steps(&mut b).map(|(until, _)| until), Some(until));
    assert!(!bed.pulse(&mut b));
    bed.pass(1, &mut [&mut a, &mut b]);
    for worker in [&mut a, &mut b] {
        assert_eq!(bed.take_steps(worker), None);
        assert!(bed.pulse(worker));
    }
}

#[test]
fn a_worker_with_known_starts_closes_an_epoch_begun_in_error() {
    let (mut bed, mut a, _) = running();
    bed.pass(1_000, &mut [&mut a]);
    bed.fields.clear();
    assert_eq!(
        bed.take_steps(&mut worker("new", EarlierStarts::Idle)),
        None
    );
    let (until, _) = bed.take_steps(&mut a).expect("it waits");
    assert_eq!(until, bed.now + SPAN + ROUNDING_MS);
    assert!(
        bed.take_steps(&mut worker("new", EarlierStarts::Idle))
            .is_some()
    );
}

#[test]
fn a_restart_with_all_data_continues_once_all_workers_vouched() {
    let (mut bed, mut a, mut b) = running();
    bed.memory = restarted();
    assert!(!bed.pulse(&mut a) && !bed.pulse(&mut b));
    let doubted = bed.take_steps(&mut a).expect("it waits");
    assert_eq!(doubted, (bed.now + SPAN, DOUBTED.to_owned()));
    let settling = bed.take_steps(&mut b).expect("it waits");
    assert_eq!(settling, (bed.now + SETTLE_MS, SETTLING.to_owned()));
    // A worker without pulses can't speed it up.
    assert!(
        bed.take_steps(&mut worker("new", EarlierStarts::Idle))
            .is_some()
    );
    bed.pass(SETTLE_MS, &mut [&mut a, &mut b]);
    for worker in [&mut a, &mut b] {
        assert_eq!(bed.take_steps(worker), None);
        assert!(bed.pulse(worker));
        assert_eq!(worker.pulse, 2);
    }
}

#[test]
fn a_worker_that_died_delays_the_others_by_one_span_at_most() {
    let (mut bed, mut a, mut b) = running();
    bed.memory = restarted();
    assert!(bed.take_steps(&mut a).is_some());
    bed.pass(SPAN - 1, &mut [&mut a]);
    assert!(bed.take_steps(&mut a).is_some());
    bed.pass(1, &mut [&mut a]);
    assert_eq!(bed.take_steps(&mut a), None);
    // The worker was only frozen. Its pulse is present, so nothing is lost.
    assert_eq!(bed.take_steps(&mut b), None);
    // A worker that had been silent for a span before causes no delay.
    bed.pass(SPAN, &mut [&mut a, &mut b]);
    assert!(bed.pulse(&mut a));
    bed.memory = first();
    let settling = bed.take_steps(&mut a).expect("it waits");
    assert_eq!(settling.1, SETTLING);
}

#[test]
fn lost_writes_close_the_gate_for_a_span_in_any_order_of_workers() {
    for loser_first in [true, false] {
        let (mut bed, mut a, mut b) = running();
        let snapshot = bed.fields.clone();
        bed.pass(10, &mut [&mut a, &mut b]);
        assert!(bed.pulse(&mut b));
        let last = bed.now;
        bed.pass(500, &mut [&mut a, &mut b]);
        bed.fields = snapshot;
        bed.memory = restarted();
        let mut order = [&mut a, &mut b];
        if loser_first {
            order.reverse();
        }
        for worker in order {
            assert!(bed.take_steps(worker).is_some());
        }
        assert!(bed.stored().cold >= last + SPAN);
        bed.pass(SETTLE_MS, &mut [&mut a, &mut b]);
        assert!(bed.take_steps(&mut a).is_some() && bed.take_steps(&mut b).is_some());
        bed.pass(SPAN - SETTLE_MS + ROUNDING_MS, &mut [&mut a, &mut b]);
        for worker in [&mut a, &mut b] {
            assert_eq!(bed.take_steps(worker), None);
            assert!(bed.pulse(worker));
        }
    }
}

#[test]
fn starts_of_a_dead_worker_count_without_evidence() {
    let (mut bed, mut a, mut b) = running();
    let snapshot = bed.fields.clone();
    bed.pass(SPAN + 1_000, &mut [&mut a, &mut b]);
    assert!(bed.pulse(&mut a));
    bed.pass(1_900, &mut [&mut a]);
    assert!(bed.pulse(&mut b));
    let last = bed.now;
    // The data is older than a span, and so is its record of the missing worker.
    bed.pass(100, &mut [&mut a]);
    bed.fields = snapshot;
    bed.memory = restarted();
    while bed.take_steps(&mut a).is_some() {
        bed.pass(1_000, &mut [&mut a]);
    }
    assert!(bed.now >= last + SPAN, "{} after it", bed.now - last);
}

#[test]
fn a_worker_whose_join_was_lost_objects() {
    let (mut bed, mut a, mut b) = running();
    let snapshot = bed.fields.clone();
    let mut c = worker("c", EarlierStarts::Unknown);
    assert_eq!(bed.take_steps(&mut c), None);
    assert!(bed.pulse(&mut c));
    bed.fields = snapshot;
    bed.memory = restarted();
    assert!(bed.take_steps(&mut a).is_some());
    assert_eq!(
        bed.take_steps(&mut b).map(|w| w.1).as_deref(),
        Some(SETTLING)
    );
    // Within the settling time, or even after it.
    let late = bed.fields.clone();
    assert!(bed.take_steps(&mut c).is_some());
    assert!(bed.stored().cold > bed.now);
    bed.fields = late;
    bed.pass(SETTLE_MS, &mut [&mut a, &mut b, &mut c]);
    assert_eq!(bed.take_steps(&mut a), None);
    assert!(bed.take_steps(&mut c).is_some());
    assert!(!bed.pulse(&mut a));
}

#[test]
fn a_memory_from_before_the_first_pulse_proves_nothing() {
    let mut bed = EpochBed::new();
    let mut a = worker("a", EarlierStarts::Idle);
    assert_eq!(bed.take_steps(&mut a), None);
    // It is in the hash before its first pulse, and after a restart without that entry.
    assert!(bed.fields.remove("w:a").is_some());
    bed.memory = restarted();
    // Other usage is not known, unless no job waits.
    let look = bed.take_steps(&mut worker("b", EarlierStarts::Unknown));
    assert_eq!(look.map(|w| w.1).as_deref(), Some(DOUBTED));
    let look = bed.take_steps(&mut worker("c", EarlierStarts::Idle));
    assert_eq!(look.map(|w| w.1).as_deref(), Some(SETTLING));
}

#[test]
fn replication_that_begins_loses_nothing_and_a_promotion_may() {
    let (mut bed, mut a, mut b) = running();
    bed.memory = memory("p1", "h9", "0");
    assert!(!bed.pulse(&mut a));
    for worker in [&mut a, &mut b] {
        assert_eq!(bed.take_steps(worker), None);
        assert!(bed.pulse(worker));
    }
    // The same process, which was a replica in between.
    bed.memory = memory("p1", "h10", "h9");
    assert!(bed.take_steps(&mut a).is_some());
}

#[test]
fn another_failover_while_it_is_cold_begins_no_new_span() {
    let (mut bed, mut a, mut b) = running();
    let snapshot = bed.fields.clone();
    bed.pass(10, &mut [&mut a, &mut b]);
    assert!(bed.pulse(&mut a) && bed.pulse(&mut b));
    let needed = bed.now + SPAN + ROUNDING_MS;
    bed.fields = snapshot;
    bed.memory = restarted();
    for process in ["p3", "p4", "p5"] {
        assert!(bed.take_steps(&mut a).is_some() && bed.take_steps(&mut b).is_some());
        bed.pass(SPAN / 4, &mut [&mut a, &mut b]);
        bed.memory = memory(process, process, "0");
    }
    assert!(bed.take_steps(&mut a).is_some() && bed.take_steps(&mut b).is_some());
    bed.pass(needed - bed.now - 1, &mut [&mut a, &mut b]);
    assert!(bed.take_steps(&mut a).is_some() && bed.take_steps(&mut b).is_some());
    bed.pass(1, &mut [&mut a, &mut b]);
    assert_eq!(
        (bed.take_steps(&mut a), bed.take_steps(&mut b)),
        (None, None)
    );
}

#[test]
fn a_field_that_is_not_a_number_keeps_the_gate_closed() {
    let (mut bed, mut a, _) = running();
    bed.fields.insert("cold".to_owned(), "soon".to_owned());
    assert!(bed.take_steps(&mut a).is_some());
}

#[test]
fn info_names_the_memory() {
    let info =
        "# Server\r\nrun_id:ab12\r\n# Replication\r\nmaster_replid:cd\r\nmaster_replid2:00\r\n";
    assert_eq!(
        ServerIdentity::parse(info),
        Some(memory("ab12", "cd", "00"))
    );
    assert_eq!(
        ServerIdentity::parse("run_id:ab12\r\nmaster_replid:\r\n"),
        None
    );
}

#[test]
fn evictions_close_the_memory_for_a_span_and_are_remembered() {
    let (mut bed, mut a, mut b) = running();
    bed.memory.evicts = true;
    bed.memory.evicted = 3;
    for worker in [&mut a, &mut b] {
        assert!(!bed.pulse(worker));
        let until = bed.now + SPAN;
        assert_eq!(bed.take_steps(worker), Some((until, EVICTED.to_owned())));
    }
    bed.pass(SPAN, &mut [&mut a, &mut b]);
    for worker in [&mut a, &mut b] {
        assert_eq!(bed.take_steps(worker), None);
        assert!(bed.pulse(worker));
    }
    // The count was reset, so earlier evictions are not known.
    bed.memory.evicted = 0;
    assert!(bed.take_steps(&mut a).is_some());
    // A new process without evictions. No worker knows the last count of the old process.
    bed.pass(SPAN, &mut [&mut a, &mut b]);
    bed.memory = restarted();
    bed.memory.evicts = true;
    for worker in [&mut a, &mut b] {
        let wait = bed.take_steps(worker).expect("it waits");
        assert_eq!(wait, (bed.now + SPAN, MAY_EVICT.to_owned()));
    }
}

#[test]
fn info_reports_evictions_and_the_eviction_policy() {
    let names = "run_id:ab12\r\nmaster_replid:cd\r\nmaster_replid2:00\r\n";
    for (more, evicted, evicts) in [
        (
            "maxmemory:0\r\nmaxmemory_policy:volatile-lru\r\nevicted_keys:7\r\n",
            7,
            false,
        ),
        (
            "maxmemory:9\r\nmaxmemory_policy:noeviction\r\nevicted_keys:0\r\n",
            0,
            false,
        ),
        ("maxmemory:9\r\nmaxmemory_policy:allkeys-lru\r\n", 0, true),
    ] {
        let memory = ServerIdentity::parse(&format!("{names}{more}")).expect("it has its names");
        assert_eq!((memory.evicted, memory.evicts), (evicted, evicts), "{more}");
    }
}

#[test]
fn a_worker_that_waited_detects_an_emptied_memory() {
    let mut bed = EpochBed::new();
    let (mut idle, mut other) = (
        worker("a", EarlierStarts::Idle),
        worker("b", EarlierStarts::Unknown),
    );
    assert!(bed.take_steps(&mut other).is_some());
    assert!(bed.take_steps(&mut idle).is_some());
    bed.pass(SPAN, &mut [&mut idle, &mut other]);
    assert_eq!(bed.take_steps(&mut other), None);
    assert!(bed.pulse(&mut other));
    bed.fields.clear();
    let wait = bed.take_steps(&mut idle);
    assert_eq!(wait, Some((bed.now + SPAN, EMPTIED.to_owned())));
}
