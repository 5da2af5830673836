//! JSON schemas of the answers of `/api/v1`. Types define them, except for problems and for
//! workers' reports on a job, which workers exchange as well.

use serde_json::{Map, Value, json};

use crate::api::answers::{
    InstructionsAnswer, LettersAnswer, LimitsAnswer, PipelinesAnswer, QueuesAnswer, ShownLetter,
};
use operator::answer::Answer as _;
use operator::audit::AuditPage;
use operator::dead::{Dropped, Replayed};
use operator::divert::{Diverted, Undiverted};
use operator::explain::JobExplanation;
use operator::fleet::{FleetGaps, TenantsPage, WorkersAnswer};
use operator::hold::{Draining, Resumed, StartedPause};
use operator::inspect::InspectionAnswer;
use operator::job::{Canceling, JobState};
use operator::letters::LetterRow;
use operator::limits::LimitAnswer;
use operator::tenant::Changed;

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
        ("Job", JobState::definition()),
        ("Explanation", JobExplanation::definition()),
        ("Instructions", InstructionsAnswer::definition()),
        ("Queues", QueuesAnswer::definition()),
        ("LetterRow", LetterRow::definition()),
        ("Letters", LettersAnswer::definition()),
        ("Letter", ShownLetter::definition()),
        ("Audit", AuditPage::definition()),
        ("Changed", Changed::definition()),
        ("Diverted", Diverted::definition()),
        ("Undiverted", Undiverted::definition()),
        ("Canceling", Canceling::definition()),
        ("Held", held()),
        ("Replayed", Replayed::definition()),
        ("Dropped", Dropped::definition()),
    ]
    .into_iter()
    .map(|(name, schema)| (name.to_owned(), schema))
    .collect();
    all.into()
}

/// Name and type of a field. A type that ends with `?` can be null.
type Field = (&'static str, &'static str);

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
        "waiting", "asking", "running", "done", "canceled", "diverted",
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

/// Returns the schema of one pipeline's answer, or of an object with one answer per pipeline.
fn held() -> Value {
    let one = [
        StartedPause::definition(),
        Resumed::definition(),
        Draining::definition(),
    ];
    let each = json!({"type": "object", "additionalProperties": {"anyOf": one}});
    let several = object(&[("pipelines", each)], &[]);
    json!({"anyOf": [one[0], one[1], one[2], several]})
}
