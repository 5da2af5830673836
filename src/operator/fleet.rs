//! The fleet as reported by its workers, and the busiest tenants with the gate's own figures.

use std::collections::BTreeMap;

use super::answer::answers;
use super::fullness::Fullness;
use super::text::{count, plain};
use config::Config;
use gate::instructions;
use gate::redis::RedisGate;
use gate::reports::Fleet;
use gate::tenant_standings::read_standings;
use rules::report::view::{ReportedWorker, Row, Sort};
use rules::tenant::Tenant;

/// Tenants to show.
#[derive(Debug, Default)]
pub struct BusiestTenants {
    /// The tenants, in order.
    pub rows: Vec<Row>,
    /// How full each tenant's limits are, followed by its shadow limits. Has no entry for a tenant
    /// whose state the gate did not return.
    pub limits: BTreeMap<Tenant, Vec<Fullness>>,
    /// Number of other tenants that are known.
    pub more: usize,
    /// Reason why the gate's figures are missing for some tenants.
    pub gate_failure: Option<String>,
}

impl BusiestTenants {
    /// Returns the first `max` tenants in the order of `sort`, with the gate's figures.
    pub async fn of(
        gate: &RedisGate,
        config: &Config,
        fleet: &Fleet,
        (sort, max): (Sort, usize),
    ) -> Self {
        let mut shown = Self {
            rows: fleet.view.first(sort, max),
            ..Self::default()
        };
        let tenants: Vec<Tenant> = shown.rows.iter().map(|row| row.tenant.clone()).collect();
        let policy = &config.rate_limiter.policy;
        let standings = match tenants.is_empty() {
            true => Ok(Vec::new()),
            false => {
                let steering = instructions::in_force(&fleet.boards);
                let how = (&config.job.priorities, &steering);
                read_standings(gate, policy, how, &tenants).await
            }
        };
        match standings {
            Ok(standings) => {
                for (row, standing) in shown.rows.iter_mut().zip(standings) {
                    match standing {
                        Ok(standing) => {
                            row.update(standing.waitlist);
                            let full = standing.limits.iter();
                            let full = full.map(|(limit, usage)| Fullness::of(limit, usage));
                            let mut full: Vec<Fullness> = full.collect();
                            // The gate's state is newer than the worker's report.
                            let last = full.iter().max_by_key(|limit| limit.next_ms);
                            if let Some(last) = last.filter(|limit| limit.next_ms > 0)
                                && row.waits()
                            {
                                row.waits_for.clone_from(&last.name);
                            }
                            let shadows = standing.shadows.iter();
                            full.extend(shadows.map(|(limit, usage, tried)| {
                                Fullness::for_shadow(limit, usage, tried)
                            }));
                            (shown.limits).insert(row.tenant.clone(), full);
                        }
                        Err(why) => shown.gate_failure = Some(why.to_string()),
                    }
                }
            }
            Err(why) => shown.gate_failure = Some(why.to_string()),
        }
        shown.sorted(sort, max, fleet.view.tenants.len())
    }

    /// Sorts the rows and keeps the first `max`. `all` is the number of tenants known in total.
    pub fn sorted(mut self, sort: Sort, max: usize, all: usize) -> Self {
        self.rows.sort_by(|one, two| sort.order(one, two));
        self.rows.truncate(max);
        self.more = all - self.rows.len();
        self
    }

    /// Returns the tenants with the gaps in the reports of `fleet`.
    pub fn answer(&self, fleet: &Fleet) -> TenantsAnswer {
        let view = &fleet.view;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let row = |row: &Row| TenantAnswer {
            base: TenantLoad {
                waiting_in_memory: row.waiting,
                calls_in_flight: row.running,
                starts_per_s: row.starts,
                denials_per_s: row.denials,
            },
            tenant: row.tenant.to_string(),
            waiting: row.waitlist_units,
            suspended_until_ms: row.closed_until_ms,
            suspended_by: text(&row.closed_by),
            line_ends_ms: row.line_ends_ms,
            limit: text(&row.waits_for),
            workers: row.workers as u64,
            at_least: row.at_least,
        };
        let others = &view.left_out;
        TenantsAnswer {
            now_ms: view.now_ms,
            workers: view.workers.len() as u64,
            tenants: self.rows.iter().map(row).collect(),
            tenants_not_shown: self.more as u64,
            gate_failure: self.gate_failure.clone(),
            left_out: LeftOutTenants {
                base: TenantLoad {
                    waiting_in_memory: others.waiting,
                    calls_in_flight: others.running,
                    starts_per_s: others.starts,
                    denials_per_s: others.denials,
                },
                tenants_at_most: (!others.uncounted).then_some(others.tenants),
            },
            not_known: gaps(fleet),
        }
    }
}

answers! {
    /// The workers.
    pub struct WorkersAnswer {
        pub now_ms: u64,
        pub workers: Vec<WorkerAnswer>,
        pub not_known: FleetGaps,
    }

    /// A worker by its last report.
    pub struct WorkerAnswer {
        pub name: String,
        pub host: String,
        pub pid: u32,
        pub version: String,
        pub pipeline: Option<String>,
        pub up_ms: u64,
        pub reported_ms_ago: u64,
        pub ready: bool,
        pub notes: Vec<String>,
        pub calls_in_flight: u64,
        pub worker_slots: u64,
        pub saturation: f64,
        pub starts_per_s: f64,
        pub denials_per_s: f64,
        pub jobs_in_memory: u64,
        pub jobs_delayed_in_memory: u64,
        pub jobs_waiting: u64,
        pub quota_idle: u64,
    }

    /// The gaps in a view of the fleet: silent workers, and workers and servers that could not be
    /// read.
    pub struct FleetGaps as "NotKnown" {
        pub silent_workers: Vec<String>,
        pub unread_workers: Vec<UnreadWorker>,
        pub unasked_workers: u64,
        pub unread_servers: Vec<String>,
    }

    /// A worker whose report could not be read.
    pub struct UnreadWorker {
        pub name: String,
        pub why: String,
    }

    /// The busiest tenants.
    pub struct TenantsAnswer {
        pub now_ms: u64,
        pub workers: u64,
        pub tenants: Vec<TenantAnswer>,
        pub tenants_not_shown: u64,
        pub gate_failure: Option<String>,
        pub left_out: LeftOutTenants,
        pub not_known: FleetGaps,
    }

    /// A page of the busiest tenants.
    pub struct TenantsPage: TenantsAnswer {
        pub next_offset: Option<u64>,
    }

    /// The jobs and calls of a tenant, or of several.
    pub struct TenantLoad {
        pub waiting_in_memory: u64,
        pub calls_in_flight: u64,
        pub starts_per_s: f64,
        pub denials_per_s: f64,
    }

    /// A tenant.
    pub struct TenantAnswer: TenantLoad {
        pub tenant: String,
        pub waiting: Option<u64>,
        pub suspended_until_ms: u64,
        pub suspended_by: Option<String>,
        pub line_ends_ms: u64,
        pub limit: Option<String>,
        pub workers: u64,
        pub at_least: bool,
    }

    /// All tenants that workers do not name.
    pub struct LeftOutTenants: TenantLoad {
        pub tenants_at_most: Option<u64>,
    }
}

/// Returns the workers.
pub fn workers(fleet: &Fleet) -> WorkersAnswer {
    let worker = |worker: &ReportedWorker| {
        let report = &worker.report;
        let load = &report.load;
        WorkerAnswer {
            name: worker.name.clone(),
            host: report.host.clone(),
            pid: report.pid,
            version: report.version.clone(),
            pipeline: (!report.pipeline.is_empty()).then(|| report.pipeline.clone()),
            up_ms: report.up_ms,
            reported_ms_ago: worker.age_ms,
            ready: report.ready,
            notes: report.notes.clone(),
            calls_in_flight: load.running,
            worker_slots: load.slots,
            saturation: load.saturation,
            starts_per_s: worker.starts,
            denials_per_s: worker.denials,
            jobs_in_memory: load.in_memory,
            jobs_delayed_in_memory: load.delayed,
            jobs_waiting: report.waiting,
            quota_idle: load.idle,
        }
    };
    WorkersAnswer {
        now_ms: fleet.view.now_ms,
        workers: fleet.view.workers.iter().map(worker).collect(),
        not_known: gaps(fleet),
    }
}

/// The message for an empty fleet.
pub const NO_WORKER: &str =
    "no worker is running, or Redis refuses writes: no report in the last 10 s";

/// Returns true if no worker is alive.
pub fn is_empty(fleet: &Fleet) -> bool {
    let view = &fleet.view;
    view.workers.is_empty() && view.silent.is_empty() && view.unread.is_empty()
}

impl FleetGaps {
    /// Describes the gaps, one line each.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match self.silent_workers.len() {
            0 => {}
            1 => lines.push(format!(
                "1 more worker is alive but has no report: {} has just started or stopped",
                plain(&self.silent_workers[0], 40)
            )),
            more => lines.push(format!(
                "{more} more workers are alive but have no report: they have just started or \
                stopped"
            )),
        }
        lines.extend(self.unread_workers.iter().map(|worker| {
            let (name, why) = (plain(&worker.name, 40), plain(&worker.why, 200));
            format!("the report of worker {name} can't be read: {why}")
        }));
        if self.unasked_workers > 0 {
            let more = count(self.unasked_workers, "more worker");
            lines.push(format!("{more}, not shown: too many to read"));
        }
        let servers = self.unread_servers.iter();
        lines
            .extend(servers.map(|why| format!("some workers may be missing: {}", plain(why, 200))));
        lines
    }
}

/// Returns the gaps in the view of `fleet`.
pub fn gaps(fleet: &Fleet) -> FleetGaps {
    let unread = fleet.view.unread.iter().map(|(name, why)| UnreadWorker {
        name: name.clone(),
        why: why.to_string(),
    });
    FleetGaps {
        silent_workers: fleet.view.silent.clone(),
        unread_workers: unread.collect(),
        unasked_workers: fleet.unasked as u64,
        unread_servers: fleet.failed.iter().map(ToString::to_string).collect(),
    }
}
