//! The audit: actions of operators.

use askama::Template;
use serde_json::{Map, Value};

use super::super::api_answers::{AuditJson, EntryJson};
use super::super::text::{ShownTime, number, text};
use super::{Pager, ViewRequest, ViewSource, rendered};
use crate::admin::api::ApiProblem;

/// Number of rows per page.
const ROWS_PER_PAGE: u64 = 50;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditView {
    rows: Vec<AuditRow>,
    pager: Pager,
}

struct AuditRow {
    number: String,
    at: ShownTime,
    operator: String,
    peer: String,
    action: String,
    what: String,
    failed: Option<String>,
}

/// Describes an action's object and parameters: `tenant acme, for 1h`.
fn describe(of: &Map<String, Value>, request: &Value) -> String {
    let none = Map::new();
    let asked = request.as_object().unwrap_or(&none);
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(string) => format!("{name} {string}"),
        other => format!("{name} {other}"),
    };
    let words: Vec<String> = of.iter().chain(asked).map(word).collect();
    text(&words.join(", "))
}

pub(super) async fn html(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let (limit, before) = (ROWS_PER_PAGE.to_string(), asked.value("before"));
    let query = asked.query([("limit", limit.as_str()), ("before", before)]);
    let audit: AuditJson = source.read("/audit", &query).await?;
    let row = |entry: &EntryJson| AuditRow {
        number: number(entry.number),
        at: ShownTime::dated(entry.at_ms),
        operator: text(&entry.operator),
        peer: text(&entry.peer),
        action: text(&entry.action),
        what: describe(&entry.of, &entry.request),
        failed: entry.failed.as_deref().map(text),
    };
    let next = audit.next.map(|next| next.to_string());
    let view = AuditView {
        rows: audit.entries.iter().map(row).collect(),
        pager: Pager {
            first: (!before.is_empty()).then(|| asked.query([])),
            next: next.map(|next| asked.query([("before", next.as_str())])),
        },
    };
    rendered(&view)
}
