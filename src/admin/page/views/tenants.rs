//! The busiest tenants, in pages.

use askama::Template;

use super::super::text::{filters, number};
use super::{Pager, ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use operator::fleet::TenantsPage;
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

/// A column by which the list can be sorted.
struct SortColumn {
    name: &'static str,
    link: String,
    is_sorted: bool,
}

#[derive(Template)]
#[template(path = "tenants.html")]
struct TenantsView<'a> {
    asked: &'a ViewRequest,
    answer: &'a TenantsPage,
    now_ms: u64,
    search: &'a str,
    sort: &'static str,
    pipeline: &'a str,
    columns: Vec<SortColumn>,
    first: u64,
    last: u64,
    all: String,
    workers: String,
    left_out: Option<String>,
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
        asked,
        answer: &answer,
        now_ms: answer.now_ms,
        search,
        sort,
        pipeline: asked.pipeline.as_deref().unwrap_or_default(),
        columns: SORTS
            .iter()
            .map(|(by, name)| SortColumn {
                name,
                link: address(by, 0),
                is_sorted: by == sort,
            })
            .collect(),
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
        pager: Pager {
            first: (offset > 0).then(|| address(sort, 0)),
            next: answer.next_offset.map(|next| address(sort, next)),
        },
    };
    rendered(&view)
}
