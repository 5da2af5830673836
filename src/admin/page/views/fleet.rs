//! The fleet: its workers, their totals, and this worker's last two hours.

use askama::Template;

use super::super::charts::{Chart, charts};
use super::super::text::{filters, number, text};
use super::roster::GoneWorker;
use super::{ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use crate::api::answers::InstructionsAnswer;
use operator::fleet::{TenantAnswer, TenantsPage, WorkerAnswer, WorkersAnswer};

/// Number of tenants shown.
const BUSIEST_TENANTS: usize = 8;
/// Maximum length of each list of operators' instructions.
const MAX_INSTRUCTIONS: usize = 20;
/// Age of a worker's report from which the worker counts as silent. Workers report every two
/// seconds.
const SILENT_AFTER_MS: u64 = 5_000;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetView<'a> {
    asked: &'a ViewRequest,
    now_ms: u64,
    /// Query that names the pipeline.
    pipeline: String,
    asks: InstructionsAnswer,
    /// Number of instructions that are not shown.
    not_listed: usize,
    troubles: Vec<String>,
    ready: usize,
    workers: Vec<WorkerAnswer>,
    gone: Vec<GoneWorker>,
    running: u64,
    slots: u64,
    waiting: u64,
    starts: f64,
    denials: f64,
    idle: u64,
    tenants: Vec<TenantAnswer>,
    all_tenants: String,
    charts: Vec<Chart>,
}

fn location(worker: &WorkerAnswer) -> String {
    format!("{} / {}", text(&worker.host), worker.pid)
}

/// Returns true if the worker shows this page.
fn is_here(worker: &WorkerAnswer) -> bool {
    let host = rustix::system::uname();
    worker.pid == std::process::id() && worker.host == host.nodename().to_string_lossy()
}

pub(super) async fn html(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let busiest = BUSIEST_TENANTS.to_string();
    let query = asked.query([]);
    let of_tenants = asked.query([("limit", busiest.as_str())]);
    let workers: WorkersAnswer = source.read("/workers", &query).await?;
    let tenants: TenantsPage = source.read("/tenants", &of_tenants).await?;
    let mut asks: InstructionsAnswer = source.read("/instructions", &query).await?;
    let pipeline = asked.pipeline.clone().or_else(|| source.only.clone());
    let pipeline = pipeline.unwrap_or_default();

    let now_ms = workers.now_ms;
    let sum = |of: fn(&WorkerAnswer) -> u64| workers.workers.iter().map(of).sum::<u64>();
    let rate = |of: fn(&WorkerAnswer) -> f64| workers.workers.iter().map(of).sum::<f64>();
    let named = workers.workers.iter();
    let named = named.map(|worker| (worker.name.as_str(), location(worker)));
    let gone = source.roster(|roster| roster.seen(&pipeline, now_ms, named));
    let all = tenants.tenants.len() as u64 + tenants.tenants_not_shown;
    let lists = [asks.diverted.len(), asks.canceled.len()];
    asks.diverted.truncate(MAX_INSTRUCTIONS);
    asks.canceled.truncate(MAX_INSTRUCTIONS);
    let view = FleetView {
        asked,
        now_ms,
        pipeline: asked.query([]),
        asks,
        not_listed: lists
            .map(|it| it.saturating_sub(MAX_INSTRUCTIONS))
            .iter()
            .sum(),
        troubles: workers.not_known.describe(),
        ready: workers.workers.iter().filter(|it| it.ready).count(),
        gone,
        running: sum(|it| it.calls_in_flight),
        slots: sum(|it| it.worker_slots),
        waiting: sum(|it| it.jobs_waiting),
        starts: rate(|it| it.starts_per_s),
        denials: rate(|it| it.denials_per_s),
        idle: sum(|it| it.quota_idle),
        all_tenants: match tenants.left_out.tenants_at_most {
            Some(0) => number(all),
            Some(more) => format!("{} to {}", number(all), number(all + more)),
            None => format!("more than {}", number(all)),
        },
        tenants: tenants.base.tenants,
        charts: charts(&source.history.of(&pipeline)),
        workers: workers.workers,
    };
    rendered(&view)
}
