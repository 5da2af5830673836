//! The audit: actions of operators.

use askama::Template;
use serde_json::Value;

use super::super::text::{filters, text};
use super::{Pager, ViewRequest, ViewSource, rendered};
use crate::api::ApiProblem;
use operator::audit::{AuditPage, RecordedEntry};

/// Number of rows per page.
const ROWS_PER_PAGE: u64 = 50;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditView {
    entries: Vec<RecordedEntry>,
    pager: Pager,
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
    let next = audit.next.map(|next| next.to_string());
    let view = AuditView {
        entries: audit.entries,
        pager: Pager {
            first: (!before.is_empty()).then(|| asked.query([])),
            next: next.map(|next| asked.query([("before", next.as_str())])),
        },
    };
    rendered(&view)
}
