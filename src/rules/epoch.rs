//! Whether Redis still knows all that has started.
//!
//! An *epoch* is a time in which nothing was forgotten. It is kept in one hash beside the tenants' keys, and each worker
//! that asks the gate leaves a *pulse* in it: a number that rises with every batch, written after the batch's decisions.
//! Redis loses only suffixes of what was written (a restart with older data, a replica that lacks the last writes), so a
//! pulse that is still there proves that everything before it is there, too.
//!
//! [`decide`] says what a worker does next when it does not know that the memory is whole: it is given what the hash
//! holds, what the worker itself knows, and Redis's clock, and names one step. The worker writes it only if the hash is
//! still as it was read, reads again, and decides anew, until it may go or has to wait.

pub mod shard;

use std::collections::BTreeMap;

use self::shard::Shard;
use crate::rules::slots::Claims;

/// After another server was seen, admissions wait at least this long, even when all known workers vouch: a worker that
/// joined just before, and whose joining was lost, must be able to object. Workers look every 2 s.
pub const SETTLE_MS: u64 = 3_000;
/// A worker that has been silent for twice the longest span and this much more is dropped from the hash.
pub const FORGET_MS: u64 = 60_000;
/// Two clocks that are rounded differ by less than this, so that nothing is closed again and again for a millisecond.
const ROUNDING_MS: u64 = 100;

/// Which memory a server has: it changes whenever writes may have been lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `run_id`: another one for each process.
    pub process: String,
    /// `master_replid`: another one for each process and each promotion, and when replication begins or ends.
    pub history: String,
    /// `master_replid2`: another one for each promotion.
    pub before: String,
}

impl Memory {
    /// What `INFO` says; `None` when it lacks one of the three.
    pub fn parse(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let value = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .trim();
            let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
            plain.then(|| value.to_owned())
        };
        Some(Self {
            process: field("run_id")?,
            history: field("master_replid")?,
            before: field("master_replid2")?,
        })
    }

    /// As it stands in the hash.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.process, self.history, self.before)
    }

    /// For so long the process has lost nothing, in milliseconds: since it began, unless it was promoted since. From
    /// the same `info`.
    pub fn whole_ms(&self, info: &str) -> u64 {
        let uptime = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        let seconds: Option<u64> = uptime.and_then(|text| text.trim().parse().ok());
        let never_promoted = self.before.bytes().all(|digit| digit == b'0');
        seconds
            .filter(|_| never_promoted)
            .map_or(0, |seconds| seconds * 1000)
    }

    /// The same process, never promoted since `text` was written: replication began or ended, and nothing was lost.
    fn continues(&self, text: &str) -> bool {
        let mut words = text.split(' ');
        words.next() == Some(&self.process) && words.nth(1) == Some(&self.before)
    }
}

/// A worker's pulse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// How many pulses there were.
    pub number: u64,
    /// Redis's time of the last one, in milliseconds.
    pub at: u64,
    /// The memory that the worker found whole since then; empty: it did not look.
    pub vouched: String,
}

/// Another memory that is being looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its text.
    pub memory: String,
    /// When it was first seen.
    pub since: u64,
    /// When it counts as whole even if not all have vouched: what it may have lost no longer counts.
    pub until: u64,
}

/// The hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// Which epoch it is; empty: there is none.
    pub id: String,
    /// The memory that was last found whole.
    pub run: String,
    /// Nothing may be admitted before this.
    pub cold: u64,
    /// What `cold` is about.
    pub why: String,
    /// Set while another memory than `run` is being looked at.
    pub pending: Option<Pending>,
    /// In a cluster: the slots that the epoch speaks for.
    pub claims: Claims,
    /// In a cluster: since when nothing was lost.
    pub sure: Option<u64>,
    /// Everybody who asked lately.
    pub workers: BTreeMap<String, Pulse>,
}

/// What a worker knows by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Its name in the hash.
    pub worker: String,
    /// The epoch and the memory that its pulses belong to.
    pub epoch: Option<(String, String)>,
    /// Its last pulse that was answered.
    pub pulse: u64,
    /// How long ago that was; `None`: there was none.
    pub idle_ms: Option<u64>,
    /// The longest time that a limit looks back.
    pub span_ms: u64,
    /// What its start says about starts before it; counts until it has found an epoch.
    pub start: Start,
    /// In a cluster: the primary.
    pub shard: Option<Shard>,
}

/// What is known about earlier starts when a worker starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// Jobs wait for their turn, so jobs were started lately, or other workers live; or nobody looked.
    #[default]
    Unknown,
    /// No job waits for its turn, and no other worker lives: a Redis without an epoch is a new one.
    Idle,
    /// An operator says that nothing counts any more (`run --fresh`).
    Fresh,
}

/// What a worker does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write these fields (an empty value deletes one), and decide again.
    Write(Vec<(String, String)>),
    /// Nothing may be admitted now; look again at the latest at this time of Redis's clock.
    Wait {
        /// When.
        until: u64,
        /// Why, in words for the log.
        why: String,
    },
    /// The memory is whole.
    Go {
        /// The epoch, and the text of the memory.
        epoch: (String, String),
        /// The worker's pulse.
        pulse: u64,
    },
}

/// The memory was empty though a worker remembers an epoch.
const EMPTIED: &str = "its memory was emptied while workers ran";
/// The memory was empty, and it is not known whether it was ever used.
const UNKNOWN: &str = "it is empty though jobs wait for their turn or other workers live; if nothing was started within the longest \
     window, `run --fresh` goes on at once";
/// A worker's last writes are missing.
const TRUNCATED: &str =
    "it lost its last writes (a restart with older data, or a replica that lagged)";
/// Some workers have not vouched.
const DOUBTED: &str =
    "it restarted or failed over, and not all workers have said that their last starts are in it";
/// All workers have vouched.
const SETTLING: &str = "it restarted or failed over; nobody misses a start; waiting for a moment for workers that were not heard yet";

impl Stored {
    /// From the fields of the hash. What can't be read counts as missing, which is the careful way.
    pub fn parse<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut stored = Self::default();
        for (name, value) in fields {
            match name {
                "id" => value.clone_into(&mut stored.id),
                "run" => value.clone_into(&mut stored.run),
                "why" => value.clone_into(&mut stored.why),
                // Not a number: closed until somebody mends it.
                "cold" => stored.cold = value.parse().unwrap_or(u64::MAX),
                "next" => stored.pending = Pending::parse(value),
                "slots" => stored.claims = Claims::parse(value),
                "sure" => stored.sure = value.parse().ok(),
                _ => {
                    let worker = name.strip_prefix("w:").zip(Pulse::parse(value));
                    if let Some((worker, pulse)) = worker {
                        stored.workers.insert(worker.to_owned(), pulse);
                    }
                }
            }
        }
        stored
    }
}

impl Pulse {
    /// Reads `NUMBER:AT` or `NUMBER:AT:MEMORY`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            number: parts.next()?.parse().ok()?,
            at: parts.next()?.parse().ok()?,
            vouched: parts.next().unwrap_or_default().to_owned(),
        })
    }
}

impl Pending {
    /// Reads `SINCE:UNTIL:MEMORY`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            since: parts.next()?.parse().ok()?,
            until: parts.next()?.parse().ok()?,
            memory: parts.next()?.to_owned(),
        })
    }
}

impl Known {
    /// What it started last may still count, so it matters whether Redis knows it.
    fn recent(&self) -> Option<u64> {
        self.idle_ms.filter(|idle| *idle < self.span_ms)
    }
}

/// One step of a worker towards admissions, at `now` of Redis's clock. `new_id` names an epoch that it may begin.
pub fn decide(stored: &Stored, known: &Known, memory: &Memory, now: u64, new_id: &str) -> Step {
    let run = memory.text();
    let span = known.span_ms;
    let new = known.epoch.is_none();
    let later = known.shard.as_ref().is_some_and(|shard| shard.later);
    // The primary's epoch moves here from another key; what is here is of another primary, from where its slot came.
    let moves = (known.shard.as_ref()).is_some_and(|shard| new && shard.moves());
    if stored.id.is_empty() || (moves && stored.run != run) {
        let (cold, why) = match known.start {
            _ if !new => (now + span, EMPTIED),
            // Its claims say it.
            _ if later => (0, ""),
            Start::Unknown => (now + span, UNKNOWN),
            Start::Idle | Start::Fresh => (0, ""),
        };
        let mut fields = close(cold, why);
        fields.extend([field("id", new_id), field("run", &run), field("next", "")]);
        if let Some(shard) = &known.shard {
            let (sure, claims) = if new && later {
                let sure = shard.sure(now);
                (sure, shard.claims(&Claims::default(), sure, now, span))
            } else {
                let sure = if new { shard.sure(now) } else { now };
                (sure, Claims::always(shard.owned.clone()))
            };
            fields.extend([
                field("slots", &claims.text()),
                field("sure", &sure.to_string()),
            ]);
        }
        return Step::Write(fields);
    }
    if new && !later && known.start == Start::Fresh {
        // Workers that know better close it again.
        let claims = (known.shard.as_ref()).map(|shard| Claims::always(shard.owned.clone()));
        let claims = claims.filter(|claims| *claims != stored.claims);
        if stored.cold > now || stored.run != run || claims.is_some() {
            let mut fields = close(0, "");
            fields.extend([field("run", &run), field("next", "")]);
            fields.extend(claims.map(|claims| field("slots", &claims.text())));
            return Step::Write(fields);
        }
    }
    let own = stored.workers.get(&known.worker);
    let number = own.map_or(0, |own| own.number);
    let same_epoch = known.epoch.as_ref().is_some_and(|(id, _)| *id == stored.id);
    let intact = same_epoch && number >= known.pulse;
    // Our pulses began in another epoch, or the last one is gone: what we started is not known here. It stops to
    // count one span after that pulse.
    if let Some(idle) = known.recent().filter(|_| !intact) {
        let needed = now.saturating_sub(idle) + span;
        if stored.cold < needed {
            let why = if same_epoch { TRUNCATED } else { EMPTIED };
            return Step::Write(close(needed + ROUNDING_MS, why));
        }
    }
    if stored.run != run {
        return another_memory(stored, known, memory, now, intact);
    }
    if let Some(shard) = &known.shard {
        let claims = shard.claims(&stored.claims, stored.sure.unwrap_or(now), now, span);
        if claims != stored.claims {
            return Step::Write(vec![field("slots", &claims.text())]);
        }
    }
    if stored.cold > now {
        return Step::Wait {
            until: stored.cold,
            why: stored.why.clone(),
        };
    }
    Step::Go {
        epoch: (stored.id.clone(), run),
        pulse: number,
    }
}

/// The server is not the one that the epoch was last confirmed for. Nobody admits until it is confirmed.
fn another_memory(stored: &Stored, known: &Known, memory: &Memory, now: u64, intact: bool) -> Step {
    let run = memory.text();
    let confirmed = || vec![field("run", &run), field("next", "")];
    if memory.continues(&stored.run) {
        return Step::Write(confirmed());
    }
    let Some(pending) = stored.pending.as_ref().filter(|p| p.memory == run) else {
        let next = format!("{now}:{}:{run}", now + known.span_ms);
        return Step::Write(vec![field("next", &next)]);
    };
    if let Some(own) = stored.workers.get(&known.worker)
        && intact
        && own.vouched != run
    {
        let vouched = format!("{}:{}:{run}", own.number, own.at);
        return Step::Write(vec![field(&format!("w:{}", known.worker), &vouched)]);
    }
    // Pulses older than a span belong to starts that no longer count.
    let counts = |pulse: &&Pulse| pulse.at.saturating_add(known.span_ms) > pending.since;
    let mut others = stored.workers.values().filter(counts);
    let all = others.all(|pulse| pulse.vouched == run);
    // Where nobody vouches, the hash may be from before the first pulse.
    let somebody = stored.workers.values().any(|pulse| pulse.vouched == run);
    let first = known.epoch.is_none() && known.start == Start::Idle;
    let settled = pending.since + SETTLE_MS;
    let (until, why) = if all && (somebody || first) && settled < pending.until {
        (settled, SETTLING)
    } else {
        (pending.until, DOUBTED)
    };
    if now >= until {
        let mut fields = confirmed();
        // What arrived from other primaries, and what nobody had a pulse behind, may be lost.
        let sure = known
            .shard
            .as_ref()
            .map(|_| field("sure", &now.to_string()));
        fields.extend(sure);
        return Step::Write(fields);
    }
    // A loss that is known says more than a doubt.
    let why = if stored.cold > now { &stored.why } else { why };
    Step::Wait {
        until: until.max(stored.cold),
        why: why.to_owned(),
    }
}

fn close(cold: u64, why: &str) -> Vec<(String, String)> {
    vec![field("cold", &cold.to_string()), field("why", why)]
}

fn field(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: u64 = 60_000;

    fn memory(process: &str, history: &str, before: &str) -> Memory {
        Memory {
            process: process.to_owned(),
            history: history.to_owned(),
            before: before.to_owned(),
        }
    }

    fn first() -> Memory {
        memory("p1", "h1", "0")
    }

    fn restarted() -> Memory {
        memory("p2", "h2", "0")
    }

    /// The hash and some workers, each told the memory, whose steps are written as the script does.
    struct Bed {
        now: u64,
        memory: Memory,
        fields: BTreeMap<String, String>,
        epochs: u32,
    }

    impl Bed {
        fn new() -> Self {
            Self {
                now: 1_000_000,
                memory: first(),
                fields: BTreeMap::new(),
                epochs: 0,
            }
        }

        fn stored(&self) -> Stored {
            Stored::parse(self.fields.iter().map(|(n, v)| (n.as_str(), v.as_str())))
        }

        /// The steps of one look: `None`: it may go; else until when it waits, and why.
        fn look(&mut self, worker: &mut Known) -> Option<(u64, String)> {
            for _ in 0..6 {
                self.epochs += 1;
                let id = format!("e{}", self.epochs);
                match decide(&self.stored(), worker, &self.memory, self.now, &id) {
                    Step::Go { epoch, pulse } => {
                        worker.epoch = Some(epoch);
                        worker.pulse = pulse;
                        return None;
                    }
                    Step::Wait { until, why } => return Some((until, why)),
                    Step::Write(fields) => {
                        for (name, value) in fields {
                            if value.is_empty() {
                                self.fields.remove(&name);
                            } else {
                                self.fields.insert(name, value);
                            }
                        }
                    }
                }
            }
            panic!("no end: {:?}", self.fields);
        }

        /// What pulse.lua does.
        fn pulse(&mut self, worker: &mut Known) -> bool {
            let stored = self.stored();
            let known = Some((stored.id, stored.run.clone()));
            let sound = worker.epoch == known
                && stored.run == self.memory.text()
                && stored.cold <= self.now;
            if sound {
                let own = stored.workers.get(&worker.worker);
                worker.pulse = own.map_or(0, |own| own.number) + 1;
                worker.idle_ms = Some(0);
                let text = format!("{}:{}", worker.pulse, self.now);
                self.fields.insert(format!("w:{}", worker.worker), text);
            }
            sound
        }

        fn pass(&mut self, millis: u64, workers: &mut [&mut Known]) {
            self.now += millis;
            for worker in workers {
                worker.idle_ms = worker.idle_ms.map(|idle| idle + millis);
            }
        }
    }

    fn worker(name: &str, start: Start) -> Known {
        Known {
            worker: name.to_owned(),
            span_ms: SPAN,
            start,
            ..Known::default()
        }
    }

    /// Two workers that both have pulses.
    fn running() -> (Bed, Known, Known) {
        let mut bed = Bed::new();
        let (mut a, mut b) = (worker("a", Start::Idle), worker("b", Start::Unknown));
        for worker in [&mut a, &mut b] {
            assert_eq!(bed.look(worker), None);
            assert!(bed.pulse(worker));
        }
        (bed, a, b)
    }

    #[test]
    fn a_first_start_is_no_loss_and_an_unexplained_empty_redis_may_be_one() {
        for start in [Start::Idle, Start::Fresh] {
            assert_eq!(Bed::new().look(&mut worker("a", start)), None);
        }
        let mut bed = Bed::new();
        let mut careful = worker("a", Start::Unknown);
        let (until, why) = bed.look(&mut careful).expect("it waits");
        assert_eq!(until, bed.now + SPAN);
        assert!(why.contains("--fresh"), "{why}");
        // An operator knows better, a worker that found no job waiting does not.
        assert!(bed.look(&mut worker("b", Start::Idle)).is_some());
        assert_eq!(bed.look(&mut worker("c", Start::Fresh)), None);
        assert_eq!(bed.look(&mut careful), None);
        bed.pass(SPAN, &mut []);
        assert_eq!(bed.look(&mut careful), None);
    }

    #[test]
    fn an_emptied_redis_is_cold_for_one_span() {
        let (mut bed, mut a, mut b) = running();
        bed.fields.clear();
        assert!(!bed.pulse(&mut a));
        let (until, why) = bed.look(&mut a).expect("it waits");
        assert_eq!((until, why.as_str()), (bed.now + SPAN, EMPTIED));
        bed.pass(SPAN - 1, &mut [&mut a, &mut b]);
        assert_eq!(bed.look(&mut b).map(|(until, _)| until), Some(until));
        assert!(!bed.pulse(&mut b));
        bed.pass(1, &mut [&mut a, &mut b]);
        for worker in [&mut a, &mut b] {
            assert_eq!(bed.look(worker), None);
            assert!(bed.pulse(worker));
        }
    }

    #[test]
    fn who_knows_of_starts_closes_an_epoch_that_was_begun_in_error() {
        let (mut bed, mut a, _) = running();
        bed.pass(1_000, &mut [&mut a]);
        bed.fields.clear();
        assert_eq!(bed.look(&mut worker("new", Start::Idle)), None);
        let (until, _) = bed.look(&mut a).expect("it waits");
        assert_eq!(until, bed.now - 1_000 + SPAN + ROUNDING_MS);
        assert!(bed.look(&mut worker("new", Start::Idle)).is_some());
    }

    #[test]
    fn a_restart_with_all_data_goes_on_when_all_have_vouched() {
        let (mut bed, mut a, mut b) = running();
        bed.memory = restarted();
        assert!(!bed.pulse(&mut a) && !bed.pulse(&mut b));
        let doubted = bed.look(&mut a).expect("it waits");
        assert_eq!(doubted, (bed.now + SPAN, DOUBTED.to_owned()));
        let settling = bed.look(&mut b).expect("it waits");
        assert_eq!(settling, (bed.now + SETTLE_MS, SETTLING.to_owned()));
        // A stranger can't speed it up.
        assert!(bed.look(&mut worker("new", Start::Idle)).is_some());
        bed.pass(SETTLE_MS, &mut [&mut a, &mut b]);
        for worker in [&mut a, &mut b] {
            assert_eq!(bed.look(worker), None);
            assert!(bed.pulse(worker));
            assert_eq!(worker.pulse, 2);
        }
    }

    #[test]
    fn a_worker_that_died_delays_the_others_by_one_span_at_most() {
        let (mut bed, mut a, mut b) = running();
        bed.memory = restarted();
        assert!(bed.look(&mut a).is_some());
        bed.pass(SPAN - 1, &mut [&mut a]);
        assert!(bed.look(&mut a).is_some());
        bed.pass(1, &mut [&mut a]);
        assert_eq!(bed.look(&mut a), None);
        // It was only frozen: its pulse is there, so nothing is lost.
        assert_eq!(bed.look(&mut b), None);
        // One that was silent for a span already delays nobody.
        bed.pass(SPAN, &mut [&mut a, &mut b]);
        assert!(bed.pulse(&mut a));
        bed.memory = first();
        let settling = bed.look(&mut a).expect("it waits");
        assert_eq!(settling.1, SETTLING);
    }

    #[test]
    fn lost_writes_are_cold_for_a_span_after_the_last_pulse_whoever_looks_first() {
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
                assert!(bed.look(worker).is_some());
            }
            assert!(bed.stored().cold >= last + SPAN);
            bed.pass(SETTLE_MS, &mut [&mut a, &mut b]);
            assert!(bed.look(&mut a).is_some() && bed.look(&mut b).is_some());
            bed.pass(SPAN - SETTLE_MS, &mut [&mut a, &mut b]);
            for worker in [&mut a, &mut b] {
                assert_eq!(bed.look(worker), None);
                assert!(bed.pulse(worker));
            }
        }
    }

    #[test]
    fn a_worker_whose_joining_was_lost_objects() {
        let (mut bed, mut a, mut b) = running();
        let snapshot = bed.fields.clone();
        let mut c = worker("c", Start::Unknown);
        assert_eq!(bed.look(&mut c), None);
        assert!(bed.pulse(&mut c));
        bed.fields = snapshot;
        bed.memory = restarted();
        assert!(bed.look(&mut a).is_some());
        assert_eq!(bed.look(&mut b).map(|w| w.1).as_deref(), Some(SETTLING));
        // Within the time to settle, or even after it.
        let late = bed.fields.clone();
        assert!(bed.look(&mut c).is_some());
        assert!(bed.stored().cold > bed.now);
        bed.fields = late;
        bed.pass(SETTLE_MS, &mut [&mut a, &mut b, &mut c]);
        assert_eq!(bed.look(&mut a), None);
        assert!(bed.look(&mut c).is_some());
        assert!(!bed.pulse(&mut a));
    }

    #[test]
    fn a_memory_from_before_the_first_pulse_proves_nothing() {
        let mut bed = Bed::new();
        let mut a = worker("a", Start::Idle);
        assert_eq!(bed.look(&mut a), None);
        bed.memory = restarted();
        // What else ran is not known, unless nothing waits.
        let look = bed.look(&mut worker("b", Start::Unknown));
        assert_eq!(look.map(|w| w.1).as_deref(), Some(DOUBTED));
        let look = bed.look(&mut worker("c", Start::Idle));
        assert_eq!(look.map(|w| w.1).as_deref(), Some(SETTLING));
    }

    #[test]
    fn replication_that_begins_loses_nothing_and_a_promotion_may() {
        let (mut bed, mut a, mut b) = running();
        bed.memory = memory("p1", "h9", "0");
        assert!(!bed.pulse(&mut a));
        for worker in [&mut a, &mut b] {
            assert_eq!(bed.look(worker), None);
            assert!(bed.pulse(worker));
        }
        // The same process, which was a replica in between.
        bed.memory = memory("p1", "h10", "h9");
        assert!(bed.look(&mut a).is_some());
    }

    fn slots(text: &str) -> crate::rules::slots::Slots {
        Claims::parse(text).slots()
    }

    /// A worker of a cluster, at a primary with these slots.
    fn at(mut worker: Known, owned: &str, later: bool) -> Known {
        worker.shard = Some(Shard {
            owned: slots(owned),
            later,
            whole_ms: 2 * SPAN,
            ..Shard::default()
        });
        worker
    }

    #[test]
    fn an_epoch_speaks_for_the_slots_of_its_primary_and_for_others_after_a_span() {
        let mut bed = Bed::new();
        let mut a = at(worker("a", Start::Idle), "0-99", false);
        assert_eq!(bed.look(&mut a), None);
        assert_eq!(bed.fields["slots"], "0-99");
        a = at(a, "0-100", false);
        let until = bed.now + SPAN;
        assert_eq!(bed.look(&mut a), None);
        assert_eq!(bed.fields["slots"], format!("0-99 100@{until}"));
        // Emptied: that stands above all.
        bed.fields.clear();
        assert!(bed.look(&mut a).is_some());
        assert_eq!(bed.fields["slots"], "0-100");
        assert_eq!(bed.fields["sure"], bed.now.to_string());
    }

    #[test]
    fn a_primary_that_came_later_has_an_epoch_that_speaks_for_nothing_yet() {
        let mut bed = Bed::new();
        let start = Start::Idle;
        assert_eq!(bed.look(&mut at(worker("a", start), "7", true)), None);
        assert_eq!(bed.fields["slots"], format!("7@{}", bed.now + SPAN));
        // To an operator's worker that begins now all is known.
        let mut fresh = at(worker("b", Start::Fresh), "7", false);
        assert_eq!(bed.look(&mut fresh), None);
        assert_eq!(bed.fields["slots"], "7");
    }

    #[test]
    fn an_epoch_that_moves_takes_the_place_of_another_primarys() {
        let (mut bed, _, _) = running();
        bed.fields.insert("slots".to_owned(), "50-99".to_owned());
        bed.memory = memory("other", "h7", "0");
        let mut moved = at(worker("c", Start::Unknown), "0-10 99", true);
        let sure = bed.now - 5;
        if let Some(shard) = &mut moved.shard {
            shard.handed = vec![shard::Handed {
                slots: slots("0-10"),
                wait_ms: 0,
                sure: Some(sure),
            }];
        }
        assert_eq!(bed.look(&mut moved), None);
        assert_eq!(bed.fields["run"], bed.memory.text());
        let until = bed.now + SPAN;
        assert_eq!(bed.fields["slots"], format!("0-10 99@{until}"));
        assert_eq!(bed.fields["sure"], sure.to_string());
    }

    #[test]
    fn a_primary_that_failed_over_is_not_sure_of_what_came_before() {
        let mut bed = Bed::new();
        let mut a = at(worker("a", Start::Idle), "0-99", false);
        assert_eq!(bed.look(&mut a), None);
        assert_eq!(bed.fields["sure"], (bed.now - 2 * SPAN).to_string());
        assert!(bed.pulse(&mut a));
        bed.memory = restarted();
        assert!(bed.look(&mut a).is_some());
        bed.pass(SETTLE_MS, &mut [&mut a]);
        assert_eq!(bed.look(&mut a), None);
        assert_eq!(bed.fields["sure"], bed.now.to_string());
    }

    #[test]
    fn what_is_no_number_keeps_the_gate_closed() {
        let (mut bed, mut a, _) = running();
        bed.fields.insert("cold".to_owned(), "soon".to_owned());
        assert!(bed.look(&mut a).is_some());
    }

    #[test]
    fn info_names_the_memory() {
        let info =
            "# Server\r\nrun_id:ab12\r\n# Replication\r\nmaster_replid:cd\r\nmaster_replid2:00\r\n";
        assert_eq!(Memory::parse(info), Some(memory("ab12", "cd", "00")));
        assert_eq!(Memory::parse("run_id:ab12\r\nmaster_replid:\r\n"), None);
    }
}
