//! Schemas of the fleet.

use serde_json::Value;

use super::{Field, list, object, refers, strings};

/// Returns the schema of the gaps in a view of the fleet.
pub fn not_known() -> Value {
    let worker = object(&[], &[("name", "string"), ("why", "string")]);
    object(
        &[
            ("silent_workers", strings()),
            ("unread_workers", list(worker)),
            ("unread_servers", strings()),
        ],
        &[("unasked_workers", "integer")],
    )
}

/// Returns the schema of the workers.
pub fn workers() -> Value {
    let fields = &[
        ("name", "string"),
        ("host", "string"),
        ("pid", "integer"),
        ("version", "string"),
        ("pipeline", "string?"),
        ("up_ms", "integer"),
        ("said_ms_ago", "integer"),
        ("ready", "boolean"),
        ("calls_in_flight", "integer"),
        ("worker_slots", "integer"),
        ("saturation", "number"),
        ("starts_per_s", "number"),
        ("denials_per_s", "number"),
        ("jobs_in_memory", "integer"),
        ("jobs_delayed_in_memory", "integer"),
        ("jobs_waiting", "integer"),
        ("quota_idle", "integer"),
    ];
    let one = object(&[("notes", strings())], fields);
    let more = &[("workers", list(one)), ("not_known", refers("NotKnown"))];
    object(more, &[("now_ms", "integer")])
}

const BUSY: &[Field] = &[
    ("waiting_in_memory", "integer"),
    ("calls_in_flight", "integer"),
    ("starts_per_s", "number"),
    ("denials_per_s", "number"),
];

/// Returns the schema of the fleet's tenants.
pub fn tenants() -> Value {
    let fields = &[
        ("tenant", "string"),
        ("waiting", "integer?"),
        ("suspended_until_ms", "integer"),
        ("suspended_by", "string?"),
        ("line_ends_ms", "integer"),
        ("limit", "string?"),
        ("workers", "integer"),
        ("at_least", "boolean"),
    ];
    let one = object(&[], &[BUSY, fields].concat());
    let others = object(&[], &[BUSY, &[("tenants_at_most", "integer?")]].concat());
    let more = &[
        ("tenants", list(one)),
        ("left_out", others),
        ("not_known", refers("NotKnown")),
    ];
    let fields = &[
        ("now_ms", "integer"),
        ("workers", "integer"),
        ("tenants_not_shown", "integer"),
        ("tenants_untold", "string?"),
        ("next_offset", "integer?"),
    ];
    object(more, fields)
}
