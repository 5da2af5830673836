//! Schemas of operators' instructions to all workers.

use serde_json::{Value, json};

use super::{list, object};

pub(super) fn all() -> Value {
    let diverted = object(
        &[],
        &[
            ("tenant", "string"),
            ("queue", "string"),
            ("until_ms", "integer"),
        ],
    );
    let tried = object(
        &[],
        &[
            ("tenant", "string"),
            ("limit", "string"),
            ("max_requests", "integer"),
            ("until_ms", "integer"),
        ],
    );
    let cancelled = object(
        &[],
        &[
            ("tenant", "string"),
            ("id", "string"),
            ("until_ms", "integer"),
        ],
    );
    object(
        &[
            ("held", json!({"enum": ["pause", "drain", null]})),
            ("diverted", list(diverted)),
            ("cancelled", list(cancelled)),
            ("tried", list(tried)),
        ],
        &[("now_ms", "integer?"), ("held_until_ms", "integer?")],
    )
}
