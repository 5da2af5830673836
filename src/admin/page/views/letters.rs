//! Dead letters: the list, and a single one with its body.

use askama::Template;
use serde_json::Value;

use super::super::text::{filters, query};
use super::{Pager, ViewRequest, ViewSource, part, rendered};
use crate::api::ApiProblem;
use crate::api::answers::{LettersAnswer, ShownLetter};
use operator::letters::LetterRow;

/// Number of rows per page.
const ROWS_PER_PAGE: u64 = 50;
/// Maximum number of characters shown of a body. `/api/v1` returns the whole body.
const MAX_BODY_CHARS: usize = 64 * 1_024;

#[derive(Template)]
#[template(path = "letters.html")]
struct LettersView<'a> {
    asked: &'a ViewRequest,
    pipeline: &'a str,
    reason: &'a str,
    tenant: &'a str,
    id: &'a str,
    page: LettersAnswer,
    first: u64,
    last: u64,
    /// Query for links to actions on all listed dead letters.
    these: String,
    is_filtered: bool,
    pager: Pager,
}

impl LettersView<'_> {
    /// Returns a query for the page of a dead letter.
    fn of_letter(&self, it: &LetterRow) -> String {
        let tenant = it.tenant.as_deref();
        self.asked.query([
            ("id", it.id.as_deref().unwrap_or_default()),
            ("tenant", tenant.unwrap_or_default()),
            ("no-tenant", no_tenant(tenant)),
        ])
    }
}

/// Returns the value of `no-tenant` in a link to a dead letter: two tenants may use one ID, and so
/// may messages without a tenant.
fn no_tenant(tenant: Option<&str>) -> &'static str {
    match tenant.unwrap_or_default() {
        "" => "true",
        _ => "",
    }
}

pub(super) async fn list(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let [reason, tenant, id] = ["reason", "tenant", "id"].map(|name| asked.value(name));
    let offset = asked.number("offset");
    let (limit, passed) = (ROWS_PER_PAGE.to_string(), offset.to_string());
    let filter = [("reason", reason), ("tenant", tenant), ("id", id)];
    let more = [("limit", limit.as_str()), ("offset", passed.as_str())];
    let asking = asked.query(filter.into_iter().chain(more));
    let page: LettersAnswer = source.read("/dead/letters", &asking).await?;
    let shown = page.letters.len() as u64;
    let next = page.next_offset.map(|next| next.to_string());
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let view = LettersView {
        asked,
        pipeline,
        reason,
        tenant,
        id,
        page,
        first: offset + shown.min(1),
        last: offset + shown,
        these: query(filter.into_iter().chain([("pipeline", pipeline)])),
        is_filtered: filter.iter().any(|(_, value)| !value.is_empty()),
        pager: Pager {
            first: (offset > 0).then(|| asked.query(filter)),
            next: next
                .map(|next| asked.query(filter.into_iter().chain([("offset", next.as_str())]))),
        },
    };
    rendered(&view)
}

#[derive(Template)]
#[template(path = "letter.html")]
struct LetterView<'a> {
    asked: &'a ViewRequest,
    letter: &'a ShownLetter,
    id: &'a str,
    /// Query for the link to all dead letters.
    all: String,
    of_it: String,
    body: String,
    is_cut: bool,
}

pub(super) async fn one(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let id = asked.value("id");
    let path = format!("/dead/letters/{}", part(id));
    let of_tenant = ["tenant", "no-tenant"].map(|name| (name, asked.value(name)));
    let of_tenant = asked.query(of_tenant);
    let letter: ShownLetter = source.read(&path, &of_tenant).await?;
    let tenant = letter.tenant.as_deref().unwrap_or_default();
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let cut = letter.body.char_indices().nth(MAX_BODY_CHARS);
    let body = cut.map_or(letter.body.as_str(), |(at, _)| &letter.body[..at]);
    let view = LetterView {
        asked,
        letter: &letter,
        id: letter.id.as_deref().unwrap_or(id),
        all: asked.query([]),
        of_it: query([
            ("id", id),
            ("tenant", tenant),
            ("no-tenant", no_tenant(Some(tenant))),
            ("pipeline", pipeline),
        ]),
        body: readable(body),
        is_cut: letter.truncated || cut.is_some(),
    };
    rendered(&view)
}

/// Returns the value of a header.
fn value(header: &Value) -> String {
    match header {
        Value::String(string) => string.clone(),
        other => other.to_string(),
    }
}

/// Returns `body` with its lines, and with invisible characters escaped.
fn readable(body: &str) -> String {
    let lines = body.split('\n');
    let shown: Vec<String> = lines
        .map(|line| {
            let line = line.replace('\t', "    ");
            operator::text::plain(&line, usize::MAX)
        })
        .collect();
    shown.join("\n")
}
