//! Stores that change the scripts of a gate on their way to Redis: they replace its clock, or
//! leave out the shortcut. The gate itself is the one of production.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use gate::GateError;
use gate::redis::RedisGate;
use gate::store::Store;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Arg, Client, Cmd, Pipeline, RedisError, Script, Value};
use tokio::sync::OnceCell;

/// The name of a script that no server has.
const UNKNOWN: &str = "0000000000000000000000000000000000000000";

/// Returns the script with another text.
pub type Rewrite = fn(&str) -> String;

/// Changes the scripts in the commands of a gate.
pub struct Rewriter {
    rewrite: Rewrite,
    /// SHA-1 of each changed script, by that of the gate's script.
    shas: Mutex<HashMap<Vec<u8>, String>>,
}

impl Rewriter {
    pub fn new(rewrite: Rewrite) -> Self {
        Self {
            rewrite,
            shas: Mutex::default(),
        }
    }

    /// Returns the commands with changed scripts. Each call of a script gets `last` as one more
    /// argument.
    pub fn pipeline(&self, pipeline: &Pipeline, last: Option<&str>) -> Pipeline {
        let mut changed = Pipeline::with_capacity(pipeline.len());
        for command in pipeline.cmd_iter() {
            changed.add_command(self.command(command, last));
        }
        changed
    }

    fn command(&self, command: &Cmd, last: Option<&str>) -> Cmd {
        let words: Vec<&[u8]> = (command.args_iter())
            .map(|arg| match arg {
                Arg::Simple(word) => word,
                _ => panic!("the gate scans nothing"),
            })
            .collect();
        let mut changed = Cmd::new();
        match words[..] {
            [b"EVAL", source, ref rest @ ..] => {
                let source = (self.rewrite)(str::from_utf8(source).expect("a script"));
                changed.arg("EVAL").arg(source).arg(rest).arg(last);
            }
            [b"EVALSHA", sha, ref rest @ ..] => {
                let shas = self.shas.lock().expect("no panic");
                let sha = shas.get(sha).map_or(UNKNOWN, String::as_str);
                changed.arg("EVALSHA").arg(sha).arg(rest).arg(last);
            }
            [b"SCRIPT", b"LOAD", source] => {
                let source = str::from_utf8(source).expect("a script");
                let rewritten = (self.rewrite)(source);
                let sha = |source| Script::new(source).get_hash().to_owned();
                let mut shas = self.shas.lock().expect("no panic");
                shas.insert(sha(source).into_bytes(), sha(&rewritten));
                changed.arg("SCRIPT").arg("LOAD").arg(rewritten);
            }
            ref others => drop(changed.arg(others)),
        }
        changed
    }
}

/// Returns the script with a clock that its last argument sets, in microseconds.
fn with_clock(source: &str) -> String {
    let time = "{ string.sub(ARGV.clock, 1, -7), string.sub(ARGV.clock, -6) }";
    let source = source.replace("redis.call('TIME')", time);
    format!("ARGV.clock = table.remove(ARGV) {source}")
}

/// Returns the script without its shortcut, if it has one.
pub fn without_shortcut(source: &str) -> String {
    source.replace(
        "local first = shortcut(now, stamp, jobs, window)",
        "local first = nil",
    )
}

/// A Redis whose clock a test sets. Keys expire by Redis's own clock.
struct ClockedRedis {
    client: Client,
    connection: OnceCell<ConnectionManager>,
    clock: Arc<AtomicU64>,
    rewriter: Rewriter,
}

impl ClockedRedis {
    async fn answers(&self, pipeline: &Pipeline, clock: &str) -> Result<Vec<Value>, RedisError> {
        let open = async || {
            // The gate has a timeout of its own.
            let config = ConnectionManagerConfig::new().set_response_timeout(None);
            ConnectionManager::new_with_config(self.client.clone(), config).await
        };
        let mut connection = self.connection.get_or_try_init(open).await?.clone();
        let rewritten = self.rewriter.pipeline(pipeline, Some(clock));
        let count = rewritten.len();
        connection.send_packed_commands(&rewritten, 0, count).await
    }
}

impl Store for ClockedRedis {
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
        async move {
            let micros = self.clock.load(Ordering::SeqCst);
            let answers = self.answers(pipeline, &micros.to_string()).await;
            let mut answers =
                answers.map_err(|why| GateError::Unreachable(format!("the store: {why}")))?;
            for (command, answer) in pipeline.cmd_iter().zip(&mut answers) {
                if let Some(Arg::Simple(b"TIME")) = command.args_iter().next() {
                    let time = [micros / 1_000_000, micros % 1_000_000];
                    let text = |number: u64| Value::BulkString(number.to_string().into_bytes());
                    *answer = Value::Array(time.map(text).to_vec());
                }
            }
            Ok(answers)
        }
        .boxed()
    }
}

/// Returns a gate on the Redis at `url`, with keys that begin with `prefix`, whose time is that of
/// `clock`, in microseconds.
pub fn clocked(url: &str, prefix: &str, clock: &Arc<AtomicU64>) -> RedisGate {
    clocked_with(url, prefix, clock, with_clock)
}

/// Returns a gate like [`clocked`] that always decides without the shortcut.
pub fn clocked_without_shortcut(url: &str, prefix: &str, clock: &Arc<AtomicU64>) -> RedisGate {
    clocked_with(url, prefix, clock, |source| {
        without_shortcut(&with_clock(source))
    })
}

fn clocked_with(url: &str, prefix: &str, clock: &Arc<AtomicU64>, rewrite: Rewrite) -> RedisGate {
    let store = ClockedRedis {
        client: Client::open(url).expect("a good url"),
        connection: OnceCell::new(),
        clock: Arc::clone(clock),
        rewriter: Rewriter::new(rewrite),
    };
    RedisGate::on(Arc::new(store), prefix)
}
