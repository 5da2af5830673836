//! What the view lists: its rows, which of them is meant, and whose it is.

use sluicegate::operator::fullness::Fullness;
use sluicegate::operator::overview::Wanted;
use sluicegate::rules::report::view::Row;
use sluicegate::rules::scope::Scope;
use sluicegate::rules::tenant::Tenant;

use super::{Model, View};
use crate::commands::top::cursor::Cursor;

/// The gate is asked of so many tenants at most, as `tenants` can ask.
const MOST: usize = 100;
/// A row of the limits: whose, and which.
pub struct LimitRow<'a> {
    /// `None`: all tenants'.
    pub tenant: Option<&'a Tenant>,
    pub limit: &'a Fullness,
}

impl LimitRow<'_> {
    /// Both are one limit of all tenants.
    fn is_like(&self, other: &Fullness) -> bool {
        let (name, is_shadow) = (&self.limit.name, self.limit.shadow.is_some());
        *name == other.name && is_shadow == other.shadow.is_some()
    }

    /// No other row has this name.
    fn name(&self) -> String {
        let tenant = self.tenant.map_or("", |tenant| tenant.as_str());
        let shadow = if self.limit.shadow.is_some() { "~" } else { "" };
        format!("{}{shadow} {tenant}", self.limit.name)
    }
}

impl Model {
    pub(in super::super) fn is_wanted(&self, tenant: &str) -> bool {
        self.wanted().names(tenant)
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            sort: self.sort,
            most: MOST,
            name: self.search.clone(),
        }
    }

    /// The tenants that are listed: those of whom the gate was asked, and, while a name is searched for, all that workers name.
    pub fn tenants(&self) -> Vec<&Row> {
        let Some((picture, _)) = self.picture() else {
            return Vec::new();
        };
        let asked = picture.shown.iter().flat_map(|shown| &shown.rows);
        let mut rows: Vec<&Row> = asked.collect();
        if !self.search.is_empty() {
            let all = picture.fleet.view.tenants.iter();
            let known: std::collections::HashSet<_> =
                rows.iter().map(|row| row.tenant.as_str()).collect();
            let others: Vec<&Row> = all
                .filter(|row| !known.contains(row.tenant.as_str()))
                .collect();
            rows.extend(others);
            rows.retain(|row| self.is_wanted(row.tenant.as_str()));
        }
        rows.sort_by(|one, two| self.sort.order(one, two));
        rows
    }

    /// The limits of all tenants together, once each; then those of each tenant that is listed.
    pub fn limits(&self) -> Vec<LimitRow<'_>> {
        let shown = self
            .picture()
            .and_then(|(picture, _)| picture.shown.as_ref());
        let Some(shown) = shown else {
            return Vec::new();
        };
        let mut shared: Vec<LimitRow> = Vec::new();
        let mut own = Vec::new();
        for row in self.tenants() {
            for limit in shown.limits.get(&row.tenant).into_iter().flatten() {
                if limit.scope != Scope::Global {
                    let tenant = Some(&row.tenant);
                    own.push(LimitRow { tenant, limit });
                } else if shared.iter().all(|known| !known.is_like(limit)) {
                    let tenant = None;
                    shared.push(LimitRow { tenant, limit });
                }
            }
        }
        shared.sort_by(|one, two| one.limit.name.cmp(&two.limit.name));
        shared.extend(own);
        shared
    }

    /// The limits of `tenant` of which an operator tries another maximum, as far as is seen: their names, and that.
    pub fn tried(&self, tenant: &Tenant) -> impl Iterator<Item = (&str, u32)> {
        let page = self.page.as_ref().filter(|page| page.tenant == *tenant);
        let page = page.and_then(|page| page.glance.known());
        let known: &[Fullness] = match (page, self.picture()) {
            (Some((glance, _)), _) => &glance.limits,
            (None, Some((picture, _))) => {
                let shown = picture.shown.as_ref();
                let known = shown.and_then(|shown| shown.limits.get(tenant));
                known.map_or(&[], Vec::as_slice)
            }
            (None, None) => &[],
        };
        let tried = known.iter().filter(|limit| limit.is_tried);
        tried.map(|limit| (limit.name.as_str(), limit.max))
    }

    /// The names of the rows of the view.
    pub fn rows(&self) -> Vec<String> {
        match self.view {
            View::Fleet => {
                let workers = self.picture().into_iter();
                let workers = workers.flat_map(|(picture, _)| &picture.fleet.view.workers);
                workers.map(|worker| worker.name.clone()).collect()
            }
            View::Tenants => {
                let rows = self.tenants();
                let names = rows.iter().map(|row| row.tenant.as_str().to_owned());
                names.collect()
            }
            View::Limits => {
                let rows = self.limits();
                rows.iter().map(LimitRow::name).collect()
            }
            View::Letters => {
                let listed = self.pipeline().letters.known();
                let number = listed.map_or(0, |(listed, _)| listed.rows.len());
                (0..number).map(|at| at.to_string()).collect()
            }
        }
    }

    /// The place of the row that is meant.
    pub fn place(&self) -> Option<usize> {
        let rows = self.rows();
        self.cursors[self.view as usize].place(rows.iter().map(String::as_str))
    }

    pub(in super::super) fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.view as usize]
    }

    /// The tenant that a key is about.
    pub fn meant(&self) -> Option<Tenant> {
        if let Some(page) = &self.page {
            return Some(page.tenant.clone());
        }
        let at = self.place()?;
        match self.view {
            View::Fleet => None,
            View::Tenants => self.tenants().get(at).map(|row| row.tenant.clone()),
            View::Limits => self.limits().get(at)?.tenant.cloned(),
            View::Letters => {
                let (listed, _) = self.pipeline().letters.known()?;
                Tenant::parse(listed.rows.get(at)?.tenant()?).ok()
            }
        }
    }

    /// The row that is meant stays that row.
    pub(in super::super) fn settle(&mut self) {
        let rows = self.rows();
        self.cursor().settle(&rows);
    }
}
