//! The order of the tenants in a view.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::{FleetReport, Row};

/// The criterion by which tenants are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Most waiting jobs first, in waitlists or in memory; ties by the last turn of the waitlists,
    /// latest first.
    Waiting,
    /// Highest rate of denials first.
    Denied,
    /// Latest end of the suspension first.
    Closed,
    /// Highest rate of starts first.
    Starts,
}

impl Sort {
    /// The names of all variants, in their order.
    pub const NAMES: [&'static str; 4] = ["waiting", "denied", "closed", "starts"];
    const ALL: [Self; 4] = [Self::Waiting, Self::Denied, Self::Closed, Self::Starts];

    /// Returns the variant's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the variant with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.name() == name)
    }

    /// Returns the next variant; the first follows the last.
    #[must_use]
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// Compares two tenants, larger numbers first. Equal for ties, so that a stable sort keeps
    /// their order.
    pub fn order(self, one: &Row, two: &Row) -> Ordering {
        let by_number = |by: fn(&Row) -> u64| by(two).cmp(&by(one));
        let by_rate = |by: fn(&Row) -> f64| by(two).total_cmp(&by(one));
        let waiting = by_number(|row| row.waiting.max(row.waitlist_units.unwrap_or(0)));
        match self {
            Self::Waiting => waiting.then(by_number(|row| row.line_ends_ms)),
            Self::Denied => by_rate(|row| row.denials).then(waiting),
            Self::Closed => by_number(|row| row.closed_until_ms).then(waiting),
            Self::Starts => by_rate(|row| row.starts).then(waiting),
        }
    }
}

impl FleetReport {
    /// Returns the tenants to ask the gate about so that the first `max` by `sort` are correct.
    /// For [`Sort::Waiting`] this includes the tenants with the longest waitlists, of which workers
    /// may have few jobs in memory.
    pub fn first(&self, sort: Sort, max: usize) -> Vec<Row> {
        let mut rows: Vec<&Row> = self.tenants.iter().collect();
        let (mut first, mut known) = (Vec::new(), HashSet::new());
        let by_line = |one: &&Row, two: &&Row| two.line_ends_ms.cmp(&one.line_ends_ms);
        if sort == Sort::Waiting {
            rows.sort_by(by_line);
            first.extend(rows.iter().take(max).copied());
        }
        rows.sort_by(|one, two| sort.order(one, two));
        first.extend(rows.iter().take(max));
        first.retain(|row| known.insert(&row.tenant));
        let mut first: Vec<Row> = first.into_iter().cloned().collect();
        first.sort_by(|one, two| one.tenant.cmp(&two.tenant));
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Report, ReportedTenant};
    use crate::tenant::Tenant;

    const NOW: u64 = 1_700_000_000_000;

    fn tenant(name: &str, change: impl FnOnce(&mut ReportedTenant)) -> ReportedTenant {
        let mut one = ReportedTenant::new(Tenant::parse(name).expect("a tenant"));
        change(&mut one);
        one
    }

    #[test]
    fn tenants_are_sorted_in_the_requested_order() {
        let all = vec![
            tenant("a", |it| it.starts = 9),
            tenant("b", |it| it.denials = 9),
            tenant("c", |it| it.closed_until_ms = NOW + 9),
            tenant("d", |it| it.waiting = 9),
            tenant("e", |it| it.line_ends_ms = NOW + 9),
            tenant("f", |it| it.running = 9),
        ];
        let report = Report {
            at_ms: NOW,
            over_ms: 2_000,
            tenants: all,
            ..Report::default()
        };
        let view = FleetReport::of(NOW, vec![("a".to_owned(), Some(Ok(report)))]);
        let names =
            |rows: &[Row]| -> String { rows.iter().map(|row| row.tenant.as_str()).collect() };
        let sorted = |sort: Sort, max| {
            let mut rows = view.first(sort, max);
            rows.sort_by(|one, two| sort.order(one, two));
            names(&rows)
        };
        assert_eq!(sorted(Sort::Waiting, 9), "deabcf");
        assert_eq!(sorted(Sort::Denied, 9), "bdacef");
        assert_eq!(sorted(Sort::Closed, 9), "cdabef");
        assert_eq!(sorted(Sort::Starts, 9), "adbcef");
        assert_eq!(sorted(Sort::Starts, 2), "ad");
        assert_eq!(
            names(&view.first(Sort::Waiting, 1)),
            "de",
            "its line may be the longest"
        );
    }
}
