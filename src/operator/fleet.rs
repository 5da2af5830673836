//! The fleet as reported by its workers, and the busiest tenants with the gate's own figures.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::fullness::Fullness;
use crate::config::Config;
use crate::gate::instructions;
use crate::gate::redis::RedisGate;
use crate::gate::reports::Fleet;
use crate::gate::tenant_standings::read_standings;
use crate::rules::report::view::{ReportedWorker, Row, Sort};
use crate::rules::tenant::Tenant;

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

    /// Returns the tenants as JSON, with the gaps in the reports of `fleet`.
    pub fn as_json(&self, fleet: &Fleet) -> Value {
        let view = &fleet.view;
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let row = |row: &Row| {
            json!({
                "tenant": row.tenant.as_str(),
                "waiting": row.waitlist_units,
                "waiting_in_memory": row.waiting,
                "calls_in_flight": row.running,
                "starts_per_s": row.starts,
                "denials_per_s": row.denials,
                "suspended_until_ms": row.closed_until_ms,
                "suspended_by": text(&row.closed_by),
                "line_ends_ms": row.line_ends_ms,
                "limit": text(&row.waits_for),
                "workers": row.workers,
                "at_least": row.at_least,
            })
        };
        let others = &view.left_out;
        json!({
            "now_ms": view.now_ms,
            "workers": view.workers.len(),
            "tenants": self.rows.iter().map(row).collect::<Vec<_>>(),
            "tenants_not_shown": self.more,
            "tenants_untold": self.gate_failure,
            "left_out": {
                "tenants_at_most": (!others.uncounted).then_some(others.tenants),
                "waiting_in_memory": others.waiting,
                "calls_in_flight": others.running,
                "starts_per_s": others.starts,
                "denials_per_s": others.denials,
            },
            "not_known": gaps(fleet),
        })
    }
}

/// Returns the workers as JSON.
pub fn workers_as_json(fleet: &Fleet) -> Value {
    let worker = |worker: &ReportedWorker| {
        let report = &worker.report;
        let load = &report.load;
        json!({
            "name": worker.name,
            "host": report.host,
            "pid": report.pid,
            "version": report.version,
            "pipeline": (!report.pipeline.is_empty()).then_some(&report.pipeline),
            "up_ms": report.up_ms,
            "said_ms_ago": worker.age_ms,
            "ready": report.ready,
            "notes": report.notes,
            "calls_in_flight": load.running,
            "worker_slots": load.slots,
            "saturation": load.saturation,
            "starts_per_s": worker.starts,
            "denials_per_s": worker.denials,
            "jobs_in_memory": load.in_memory,
            "jobs_delayed_in_memory": load.delayed,
            "jobs_waiting": report.waiting,
            "quota_idle": load.idle,
        })
    };
    json!({
        "now_ms": fleet.view.now_ms,
        "workers": fleet.view.workers.iter().map(worker).collect::<Vec<_>>(),
        "not_known": gaps(fleet),
    })
}

/// Lists the gaps: silent workers, and workers and servers that could not be read.
fn gaps(fleet: &Fleet) -> Value {
    let view = &fleet.view;
    let unread = view.unread.iter();
    let failed = fleet.failed.iter();
    json!({
        "silent_workers": view.silent,
        "unread_workers": unread
            .map(|(name, why)| json!({"name": name, "why": why.to_string()}))
            .collect::<Vec<_>>(),
        "unasked_workers": fleet.unasked,
        "unread_servers": failed.map(ToString::to_string).collect::<Vec<_>>(),
    })
}
