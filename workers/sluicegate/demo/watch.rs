//! Publishes the jobs and watches them until all have ended.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use super::children::DemoWorker;
use super::ledger::TenantProgress;
use super::pipelines::{PipelineRole, ScenarioStage};
use super::report::ApiOutage;
use super::view::{self, ProgressView};
use super::workload::{DemoArgs, DemoJob, Workload};
use super::{DemoError, PipelineSetup};

/// Interval at which the dead-letter queue is polled.
const DEAD_POLL: Duration = Duration::from_millis(500);

/// Publishes the jobs, shows progress, and makes an API go away and come back if the scenario
/// requires it. Returns the confirmed jobs of each part when all have ended or the deadline has
/// passed.
pub async fn publish_and_watch(
    args: &DemoArgs,
    plan: &Workload,
    parts: &[PipelineSetup],
    workers: &mut [DemoWorker],
) -> Result<(Vec<Vec<DemoJob>>, Option<ApiOutage>), DemoError> {
    let counts: Vec<Vec<AtomicUsize>> = (parts.iter())
        .map(|part| {
            (0..part.plan.tenants)
                .map(|_| AtomicUsize::new(0))
                .collect()
        })
        .collect();
    let (begin, started) = watch::channel(false);
    let publishing =
        (parts.iter().zip(&counts)).map(|(part, counts)| publish(part, counts, &started));
    let publishing = try_join_all(publishing);
    tokio::pin!(publishing);
    let mut confirmed: Option<Vec<Vec<DemoJob>>> = None;
    let mut watched = WatchedDemo::new(args, parts, begin);
    let mut tick = interval(view::INTERVAL);
    let deadline = Instant::now() + plan.deadline();
    loop {
        tokio::select! {
            jobs = &mut publishing, if confirmed.is_none() => confirmed = Some(jobs?),
            _ = tick.tick() => {}
        }
        let progress = watched.show_progress(&counts);
        for worker in workers.iter_mut() {
            worker.alive()?;
        }
        watched.poll_dead_letters().await?;
        watched.advance_stage(&progress).await?;
        let ended = watched.has_ended(&progress);
        if let Some(jobs) = confirmed.take_if(|_| ended || Instant::now() > deadline) {
            return Ok((jobs, watched.outage));
        }
        if Instant::now() > deadline {
            return Err(DemoError(
                "the jobs were not published before the deadline".to_owned(),
            ));
        }
    }
}

/// Publishes the jobs of a part, and counts each tenant's confirmed ones in `counts`. Returns the
/// confirmed jobs.
async fn publish(
    part: &PipelineSetup,
    counts: &[AtomicUsize],
    started: &watch::Receiver<bool>,
) -> Result<Vec<DemoJob>, DemoError> {
    let PipelineSetup { plan, queues, .. } = part;
    let of_tenant = |tenant: usize| queues.publish(plan, tenant, &counts[tenant], started.clone());
    let jobs = try_join_all((0..plan.tenants).map(of_tenant)).await?;
    Ok(jobs.concat())
}

/// Number of jobs of each part.
struct PartProgress {
    /// Jobs with a final answer.
    settled: Vec<usize>,
    /// Jobs that RabbitMQ has confirmed.
    published: Vec<usize>,
}

/// The parts while their jobs run.
struct WatchedDemo<'a> {
    parts: &'a [PipelineSetup],
    plans: Vec<Workload>,
    view: ProgressView,
    /// Number of dead letters of each part.
    dead: Vec<usize>,
    /// When they were last counted.
    dead_seen: Instant,
    stage: ScenarioStage,
    outage: Option<ApiOutage>,
    /// Starts the jobs that wait for the outage.
    begin: watch::Sender<bool>,
}

impl<'a> WatchedDemo<'a> {
    fn new(args: &DemoArgs, parts: &'a [PipelineSetup], begin: watch::Sender<bool>) -> Self {
        let plans: Vec<Workload> = parts.iter().map(|part| part.plan.clone()).collect();
        Self {
            parts,
            view: ProgressView::new(&plans, args.json),
            dead: vec![0; plans.len()],
            plans,
            dead_seen: Instant::now(),
            stage: ScenarioStage::Flooding,
            outage: None,
            begin,
        }
    }

    /// Shows and returns the progress. `counts` has the confirmed jobs of each part's tenants.
    fn show_progress(&mut self, counts: &[Vec<AtomicUsize>]) -> PartProgress {
        let progress: Vec<Vec<TenantProgress>> = (self.parts.iter())
            .map(|part| part.downstream.progress())
            .collect();
        let load = |counts: &Vec<AtomicUsize>| -> Vec<usize> {
            let counts = counts.iter();
            counts.map(|count| count.load(Ordering::Relaxed)).collect()
        };
        let counts: Vec<Vec<usize>> = counts.iter().map(load).collect();
        self.view.show(&progress.concat(), &counts.concat());
        PartProgress {
            settled: (progress.iter())
                .map(|tenants| tenants.iter().map(|tenant| tenant.settled).sum())
                .collect(),
            published: counts.iter().map(|counts| counts.iter().sum()).collect(),
        }
    }

    /// Counts the dead letters again if it is time.
    async fn poll_dead_letters(&mut self) -> Result<(), DemoError> {
        if self.dead_seen.elapsed() >= DEAD_POLL {
            for (dead, part) in self.dead.iter_mut().zip(self.parts) {
                *dead = part.queues.dead_count().await?;
            }
            self.dead_seen = Instant::now();
        }
        Ok(())
    }

    /// Enters the next stage if it is time: the API of away goes away, or comes back.
    async fn advance_stage(&mut self, progress: &PartProgress) -> Result<(), DemoError> {
        let PartProgress { settled, published } = progress;
        let next = self.stage.next(&self.plans, settled, published);
        if next == self.stage {
            return Ok(());
        }
        let is_away = |part: &&PipelineSetup| part.plan.pipeline == Some(PipelineRole::Away);
        // Scenarios without an outage never get here.
        let Some(away) = self.parts.iter().find(is_away) else {
            return Ok(());
        };
        match &mut self.outage {
            None => {
                self.outage = Some(ApiOutage {
                    from_ns: away.downstream.go_away().await,
                    to_ns: u64::MAX,
                });
                self.view
                    .say("The API of away refuses connections; jobs of steady are published.");
                self.begin.send_replace(true);
            }
            Some(outage) => {
                let back = away.downstream.come_back();
                let lost = |error| DemoError(format!("the API lost its port: {error}"));
                outage.to_ns = back.map_err(lost)?;
                self.view.say("The API of away accepts connections again.");
            }
        }
        self.stage = next;
        Ok(())
    }

    /// Returns true if all jobs have ended. Every tenant's last job is rejected: it is settled at
    /// the API, and then becomes a dead letter.
    fn has_ended(&self, progress: &PartProgress) -> bool {
        let mut parts = self.plans.iter().zip(&progress.settled).zip(&self.dead);
        parts.all(|((plan, settled), dead)| *settled >= plan.total() && *dead >= plan.tenants)
    }
}
