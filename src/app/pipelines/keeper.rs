//! Keeps one pipeline running: restarts it after an error, and when its configuration takes a
//! restart.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{Instrument, error, error_span};

use super::super::SharedState;
use super::super::reload::{Reload, WantedPipeline};
use super::MakeWork;
use config::PipelineName;
use engine::Stop;
use rules::failures::retry::Backoff;
use runtime::tasks::{Tasks, message};

/// The first and the longest pause before a failed pipeline is restarted.
const RESTART_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// A pipeline that ran this long had no trouble starting, so the pauses begin anew.
const STEADY_AFTER: Duration = Duration::from_secs(300);

/// Keeps one pipeline running.
pub(super) struct Keeper {
    pub name: PipelineName,
    pub shared_state: SharedState,
    pub make: MakeWork,
    /// Stops the whole process.
    pub stop: Stop,
    pub wanted: watch::Receiver<WantedPipeline>,
    /// Whether the first start asserts that no job was started before.
    pub fresh: bool,
}

impl Keeper {
    /// Runs until the process is stopped or the pipeline is not wanted anymore. Returns its name.
    pub async fn run(self) -> PipelineName {
        let name = self.name.clone();
        // At `error`, so that every log level includes the span.
        let span = error_span!("of", pipeline = %name);
        self.keep().instrument(span).await;
        name
    }

    async fn keep(mut self) {
        let mut pauses = Backoff::between(RESTART_PAUSES[0], RESTART_PAUSES[1]);
        loop {
            let now = self.wanted.borrow_and_update().clone();
            if now.end || self.stop.soft.is_cancelled() {
                break;
            }
            let began = Instant::now();
            let ended = self.once(&now).await;
            self.shared_state.seen.health.set_stopped();
            self.shared_state.seen.metrics.set_stopped();
            self.fresh = false;
            let Err(why) = ended else {
                pauses.reset();
                continue;
            };
            if began.elapsed() >= STEADY_AFTER {
                pauses.reset();
            }
            let pause = pauses.next(rand::random());
            self.shared_state.seen.metrics.pipeline_restarts.inc();
            error!(reason = %why, again_in = ?pause, "the pipeline failed: it is restarted; other \
                pipelines continue");
            let mut wanted = self.wanted.clone();
            tokio::select! {
                () = sleep(pause) => {}
                () = self.stop.soft.cancelled() => {}
                () = another(&mut wanted, now.start) => {}
            }
        }
    }

    /// Runs the pipeline once. Returns `Ok` if it was asked to end, otherwise the reason.
    async fn once(&self, now: &WantedPipeline) -> Result<(), String> {
        let stop = Stop {
            soft: self.stop.soft.child_token(),
            hard: self.stop.hard.child_token(),
        };
        let work = (self.make)(now.config.clone(), &self.shared_state, self.fresh);
        let work = work.map_err(|why| why.to_string())?;
        let reload = Reload::Updates(self.wanted.clone(), now.start);
        let run = work.run(Tasks::default(), reload, stop.clone());
        let run = AssertUnwindSafe(run).catch_unwind();
        // Dropping the set ends the task.
        let mut task = JoinSet::new();
        task.spawn(run.in_current_span());
        let mut wanted = self.wanted.clone();
        let mut asked = false;
        let ended = loop {
            tokio::select! {
                Some(ended) = task.join_next() => break ended,
                () = another(&mut wanted, now.start), if !asked => {
                    asked = true;
                    stop.soft.cancel();
                }
            }
        };
        match ended {
            Ok(Ok(Ok(()))) if asked || self.stop.soft.is_cancelled() => Ok(()),
            Ok(Ok(Ok(()))) => Err("it ended unexpectedly".to_owned()),
            Ok(Ok(Err(why))) => Err(why.to_string()),
            Ok(Err(panic)) => Err(format!("it panicked: {}", message(&*panic))),
            Err(why) => Err(why.to_string()),
        }
    }
}

/// Waits until the pipeline is not wanted anymore, or a different start of it is.
async fn another(wanted: &mut watch::Receiver<WantedPipeline>, start: u64) {
    let other = |wanted: &WantedPipeline| wanted.end || wanted.start != start;
    if wanted.wait_for(other).await.is_err() {
        // The sender is gone, and all keepers with it.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{AppError, Work};
    use config::{Config, Pipelines};

    /// Behavior of a start, given its number and the token that stops it.
    type StartBehavior =
        fn(u64, Stop) -> futures_util::future::BoxFuture<'static, Result<(), AppError>>;

    struct KeeperBed {
        wanted: watch::Sender<WantedPipeline>,
        stop: Stop,
        shared_state: SharedState,
        starts: Arc<AtomicU64>,
        task: tokio::task::JoinHandle<PipelineName>,
    }

    fn config(queue: &str) -> Config {
        let text = format!("amqp: {{queue: {queue}}}");
        Config::parse("c.yaml", &text, std::iter::empty()).expect("valid")
    }

    impl KeeperBed {
        fn start(does: StartBehavior) -> Self {
            let wanted = watch::Sender::new(WantedPipeline {
                config: config("a"),
                start: 0,
                end: false,
            });
            let (starts, shared_state, stop) = (
                Arc::new(AtomicU64::new(0)),
                SharedState::default(),
                Stop::default(),
            );
            let counted = Arc::clone(&starts);
            let make: MakeWork = Arc::new(move |config, shared_state: &SharedState, _| {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                Ok(Work {
                    config,
                    seen: shared_state.seen.clone(),
                    moves: Box::new(move |_, _, stop| does(number, stop)),
                })
            });
            let text = "pipelines: {a: }";
            let named = Pipelines::parse("c.yaml", text, std::iter::empty()).expect("valid");
            let keeper = Keeper {
                name: named.select(None).expect("one").0.clone(),
                shared_state: shared_state.clone(),
                make,
                stop: stop.clone(),
                wanted: wanted.subscribe(),
                fresh: false,
            };
            let task = tokio::spawn(keeper.run());
            Self {
                wanted,
                stop,
                shared_state,
                starts,
                task,
            }
        }

        fn starts(&self) -> u64 {
            self.starts.load(Ordering::Relaxed)
        }

        async fn reach(&self, starts: u64) {
            while self.starts() < starts {
                sleep(Duration::from_millis(10)).await;
            }
        }

        fn restarts(&self) -> String {
            let text = self.shared_state.seen.metrics.encode();
            let line = text
                .lines()
                .find(|line| line.starts_with("sluicegate_pipeline_restarts_total"));
            line.expect("it is there").to_owned()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_pipeline_restarts_after_growing_pauses() {
        let bed = KeeperBed::start(|number, stop| {
            Box::pin(async move {
                match number {
                    0 => panic!("it panics"),
                    1 => Err(AppError::NoHandler),
                    2 => Ok(()),
                    _ => {
                        stop.soft.cancelled().await;
                        Ok(())
                    }
                }
            })
        });
        let began = Instant::now();
        bed.reach(4).await;
        let pauses = began.elapsed();
        // 1, 2 and 4 s, each with a random factor from 0.5 to 1.5.
        assert!((3_500..10_600).contains(&pauses.as_millis()), "{pauses:?}");
        assert_eq!(bed.restarts(), "sluicegate_pipeline_restarts_total 3");
        sleep(STEADY_AFTER).await;
        assert_eq!(bed.starts(), 4);
        bed.stop.soft.cancel();
        assert_eq!(bed.task.await.expect("no panic").as_str(), "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pipeline_restarts_or_stops_on_request_even_in_a_pause() {
        let bed = KeeperBed::start(|number, stop| {
            Box::pin(async move {
                if number == 2 {
                    return Err(AppError::NoHandler);
                }
                stop.soft.cancelled().await;
                Ok(())
            })
        });
        bed.reach(1).await;
        // A change that applies at run time does not restart the pipeline.
        bed.wanted.send_modify(|wanted| wanted.config = config("b"));
        sleep(Duration::from_secs(9)).await;
        assert_eq!(bed.starts(), 1);
        bed.wanted.send_modify(|wanted| wanted.start += 1);
        bed.reach(2).await;
        // The third start fails. The fourth does not wait for the pause.
        bed.wanted.send_modify(|wanted| wanted.start += 1);
        bed.reach(3).await;
        sleep(Duration::from_millis(10)).await;
        let began = Instant::now();
        bed.wanted.send_modify(|wanted| wanted.start += 1);
        bed.reach(4).await;
        assert!(began.elapsed() < Duration::from_millis(400));
        assert_eq!(bed.restarts(), "sluicegate_pipeline_restarts_total 1");
        bed.wanted.send_modify(|wanted| wanted.end = true);
        bed.task.await.expect("no panic");
        assert!(!bed.stop.soft.is_cancelled(), "the others go on");
    }
}
