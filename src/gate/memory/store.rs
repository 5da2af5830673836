//! A store in memory that forgets, behind the interface that the gate's client code has to Redis: so the code that notices a loss
//! runs without servers, at simulated times. What its scripts mean is said by the model, and by `gate::epoch::kept` and
//! `gate::fleet::shelf`.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::redis::{Arg, Cmd, Value};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::replies::{self, error, integer, text};
use super::{MemoryGate, States};
use crate::gate::epoch::ServerIdentity;
use crate::gate::epoch::hash::{Beat, EpochHash};
use crate::gate::epoch::server_identity::NO_EVICTION;
use crate::gate::fleet::instruction_board::{Board, BoardFull};
use crate::gate::fleet::shelf::{NotRegistered, PolicyClaim, Shelf};
use crate::gate::store::{Command, Meaning, Store};
use crate::gate::{Gate, GateError, scripts};
use crate::rules::layout::Partition;
use crate::rules::usage::Clock;

/// What is in memory, and who it is.
pub struct MemoryStore<C> {
    gate: MemoryGate<C>,
    server: Mutex<Server>,
    /// So many of the last writes may be lost.
    may_lose: usize,
}

/// All that can be lost but the partitions, by key.
#[derive(Clone, Default)]
struct Hashes {
    epochs: BTreeMap<String, Arc<EpochHash>>,
    registries: BTreeMap<String, Arc<Shelf>>,
    boards: BTreeMap<String, Arc<Board>>,
    sightings: BTreeMap<String, String>,
}

struct Server {
    hashes: Hashes,
    memory: ServerIdentity,
    /// How many processes and histories there were.
    number: u64,
    /// By their SHA.
    scripts: HashSet<String>,
    /// What was there before each of the last writes.
    past: VecDeque<(States, Hashes)>,
}

impl<C: Fn() -> u64 + Send + Sync + 'static> MemoryStore<C> {
    /// An empty store, of which up to `may_lose` of the last writes can be lost, and which throws keys away where it `evicts`. `clock`
    /// gives microseconds since the epoch.
    pub fn new(clock: C, may_lose: usize, evicts: bool) -> Self {
        Self {
            gate: MemoryGate::new(clock),
            server: Mutex::new(Server {
                hashes: Hashes::default(),
                memory: ServerIdentity {
                    process: "p0".to_owned(),
                    history: "h0".to_owned(),
                    before: "0".to_owned(),
                    evicted: 0,
                    evicts,
                },
                number: 0,
                scripts: HashSet::new(),
                past: VecDeque::new(),
            }),
            may_lose,
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        // Nothing panics while it holds the lock.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is emptied, as by FLUSHALL. A restart may lose that, too.
    pub fn flush(&self) {
        let mut server = self.server();
        self.remember(&mut server);
        server.hashes = Hashes::default();
        self.gate.restore(States::default());
    }

    /// It restarts without the last `lost` writes.
    pub fn restart(&self, lost: usize) {
        let mut server = self.server();
        server.begin("0".to_owned());
        self.lose(&mut server, lost);
    }

    /// A replica that lacks the last `lost` writes takes over.
    pub fn fail_over(&self, lost: usize) {
        let mut server = self.server();
        let before = server.memory.history.clone();
        server.begin(before);
        self.lose(&mut server, lost);
    }

    /// Replication begins or ends: nothing is lost.
    pub fn replicate(&self) {
        let mut server = self.server();
        server.number += 1;
        server.memory.history = format!("h{}", server.number);
    }

    /// It makes room: the partitions that are `chosen` are gone, and what else is said to be.
    pub fn evict(&self, chosen: impl Fn(&Partition) -> bool, registries: bool, epochs: bool) {
        let mut server = self.server();
        server.memory.evicted += 1;
        let mut states = self.gate.snapshot();
        states.of.retain(|partition, _| !chosen(partition));
        self.gate.restore(states);
        if registries {
            server.hashes.registries.clear();
            server.hashes.boards.clear();
        }
        if epochs {
            server.hashes.epochs.clear();
        }
    }

    /// As by SCRIPT FLUSH.
    pub fn forget_scripts(&self) {
        self.server().scripts.clear();
    }

    /// What is there now can be lost no more than so far back.
    fn remember(&self, server: &mut Server) {
        if self.may_lose > 0 {
            if server.past.len() == self.may_lose {
                server.past.pop_front();
            }
            let past = (self.gate.snapshot(), server.hashes.clone());
            server.past.push_back(past);
        }
    }

    fn lose(&self, server: &mut Server, lost: usize) {
        for (states, hashes) in (0..lost).map_while(|_| server.past.pop_back()) {
            server.hashes = hashes;
            self.gate.restore(states);
        }
    }

    fn answer(&self, Command { command, meaning }: Command<'_>) -> Result<Value, GateError> {
        let mut server = self.server();
        let words = words(command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["EVALSHA", sha, ..] if !server.scripts.contains(sha) => {
                return Ok(error("NOSCRIPT No matching script"));
            }
            ["EVALSHA" | "HDEL", ..] => self.remember(&mut server),
            _ => {}
        }
        // The model waits for nobody.
        let never = || GateError::Unreachable("the model does not answer".to_owned());
        match meaning {
            Meaning::Ask(ask) => {
                let replies = self.gate.ask(std::slice::from_ref(ask)).now_or_never();
                let reply = replies.ok_or_else(never)??.pop().ok_or_else(never)??;
                Ok(replies::acquired(&reply))
            }
            Meaning::Settle(settled) => {
                let told = self.gate.settle(std::slice::from_ref(settled));
                told.now_or_never().ok_or_else(never)??;
                Ok(Value::Int(1))
            }
            Meaning::Block(whose, duration, by) => {
                let done = self.gate.block(whose, duration, by).now_or_never();
                done.ok_or_else(never)?.map(|()| Value::Int(1))
            }
            Meaning::Report(rule, event) => {
                let told = self.gate.report(rule, std::slice::from_ref(event));
                let told = told.now_or_never().ok_or_else(never)??.pop();
                Ok(replies::reported(&told.ok_or_else(never)??))
            }
            Meaning::Suspect(suspected) => {
                let heard = self.gate.suspect(std::slice::from_ref(suspected));
                let heard = heard.now_or_never().ok_or_else(never)??.pop();
                Ok(replies::suspected(&heard.ok_or_else(never)??))
            }
            Meaning::Dedupe(candidate) => {
                let told = self.gate.dedupe(std::slice::from_ref(candidate));
                let told = told.now_or_never().ok_or_else(never)??.pop();
                Ok(replies::deduped(&told.ok_or_else(never)??))
            }
            Meaning::Advertised(tenant, quotas) => {
                let batch = [(tenant.clone(), quotas)];
                let done = self.gate.advertised(&batch).now_or_never();
                done.ok_or_else(never)?.map(|()| Value::Int(1))
            }
            Meaning::Learn(lesson) => {
                let now_ms = Clock::from_micros(self.gate.now_us()).now_ms;
                let told = self.gate.learn(std::slice::from_ref(lesson));
                let told = told.now_or_never().ok_or_else(never)??.pop();
                Ok(replies::learned(now_ms, &told.ok_or_else(never)??))
            }
            Meaning::Change(whose, change) => {
                let until = self.gate.change(whose, change).now_or_never();
                until.ok_or_else(never)?.map(integer)
            }
            Meaning::Inspect(tenant, labels, limits) => {
                let seen = self.gate.inspect(tenant, labels, limits).now_or_never();
                let seen = seen.ok_or_else(never)??;
                Ok(replies::inspected(&seen))
            }
            Meaning::Itself => Ok(self.plain(&mut server, &words)),
        }
    }

    /// A command that says itself what it is.
    fn plain(&self, server: &mut Server, words: &[&str]) -> Value {
        let micros = self.gate.now_us();
        match *words {
            ["PING"] => Value::SimpleString("PONG".to_owned()),
            ["SCRIPT", "LOAD", source] => {
                let sha = ::redis::Script::new(source).get_hash().to_owned();
                server.scripts.insert(sha.clone());
                text(&sha)
            }
            ["EVALSHA", sha, "1", key, ref more @ ..] => {
                let said = more.first().and_then(|micros| micros.parse().ok());
                let now = Clock::from_micros(said.unwrap_or(micros)).now_ms;
                match sha {
                    sha if sha == scripts::pulse().sha => server.pulse(key, more, now),
                    sha if sha == scripts::epoch().sha => server.change(key, more),
                    sha if sha == scripts::policies().sha => server.policies(key, more, now),
                    sha if sha == scripts::steer().sha => server.steer(key, more, now),
                    sha if sha == scripts::sighting().sha => server.sighting(key, more),
                    _ => error("ERR it has no such script"),
                }
            }
            ["HGETALL", key] => {
                let fields = server.hashes.epochs.get(key).map(|epoch| epoch.fields());
                let fields = fields.into_iter().flatten();
                Value::Array(fields.flat_map(|(n, v)| [text(n), text(v)]).collect())
            }
            ["HDEL", key, field] => {
                let epoch = server.hashes.epochs.get_mut(key);
                epoch
                    .into_iter()
                    .for_each(|epoch| Arc::make_mut(epoch).remove(field));
                Value::Int(1)
            }
            ["INFO", ..] => text(&server.info()),
            ["TIME"] => {
                let parts = [micros / 1_000_000, micros % 1_000_000];
                Value::Array(parts.map(integer).to_vec())
            }
            _ => error("ERR it knows no such command"),
        }
    }
}

impl<C: Fn() -> u64 + Send + Sync + 'static> Store for MemoryStore<C> {
    fn run<'a>(
        &'a self,
        commands: Vec<Command<'a>>,
    ) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
        let answers = commands.into_iter().map(|command| self.answer(command));
        std::future::ready(answers.collect()).boxed()
    }
}

impl Server {
    /// Another process, whose history was `before`.
    fn begin(&mut self, before: String) {
        self.number += 1;
        self.memory.process = format!("p{}", self.number);
        self.memory.history = format!("h{}", self.number);
        self.memory.before = before;
        self.memory.evicted = 0;
        self.scripts.clear();
    }

    fn info(&self) -> String {
        let ServerIdentity {
            process,
            history,
            before,
            evicted,
            evicts,
        } = &self.memory;
        let policy = if *evicts { "allkeys-lru" } else { NO_EVICTION };
        format!(
            "run_id:{process}\r\nmaster_replid:{history}\r\nmaster_replid2:{before}\r\nevicted_keys:{evicted}\r\n\
             maxmemory:1\r\nmaxmemory_policy:{policy}\r\n"
        )
    }

    /// By the header of `lua/pulse.lua`.
    fn pulse(&mut self, key: &str, more: &[&str], now_ms: u64) -> Value {
        let &[
            _,
            id,
            run,
            history,
            field,
            silent,
            looks,
            slots,
            evicted,
            cold,
        ] = more
        else {
            return error("ERR a pulse has ten arguments");
        };
        let beat = Beat {
            id,
            run,
            history,
            field,
            silent_ms: silent.parse().ok().filter(|_| looks != "0"),
            slots,
            evicted,
            cold,
        };
        let epoch = self.hashes.epochs.entry(key.to_owned()).or_default();
        let reply = match Arc::make_mut(epoch).beat(&beat, &self.memory, now_ms) {
            Some(pulse) => vec![1, now_ms, pulse],
            None => vec![0, now_ms],
        };
        Value::Array(reply.into_iter().map(integer).collect())
    }

    /// By the header of `lua/epoch.lua`.
    fn change(&mut self, key: &str, more: &[&str]) -> Value {
        let (count, more) = more.split_first().unwrap_or((&"0", &[]));
        let (pairs, _) = more.as_chunks::<2>();
        let count: usize = count.parse().unwrap_or(0);
        let (read, changed) = pairs.split_at(pairs.len().min(count));
        let epoch = self.hashes.epochs.entry(key.to_owned()).or_default();
        let written = Arc::make_mut(epoch).change(
            read.iter().map(|[name, value]| (*name, *value)),
            changed.iter().map(|[name, value]| (*name, *value)),
        );
        integer(written.into())
    }

    /// By the header of `lua/policies.lua`.
    fn policies(&mut self, key: &str, more: &[&str], now_ms: u64) -> Value {
        let mut words = more.iter().skip(1).copied();
        let mut word = || words.next().unwrap_or_default();
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        let (most, count) = (word().parse().unwrap_or(0), number(word()));
        let mine: Vec<PolicyClaim<'_>> = (0..count)
            .map(|_| PolicyClaim {
                id: word(),
                kept_ms: number(word()),
                text: word(),
            })
            .collect();
        let superseded: Vec<(&str, u64)> = (0..number(word()))
            .map(|_| (word(), number(word())))
            .collect();
        let known: Vec<&str> = words.collect();
        let shelf = self.hashes.registries.entry(key.to_owned()).or_default();
        let (word, all) = match Arc::make_mut(shelf).exchange(now_ms, most, &mine, &superseded) {
            Ok(all) => ("ok", all),
            Err(NotRegistered::Text) => ("text", BTreeMap::new()),
            Err(NotRegistered::Full) => ("full", BTreeMap::new()),
        };
        let mut reply = vec![integer(1), integer(now_ms), text(word)];
        for (id, entry) in &all {
            let said = if known.contains(&id.as_str()) {
                ""
            } else {
                &entry.text
            };
            reply.extend([
                text(id),
                integer(entry.since_ms),
                integer(entry.used_ms),
                text(said),
            ]);
        }
        Value::Array(reply)
    }
}

impl Server {
    /// By the header of `lua/steer.lua`.
    fn steer(&mut self, key: &str, more: &[&str], now_ms: u64) -> Value {
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        let board = self.hashes.boards.entry(key.to_owned()).or_default();
        let board = Arc::make_mut(board);
        let head =
            |word: &str, version| vec![integer(1), integer(now_ms), text(word), integer(version)];
        match *more {
            [_, "drop", ref names @ ..] => Value::Array(head("ok", board.drop_all(now_ms, names))),
            [_, "put", name, for_ms, said, most, _, _, ended, its_text] => {
                let instruction = (name, now_ms + number(for_ms), said);
                let most = most.parse().unwrap_or(0);
                let its_text = Some(its_text).filter(|text| !text.is_empty());
                let ends = (!ended.is_empty()).then_some((ended, its_text));
                Value::Array(match board.put_instead(now_ms, ends, instruction, most) {
                    Ok(version) => head("ok", version),
                    Err(BoardFull) => head("full", board.version()),
                })
            }
            [_, "look", known, worker, follows, says, silent_ms, _] => {
                let mut reply = head("ok", board.version());
                if !worker.is_empty() {
                    board.hear(now_ms, worker, number(follows), says);
                    if number(known) == board.version() {
                        reply.push(Value::Int(-1));
                        return Value::Array(reply);
                    }
                    board.forget_silent(now_ms, number(silent_ms));
                }
                reply.push(integer(board.instructions(now_ms).count() as u64));
                for (name, posted) in board.instructions(now_ms) {
                    reply.extend([text(name), integer(posted.until_ms), text(&posted.text)]);
                }
                let workers = board.workers(now_ms, number(silent_ms));
                for (name, it) in workers.filter(|_| worker.is_empty()) {
                    let numbers = [it.at_ms, it.follows].map(integer);
                    reply.push(text(name));
                    reply.extend(numbers);
                    reply.push(text(&it.says));
                }
                Value::Array(reply)
            }
            _ => error("ERR it is asked for something else"),
        }
    }

    /// By the header of `lua/sighting.lua`.
    fn sighting(&mut self, key: &str, more: &[&str]) -> Value {
        let said = more.get(1).copied().unwrap_or_default();
        if !said.is_empty() {
            self.hashes
                .sightings
                .insert(key.to_owned(), said.to_owned());
        }
        text(self.hashes.sightings.get(key).map_or("", String::as_str))
    }
}

fn words(command: &Cmd) -> Vec<String> {
    let word = |arg: Arg<&[u8]>| match arg {
        Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    command.args_iter().map(word).collect()
}
