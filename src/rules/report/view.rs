//! What several workers said, as one view: sums of what each counts, and what nobody told.

mod sort;

use std::collections::BTreeMap;

pub use self::sort::Sort;
use super::{KEPT_MS, LeftOut, OfTenant, Report, ReportError};
use crate::rules::tenant::Tenant;

/// All workers, and the tenants that they name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct View {
    /// Redis's clock in milliseconds.
    pub now_ms: u64,
    /// The workers that report, by their names.
    pub workers: Vec<Worker>,
    /// The workers that live and have said nothing of this kind: they have just begun, or their version is older.
    pub silent: Vec<String>,
    /// The workers whose reports can't be read, and why.
    pub unread: Vec<(String, ReportError)>,
    /// The tenants that are named, by their names.
    pub tenants: Vec<Row>,
    /// What the workers leave out, all together.
    pub left_out: Others,
}

/// A worker that reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// What it is called on the board.
    pub name: String,
    /// For so long it has said nothing, in milliseconds.
    pub age_ms: u64,
    /// Its calls that begin in a second, of all tenants.
    pub starts: f64,
    /// The denials of its jobs in a second.
    pub denials: f64,
    /// What it said, without its tenants.
    pub report: Report,
}

/// A tenant, at all workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its name.
    pub tenant: Tenant,
    /// Units that wait in its waitlists, as the gate itself says; `None`: it does not.
    pub in_line: Option<u64>,
    /// Its jobs in the workers' memory that wait.
    pub waiting: u64,
    /// Its calls in flight.
    pub running: u64,
    /// Its calls that begin in a second.
    pub starts: f64,
    /// Its jobs' denials in a second.
    pub denials: f64,
    /// What suspends it, as the gate itself says; empty: nothing, or it does not.
    pub closed_by: String,
    /// Until when it is suspended, by Redis's clock in milliseconds; 0: it is not.
    pub closed_until_ms: u64,
    /// When the last of its jobs has its turn that the gate told of; 0: none waits for one.
    pub line_ends_ms: u64,
    /// The limit that made one of its jobs wait last; empty: none did.
    pub waits_for: String,
    /// So many workers name it.
    pub workers: usize,
    /// A worker that does not name it leaves tenants out, or can't be read: there may be more of each number.
    pub at_least: bool,
}

/// What the gate itself says of a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// Units that wait in its waitlists, wherever their jobs are; `None`: it has too many of them.
    pub waiting: Option<u64>,
    /// When the last of them has its turn, by Redis's clock in milliseconds; 0: none waits.
    pub ends_ms: u64,
    /// Until when it is suspended; 0: it is not.
    pub closed_until_ms: u64,
    /// What suspends it.
    pub closed_by: String,
}

/// What reports leave out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Others {
    /// So many tenants at most, for several workers may leave out the same ones.
    pub tenants: u64,
    /// There are more.
    pub uncounted: bool,
    /// Their jobs in the workers' memory that wait.
    pub waiting: u64,
    /// Their calls in flight.
    pub running: u64,
    /// Their calls that begin in a second.
    pub starts: f64,
    /// Their jobs' denials in a second.
    pub denials: f64,
}

/// What stands under a worker's name: its report, if that is one; nothing.
pub type Said = Option<Result<Report, ReportError>>;

impl View {
    /// What these workers said, at `now_ms` by Redis's clock. Those that ended in order are gone.
    pub fn of(now_ms: u64, said: Vec<(String, Said)>) -> Self {
        let mut view = Self {
            now_ms,
            ..Self::default()
        };
        // A worker that can't be read may know more of any tenant.
        let mut dark = false;
        let mut rows: BTreeMap<Tenant, Row> = BTreeMap::new();
        let mut cut = Vec::new();
        for (name, said) in said {
            let mut report = match said {
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
            let whole = |named: fn(&OfTenant) -> u64, others: u64| {
                let all = tenants.iter().map(named).fold(others, u64::saturating_add);
                rate(all, report.over_ms)
            };
            let starts = whole(|it| it.starts, report.left_out.starts);
            let denials = whole(|it| it.denials, report.left_out.denials);
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
            view.workers.push(Worker {
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
        // Who is not named by a worker that leaves some out may be one of these.
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
            let key = |it: &Worker| (it.report.host.clone(), it.report.pid, it.name.clone());
            key(one).cmp(&key(two))
        });
        view
    }

    /// There is more than the view shows.
    pub fn is_partial(&self) -> bool {
        self.left_out != Others::default() || !self.silent.is_empty() || !self.unread.is_empty()
    }

    /// Only those tenants are left whose names contain `part`, in whatever case.
    pub fn keep(&mut self, part: &str) {
        let part = part.to_lowercase();
        let has_it = |row: &Row| row.tenant.as_str().to_lowercase().contains(&part);
        self.tenants.retain(has_it);
    }
}

/// In a second, of so many in `over_ms`.
// Above 2^53 the last digits are rounded.
#[expect(clippy::cast_precision_loss)]
fn rate(number: u64, over_ms: u64) -> f64 {
    match over_ms {
        0 => 0.0,
        _ => number as f64 * 1_000.0 / over_ms as f64,
    }
}

impl Others {
    fn add(&mut self, other: &LeftOut, over_ms: u64) {
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
            in_line: None,
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

    fn add(&mut self, one: &OfTenant, over_ms: u64) {
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

    /// The gate itself says this of it, which is newer than what workers were told.
    pub fn told(&mut self, line: Line) {
        self.in_line = line.waiting;
        self.closed_until_ms = line.closed_until_ms;
        self.closed_by = line.closed_by;
        if line.waiting.is_some() {
            self.line_ends_ms = line.ends_ms;
        }
        self.forget_limit();
    }

    /// Jobs of it wait.
    pub fn waits(&self) -> bool {
        self.line_ends_ms > 0 || self.waiting > 0
    }

    /// Who waits for nothing waits for no limit.
    fn forget_limit(&mut self) {
        if !self.waits() {
            self.waits_for.clear();
        }
    }

    /// What is over at `now_ms` is not told.
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

    fn tenant(name: &str, change: impl FnOnce(&mut OfTenant)) -> OfTenant {
        let mut one = OfTenant::new(Tenant::parse(name).expect("a tenant"));
        change(&mut one);
        one
    }

    fn report(host: &str, tenants: Vec<OfTenant>) -> Report {
        Report {
            at_ms: NOW - 500,
            host: host.to_owned(),
            over_ms: 2_000,
            tenants,
            ..Report::default()
        }
    }

    fn view(said: Vec<Said>) -> View {
        let names = ('a'..).map(String::from);
        View::of(NOW, names.zip(said).collect())
    }

    fn row<'a>(view: &'a View, name: &str) -> &'a Row {
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
                in_line: None,
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
        assert!(!view.is_partial() && !row(&view, "beta").at_least);
    }

    #[test]
    fn who_may_have_more_where_it_is_left_out_is_marked() {
        let named = |name| tenant(name, |it| it.waiting = 1);
        let mut cut = report("h1", vec![named("acme")]);
        cut.left_out = LeftOut {
            tenants: 5,
            waiting: 9,
            starts: 4,
            ..LeftOut::default()
        };
        let whole = report("h2", vec![named("acme"), named("beta")]);
        let joined = view(vec![Some(Ok(cut.clone())), Some(Ok(whole.clone()))]);
        assert!(joined.is_partial());
        assert!(!row(&joined, "acme").at_least, "both name it");
        assert!(row(&joined, "beta").at_least, "it may be one of the five");
        let left_out = Others {
            tenants: 5,
            waiting: 9,
            starts: 2.0,
            ..Others::default()
        };
        assert_eq!(joined.left_out, left_out);
        // Of a worker that says nothing, or what nobody can read, nothing is known at all.
        for dark in [None, Some(Err(ReportError::Format(9)))] {
            let joined = view(vec![Some(Ok(whole.clone())), dark]);
            assert!(joined.is_partial() && row(&joined, "acme").at_least);
            assert_eq!(joined.silent.len() + joined.unread.len(), 1);
        }
    }

    #[test]
    fn a_worker_that_ended_in_order_is_gone() {
        let mut last = report("h", Vec::new());
        last.stopped = true;
        let view = view(vec![Some(Ok(last))]);
        assert_eq!(view, View::of(NOW, Vec::new()));
    }

    #[test]
    fn what_is_over_is_not_told() {
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
    fn what_the_gate_says_is_newer() {
        let acme = tenant("acme", |it| {
            (it.line_ends_ms, it.closed_until_ms) = (NOW + 9_000, NOW + 7_000);
            it.waits_for = "hour".to_owned();
        });
        let view = view(vec![Some(Ok(report("h", vec![acme])))]);
        let told = |line: Line| {
            let mut row = row(&view, "acme").clone();
            row.told(line);
            row
        };
        let row = told(Line {
            waiting: Some(0),
            ..Line::default()
        });
        assert_eq!(
            (row.in_line, row.line_ends_ms, row.closed_until_ms),
            (Some(0), 0, 0)
        );
        assert_eq!(row.waits_for, "", "nothing waits");
        let row = told(Line {
            closed_until_ms: NOW + 1_000,
            closed_by: "429 from the API".to_owned(),
            ..Line::default()
        });
        assert_eq!(
            (row.in_line, row.line_ends_ms),
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
