//! Random histories of losses, deaths and freezes. No job starts while a lost start counts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// All writes in order, marked as starts or other changes. A loss removes the last ones.
struct Storm {
    bed: EpochBed,
    /// Each write with the hash after it.
    log: Vec<(StormEntry, BTreeMap<String, String>)>,
    /// When the lost starts were made.
    lost: Vec<u64>,
}

#[derive(Clone, Copy)]
enum StormEntry {
    Change,
    Start { at: u64 },
}

/// The event after a worker's look.
#[derive(Debug, Clone)]
enum Blow {
    Nothing,
    /// The server restarts or fails over without this many of its last writes.
    Loss(usize),
    /// The worker dies with the server, which loses this many writes. A new worker takes its place
    /// after this many rounds.
    Death(usize, usize),
    /// The worker freezes for this many rounds.
    Freeze(usize),
    /// The server evicts everything but the hash, and may do so from then on.
    Eviction,
}

/// All workers look once, in this order.
#[derive(Debug, Clone)]
struct Round {
    order: [usize; 3],
    blows: [Blow; 3],
    /// Milliseconds until the next round. Workers look at least every 2 s.
    millis: u64,
    /// The look-back of each worker's question.
    spans: [u64; 3],
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    // Storms with many blows, and with few.
    (2_u32..400).prop_flat_map(|often| {
        let lost = || prop_oneof![Just(0), 0..6_usize, 0..6_usize, 0..2_000_usize];
        let blow = prop_oneof![
            4 => lost().prop_map(Blow::Loss),
            1 => (lost(), 1..60_usize).prop_map(|(lost, rounds)| Blow::Death(lost, rounds)),
            1 => (1..60_usize).prop_map(Blow::Freeze),
            1 => Just(Blow::Eviction),
        ];
        let blow = prop::option::weighted(1.0 / f64::from(often), blow);
        let blow = blow.prop_map(|blow| blow.unwrap_or(Blow::Nothing));
        let order = Just([0, 1, 2]).prop_shuffle();
        let spans = prop::array::uniform3(prop_oneof![Just(SHORT), Just(SPAN), SHORT..SPAN]);
        let round = (order, prop::array::uniform3(blow), 0..2_000_u64, spans);
        let round = round.prop_map(|(order, blows, millis, spans)| Round {
            order,
            blows,
            millis,
            spans,
        });
        prop::collection::vec(round, 1..150)
    })
}

impl Storm {
    /// Records the bed's writes since the last call.
    fn note(&mut self) {
        let changes = self.bed.written.drain(..);
        self.log
            .extend(changes.map(|fields| (StormEntry::Change, fields)));
    }

    /// Acts as a worker with jobs whose limits look back for `span`, or as an idle worker every 2
    /// s. Returns true if it started a job.
    fn works(&mut self, worker: &mut WorkerKnowledge, span: u64) -> bool {
        if !self.bed.asks(worker, span) {
            let waits = self.bed.take_steps(worker).is_some();
            self.note();
            if waits || !self.bed.asks(worker, span) {
                return false;
            }
        }
        let now = self.bed.now;
        self.log
            .push((StormEntry::Start { at: now }, self.bed.fields.clone()));
        let forgotten = self.lost.iter().find(|at| **at + span > now);
        assert_eq!(forgotten, None, "at {now} {} starts", worker.worker);
        true
    }

    fn fails_over(&mut self, lost: usize) {
        let left = self.log.len().saturating_sub(lost);
        for (entry, _) in self.log.drain(left..) {
            if let StormEntry::Start { at } = entry {
                self.lost.push(at);
            }
        }
        let last = self.log.last().map(|(_, fields)| fields.clone());
        self.bed.fields = last.unwrap_or_default();
        self.bed.epochs += 1;
        let name = format!("m{}", self.bed.epochs);
        let evicts = self.bed.memory.evicts;
        self.bed.memory = memory(&name, &name, "0");
        self.bed.memory.evicts = evicts;
    }

    fn evicts(&mut self) {
        let starts = self.log.iter().filter_map(|(entry, _)| match entry {
            StormEntry::Start { at } => Some(*at),
            StormEntry::Change => None,
        });
        self.lost.extend(starts);
        self.bed.memory.evicted += 1;
        self.bed.memory.evicts = true;
    }
}

proptest! {
    #[test]
    fn nothing_starts_while_a_lost_start_counts(rounds in rounds()) {
        let mut storm = Storm {
            bed: EpochBed::new(),
            log: Vec::new(),
            lost: Vec::new(),
        };
        let mut workers = [
            worker("a", EarlierStarts::Idle),
            worker("b", EarlierStarts::Unknown),
            worker("c", EarlierStarts::Unknown),
        ];
        // One worker dies at a time, and only if another one has seen its entry. Otherwise no
        // worker could know of its starts.
        let mut away: Option<(usize, usize)> = None;
        let mut answers = [0; 3];
        for worker in &mut workers {
            worker.shortest_ms = SHORT;
        }
        for (number, Round { order, blows, millis, spans }) in rounds.into_iter().enumerate() {
            for (at, blow) in order.into_iter().zip(blows) {
                if away.is_some_and(|(who, _)| who == at) {
                    continue;
                }
                answers[at] += usize::from(storm.works(&mut workers[at], spans[at]));
                let may_go = away.is_none() && answers[at] > 3;
                match blow {
                    Blow::Loss(lost) => storm.fails_over(lost),
                    Blow::Eviction => storm.evicts(),
                    Blow::Death(lost, rounds) if may_go => {
                        storm.fails_over(lost);
                        workers[at] = worker(&format!("w{number}"), EarlierStarts::Unknown);
                        workers[at].shortest_ms = SHORT;
                        answers[at] = 0;
                        away = Some((at, number + rounds));
                    }
                    Blow::Freeze(rounds) if may_go => away = Some((at, number + rounds)),
                    Blow::Nothing | Blow::Death(..) | Blow::Freeze(_) => {}
                }
            }
            away = away.filter(|(_, until)| *until > number);
            storm.bed.pass(millis, &mut workers.each_mut());
        }
        // If there are no further blows, all workers admit again after a moment, after the time to
        // vouch, or after a span, for all questions.
        for (span, after) in [(SHORT, DOUBT_MS + SHORT), (SPAN, SPAN)] {
            for _ in 0..(after + SETTLE_MS) / 1_000 + 3 {
                for worker in &mut workers {
                    storm.works(worker, span);
                }
                storm.bed.pass(1_000, &mut workers.each_mut());
            }
            for worker in &mut workers {
                prop_assert!(storm.bed.asks(worker, span), "{} is idle", worker.worker);
            }
        }
    }
}
