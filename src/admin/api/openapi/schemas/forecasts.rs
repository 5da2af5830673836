//! Schemas of forecasts of starts.

use serde_json::{Value, json};

use super::{FOLLOWED, JOB, LETTER, list, object, seen, strings};

/// Returns the schema of the forecast of a tenant's backlog, as things stand and after changes. It
/// is null if the request asks for none.
pub(super) fn what_if() -> Value {
    let ends = || {
        object(
            &[],
            &[
                ("ends_at_ms", "integer"),
                ("ends_in_ms", "integer"),
                ("limit", "string?"),
            ],
        )
    };
    let forecast = object(
        &[
            ("changes", strings()),
            ("now", ends()),
            ("then", ends()),
            ("sure", json!({"enum": ["exact", "estimated"]})),
            ("notes", strings()),
        ],
        &[("waiting", "integer"), ("earlier_by_ms", "integer")],
    );
    json!({"anyOf": [forecast, {"type": "null"}]})
}

/// Returns the schema of the explanation of a job.
pub(super) fn explanation() -> Value {
    let cause = object(
        &[],
        &[
            ("what", "string"),
            ("words", "string"),
            ("until_ms", "integer?"),
        ],
    );
    let own = [
        ("now_ms", "integer"),
        ("place", "integer?"),
        ("waiting", "integer?"),
        ("starts_at_ms", "integer?"),
        ("starts_in_ms", "integer?"),
        ("promised_at_ms", "integer?"),
        ("why", "string"),
    ];
    let letter = object(&[], &[LETTER, &[("queue", "string")]].concat());
    let looked = [
        ("queue", "string?"),
        ("looked_at", "integer"),
        ("not_looked_at", "integer?"),
        ("unread", "string?"),
    ];
    let or_null = |it: Value| json!({"anyOf": [it, {"type": "null"}]});
    object(
        &[
            ("seen", seen()),
            ("dead_letter", or_null(letter)),
            ("dead_letters", or_null(object(&[], &looked))),
            ("waits_for", list(cause)),
            ("sure", json!({"enum": ["exact", "estimated", "unknown"]})),
        ],
        &[FOLLOWED, JOB, &own].concat(),
    )
}
