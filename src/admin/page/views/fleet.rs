//! The fleet: its workers, their totals, and this worker's last two hours.

use askama::Template;

use super::super::charts::{Chart, charts};
use super::super::text::{Bar, ShownName, ShownTime, decimal, number, text};
use super::tenants::{TenantRow, rows};
use super::{ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use crate::api::answers::InstructionsAnswer;
use operator::fleet::{TenantsPage, WorkerAnswer, WorkersAnswer};
use operator::times::span;

/// Number of tenants shown.
const BUSIEST_TENANTS: usize = 8;
/// Maximum length of each list of operators' instructions.
const MAX_INSTRUCTIONS: usize = 20;
/// Age of a worker's report from which the worker counts as silent. Workers report every two
/// seconds.
const SILENT_AFTER_MS: u64 = 5_000;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetView {
    now: ShownTime,
    pipeline: String,
    held: Option<HoldNotice>,
    troubles: Vec<String>,
    ready: usize,
    workers: Vec<WorkerRow>,
    gone: Vec<GoneWorkerRow>,
    running: String,
    slots: String,
    slots_taken: Bar,
    waiting: String,
    starts: String,
    denials: String,
    idle: String,
    is_idle: bool,
    tenants: Vec<TenantRow>,
    all_tenants: String,
    charts: Vec<Chart>,
    diverted: Vec<(ShownName, String, ShownTime)>,
    cancelled: Vec<(ShownName, ShownName, ShownTime)>,
    not_listed: usize,
}

/// An operator's instruction to all workers.
struct HoldNotice {
    is_paused: bool,
    until: Option<ShownTime>,
}

struct WorkerRow {
    location: String,
    name: String,
    version: String,
    up: String,
    is_ready: bool,
    /// Time since the last report of a silent worker.
    silent: Option<String>,
    notes: Vec<String>,
    running: String,
    slots: String,
    taken: Bar,
    saturation: String,
    starts: String,
    denials: String,
    in_memory: String,
    waiting: String,
    idle: String,
    is_here: bool,
}

struct GoneWorkerRow {
    location: String,
    seen: ShownTime,
}

fn location(worker: &WorkerAnswer) -> String {
    format!("{} / {}", text(&worker.host), worker.pid)
}

fn shown(worker: &WorkerAnswer) -> WorkerRow {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    WorkerRow {
        location: location(worker),
        name: text(&worker.name),
        version: text(&worker.version),
        up: span(worker.up_ms),
        is_ready: worker.ready,
        silent: (worker.reported_ms_ago >= SILENT_AFTER_MS).then(|| span(worker.reported_ms_ago)),
        notes: worker.notes.iter().map(|note| text(note)).collect(),
        running: number(worker.calls_in_flight),
        slots: number(worker.worker_slots),
        taken: Bar::of(worker.calls_in_flight, worker.worker_slots),
        saturation: format!("{:.0} %", worker.saturation * 100.0),
        starts: decimal(worker.starts_per_s),
        denials: decimal(worker.denials_per_s),
        in_memory: number(worker.jobs_in_memory),
        waiting: number(worker.jobs_waiting),
        idle: number(worker.quota_idle),
        is_here: worker.pid == std::process::id() && worker.host == host,
    }
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
    let asks: InstructionsAnswer = source.read("/instructions", &query).await?;
    let pipeline = asked.pipeline.clone().or_else(|| source.only.clone());
    let pipeline = pipeline.unwrap_or_default();

    let now_ms = workers.now_ms;
    let sum = |of: fn(&WorkerAnswer) -> u64| workers.workers.iter().map(of).sum::<u64>();
    let (running, slots) = (sum(|it| it.calls_in_flight), sum(|it| it.worker_slots));
    let idle = sum(|it| it.quota_idle);
    let rate = |of: fn(&WorkerAnswer) -> f64| workers.workers.iter().map(of).sum::<f64>();
    let named = workers.workers.iter();
    let named = named.map(|worker| (worker.name.as_str(), location(worker)));
    let gone = source.roster(|roster| roster.seen(&pipeline, now_ms, named));
    let all = tenants.tenants.len() as u64 + tenants.tenants_not_shown;
    let view = FleetView {
        now: ShownTime::now(now_ms),
        held: asks.held.map(|held| HoldNotice {
            is_paused: held.0 == "pause",
            until: (asks.held_until_ms).map(|until_ms| ShownTime::end(now_ms, until_ms)),
        }),
        troubles: workers.not_known.describe(),
        ready: workers.workers.iter().filter(|it| it.ready).count(),
        gone: gone
            .into_iter()
            .map(|it| GoneWorkerRow {
                seen: ShownTime::of(now_ms, it.seen_ms),
                location: it.location,
            })
            .collect(),
        running: number(running),
        slots: number(slots),
        slots_taken: Bar::of(running, slots),
        waiting: number(sum(|it| it.jobs_waiting)),
        starts: decimal(rate(|it| it.starts_per_s)),
        denials: decimal(rate(|it| it.denials_per_s)),
        idle: number(idle),
        is_idle: idle > 0,
        all_tenants: match tenants.left_out.tenants_at_most {
            Some(0) => number(all),
            Some(more) => format!("{} to {}", number(all), number(all + more)),
            None => format!("more than {}", number(all)),
        },
        tenants: rows(asked, tenants.now_ms, &tenants.tenants),
        charts: charts(&source.history.of(&pipeline)),
        diverted: (asks.diverted.iter().take(MAX_INSTRUCTIONS))
            .map(|it| {
                let until = ShownTime::end(now_ms, it.until_ms);
                (ShownName::new(&it.tenant), text(&it.queue), until)
            })
            .collect(),
        cancelled: (asks.cancelled.iter().take(MAX_INSTRUCTIONS))
            .map(|it| {
                let until = ShownTime::end(now_ms, it.until_ms);
                let of = ShownName::new;
                (of(&it.tenant), of(&it.id), until)
            })
            .collect(),
        not_listed: [asks.diverted.len(), asks.cancelled.len()]
            .map(|number| number.saturating_sub(MAX_INSTRUCTIONS))
            .iter()
            .sum(),
        workers: workers.workers.iter().map(shown).collect(),
        pipeline: asked.query([]),
    };
    rendered(&view)
}
