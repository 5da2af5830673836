//! Dead letters: the list, and a single one with its body.

use askama::Template;
use serde_json::Value;

use super::super::api_answers::{LetterJson, LetterRowJson, LettersJson};
use super::super::text::{ShownName, ShownTime, number, query, text};
use super::{Pager, ViewRequest, ViewSource, part, rendered};
use crate::admin::api::ApiProblem;

/// Number of rows per page.
const ROWS_PER_PAGE: u64 = 50;
/// Maximum number of characters shown of a body. `/api/v1` returns the whole body.
const MAX_BODY_CHARS: usize = 64 * 1_024;

#[derive(Template)]
#[template(path = "letters.html")]
struct LettersView {
    pipeline: String,
    reason: String,
    tenant: String,
    id: String,
    rows: Vec<LetterLine>,
    found: String,
    not_looked_at: Option<String>,
    first: u64,
    last: u64,
    /// Query for links to actions on all listed dead letters.
    these: String,
    is_filtered: bool,
    pager: Pager,
}

struct LetterLine {
    id: Option<ShownName>,
    link: String,
    tenant: Option<ShownName>,
    tenant_link: String,
    reason: String,
    died: Option<ShownTime>,
    attempt: String,
    waits: String,
    bytes: String,
}

fn row(asked: &ViewRequest, it: &LetterRowJson) -> LetterLine {
    let some = |text: &Option<String>| text.clone().unwrap_or_default();
    LetterLine {
        link: asked.query([("id", some(&it.id).as_str())]),
        tenant_link: asked.query([("name", some(&it.tenant).as_str())]),
        id: it.id.as_deref().map(ShownName::new),
        tenant: it.tenant.as_deref().map(ShownName::new),
        reason: text(&it.reason),
        died: it.died_ms.map(ShownTime::dated),
        attempt: it.attempt.map_or_else(|| "–".to_owned(), number),
        waits: number(it.waits),
        bytes: number(it.bytes),
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
    let told: LettersJson = source.read("/dead/letters", &asking).await?;
    let shown = told.letters.len() as u64;
    let next = told.next_offset.map(|next| next.to_string());
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let view = LettersView {
        pipeline: pipeline.to_owned(),
        reason: reason.to_owned(),
        tenant: tenant.to_owned(),
        id: id.to_owned(),
        rows: told.letters.iter().map(|it| row(asked, it)).collect(),
        found: number(told.found),
        not_looked_at: (told.not_looked_at > 0).then(|| number(told.not_looked_at)),
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
struct LetterView {
    id: ShownName,
    of_it: String,
    tenant: Option<ShownName>,
    tenant_link: String,
    reason: String,
    content_type: Option<String>,
    headers: Vec<(String, String)>,
    is_text: bool,
    body: String,
    bytes: String,
    is_cut: bool,
}

pub(super) async fn one(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let id = asked.value("id");
    let path = format!("/dead/letters/{}", part(id));
    let told: LetterJson = source.read(&path, &asked.query([])).await?;
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let cut = told.body.char_indices().nth(MAX_BODY_CHARS);
    let body = cut.map_or(told.body.as_str(), |(at, _)| &told.body[..at]);
    let value = |value: &Value| match value {
        Value::String(said) => text(said),
        other => text(&other.to_string()),
    };
    let view = LetterView {
        id: ShownName::new(told.id.as_deref().unwrap_or(id)),
        of_it: query([("id", id), ("pipeline", pipeline)]),
        tenant_link: asked.query([("name", told.tenant.as_deref().unwrap_or_default())]),
        tenant: told.tenant.as_deref().map(ShownName::new),
        reason: text(&told.reason),
        content_type: told.content_type.as_deref().map(text),
        headers: (told.headers.iter())
            .map(|(name, said)| (text(name), value(said)))
            .collect(),
        is_text: told.encoding == "utf-8",
        body: readable(body),
        bytes: number(told.bytes),
        is_cut: told.truncated || cut.is_some(),
    };
    rendered(&view)
}

/// Returns `body` with its lines, and with invisible characters escaped.
fn readable(body: &str) -> String {
    let lines = body.split('\n');
    let shown: Vec<String> = lines
        .map(|line| {
            let line = line.replace('\t', "    ");
            crate::operator::text::plain(&line, usize::MAX)
        })
        .collect();
    shown.join("\n")
}
