//! The rows of each view, the selected row, and its tenant.

use operator::fullness::Fullness;
use operator::overview::TenantSelection;
use rules::report::view::Row;
use rules::scope::Scope;
use rules::tenant::Tenant;

use super::{Model, TopView};
use crate::commands::top::cursor::Cursor;

/// Maximum number of tenants that the gate is asked for, as in `tenants`.
const MAX_TENANTS: usize = 100;
/// A row of the limits: a tenant and its limit.
pub struct ListedLimit<'a> {
    /// `None` for a limit that all tenants share.
    pub tenant: Option<&'a Tenant>,
    pub limit: &'a Fullness,
}

impl ListedLimit<'_> {
    /// Returns true if both are the same limit of all tenants.
    fn is_like(&self, other: &Fullness) -> bool {
        let (name, is_shadow) = (&self.limit.name, self.limit.shadow.is_some());
        *name == other.name && is_shadow == other.shadow.is_some()
    }

    /// Returns a name that no other row has.
    fn name(&self) -> String {
        let tenant = self.tenant.map_or("", |tenant| tenant.as_str());
        let shadow = if self.limit.shadow.is_some() { "~" } else { "" };
        format!("{}{shadow} {tenant}", self.limit.name)
    }
}

impl Model {
    pub(super) fn selection(&self) -> TenantSelection {
        TenantSelection {
            sort: self.sort,
            max: MAX_TENANTS,
            name: self.search.clone(),
        }
    }

    /// Returns the listed tenants: those that the gate was asked for and, during a search, all
    /// tenants in the workers' reports.
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
            rows.retain(|row| row.has_in_name(&self.search));
        }
        rows.sort_by(|one, two| self.sort.order(one, two));
        rows
    }

    /// Returns the limits that all tenants share, once each, then those of each listed tenant.
    pub fn limits(&self) -> Vec<ListedLimit<'_>> {
        let shown = self
            .picture()
            .and_then(|(picture, _)| picture.shown.as_ref());
        let Some(shown) = shown else {
            return Vec::new();
        };
        let mut shared: Vec<ListedLimit> = Vec::new();
        let mut own = Vec::new();
        for row in self.tenants() {
            for limit in shown.limits.get(&row.tenant).into_iter().flatten() {
                if limit.scope != Scope::Global {
                    let tenant = Some(&row.tenant);
                    own.push(ListedLimit { tenant, limit });
                } else if shared.iter().all(|known| !known.is_like(limit)) {
                    let tenant = None;
                    shared.push(ListedLimit { tenant, limit });
                }
            }
        }
        shared.sort_by(|one, two| one.limit.name.cmp(&two.limit.name));
        shared.extend(own);
        shared
    }

    /// Returns the limits of `tenant` that an operator tries with another maximum, from the last
    /// answer: their names and these maximums.
    pub fn trials(&self, tenant: &Tenant) -> impl Iterator<Item = (&str, u64)> {
        let page = self.page.as_ref().filter(|page| page.tenant == *tenant);
        let page = page.and_then(|page| page.glance.answer());
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

    /// Returns the names of the view's rows.
    pub fn rows(&self) -> Vec<String> {
        match self.view {
            TopView::Fleet => {
                let workers = self.picture().into_iter();
                let workers = workers.flat_map(|(picture, _)| &picture.fleet.view.workers);
                workers.map(|worker| worker.name.clone()).collect()
            }
            TopView::Tenants => {
                let rows = self.tenants();
                let names = rows.iter().map(|row| row.tenant.as_str().to_owned());
                names.collect()
            }
            TopView::Limits => {
                let rows = self.limits();
                rows.iter().map(ListedLimit::name).collect()
            }
            TopView::DeadLetters => {
                let listed = self.pipeline().letters.answer();
                let number = listed.map_or(0, |(listed, _)| listed.rows.len());
                (0..number).map(|at| at.to_string()).collect()
            }
        }
    }

    /// Returns the index of the selected row.
    pub fn place(&self) -> Option<usize> {
        let rows = self.rows();
        self.cursors[self.view as usize].place(rows.iter().map(String::as_str))
    }

    pub(in super::super) fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.view as usize]
    }

    /// Returns the tenant that keys act on.
    pub fn selected_tenant(&self) -> Option<Tenant> {
        if let Some(page) = &self.page {
            return Some(page.tenant.clone());
        }
        let at = self.place()?;
        match self.view {
            TopView::Fleet => None,
            TopView::Tenants => self.tenants().get(at).map(|row| row.tenant.clone()),
            TopView::Limits => self.limits().get(at)?.tenant.cloned(),
            TopView::DeadLetters => {
                let (listed, _) = self.pipeline().letters.answer()?;
                Tenant::parse(listed.rows.get(at)?.tenant.as_deref()?).ok()
            }
        }
    }

    /// Keeps the selection on its row.
    pub(in super::super) fn settle(&mut self) {
        let rows = self.rows();
        self.cursor().settle(&rows);
    }
}
