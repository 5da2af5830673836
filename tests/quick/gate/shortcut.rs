//! The shortcut is a part of the script that it shortens: it calls the same functions, and leaves
//! the same replies and the same bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fake_redis::FakeRedis;
use gate::redis::RedisGate;
use gate::{Answer, Change, End, Gate, Question, Receipt, TenantAsk, TenantSettlements, Ticket};
use kit::SECOND;
use kit::gate::rewritten::{Rewrite, Rewriter, without_shortcut};
use kit::gate::{BEGIN_US, FRESH, asking, guarded_limit, receipt, settling, tenant};
use kit::sources::{File, files};
use redis::{Pipeline, Value, cmd};
use rules::limit::{Algorithm, Limits};

/// The commands of a shortcut, none of which writes.
const READS: [&str; 3] = ["HMGET", "ZCARD", "ZRANGE"];
/// Formats that a shortcut packs and unpacks: its reply, and the first fields of a limit.
const FORMATS: [&str; 3] = ["STARTED_FORMAT", "LIMIT_SPAN_FORMAT", "LIMIT_START_FORMAT"];

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.".contains(c)
}

/// Returns the calls in the code of `script`, each with its name and its first argument.
fn calls(script: &File) -> Vec<(&str, &str)> {
    let lines = script.text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("--") && !line.contains("local function"));
    let calls = lines.flat_map(|line| {
        line.match_indices('(').filter_map(move |(at, _)| {
            let name = line[..at].rsplit(|c| !is_name(c)).next()?;
            let first = line[at + 1..].split([',', ')']).next()?;
            (!name.is_empty()).then_some((name, first.trim_matches('\'')))
        })
    });
    calls.collect()
}

/// Lists what `shortcut` does by itself, without a function that `script` calls as well.
fn own_rules(shortcut: &File, script: &[File]) -> Vec<String> {
    let shared: BTreeSet<&str> = script
        .iter()
        .flat_map(calls)
        .map(|(name, _)| name)
        .collect();
    let is_own = |(name, first): &(&str, &str)| match *name {
        "redis.call" => !READS.contains(first),
        "struct.pack" | "struct.unpack" => !FORMATS.contains(first),
        "shortcut" | "and" => false,
        name => !shared.contains(name),
    };
    let calls = calls(shortcut).into_iter();
    calls
        .filter(is_own)
        .map(|(name, first)| format!("{}: {name}({first}", shortcut.path))
        .collect()
}

#[test]
fn the_shortcut_calls_only_functions_of_the_script() {
    let (shortcuts, script): (Vec<File>, Vec<File>) =
        (files(&["lua"], ".lua").into_iter()).partition(|it| it.path.ends_with("shortcut.lua"));
    assert_eq!(shortcuts.len(), 3);
    let own = shortcuts.iter().flat_map(|it| own_rules(it, &script));
    assert_eq!(own.collect::<Vec<_>>(), [""; 0]);
    let script = [File::new("b.lua", "local function f(a)\nend\nreturn f(1)")];
    for (code, is_own) in [
        ("return f(2)", false),
        ("redis.call('ZRANGE', a)", false),
        ("redis.call('ZADD', a)", true),
        ("return struct.pack(ENTRY_FORMAT, 1)", true),
        ("return g(2)", true),
    ] {
        let found = own_rules(&File::new("a.lua", code), &script);
        assert_eq!(found.is_empty(), !is_own, "{code}: {found:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// This number of new jobs with this cost ask, of which at most the last number may start.
    Ask(usize, u64, u32),
    /// The last denied job asks again.
    Return,
    /// The last start has used more units than it was charged.
    Costly,
    /// The clock moves, in milliseconds.
    Clock(i64),
    /// Another writer adds an entry to the log.
    Foreign,
    /// An operator sets a max for this time, in milliseconds.
    Set(u64),
    /// The tenant's plan changes to the other one, or back.
    Plan,
    /// The hash beside the log is lost.
    Loss,
}

const STEPS: [Step; 11] = [
    Step::Ask(1, 1, 9),
    Step::Ask(2, 1, 9),
    Step::Ask(2, 1, 1),
    Step::Ask(1, 2, 9),
    Step::Return,
    Step::Costly,
    Step::Clock(600),
    Step::Clock(1_100),
    Step::Clock(-700),
    Step::Foreign,
    Step::Set(500),
];
/// Number of steps before the last question.
const LENGTH: u32 = 3;
/// Steps between plans with different windows.
const PLAN_STEPS: [Step; 5] = [
    Step::Ask(1, 1, 9),
    Step::Plan,
    Step::Clock(700),
    Step::Clock(2_000),
    Step::Loss,
];
/// Number of steps between plans before the last question.
const PLAN_LENGTH: u32 = 5;

/// A gate on a server of its own.
struct Side {
    server: Arc<FakeRedis>,
    gate: RedisGate,
    /// Number of questions that the shortcut answered.
    short: Arc<AtomicU64>,
}

impl Side {
    fn new(rewrite: Rewrite, clock: &Arc<AtomicU64>) -> Self {
        let clock = Arc::clone(clock);
        let server = Arc::new(FakeRedis::new(move || clock.load(Ordering::Relaxed)));
        let short = Arc::<AtomicU64>::default();
        let (rewriter, to, counted) = (
            Rewriter::new(rewrite),
            Arc::clone(&server),
            Arc::clone(&short),
        );
        let store = move |pipeline: &Pipeline| {
            let answers = to.run(&rewriter.pipeline(pipeline, None));
            let is_short =
                |it: &&Value| matches!(it, Value::BulkString(packed) if packed.len() == 12);
            let all = answers.iter().filter(is_short).count();
            counted.fetch_add(all as u64, Ordering::Relaxed);
            answers
        };
        Self {
            server,
            gate: RedisGate::on(Arc::new(store), "p"),
            short,
        }
    }

    /// Returns all keys, with their values and their expiry.
    fn stored(&self) -> Vec<(Vec<u8>, Value, Value)> {
        let keys = self.server.keys().into_iter();
        let stored = keys.map(|key| {
            let mut read = match self.server.command(cmd("TYPE").arg(&key)) {
                Value::SimpleString(kind) if kind == "hash" => cmd("HGETALL"),
                Value::SimpleString(kind) if kind == "zset" => cmd("ZRANGE"),
                _ => cmd("GET"),
            };
            read.arg(&key);
            if read.args_iter().next() == cmd("ZRANGE").args_iter().next() {
                read.arg(&["0", "-1", "WITHSCORES"]);
            }
            let value = self.server.command(&read);
            let expiry = self.server.command(cmd("PTTL").arg(&key));
            (key, value, expiry)
        });
        stored.collect()
    }
}

/// Both sides, and what the steps so far have left.
struct Bed {
    clock: Arc<AtomicU64>,
    sides: [Side; 2],
    /// The limits in force, and the limits of the other plan.
    plans: [Limits; 2],
    asked: u64,
    last: Option<Receipt>,
    ticket: Option<Ticket>,
}

impl Bed {
    fn new(plans: [Limits; 2]) -> Self {
        let clock = Arc::new(AtomicU64::new(BEGIN_US));
        Self {
            sides: [
                Side::new(str::to_owned, &clock),
                Side::new(without_shortcut, &clock),
            ],
            clock,
            plans,
            asked: 0,
            last: None,
            ticket: None,
        }
    }

    fn begin(&mut self) {
        self.clock.store(BEGIN_US, Ordering::Relaxed);
        self.sides.iter().for_each(|side| side.server.flush());
        (self.last, self.ticket) = (None, None);
    }

    async fn ask(&mut self, questions: &[Question], budget: u32) {
        self.asked += 1;
        let ask = TenantAsk {
            permits: format!("permit-{}", self.asked),
            budget,
            ..asking("t", &self.plans[0], questions)
        };
        let mut replies = Vec::new();
        for side in &self.sides {
            let reply = side.gate.ask(std::slice::from_ref(&ask)).await;
            replies.push(reply.expect("an answer").remove(0).expect("a decision"));
        }
        assert_eq!(replies[0], replies[1]);
        for (number, answer) in replies[0].answers.iter().enumerate() {
            match answer {
                Answer::Start { .. } => self.last = Some(receipt(&ask, &replies[0], number)),
                Answer::Wait { ticket, .. } => self.ticket = Some(*ticket),
                Answer::Capacity => {}
            }
        }
    }

    async fn play(&mut self, step: Step) {
        match step {
            Step::Ask(jobs, cost, budget) => {
                let questions = vec![Question { cost, ..FRESH }; jobs];
                self.ask(&questions, budget).await;
            }
            Step::Return if self.ticket.is_none() => {}
            Step::Costly if self.last.is_none() => {}
            Step::Return => {
                let ticket = self.ticket;
                self.ask(&[Question { ticket, ..FRESH }], 1).await;
            }
            Step::Costly => {
                let costly = self.last.clone().map(|receipt| (receipt, End::Cost(3)));
                let report = [TenantSettlements {
                    call: format!("call-{}", self.asked),
                    ..settling("t", &self.plans[0], costly)
                }];
                for side in &self.sides {
                    side.gate.settle(&report).await.expect("an answer");
                }
            }
            Step::Clock(ms) => drop(self.clock.fetch_update(
                Ordering::Relaxed,
                Ordering::Relaxed,
                |micros| micros.checked_add_signed(ms * 1_000),
            )),
            Step::Foreign => {
                let score = self.clock.load(Ordering::Relaxed) / 1_000;
                for side in &self.sides {
                    let keys = side.server.keys().into_iter();
                    for key in keys.filter(|key| key == b"p:t") {
                        let mut add = cmd("ZADD");
                        side.server.command(add.arg(key).arg(score).arg("other"));
                    }
                }
            }
            Step::Set(duration_ms) => {
                let change = Change::Limit {
                    name: "default".to_owned(),
                    max: 2,
                    duration_ms,
                };
                for side in &self.sides {
                    let changed = side.gate.change(&tenant("t").into(), &change).await;
                    changed.expect("an answer");
                }
            }
            Step::Plan => self.plans.swap(0, 1),
            Step::Loss => {
                for side in &self.sides {
                    for key in side.server.keys() {
                        let spans = side.server.command(cmd("HGET").arg(&key).arg("spans"));
                        if matches!(spans, Value::BulkString(_)) {
                            side.server.command(cmd("DEL").arg(&key));
                        }
                    }
                }
            }
        }
    }

    /// Compares everything that both sides have stored.
    fn compare(&self) {
        let [short, whole] = self.sides.each_ref().map(Side::stored);
        assert_eq!(short, whole);
    }
}

/// Plays all sequences of `length` of `steps`, between two questions.
async fn play_all(bed: &mut Bed, steps: &[Step], length: u32) {
    let (plans, count) = (bed.plans.clone(), steps.len());
    for sequence in 0..count.pow(length) {
        let steps = (0..length).map(|at| steps[sequence / count.pow(at) % count]);
        let steps: Vec<Step> = steps.chain([Step::Ask(1, 1, 1)]).collect();
        println!("{steps:?}");
        bed.begin();
        bed.plans = plans.clone();
        // The script itself decides the first question with fixed windows, and stores the fields
        // that the shortcut reads.
        bed.play(Step::Ask(1, 1, 1)).await;
        if sequence == 0 {
            bed.compare();
        }
        for (at, step) in (1..).zip(steps) {
            bed.play(step).await;
            // Several sequences begin with the same steps. The first of them compares these.
            if at > length || sequence < count.pow(at) {
                bed.compare();
            }
        }
    }
    bed.plans = plans;
}

async fn shortens_nothing_else(limits: Limits) {
    let mut bed = Bed::new([limits.clone(), limits]);
    play_all(&mut bed, &STEPS, LENGTH).await;
    // The shortcut drops a start that is over.
    bed.begin();
    for ms in [0, 600, 600, 500] {
        bed.play(Step::Clock(ms)).await;
        bed.play(Step::Ask(1, 1, 1)).await;
        bed.compare();
    }
    for side in &bed.sides {
        let closed = side.gate.block(&tenant("t").into(), SECOND, "test").await;
        closed.expect("an answer");
    }
    bed.play(Step::Ask(1, 1, 1)).await;
    let [short, whole] = bed.sides.map(|side| side.short.load(Ordering::Relaxed));
    assert!(short > bed.asked / 10, "{short} of {}", bed.asked);
    assert_eq!(whole, 0);
}

fn limits_of(algorithm: Algorithm) -> [Limits; 2] {
    let limit = |name, max, ms| guarded_limit(name, algorithm, (max, ms, 50));
    let one = limit("default", 3, 1_000);
    let both = vec![one.clone(), limit("long", 4, 2_000)];
    [one.into(), Limits::new(both).expect("two names")]
}

#[tokio::test(start_paused = true)]
async fn the_fixed_shortcut_decides_and_stores_as_the_script() {
    for limits in limits_of(Algorithm::FixedWindow) {
        shortens_nothing_else(limits).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_sliding_shortcut_decides_and_stores_as_the_script() {
    for limits in limits_of(Algorithm::SlidingWindow) {
        shortens_nothing_else(limits).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_sliding_shortcut_keeps_the_log_for_the_plan_with_the_longest_window() {
    let plan = |max, ms| guarded_limit("default", Algorithm::SlidingWindow, (max, ms, 50)).into();
    let mut bed = Bed::new([plan(9, 1_000), plan(9, 2_500)]);
    play_all(&mut bed, &PLAN_STEPS, PLAN_LENGTH).await;
    assert!(bed.sides[0].short.load(Ordering::Relaxed) > bed.asked / 2);
}

#[tokio::test(start_paused = true)]
async fn the_sliding_shortcut_counts_the_entries_before_the_total_goes_back() {
    let limit = guarded_limit("default", Algorithm::SlidingWindow, (9, 1_000, 50));
    let mut bed = Bed::new([limit.clone().into(), limit.into()]);
    bed.begin();
    // The first entry has the highest total, and costs 7.
    let last_total = (1_u64 << 52) - 1;
    let number = |value: u64| value.to_be_bytes()[2..].to_vec();
    let entry = [
        vec![1],
        number(1),
        last_total.to_be_bytes().to_vec(),
        number(7),
    ]
    .concat();
    for side in &bed.sides {
        let mut add = cmd("ZADD");
        let score = BEGIN_US / 1_000;
        side.server.command(add.arg("p:t").arg(score).arg(&entry));
    }
    for _ in 0..3 {
        bed.play(Step::Ask(1, 1, 1)).await;
        bed.compare();
    }
    assert_eq!(bed.ticket.map(|ticket| ticket.number), Some(1));
}
