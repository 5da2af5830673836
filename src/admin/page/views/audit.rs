//! The audit: actions of operators.

use askama::Template;
use serde_json::Value;

use super::super::text::{ShownTime, number, text};
use super::{Pager, ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use operator::audit::{AuditPage, RecordedEntry};

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
fn describe(entry: &RecordedEntry) -> String {
    let asked = entry.request.iter().flatten();
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(string) => format!("{name} {string}"),
        other => format!("{name} {other}"),
    };
    let words: Vec<String> = entry.of.iter().chain(asked).map(word).collect();
    text(&words.join(", "))
}

pub(super) async fn html(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let (limit, before) = (ROWS_PER_PAGE.to_string(), asked.value("before"));
    let query = asked.query([("limit", limit.as_str()), ("before", before)]);
    let audit: AuditPage = source.read("/audit", &query).await?;
    let row = |entry: &RecordedEntry| AuditRow {
        number: number(entry.number),
        at: ShownTime::dated(entry.at_ms),
        operator: text(&entry.operator),
        peer: text(&entry.peer),
        action: text(&entry.action),
        what: describe(entry),
        failed: entry.failed.0.as_deref().map(text),
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
