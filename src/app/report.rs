//! Writes a report of this worker to Redis every 2 s, for commands that show the fleet. Nothing
//! waits for it: if a report can't be written, the next one follows.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::debug;

use admin::{PipelineState, Readiness};
use gate::redis::RedisGate;
use rules::limit::floor_ms;
use rules::report::{REPORT_INTERVAL_MS, Report};

const REPORT_INTERVAL: Duration = Duration::from_millis(REPORT_INTERVAL_MS);

/// Reports the load of one worker.
#[derive(Clone)]
pub struct Reporter {
    /// Name of the worker in Redis.
    pub name: String,
    /// The state that is reported.
    pub seen: PipelineState,
    /// The gate whose Redis stores the reports.
    pub gate: Arc<RedisGate>,
}

impl Reporter {
    /// Runs until it is aborted.
    pub async fn run(self) -> Infallible {
        let began = Instant::now();
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.store(self.report(began.elapsed())).await;
        }
    }

    /// Writes a last report, which says that the worker stopped in order, so that it is not shown
    /// as missing.
    pub async fn stopped(&self) {
        let mut last = for_process();
        last.stopped = true;
        self.store(last).await;
    }

    async fn store(&self, report: Report) {
        let result = timeout(REPORT_INTERVAL, self.gate.put_report(&self.name, report)).await;
        // An unreachable Redis is logged elsewhere.
        match result {
            Ok(Ok(())) => {}
            Ok(Err(why)) => debug!(reason = %why, "this worker's report was not written"),
            Err(_) => debug!("this worker's report was not written in time"),
        }
    }

    fn report(&self, up: Duration) -> Report {
        let PipelineState { metrics, name, .. } = &self.seen;
        let readiness = Readiness::from(&self.seen);
        let tenants = metrics.tenants();
        let mut report = for_process();
        report.at_ms = self.gate.now_ms();
        report.pipeline = name.as_ref().map(ToString::to_string).unwrap_or_default();
        report.up_ms = floor_ms(up);
        report.ready = readiness.is_ready;
        report.notes = readiness.lines;
        report.load = metrics.load_now();
        report.waiting = tenants.waiting;
        report.over_ms = floor_ms(tenants.over);
        report.tenants.clone_from(&tenants.busiest);
        report.left_out = tenants.left_out;
        report.advice = tenants.advice.clone().unwrap_or_default();
        report
    }
}

/// Returns a report that identifies this process.
fn for_process() -> Report {
    let system = rustix::system::uname();
    Report {
        host: system.nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use ::redis::{Pipeline, Value};
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;
    use gate::GateError;
    use gate::store::Store;
    use rules::report::{KEPT_MS, MAX_BYTES};

    /// Records the words of each command, or hangs.
    #[derive(Default)]
    struct CommandLog {
        hangs: bool,
        words: Mutex<Vec<Vec<String>>>,
    }

    impl Store for CommandLog {
        fn run<'a>(
            &'a self,
            pipeline: &'a Pipeline,
        ) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
            if self.hangs {
                return pending().boxed();
            }
            let mut commands = self.words.lock().expect("no panic");
            for command in pipeline.cmd_iter() {
                let words = command.args_iter().map(|word| match word {
                    ::redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
                    ::redis::Arg::Cursor => String::new(),
                    _ => "another kind".to_owned(),
                });
                commands.push(words.collect());
            }
            let all = pipeline.cmd_iter().map(|_| Value::Okay).collect();
            async move { Ok(all) }.boxed()
        }
    }

    fn reporter(store: &Arc<CommandLog>) -> Reporter {
        let store: Arc<CommandLog> = Arc::clone(store);
        Reporter {
            name: "abc".to_owned(),
            seen: PipelineState::default(),
            gate: Arc::new(RedisGate::on(store, "p")),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_costs_one_command_in_two_seconds() {
        let store = Arc::new(CommandLog::default());
        let reporter = reporter(&store);
        let _ = timeout(Duration::from_secs(61), reporter.clone().run()).await;
        reporter.stopped().await;
        let all = store.words.lock().expect("no panic");
        assert_eq!(all.len(), 32);
        let kept_ms = KEPT_MS.to_string();
        for words in &*all {
            let [set, key, text, px, ms] = words.as_slice() else {
                panic!("{words:?}");
            };
            assert_eq!([set, key, px, ms], ["SET", "p:%report:abc", "PX", &kept_ms]);
            assert!(text.len() < MAX_BYTES);
        }
        let read = |words: &[String]| Report::read(&words[2]).expect("a report");
        let (first, last) = (read(&all[0]), read(&all[31]));
        assert!(!first.ready && !first.notes.is_empty() && !first.host.is_empty());
        assert_eq!(read(&all[30]).up_ms, 60_000);
        assert!(last.stopped && !first.stopped);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_store_delays_reports_briefly() {
        let store = Arc::new(CommandLog {
            hangs: true,
            ..CommandLog::default()
        });
        let started = Instant::now();
        reporter(&store).stopped().await;
        assert_eq!(started.elapsed(), REPORT_INTERVAL);
    }
}
