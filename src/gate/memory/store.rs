//! A store in memory that forgets: the scripts' meaning by the model, behind the interface that the gate's client code has to Redis.
//! So the code that notices a loss runs without servers, at simulated times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::redis::{Arg, Cmd, Value};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{MemoryGate, States};
use crate::gate::store::{Command, Meaning, Store};
use crate::gate::{Gate, GateError, reply, scripts};
use crate::rules::log::Clock;

/// A hash, as Redis has it.
type Fields = BTreeMap<String, String>;

/// What is in memory, and who it is.
pub struct MemoryStore<C> {
    gate: MemoryGate<C>,
    server: Mutex<Server>,
    /// So many of the last writes may be lost.
    may_lose: usize,
}

#[derive(Clone, Default)]
struct Hashes {
    of: BTreeMap<String, Fields>,
    /// When a hash is gone, in milliseconds since the epoch.
    ends: BTreeMap<String, u64>,
}

#[derive(Default)]
struct Server {
    hashes: Hashes,
    /// Which process, and which history it has.
    process: u64,
    evicted: u64,
    evicts: bool,
    /// What was there before each of the last writes.
    past: VecDeque<(States, Hashes)>,
}

impl<C: Fn() -> u64 + Send + Sync + 'static> MemoryStore<C> {
    /// An empty store, of which up to `may_lose` of the last writes can be lost. `clock` gives microseconds since the epoch.
    pub fn new(clock: C, may_lose: usize) -> Self {
        Self {
            gate: MemoryGate::new(clock),
            server: Mutex::default(),
            may_lose,
        }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        // Nothing panics while it holds the lock.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is emptied, as by FLUSHALL.
    pub fn flush(&self) {
        let mut server = self.server();
        server.hashes = Hashes::default();
        server.past.clear();
        self.gate.restore(States::default());
    }

    /// It restarts, or another one takes over, without the last `lost` writes.
    pub fn restart(&self, lost: usize) {
        let mut server = self.server();
        server.process += 1;
        server.evicted = 0;
        for _ in 0..lost {
            let Some((states, hashes)) = server.past.pop_back() else {
                break;
            };
            server.hashes = hashes;
            self.gate.restore(states);
        }
    }

    /// It throws away whatever expires, but for the registry of policies; it may do so again.
    pub fn evict(&self) {
        let mut server = self.server();
        server.evicted += 1;
        server.evicts = true;
        self.gate.restore(States::default());
    }

    fn clock(&self, micros: &str) -> Clock {
        Clock::from_micros(micros.parse().unwrap_or_else(|_| self.gate.now_us()))
    }

    fn answer(&self, Command { command, meaning }: Command<'_>) -> Result<Value, GateError> {
        let mut server = self.server();
        if self.may_lose > 0 && is_write(command, meaning) {
            if server.past.len() == self.may_lose {
                server.past.pop_front();
            }
            let past = (self.gate.snapshot(), server.hashes.clone());
            server.past.push_back(past);
        }
        // The model waits for nobody.
        let never = || GateError::Unreachable("the model does not answer".to_owned());
        match meaning {
            Meaning::Ask(ask) => {
                let batch = std::slice::from_ref(ask);
                let replies = self.gate.ask(batch).now_or_never().ok_or_else(never)??;
                let reply = replies.into_iter().next().ok_or_else(never)??;
                Ok(reply::of_acquired(&reply))
            }
            Meaning::Settle(settled) => {
                let batch = std::slice::from_ref(settled);
                let told = self.gate.settle(batch).now_or_never().ok_or_else(never)?;
                told.map(|_| Value::Int(1))
            }
            Meaning::Block(tenant, duration, by) => {
                let done = self.gate.block(tenant, duration, by).now_or_never();
                done.ok_or_else(never)?.map(|()| Value::Int(1))
            }
            Meaning::Report(rule, event) => {
                let batch = std::slice::from_ref(event);
                let told = self.gate.report(rule, batch).now_or_never();
                let standings = told.ok_or_else(never)??;
                let standing = standings.into_iter().next().ok_or_else(never)??;
                Ok(reply::of_reported(&standing))
            }
            Meaning::Advertised(tenant, quotas) => {
                let batch = [(tenant.clone(), quotas)];
                let done = self.gate.advertised(&batch).now_or_never();
                done.ok_or_else(never)?.map(|()| Value::Int(1))
            }
            Meaning::Change(tenant, change) => {
                let until = self.gate.change(tenant, change).now_or_never();
                until.ok_or_else(never)?.map(integer)
            }
            Meaning::Inspect(tenant, labels, limits) => {
                let seen = self.gate.inspect(tenant, labels, limits).now_or_never();
                seen.ok_or_else(never)?
                    .map(|seen| reply::of_inspected(&seen))
            }
            Meaning::Itself => Ok(self.plain(&mut server, &words(command))),
        }
    }

    /// A command that says itself what it is.
    fn plain(&self, server: &mut Server, words: &[String]) -> Value {
        let word = |at: usize| words.get(at).map_or("", String::as_str);
        match word(0) {
            "EVALSHA" => {
                let (key, more) = (word(3), words.get(4..).unwrap_or_default());
                let clock = || self.clock(more.first().map_or("", String::as_str)).now_ms;
                match word(1) {
                    sha if sha == scripts::pulse().sha => server.pulse(key, more, clock()),
                    sha if sha == scripts::epoch().sha => server.change(key, more),
                    sha if sha == scripts::policies().sha => server.policies(key, more, clock()),
                    _ => Value::Nil,
                }
            }
            "HGETALL" => {
                let fields = server.hashes.of.get(word(1)).into_iter().flatten();
                Value::Array(
                    fields
                        .flat_map(|(name, value)| [text(name), text(value)])
                        .collect(),
                )
            }
            "HDEL" => {
                let fields = server.hashes.of.get_mut(word(1));
                fields.and_then(|fields| fields.remove(word(2)));
                Value::Int(1)
            }
            "INFO" => text(&server.info()),
            "TIME" => {
                let micros = self.gate.now_us();
                Value::Array(vec![
                    integer(micros / 1_000_000),
                    integer(micros % 1_000_000),
                ])
            }
            _ => Value::Okay,
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
    fn info(&self) -> String {
        let Self {
            process, evicted, ..
        } = self;
        let policy = if self.evicts {
            "volatile-ttl"
        } else {
            "noeviction"
        };
        format!(
            "run_id:p{process}\r\nmaster_replid:h{process}\r\nmaster_replid2:0\r\nuptime_in_seconds:0\r\n\
             evicted_keys:{evicted}\r\nmaxmemory:1\r\nmaxmemory_policy:{policy}\r\n"
        )
    }

    /// As `lua/pulse.lua`, but that nobody is dropped who was silent.
    fn pulse(&mut self, key: &str, more: &[String], now: u64) -> Value {
        let [_, id, run, history, field, _, _, _, evicted, cold] = more else {
            return Value::Nil;
        };
        let fields = self.hashes.of.entry(key.to_owned()).or_default();
        let is = |name: &str, value: &str| fields.get(name).map_or("", String::as_str) == value;
        let same = is("id", id) && is("run", run) && is("cold", cold);
        let evictions = evicted.is_empty() || *evicted == self.evicted.to_string();
        if !same || !evictions || *history != format!("h{}", self.process) {
            return Value::Array(vec![Value::Int(0), integer(now)]);
        }
        let last = fields
            .get(field)
            .and_then(|last| last.split(':').next()?.parse().ok());
        let pulse = last.unwrap_or(0_u64) + 1;
        fields.insert(field.clone(), format!("{pulse}:{now}"));
        Value::Array(vec![Value::Int(1), integer(now), integer(pulse)])
    }

    /// As `lua/epoch.lua`.
    fn change(&mut self, key: &str, more: &[String]) -> Value {
        let fields = self.hashes.of.entry(key.to_owned()).or_default();
        let (pairs, _) = more.as_chunks::<2>();
        let (read, changed) = pairs.split_at(pairs.len().min(5));
        let same =
            |[name, value]: &[String; 2]| fields.get(name).map_or("", String::as_str) == value;
        if !read.iter().all(same) {
            return Value::Int(0);
        }
        for [name, value] in changed {
            match value.as_str() {
                "" => fields.remove(name),
                _ => fields.insert(name.clone(), value.clone()),
            };
        }
        Value::Int(1)
    }

    /// As `lua/policies.lua`.
    fn policies(&mut self, key: &str, more: &[String], now: u64) -> Value {
        let mut words = more.iter().skip(1);
        let mut word = || words.next().map_or("", String::as_str);
        let number = |word: &str| word.parse::<u64>().unwrap_or(0);
        let (most, count) = (number(word()), number(word()));
        let mine: Vec<_> = (0..count)
            .map(|_| (word().to_owned(), number(word()), word().to_owned()))
            .collect();
        let superseded: Vec<_> = (0..number(word()))
            .map(|_| (word().to_owned(), number(word())))
            .collect();
        let known: Vec<&String> = words.collect();
        if self.hashes.ends.get(key).is_some_and(|end| *end <= now) {
            self.hashes.of.remove(key);
        }
        let fields = self.hashes.of.entry(key.to_owned()).or_default();
        let mut policies: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        for (name, value) in fields.iter() {
            let times: Vec<u64> = value.split(':').map(number).collect();
            if let (Some(id), [since, used, kept]) = (name.strip_suffix(":times"), &times[..]) {
                policies.insert(id.to_owned(), [(*since).min(now), (*used).min(now), *kept]);
            }
        }
        let kept = policies
            .values()
            .map(|times| times[2])
            .chain(mine.iter().map(|(_, kept, _)| *kept));
        let longest = kept.max().unwrap_or(0);
        policies.retain(|id, [_, used, _]| {
            let over = *used + longest < now || superseded.contains(&(id.clone(), *used));
            if over && count > 0 {
                fields.remove(id);
                fields.remove(&format!("{id}:times"));
            }
            !over
        });
        let new = |id: &String| !policies.contains_key(id) || !fields.contains_key(id);
        let answer = |word: &str| Value::Array(vec![Value::Int(1), integer(now), text(word)]);
        if mine.iter().any(|(id, _, said)| new(id) && said.is_empty()) {
            return answer("text");
        }
        let more = mine.iter().filter(|(id, ..)| new(id)).count();
        if more > 0 && (policies.len() + more) as u64 > most {
            return answer("full");
        }
        for (id, kept, said) in mine {
            let [since, ..] = *policies.get(&id).unwrap_or(&[now, now, 0]);
            policies.insert(id.clone(), [since, now, kept]);
            if !said.is_empty() {
                fields.insert(id, said);
            }
        }
        let mut reply = vec![Value::Int(1), integer(now), text("ok")];
        for (id, [since, used, kept]) in &policies {
            if count > 0 {
                fields.insert(format!("{id}:times"), format!("{since}:{used}:{kept}"));
            }
            let unknown = fields.get(id).filter(|_| !known.contains(&id));
            let said = unknown.map_or("", String::as_str);
            reply.extend([text(id), integer(*since), integer(*used), text(said)]);
        }
        if count > 0 {
            self.hashes.ends.insert(key.to_owned(), now + longest);
        }
        Value::Array(reply)
    }
}

fn is_write(command: &Cmd, meaning: Meaning<'_>) -> bool {
    match meaning {
        Meaning::Inspect(..) => false,
        Meaning::Itself => {
            matches!(&words(command)[..], [name, ..] if name == "EVALSHA" || name == "HDEL")
        }
        _ => true,
    }
}

fn words(command: &Cmd) -> Vec<String> {
    let word = |arg: Arg<&[u8]>| match arg {
        Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    command.args_iter().map(word).collect()
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn integer(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
