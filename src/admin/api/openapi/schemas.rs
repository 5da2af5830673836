//! JSON schemas of the answers of `/api/v1`. Types define most of them; others, such as the answers
//! to actions, are written by hand.

use serde_json::{Map, Value, json};

use crate::admin::api::answers::{
    InstructionsAnswer, LettersAnswer, LimitsAnswer, PipelinesAnswer, QueuesAnswer, ShownLetter,
};
use crate::operator::answer::{Answer as _, Schema as _};
use crate::operator::audit::AuditPage;
use crate::operator::explain::letters::LetterInQueue;
use crate::operator::fleet::{FleetGaps, TenantsPage, WorkersAnswer};
use crate::operator::inspect::InspectionAnswer;
use crate::operator::letters::LetterRow;
use crate::operator::limits::LimitAnswer;

/// Returns all schemas, by name.
pub fn all() -> Value {
    let all: Map<String, Value> = [
        ("Problem", problem()),
        ("OpenApi", json!({"type": "object"})),
        ("Pipelines", PipelinesAnswer::definition()),
        ("Limit", LimitAnswer::definition()),
        ("Limits", LimitsAnswer::definition()),
        ("NotKnown", FleetGaps::definition()),
        ("Workers", WorkersAnswer::definition()),
        ("Tenants", TenantsPage::definition()),
        ("Tenant", InspectionAnswer::definition()),
        ("Sighting", sighting()),
        ("Job", job()),
        ("Explanation", explanation()),
        ("Instructions", InstructionsAnswer::definition()),
        ("Queues", QueuesAnswer::definition()),
        ("LetterRow", LetterRow::definition()),
        ("Letters", LettersAnswer::definition()),
        ("Letter", ShownLetter::definition()),
        ("Audit", AuditPage::definition()),
        ("Changed", changed()),
        (
            "Diverted",
            object(
                &[("change", json!({"const": "divert"}))],
                &[
                    FOLLOWED,
                    &[
                        ("tenant", "string"),
                        ("queue", "string"),
                        ("until_ms", "integer"),
                    ],
                ]
                .concat(),
            ),
        ),
        ("Undiverted", undiverted()),
        ("Cancelling", cancelling()),
        ("Held", held()),
        (
            "Replayed",
            object(
                &[],
                &[
                    ("replayed", "integer"),
                    ("refused", "integer"),
                    ("interrupted", "boolean"),
                ],
            ),
        ),
        (
            "Dropped",
            object(
                &[],
                &[
                    ("dropped", "integer"),
                    ("refused", "integer"),
                    ("interrupted", "boolean"),
                ],
            ),
        ),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect();
    all.into()
}

/// Name and type of a field. A type that ends with `?` can be null.
type Field = (&'static str, &'static str);

const FOLLOWED: &[Field] = &[("workers", "integer"), ("workers_following", "integer")];

fn schema_of_type(name: &str) -> Value {
    match name.strip_suffix('?') {
        Some(name) => json!({"type": [name, "null"]}),
        None => json!({"type": name}),
    }
}

/// Returns the schema of an object with exactly these fields.
fn object(more: &[(&str, Value)], fields: &[Field]) -> Value {
    let plain = fields.iter().map(|(name, of)| (*name, schema_of_type(of)));
    let all = plain.chain(more.iter().cloned());
    let properties: Map<String, Value> = all.map(|(name, of)| (name.to_owned(), of)).collect();
    let required: Vec<String> = properties.keys().cloned().collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn list(of: Value) -> Value {
    json!({"type": "array", "items": of})
}

fn refers(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn problem() -> Value {
    let mut problem = object(
        &[],
        &[
            ("type", "string"),
            ("title", "string"),
            ("status", "integer"),
            ("detail", "string"),
        ],
    );
    problem["properties"]["pipelines"] = json!({"type": "object"});
    problem
}

/// Returns the schema of a worker's report on a job.
fn sighting() -> Value {
    let states = [
        "waiting",
        "asking",
        "running",
        "done",
        "cancelled",
        "diverted",
    ];
    let waits = object(
        &[("labels", json!({"type": "object"}))],
        &[
            ("what", "string"),
            ("plan", "string?"),
            ("generation", "integer?"),
            ("promised_ms", "integer?"),
        ],
    );
    object(
        &[
            ("state", json!({"enum": states})),
            ("waits", json!({"anyOf": [waits, {"type": "null"}]})),
        ],
        &[
            ("cancel", "integer?"),
            ("show", "integer?"),
            ("at_ms", "integer"),
            ("attempt", "integer"),
            ("cost", "integer"),
            ("queue", "string"),
            ("here_ms", "integer"),
            ("wait_ms", "integer?"),
            ("ticket", "integer?"),
            ("limit", "string?"),
        ],
    )
}

fn seen() -> Value {
    json!({"anyOf": [refers("Sighting"), {"type": "null"}]})
}

const JOB: &[Field] = &[
    ("tenant", "string"),
    ("id", "string"),
    ("looked_at_within_ms", "integer"),
];

fn job() -> Value {
    object(&[("seen", seen())], &[FOLLOWED, JOB].concat())
}

/// Returns the schema of the explanation of a job.
fn explanation() -> Value {
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
    let looked = [
        ("queue", "string?"),
        ("looked_at", "integer"),
        ("not_looked_at", "integer?"),
        ("unread", "string?"),
    ];
    object(
        &[
            ("seen", seen()),
            ("dead_letter", Option::<LetterInQueue>::schema()),
            (
                "dead_letters",
                json!({"anyOf": [object(&[], &looked), {"type": "null"}]}),
            ),
            ("waits_for", list(cause)),
            ("sure", json!({"enum": ["exact", "estimated", "unknown"]})),
        ],
        &[FOLLOWED, JOB, &own].concat(),
    )
}

fn changed() -> Value {
    let change = [
        "pause", "resume", "limit", "clear", "try", "end-try", "reset",
    ];
    json!({
        "type": "object",
        "properties": {
            "tenant": {"type": ["string", "null"]},
            "change": {"enum": change},
            "limit": {"type": "string"},
            "max_requests": {"type": "integer"},
            "until_ms": {"type": "integer"},
            "workers": {"type": "integer"},
            "workers_following": {"type": "integer"},
        },
        "required": ["tenant", "change"],
        "additionalProperties": false,
    })
}

fn undiverted() -> Value {
    let change = [("change", json!({"const": "undivert"}))];
    let mut undiverted = object(&change, &[FOLLOWED, &[("tenant", "string")]].concat());
    undiverted["properties"]["back"] = refers("Replayed");
    undiverted
}

fn cancelling() -> Value {
    let states = ["cancelled", "done", "running", "requested", "undone"];
    let state = [("state", json!({"enum": states}))];
    let mut cancelling = object(
        &state,
        &[FOLLOWED, &[("tenant", "string"), ("id", "string")]].concat(),
    );
    for (name, of) in [
        ("until_ms", schema_of_type("integer")),
        ("looked_at_within_ms", schema_of_type("integer")),
        ("seen", seen()),
    ] {
        cancelling["properties"][name] = of;
    }
    cancelling
}

/// Returns the schema of one pipeline's answer, or of an object with one answer per pipeline.
fn held() -> Value {
    let all = |word: &str| ("all", json!({"const": word}));
    let until = ("until_ms", "integer");
    let left = ["calls_in_flight", "jobs_in_memory", "jobs_in_delay_queues"];
    let left: Vec<Field> = left.into_iter().map(|name| (name, "integer")).collect();
    let was = ("was", json!({"enum": ["pause", "drain", null]}));
    let one = [
        object(
            &[all("paused")],
            &[FOLLOWED, &[until, ("calls_in_flight", "integer")]].concat(),
        ),
        object(&[all("resumed"), was], FOLLOWED),
        object(
            &[all("draining"), ("left", object(&[], &left))],
            &[
                FOLLOWED,
                &[
                    until,
                    ("empty", "boolean?"),
                    ("jobs_in_work_queue", "integer"),
                ],
            ]
            .concat(),
        ),
    ];
    let each = json!({"type": "object", "additionalProperties": {"anyOf": one}});
    let several = object(&[("pipelines", each)], &[]);
    json!({"anyOf": [one[0], one[1], one[2], several]})
}
