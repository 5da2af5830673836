//! Combines the reports of several workers into one view: the sums of their counts, and what no
//! report covers.

mod sort;

use std::collections::BTreeMap;

pub use self::sort::Sort;
use super::{KEPT_MS, Report, ReportError, ReportedTenant, UnnamedTenants};
use crate::tenant::Tenant;

/// All workers, and the tenants that they report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetReport {
    /// Redis's clock in milliseconds.
    pub now_ms: u64,
    /// The workers with a report, sorted by host.
    pub workers: Vec<ReportedWorker>,
    /// The names of live workers without a report: they have just started, or their version is
    /// older.
    pub silent: Vec<String>,
    /// The names of workers whose reports can't be read, and why.
    pub unread: Vec<(String, ReportError)>,
    /// The reported tenants, sorted by name.
    pub tenants: Vec<Row>,
    /// The sums over all tenants that the reports leave out.
    pub left_out: OmittedTenants,
}

/// A worker with a report.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedWorker {
    /// The worker's name on the board.
    pub name: String,
    /// The age of the report, in milliseconds.
    pub age_ms: u64,
    /// Calls started per second, of all tenants.
    pub starts: f64,
    /// Denials per second, of all tenants.
    pub denials: f64,
    /// The report without its tenants.
    pub report: Report,
}

/// The state of a tenant over all workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The tenant's name.
    pub tenant: Tenant,
    /// Units in its waitlists according to the gate, or `None` if the gate did not say.
    pub waitlist_units: Option<u64>,
    /// Waiting jobs in the workers' memory.
    pub waiting: u64,
    /// Calls in flight.
    pub running: u64,
    /// Calls started per second.
    pub starts: f64,
    /// Denials per second.
    pub denials: f64,
    /// Why the tenant is suspended, according to the gate; empty if it is not, or if the gate did
    /// not say.
    pub closed_by: String,
    /// The end of the tenant's suspension, by Redis's clock in milliseconds; 0 if it is not
    /// suspended.
    pub closed_until_ms: u64,
    /// The last turn of its waiting jobs that the gate announced; 0 if none waits for a turn.
    pub line_ends_ms: u64,
    /// The limit that denied one of its jobs last; empty if none did.
    pub waits_for: String,
    /// Number of workers that report the tenant.
    pub workers: usize,
    /// Whether the numbers are lower bounds, because a worker that does not report the tenant
    /// leaves out tenants or can't be read.
    pub at_least: bool,
}

/// The state of a tenant according to the gate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaitlistState {
    /// Units in its waitlists, wherever their jobs are, or `None` if limits tell its jobs apart by
    /// a header value or the routing key: then the gate does not know which waitlists it has.
    pub waiting: Option<u64>,
    /// The turn of the last unit, by Redis's clock in milliseconds; 0 if none waits.
    pub ends_ms: u64,
    /// The end of the tenant's suspension; 0 if it is not suspended.
    pub closed_until_ms: u64,
    /// Why the tenant is suspended.
    pub closed_by: String,
}

/// The sums over tenants that reports leave out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OmittedTenants {
    /// Maximum number of tenants: several workers may leave out the same tenant.
    pub tenants: u64,
    /// Whether there are more.
    pub uncounted: bool,
    /// Their waiting jobs in the workers' memory.
    pub waiting: u64,
    /// Their calls in flight.
    pub running: u64,
    /// Their calls started per second.
    pub starts: f64,
    /// Their denials per second.
    pub denials: f64,
}

/// The entry under a worker's name: its report, an error if it can't be read, or `None` if there is
/// none.
pub type WorkerEntry = Option<Result<Report, ReportError>>;

impl FleetReport {
    /// Returns the view of these workers at `now_ms` by Redis's clock. Leaves out workers that
    /// stopped in an orderly way.
    pub fn of(now_ms: u64, reports: Vec<(String, WorkerEntry)>) -> Self {
        let mut view = Self {
            now_ms,
            ..Self::default()
        };
        // A worker without a readable report may know more of any tenant.
        let mut dark = false;
        let mut rows: BTreeMap<Tenant, Row> = BTreeMap::new();
        let mut cut = Vec::new();
        for (name, answer) in reports {
            let mut report = match answer {
                None => {
                    view.silent.push(name);
                    dark = true;
                    continue;
                }
                Some(Err(why)) => {
                    view.unread.push((name, why));
                    dark = true;
                    continue;
                }
                Some(Ok(report)) if report.stopped => continue,
                Some(Ok(report)) => report,
            };
            let tenants = std::mem::take(&mut report.tenants);
            let total = |named: fn(&ReportedTenant) -> u64, others: u64| {
                let all = tenants.iter().map(named).fold(others, u64::saturating_add);
                rate(all, report.over_ms)
            };
            let starts = total(|it| it.starts, report.left_out.starts);
            let denials = total(|it| it.denials, report.left_out.denials);
            view.left_out.add(&report.left_out, report.over_ms);
            if !report.left_out.is_nothing() {
                cut.push(
                    tenants
                        .iter()
                        .map(|it| it.tenant.clone())
                        .collect::<Vec<_>>(),
                );
            }
            for tenant in tenants {
                let row = rows.entry(tenant.tenant.clone());
                row.or_insert_with_key(Row::new)
                    .add(&tenant, report.over_ms);
            }
            view.workers.push(ReportedWorker {
                name,
                age_ms: match report.at_ms {
                    0 => 0,
                    at_ms => now_ms.saturating_sub(at_ms).min(KEPT_MS),
                },
                starts,
                denials,
                report,
            });
        }
        // A worker that leaves tenants out may know more of any tenant that it does not name.
        let cuts = cut.len();
        let mut named: BTreeMap<&Tenant, usize> = BTreeMap::new();
        for tenant in cut.iter().flatten() {
            *named.entry(tenant).or_default() += 1;
        }
        for (tenant, row) in &mut rows {
            row.at_least = dark || named.get(tenant).copied().unwrap_or(0) < cuts;
        }
        let rows = rows.into_values().map(|row| row.at(now_ms));
        view.tenants = rows.filter(Row::has_news).collect();
        view.workers.sort_unstable_by(|one, two| {
            let key =
                |it: &ReportedWorker| (it.report.host.clone(), it.report.pid, it.name.clone());
            key(one).cmp(&key(two))
        });
        view
    }

    /// Keeps only the tenants whose names contain `part`, ignoring case.
    pub fn keep(&mut self, part: &str) {
        self.tenants.retain(|row| row.has_in_name(part));
    }
}

/// Returns the rate per second for `number` events in `over_ms`.
// Above 2^53 the last digits are rounded.
#[expect(clippy::cast_precision_loss)]
fn rate(number: u64, over_ms: u64) -> f64 {
    match over_ms {
        0 => 0.0,
        _ => number as f64 * 1_000.0 / over_ms as f64,
    }
}

impl OmittedTenants {
    fn add(&mut self, other: &UnnamedTenants, over_ms: u64) {
        self.tenants = self.tenants.saturating_add(other.tenants);
        self.uncounted |= other.uncounted;
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.running = self.running.saturating_add(other.running);
        self.starts += rate(other.starts, over_ms);
        self.denials += rate(other.denials, over_ms);
    }
}

impl Row {
    fn new(tenant: &Tenant) -> Self {
        Self {
            tenant: tenant.clone(),
            waitlist_units: None,
            waiting: 0,
            running: 0,
            starts: 0.0,
            denials: 0.0,
            closed_by: String::new(),
            closed_until_ms: 0,
            line_ends_ms: 0,
            waits_for: String::new(),
            workers: 0,
            at_least: false,
        }
    }

    fn add(&mut self, one: &ReportedTenant, over_ms: u64) {
        self.waiting = self.waiting.saturating_add(one.waiting);
        self.running = self.running.saturating_add(one.running);
        self.starts += rate(one.starts, over_ms);
        self.denials += rate(one.denials, over_ms);
        self.closed_until_ms = self.closed_until_ms.max(one.closed_until_ms);
        if one.line_ends_ms >= self.line_ends_ms && !one.waits_for.is_empty() {
            self.waits_for.clone_from(&one.waits_for);
        }
        self.line_ends_ms = self.line_ends_ms.max(one.line_ends_ms);
        self.workers += 1;
    }

    /// Replaces the workers' numbers by the state at the gate, which is newer.
    pub fn update(&mut self, waitlist: WaitlistState) {
        self.waitlist_units = waitlist.waiting;
        self.closed_until_ms = waitlist.closed_until_ms;
        self.closed_by = waitlist.closed_by;
        if waitlist.waiting.is_some() {
            self.line_ends_ms = waitlist.ends_ms;
        }
        self.forget_limit();
    }

    /// Returns true if the tenant's name contains `part`, ignoring case.
    pub fn has_in_name(&self, part: &str) -> bool {
        let name = self.tenant.as_str().to_lowercase();
        name.contains(&part.to_lowercase())
    }

    /// Returns true if jobs of the tenant wait.
    pub fn waits(&self) -> bool {
        self.line_ends_ms > 0 || self.waiting > 0
    }

    /// Clears the limit if no job of the tenant waits.
    fn forget_limit(&mut self) {
        if !self.waits() {
            self.waits_for.clear();
        }
    }

    /// Clears times that have passed at `now_ms`.
    fn at(mut self, now_ms: u64) -> Self {
        for until in [&mut self.closed_until_ms, &mut self.line_ends_ms] {
            if *until <= now_ms {
                *until = 0;
            }
        }
        self.forget_limit();
        self
    }

    fn has_news(&self) -> bool {
        let numbers = [
            self.waiting,
            self.running,
            self.closed_until_ms,
            self.line_ends_ms,
        ];
        numbers.into_iter().any(|it| it > 0) || self.starts + self.denials > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn tenant(name: &str, change: impl FnOnce(&mut ReportedTenant)) -> ReportedTenant {
        let mut one = ReportedTenant::new(Tenant::parse(name).expect("a tenant"));
        change(&mut one);
        one
    }

    fn report(host: &str, tenants: Vec<ReportedTenant>) -> Report {
        Report {
            at_ms: NOW - 500,
            host: host.to_owned(),
            over_ms: 2_000,
            tenants,
            ..Report::default()
        }
    }

    fn view(reports: Vec<WorkerEntry>) -> FleetReport {
        let names = ('a'..).map(String::from);
        FleetReport::of(NOW, names.zip(reports).collect())
    }

    fn row<'a>(view: &'a FleetReport, name: &str) -> &'a Row {
        let mut rows = view.tenants.iter();
        rows.find(|row| row.tenant.as_str() == name).expect(name)
    }

    #[test]
    fn numbers_are_summed_and_times_are_the_latest() {
        let one = tenant("acme", |it| {
            (it.waiting, it.running, it.starts, it.denials) = (3, 1, 4, 10);
            (it.line_ends_ms, it.waits_for) = (NOW + 9_000, "hour".to_owned());
        });
        let two = tenant("acme", |it| {
            (it.waiting, it.starts, it.closed_until_ms) = (4, 3, NOW + 60_000);
            (it.line_ends_ms, it.waits_for) = (NOW + 8_000, "second".to_owned());
        });
        let beta = tenant("beta", |it| it.running = 1);
        let reports = [report("h2", vec![one]), report("h1", vec![two, beta])];
        let view = view(reports.map(|it| Some(Ok(it))).to_vec());
        assert_eq!(view.tenants.len(), 2);
        assert_eq!(
            *row(&view, "acme"),
            Row {
                tenant: Tenant::parse("acme").expect("a tenant"),
                waitlist_units: None,
                closed_by: String::new(),
                waiting: 7,
                running: 1,
                starts: 3.5,
                denials: 5.0,
                closed_until_ms: NOW + 60_000,
                line_ends_ms: NOW + 9_000,
                waits_for: "hour".to_owned(),
                workers: 2,
                at_least: false,
            }
        );
        let workers: Vec<(&str, u64)> = (view.workers.iter())
            .map(|it| (it.report.host.as_str(), it.age_ms))
            .collect();
        assert_eq!(workers, [("h1", 500), ("h2", 500)]);
        let rates = view.workers.iter().map(|it| (it.starts, it.denials));
        assert_eq!(rates.collect::<Vec<_>>(), [(1.5, 0.0), (2.0, 5.0)]);
        assert_eq!(view.left_out, OmittedTenants::default());
        assert!(view.silent.is_empty() && view.unread.is_empty());
        assert!(!row(&view, "beta").at_least);
    }

    #[test]
    fn tenants_that_a_report_may_omit_are_marked() {
        let named = |name| tenant(name, |it| it.waiting = 1);
        let mut cut = report("h1", vec![named("acme")]);
        cut.left_out = UnnamedTenants {
            tenants: 5,
            waiting: 9,
            starts: 4,
            ..UnnamedTenants::default()
        };
        let total = report("h2", vec![named("acme"), named("beta")]);
        let joined = view(vec![Some(Ok(cut.clone())), Some(Ok(total.clone()))]);
        assert!(!row(&joined, "acme").at_least, "both name it");
        assert!(row(&joined, "beta").at_least, "it may be one of the five");
        let left_out = OmittedTenants {
            tenants: 5,
            waiting: 9,
            starts: 2.0,
            ..OmittedTenants::default()
        };
        assert_eq!(joined.left_out, left_out);
        // A worker without a readable report may know of any tenant.
        for dark in [None, Some(Err(ReportError::Format(9)))] {
            let joined = view(vec![Some(Ok(total.clone())), dark]);
            assert!(row(&joined, "acme").at_least);
            assert_eq!(joined.silent.len() + joined.unread.len(), 1);
        }
    }

    #[test]
    fn a_worker_that_ended_in_order_is_gone() {
        let mut last = report("h", Vec::new());
        last.stopped = true;
        let view = view(vec![Some(Ok(last))]);
        assert_eq!(view, FleetReport::of(NOW, Vec::new()));
    }

    #[test]
    fn expired_states_are_not_shown() {
        let over = tenant("over", |it| {
            (it.line_ends_ms, it.closed_until_ms) = (NOW, NOW - 1);
            it.waits_for = "hour".to_owned();
        });
        let half = tenant("half", |it| {
            (it.line_ends_ms, it.running) = (NOW - 1, 1);
            it.waits_for = "hour".to_owned();
        });
        let view = view(vec![Some(Ok(report("h", vec![over, half])))]);
        assert_eq!(view.tenants.len(), 1);
        let half = row(&view, "half");
        assert_eq!((half.line_ends_ms, half.waits_for.as_str()), (0, ""));
    }

    #[test]
    fn the_state_of_the_gate_is_newer() {
        let acme = tenant("acme", |it| {
            (it.line_ends_ms, it.closed_until_ms) = (NOW + 9_000, NOW + 7_000);
            it.waits_for = "hour".to_owned();
        });
        let view = view(vec![Some(Ok(report("h", vec![acme])))]);
        let row_after = |waitlist: WaitlistState| {
            let mut row = row(&view, "acme").clone();
            row.update(waitlist);
            row
        };
        let row = row_after(WaitlistState {
            waiting: Some(0),
            ..WaitlistState::default()
        });
        assert_eq!(
            (row.waitlist_units, row.line_ends_ms, row.closed_until_ms),
            (Some(0), 0, 0)
        );
        assert_eq!(row.waits_for, "", "nothing waits");
        let row = row_after(WaitlistState {
            closed_until_ms: NOW + 1_000,
            closed_by: "429 from the API".to_owned(),
            ..WaitlistState::default()
        });
        assert_eq!(
            (row.waitlist_units, row.line_ends_ms),
            (None, NOW + 9_000),
            "it has several"
        );
        assert_eq!(
            (row.closed_until_ms, row.closed_by.as_str()),
            (NOW + 1_000, "429 from the API")
        );
        assert_eq!(row.waits_for, "hour");
    }
}
