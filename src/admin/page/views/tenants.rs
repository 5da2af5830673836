//! The busiest tenants, in pages.

use askama::Template;

use super::super::text::{ShownName, ShownTime, decimal, number, text};
use super::{Pager, ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use operator::fleet::{TenantAnswer, TenantsPage};
use operator::text::count;

/// Number of rows per page.
const ROWS_PER_PAGE: u64 = 50;

/// Sort orders, with the titles of their columns.
const SORTS: [(&str, &str); 4] = [
    ("waiting", "Waiting"),
    ("closed", "Suspended"),
    ("denied", "Denied /s"),
    ("starts", "Starts /s"),
];

/// A tenant in a list.
pub(super) struct TenantRow {
    pub name: ShownName,
    /// Query of the tenant's page.
    pub link: String,
    pub waiting: String,
    pub running: String,
    pub starts: String,
    pub denials: String,
    pub limit: Option<String>,
    pub suspended: Option<ShownTime>,
    pub suspended_by: Option<String>,
    pub empty: Option<ShownTime>,
    pub at_least: bool,
}

pub(super) fn rows(asked: &ViewRequest, now_ms: u64, tenants: &[TenantAnswer]) -> Vec<TenantRow> {
    let row = |it: &TenantAnswer| TenantRow {
        link: asked.query([("name", it.tenant.as_str())]),
        name: ShownName::new(&it.tenant),
        waiting: number(it.waiting.unwrap_or(0).max(it.waiting_in_memory)),
        running: number(it.calls_in_flight),
        starts: decimal(it.starts_per_s),
        denials: decimal(it.denials_per_s),
        limit: it.limit.as_deref().map(text),
        suspended: ShownTime::end_if(now_ms, it.suspended_until_ms),
        suspended_by: it.suspended_by.as_deref().map(text),
        empty: ShownTime::end_if(now_ms, it.line_ends_ms),
        at_least: it.at_least,
    };
    tenants.iter().map(row).collect()
}

/// A column by which the list can be sorted.
struct SortColumn {
    name: &'static str,
    link: String,
    is_sorted: bool,
}

#[derive(Template)]
#[template(path = "tenants.html")]
struct TenantsView {
    now: ShownTime,
    search: String,
    sort: String,
    pipeline: String,
    columns: Vec<SortColumn>,
    rows: Vec<TenantRow>,
    first: u64,
    last: u64,
    all: String,
    workers: String,
    left_out: Option<String>,
    gate_failure: Option<String>,
    troubles: Vec<String>,
    /// Query of the page of the tenant whose name is the search text.
    exact: String,
    pager: Pager,
}

pub(super) async fn html(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let (search, offset) = (asked.value("search"), asked.number("offset"));
    let known = SORTS.iter().find(|(sort, _)| *sort == asked.value("sort"));
    let (sort, _) = known.unwrap_or(&SORTS[0]);
    let (rows_of_page, offset_said) = (ROWS_PER_PAGE.to_string(), offset.to_string());
    let query = asked.query([
        ("sort", *sort),
        ("search", search),
        ("limit", rows_of_page.as_str()),
        ("offset", offset_said.as_str()),
    ]);
    let answer: TenantsPage = source.read("/tenants", &query).await?;
    let address = |sort: &str, offset: u64| {
        let offset = match offset {
            0 => String::new(),
            offset => offset.to_string(),
        };
        asked.query([
            ("sort", sort),
            ("search", search),
            ("offset", offset.as_str()),
        ])
    };
    let shown = answer.tenants.len() as u64;
    let view = TenantsView {
        now: ShownTime::now(answer.now_ms),
        search: search.to_owned(),
        sort: (*sort).to_owned(),
        pipeline: asked.pipeline.clone().unwrap_or_default(),
        columns: SORTS
            .iter()
            .map(|(by, name)| SortColumn {
                name,
                link: address(by, 0),
                is_sorted: by == sort,
            })
            .collect(),
        rows: rows(asked, answer.now_ms, &answer.tenants),
        first: offset + shown.min(1),
        last: offset + shown,
        all: number(offset + shown + answer.tenants_not_shown),
        workers: count(answer.workers, "worker"),
        left_out: match answer.left_out.tenants_at_most {
            Some(0) => None,
            Some(more) => Some(format!(
                "at most {} more that workers do not name, with {} jobs waiting in memory",
                number(more),
                number(answer.left_out.waiting_in_memory)
            )),
            None => Some("more than workers distinguish".to_owned()),
        },
        gate_failure: answer.gate_failure.as_deref().map(text),
        troubles: answer.not_known.describe(),
        exact: asked.query([("name", search)]),
        pager: Pager {
            first: (offset > 0).then(|| address(sort, 0)),
            next: answer.next_offset.map(|next| address(sort, next)),
        },
    };
    rendered(&view)
}
