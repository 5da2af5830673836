//! The server around the keys: its identity, its scripts, and its restarts.

use std::collections::HashMap;
use std::sync::Arc;

use crate::command::{self, Words, is_option, syntax_error, wrong_number};
use crate::db::Db;
use crate::number::integer;
use crate::reply::{Reply, Result};
use crate::{hashes, lua};

pub struct Server {
    pub db: Db,
    /// Scripts by SHA-1.
    pub scripts: HashMap<Vec<u8>, Arc<[u8]>>,
    pub evicts: bool,
    /// `run_id`
    process: String,
    /// `master_replid`
    history: String,
    /// `master_replid2`
    before: String,
    /// Number of keys that this process evicted.
    evicted: usize,
    /// Number of processes and histories so far.
    number: u64,
    /// State of the random number generator.
    random: u64,
}

/// `master_replid2` of a server without an earlier history.
const NONE_BEFORE: &str = "0";

impl Default for Server {
    fn default() -> Self {
        Self {
            db: Db::default(),
            scripts: HashMap::new(),
            evicts: false,
            process: "p0".to_owned(),
            history: "h0".to_owned(),
            before: NONE_BEFORE.to_owned(),
            evicted: 0,
            number: 0,
            random: 0,
        }
    }
}

impl Server {
    /// Runs a command from a client.
    pub fn run(&mut self, words: Words<'_>, now_us: u64) -> Reply {
        self.db.begin(now_us);
        let reply = self.run_begun(words);
        self.db.end();
        reply.unwrap_or_else(Reply::Error)
    }

    fn run_begun(&mut self, words: Words<'_>) -> Result {
        let Some((name, rest)) = words.split_first() else {
            return Err(command::unknown(b""));
        };
        if is_option(name, "EVALSHA") {
            return self.evalsha(rest);
        }
        if is_option(name, "EVAL") {
            let [source, rest @ ..] = rest else {
                return Err(wrong_number("eval"));
            };
            let sha = self.load(source)?;
            return self.call(&sha, rest);
        }
        self.plain(name, rest)
    }

    /// Runs a command that scripts may use, too.
    pub fn plain(&mut self, name: &[u8], words: Words<'_>) -> Result {
        if let Some(reply) = command::run(&mut self.db, name, words) {
            return reply;
        }
        if is_option(name, "HRANDFIELD") {
            if words.is_empty() || words.len() > 3 {
                return Err(wrong_number("hrandfield"));
            }
            let random = &mut self.random;
            return hashes::hrandfield(&mut self.db, words, |below| pick(random, below));
        }
        if is_option(name, "INFO") {
            return Ok(Reply::text(self.info(words)));
        }
        if is_option(name, "FLUSHALL") {
            self.db.flush();
            return Ok(Reply::ok());
        }
        if is_option(name, "SCRIPT") {
            return self.script(words);
        }
        Err(command::unknown(name))
    }

    fn script(&mut self, words: Words<'_>) -> Result {
        match words {
            [what, source] if is_option(what, "LOAD") => Ok(Reply::Text(self.load(source)?)),
            [what, shas @ ..] if is_option(what, "EXISTS") && !shas.is_empty() => {
                let is_known = |sha: &&[u8]| Reply::count(self.scripts.contains_key(*sha).into());
                Ok(Reply::Array(shas.iter().map(is_known).collect()))
            }
            [what, ..] if is_option(what, "FLUSH") => {
                self.scripts.clear();
                Ok(Reply::ok())
            }
            [] => Err(wrong_number("script")),
            _ => Err(syntax_error()),
        }
    }

    fn load(&mut self, source: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let sha = lua::sha(source);
        if !self.scripts.contains_key(&sha) {
            lua::compile(&sha, source)?;
            self.scripts.insert(sha.clone(), source.into());
        }
        Ok(sha)
    }

    fn evalsha(&mut self, words: Words<'_>) -> Result {
        let Some((sha, rest)) = words.split_first() else {
            return Err(wrong_number("evalsha"));
        };
        self.call(sha, rest)
    }

    /// Runs a loaded script. `words` are the number of keys, the keys and the arguments.
    fn call(&mut self, sha: &[u8], words: Words<'_>) -> Result {
        let Some((number, rest)) = words.split_first() else {
            return Err(wrong_number("evalsha"));
        };
        let keys = usize::try_from(integer(number)?)
            .map_err(|_| "ERR Number of keys can't be negative".to_owned())?;
        let (keys, arguments) = rest
            .split_at_checked(keys)
            .ok_or_else(|| "ERR Number of keys can't be greater than number of args".to_owned())?;
        let Some(source) = self.scripts.get(sha).cloned() else {
            return Err("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        lua::run(self, sha, &source, keys, arguments)
    }

    fn info(&self, sections: Words<'_>) -> String {
        let policy = if self.evicts {
            "allkeys-lru"
        } else {
            "noeviction"
        };
        let all = [
            (
                "Server",
                format!(
                    "redis_version:7.0.0\r\nredis_mode:standalone\r\nrun_id:{}\r\n",
                    self.process
                ),
            ),
            (
                "Memory",
                format!("maxmemory:1\r\nmaxmemory_policy:{policy}\r\n"),
            ),
            ("Stats", format!("evicted_keys:{}\r\n", self.evicted)),
            (
                "Replication",
                format!(
                    "role:master\r\nmaster_replid:{}\r\nmaster_replid2:{}\r\n",
                    self.history, self.before
                ),
            ),
        ];
        let is_wanted =
            |name: &str| sections.is_empty() || sections.iter().any(|word| is_option(word, name));
        let answered = all.iter().filter(|(name, _)| is_wanted(name));
        let texts: Vec<_> = answered
            .map(|(name, text)| format!("# {name}\r\n{text}"))
            .collect();
        texts.join("\r\n")
    }

    pub fn restart(&mut self, lost: usize) {
        self.begin_process(NONE_BEFORE.to_owned());
        self.db.lose(lost);
    }

    pub fn fail_over(&mut self, lost: usize) {
        let before = self.history.clone();
        self.begin_process(before);
        self.db.lose(lost);
    }

    pub fn replicate(&mut self) {
        self.number += 1;
        self.history = format!("h{}", self.number);
    }

    pub fn evict(&mut self, chosen: impl Fn(&[u8]) -> bool) {
        self.evicted += self.db.evict(chosen);
    }

    fn begin_process(&mut self, before: String) {
        self.replicate();
        self.process = format!("p{}", self.number);
        self.before = before;
        self.evicted = 0;
        self.scripts.clear();
    }
}

/// Returns a random number below `below` (SplitMix64).
fn pick(random: &mut u64, below: usize) -> usize {
    *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    usize::try_from(mixed % below.max(1) as u64).unwrap_or(0)
}
