//! Runs several pipelines in one process: starts each, follows the configuration, and returns when
//! all have ended.

mod keeper;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use self::keeper::Keeper;
use super::reload::{ConfigReader, ConfigReading, WantedPipeline, refuse};
use super::{AppError, SharedState, Work, process_tasks};
use admin::{self, PipelineState, PipelineStates};
use config::{Config, ConfigSource, PipelineName, Pipelines};
use engine::Stop;
use runtime::tasks::{TaskEnd, WatchedTask};
use telemetry::metrics::Metrics;
use telemetry::traces;

/// Assembles the work of a pipeline from its configuration and shared parts. The flag asserts that
/// no job was started before ([`Worker::fresh`](super::Worker::fresh)).
type MakeWork = Arc<dyn Fn(Config, &SharedState, bool) -> Result<Work, AppError> + Send + Sync>;

/// Runs `pipelines` until `stop`, and follows changes of `source`.
///
/// # Errors
/// [`AppError`] if a pipeline can't be assembled, or if the process lacks something that all of
/// them need.
pub(super) async fn run(
    pipelines: Pipelines,
    source: ConfigSource,
    fresh: bool,
    make: impl Fn(Config, &SharedState, bool) -> Result<Work, AppError> + Send + Sync + 'static,
    (stop, signals): (Stop, WatchedTask),
) -> Result<(), AppError> {
    let mut read = ConfigReader::new(source).map_err(AppError::Signals)?;
    let mut all = PipelineSet {
        board: Arc::new(PipelineStates::named()),
        stop: stop.clone(),
        make: Arc::new(make),
        shared_state: SharedState::default(),
        started: pipelines.clone(),
        running: BTreeMap::new(),
        keepers: JoinSet::new(),
    };
    for config in pipelines.each().values() {
        all.check_config(config)?;
    }
    log_warnings(&pipelines);
    let admin = admin::serve(&pipelines.admin, Arc::clone(&all.board)).await?;
    let mut tasks = process_tasks(&admin, &all.board, Some(&signals), &stop);
    traces::begin();
    for (name, config) in pipelines.each() {
        all.start(name, config.clone(), fresh);
    }
    let mut ended: Result<(), TaskEnd> = Ok(());
    while !all.keepers.is_empty() {
        let goes_on = !stop.soft.is_cancelled();
        tokio::select! {
            why = tasks.first_end(), if ended.is_ok() => {
                error!(reason = %why, "stopping: a task of all pipelines ended");
                ended = Err(why);
                stop.soft.cancel();
            }
            Some(ended_keeper) = all.keepers.join_next() => {
                match ended_keeper {
                    Ok(name) => all.has_ended(name),
                    Err(why) => error!(reason = %why, "the keeper of a pipeline has ended"),
                }
            }
            () = stop.soft.cancelled(), if goes_on => {}
            reading = read.next(), if goes_on => all.read(reading),
        }
    }
    drop(tasks);
    traces::flush().await;
    admin.stop().await;
    info!("all pipelines have stopped");
    ended.map_err(AppError::Ended)
}

fn log_warnings(pipelines: &Pipelines) {
    for (name, warning) in pipelines.warnings() {
        match name {
            Some(name) => warn!(pipeline = %name, "configuration: {warning}"),
            None => warn!("configuration: {warning}"),
        }
    }
}

/// All pipelines of the process.
struct PipelineSet {
    board: Arc<PipelineStates>,
    stop: Stop,
    make: MakeWork,
    /// The parts that all pipelines share.
    shared_state: SharedState,
    /// The configuration of the start. The admin port and the log keep their settings from it.
    started: Pipelines,
    running: BTreeMap<PipelineName, RunningPipeline>,
    /// Each keeper returns its pipeline's name once the pipeline has ended and is not wanted
    /// anymore.
    keepers: JoinSet<PipelineName>,
}

/// A pipeline that has a keeper.
struct RunningPipeline {
    seen: PipelineState,
    wanted: watch::Sender<WantedPipeline>,
}

impl PipelineSet {
    /// Detects configuration errors that can be found without a server.
    fn check_config(&self, config: &Config) -> Result<(), AppError> {
        let (make, shared_state) = (&self.make, &self.shared_state);
        let check = || make(config.clone(), shared_state, false).map(drop);
        // Outside the runtime, the check can't start tasks, such as a task that fetches tokens.
        thread::scope(
            |scope| match thread::Builder::new().spawn_scoped(scope, check) {
                Ok(checking) => checking.join().unwrap_or_else(|why| resume_unwind(why)),
                Err(_) => check(),
            },
        )
    }

    fn start(&mut self, name: &PipelineName, config: Config, fresh: bool) {
        let wanted = WantedPipeline {
            config,
            start: 0,
            end: false,
        };
        let running = RunningPipeline {
            seen: PipelineState::of(name),
            wanted: watch::Sender::new(wanted),
        };
        self.board.put(name.clone(), running.seen.clone());
        self.keep(name, &running, fresh);
        self.running.insert(name.clone(), running);
    }

    fn keep(&mut self, name: &PipelineName, running: &RunningPipeline, fresh: bool) {
        let keeper = Keeper {
            name: name.clone(),
            shared_state: SharedState {
                // `make` adds the recording.
                recording: None,
                seen: running.seen.clone(),
                links: Arc::clone(&self.shared_state.links),
            },
            make: Arc::clone(&self.make),
            stop: self.stop.clone(),
            wanted: running.wanted.subscribe(),
            fresh,
        };
        self.keepers.spawn(keeper.run());
    }

    /// Handles the end of a keeper.
    fn has_ended(&mut self, name: PipelineName) {
        let Some(running) = self.running.remove(&name) else {
            return;
        };
        // The pipeline was removed and added again.
        if !running.wanted.borrow().end && !self.stop.soft.is_cancelled() {
            self.keep(&name, &running, false);
            self.running.insert(name, running);
            return;
        }
        self.board.remove(&name);
        info!(pipeline = %name, "pipeline stopped");
    }

    fn metrics(&self) -> impl Iterator<Item = &Metrics> {
        self.running.values().map(|running| &*running.seen.metrics)
    }

    /// Applies a configuration as a whole, or none of it.
    fn read(&mut self, ConfigReading { read, asked }: ConfigReading) {
        let new = match read {
            Ok(new) => new,
            Err(errors) => return refuse(&errors, self.metrics()),
        };
        let wrong = match new.each().len() {
            _ if !new.are_named() => {
                Some("the file no longer has `pipelines`, which requires a restart".to_owned())
            }
            0 => Some("the pipeline that this process runs no longer exists".to_owned()),
            _ => self.wrong(&new),
        };
        if let Some(why) = wrong {
            self.metrics().for_each(|metrics| metrics.reloaded(false));
            error!(
                reason = why,
                "configuration refused: the old one stays in force"
            );
            return;
        }
        self.metrics()
            .for_each(|metrics| _ = metrics.config_refused.set(0));
        let needs_restart = self.needs_restart(&new);
        if needs_restart {
            warn!("configuration changed: admin and log require a restart of the process");
        }
        let changed = self.apply(&new);
        if changed {
            log_warnings(&new);
        } else if asked || needs_restart {
            self.metrics().for_each(|metrics| metrics.reloaded(true));
        }
        if asked && !changed && !needs_restart {
            info!("configuration read again: no changes");
        }
    }

    /// Returns true if the process runs with another admin port or log than `new` has.
    fn needs_restart(&self, new: &Pipelines) -> bool {
        (&self.started.admin, &self.started.log) != (&new.admin, &new.log)
    }

    /// Returns why a changed or new pipeline can't be assembled, or `None` if all can.
    fn wrong(&self, new: &Pipelines) -> Option<String> {
        let mut differ = new.each().iter().filter(|(name, config)| {
            let running = self.running.get(name);
            running.is_none_or(|running| {
                running.wanted.borrow().config != self.started.with_shared_keys(config)
            })
        });
        differ.find_map(|(name, config)| {
            let why = self.check_config(config).err()?;
            Some(format!("pipelines.{name}: {why}"))
        })
    }

    /// Starts, changes and ends pipelines according to `new`. Returns true if anything changed.
    fn apply(&mut self, new: &Pipelines) -> bool {
        let mut changed = false;
        for (name, running) in &self.running {
            if !new.each().contains_key(name) && !running.wanted.borrow().end {
                info!(pipeline = %name, "pipeline removed: taking no more jobs");
                running.wanted.send_modify(|wanted| wanted.end = true);
                changed = true;
            }
        }
        for (name, config) in new.each() {
            let config = self.started.with_shared_keys(config);
            changed |= match self.running.get(name) {
                Some(running) => change(name, running, &config),
                None => {
                    info!(pipeline = %name, "pipeline added");
                    self.start(name, config, false);
                    true
                }
            };
        }
        changed
    }
}

/// Applies `config` to a running pipeline, and restarts it if necessary. Returns true if anything
/// changed.
fn change(name: &PipelineName, running: &RunningPipeline, config: &Config) -> bool {
    let old = running.wanted.borrow().clone();
    let restart = old.config.restart_keys(config);
    if old.config == *config && !old.end {
        return false;
    }
    let anew = old.end || !restart.is_empty();
    if anew {
        let keys = restart.join(", ");
        info!(pipeline = %name, keys, "configuration applied: the pipeline is restarted");
        running.seen.metrics.reloaded(true);
    }
    running.wanted.send_modify(|wanted| {
        wanted.config = config.clone();
        wanted.start += u64::from(anew);
        wanted.end = false;
    });
    true
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::handlers::work;

    fn set(make: MakeWork, started: Pipelines) -> PipelineSet {
        PipelineSet {
            board: Arc::new(PipelineStates::named()),
            stop: Stop::default(),
            make,
            shared_state: SharedState::default(),
            started,
            running: BTreeMap::new(),
            keepers: JoinSet::new(),
        }
    }

    /// A configuration is also checked when another pipeline's has changed.
    #[tokio::test(flavor = "multi_thread")]
    async fn checking_a_configuration_fetches_no_token() {
        crate::install_tls_provider();
        let endpoint = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let yaml = format!(
            "dispatch: {{http: {{url: 'http://api/', oauth2: {{token-url: 'http://{}/', \
            client-id: x, client-secret: hunter2}}}}}}",
            endpoint.local_addr().expect("it is bound")
        );
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let set = set(Arc::new(work), config.clone().into());
        for _ in 0..100 {
            set.check_config(&config).expect("it can be used");
        }
        let asked = timeout(Duration::from_millis(500), endpoint.accept()).await;
        assert!(asked.is_err(), "{asked:?}");
    }

    fn parse(level: &str, queue: &str) -> Pipelines {
        let text =
            format!("log: {{level: {level}}}\npipelines: {{a: {{amqp: {{queue: {queue}}}}}}}");
        Pipelines::parse("c.yaml", &text, std::iter::empty()).expect("valid")
    }

    #[tokio::test]
    async fn keys_of_the_process_are_compared_with_those_of_its_start() {
        let make: MakeWork = Arc::new(|config, shared_state: &SharedState, _| {
            Ok(Work {
                config,
                seen: shared_state.seen.clone(),
                moves: Box::new(|_, _, stop| {
                    Box::pin(async move {
                        stop.soft.cancelled().await;
                        Ok(())
                    })
                }),
            })
        });
        let mut all = set(make, parse("info", "jobs"));
        let mut read = |new| {
            let needs_restart = all.needs_restart(&new);
            let read = Ok(new);
            all.read(ConfigReading { read, asked: false });
            // A pipeline does not report what only the process can apply.
            for running in all.running.values() {
                assert_eq!(running.wanted.borrow().config.log.level, "info");
            }
            needs_restart
        };
        assert!(!read(parse("info", "jobs")));
        assert!(read(parse("debug", "jobs")));
        assert!(read(parse("debug", "other")), "it is still not in force");
        assert!(!read(parse("info", "other")), "it was taken back");
    }
}
