//! A Redis without a server: the commands that Sluicegate's Lua scripts and client use, with keys
//! in memory.
//!
//! It runs the scripts themselves in Lua 5.1, the version in Redis. The caller sets the clock, and
//! equal commands always return equal replies. On demand it restarts, fails over and loses its last
//! writes, evicts keys and forgets its scripts.
//!
//! It implements only what the scripts use. An unknown command or option is an error, as on a
//! server. `tests/it/fake_redis.rs` runs random commands on it and on a real server, and requires
//! equal replies.

mod command;
mod db;
mod hashes;
mod keys;
mod lua;
mod number;
mod packed;
mod reply;
mod server;
mod sorted_sets;
mod zset;

use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{Arg, Cmd, Pipeline, Value};

use crate::server::Server;

/// Returns the time in microseconds since the Unix epoch.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// One server, shared by all of its clients.
pub struct FakeRedis {
    clock: Clock,
    server: Mutex<Server>,
}

impl FakeRedis {
    /// Returns an empty server that uses `clock`.
    pub fn new(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            server: Mutex::default(),
        }
    }

    /// Lets [`restart`](Self::restart) and [`fail_over`](Self::fail_over) lose up to `writes` of
    /// the last writes.
    pub fn may_lose(self, writes: usize) -> Self {
        self.server().db.may_lose(writes);
        self
    }

    /// Makes the server report that it evicts keys when memory is short. [`evict`](Self::evict)
    /// does that.
    pub fn evicting(self) -> Self {
        self.server().evicts = true;
        self
    }

    /// Runs the commands in order. Returns one reply for each; an error is a reply, too.
    pub fn run(&self, pipeline: &Pipeline) -> Vec<Value> {
        pipeline.cmd_iter().map(|cmd| self.command(cmd)).collect()
    }

    /// Runs one command.
    pub fn command(&self, cmd: &Cmd) -> Value {
        let words: Vec<&[u8]> = (cmd.args_iter())
            .map(|arg| match arg {
                Arg::Simple(word) => word,
                // The cursor of SCAN, which is not implemented.
                Arg::Cursor => b"0",
                _ => b"",
            })
            .collect();
        let now_us = (self.clock)();
        self.server().run(&words, now_us).into_value()
    }

    /// Returns the names of all keys that have not expired, in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let now_us = (self.clock)();
        self.server().db.names(now_us)
    }

    /// Deletes everything, like FLUSHALL. A restart may lose this write, too.
    pub fn flush(&self) {
        self.server().db.flush();
    }

    /// Restarts without the last `lost` writes. Forgets all scripts.
    pub fn restart(&self, lost: usize) {
        self.server().restart(lost);
    }

    /// Fails over to a replica that lacks the last `lost` writes. Forgets all scripts.
    pub fn fail_over(&self, lost: usize) {
        self.server().fail_over(lost);
    }

    /// Begins or ends replication: the replication ID changes, and nothing is lost.
    pub fn replicate(&self) {
        self.server().replicate();
    }

    /// Evicts the keys that match `chosen`.
    pub fn evict(&self, chosen: impl Fn(&[u8]) -> bool) {
        self.server().evict(chosen);
    }

    /// Forgets all scripts, like SCRIPT FLUSH.
    pub fn forget_scripts(&self) {
        self.server().scripts.clear();
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        // A panic elsewhere leaves the server intact: a command either ran or did not.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
