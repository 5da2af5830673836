//! JSON schemas of the answers of `/api/v1`.

mod fleet;
mod forecasts;
mod instructions;

use serde_json::{Map, Value, json};

/// Returns all schemas, by name.
pub fn all() -> Value {
    let all: Map<String, Value> = [
        ("Problem", problem()),
        ("OpenApi", json!({"type": "object"})),
        ("Pipelines", pipelines()),
        ("Limit", object(&[], LIMIT)),
        ("Limits", limits()),
        ("NotKnown", fleet::not_known()),
        ("Workers", fleet::workers()),
        ("Tenants", fleet::tenants()),
        ("Tenant", tenant()),
        ("Sighting", sighting()),
        ("Job", job()),
        ("Explanation", forecasts::explanation()),
        ("Instructions", instructions::all()),
        ("Queues", queues()),
        ("LetterRow", object(&[], LETTER)),
        ("Letters", letters()),
        ("Letter", letter()),
        ("Audit", audit()),
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

const LIMIT: &[Field] = &[
    ("name", "string"),
    ("algorithm", "string"),
    ("max_requests", "integer"),
    ("window_ms", "integer"),
    ("calendar", "string?"),
    ("burst", "integer?"),
    ("unit", "string"),
    ("guard", "string"),
    ("guard_ms", "integer?"),
    ("scope", "string"),
    ("shadow", "boolean"),
    ("worst_case", "integer"),
    ("adaptive", "string?"),
];

const TRIED: &[Field] = &[
    ("used", "integer?"),
    ("since_ms", "integer?"),
    ("starts", "integer?"),
    ("would_have_waited", "integer?"),
    ("would_have_waited_share", "number?"),
    ("would_never_have_started", "integer?"),
    ("longest_wait_ms", "integer?"),
    ("behind_ms", "integer?"),
    ("set_until_ms", "integer?"),
];

const USED: &[Field] = &[
    ("configured_max_requests", "integer"),
    ("operator_max_requests", "integer?"),
    ("override_until_ms", "integer"),
    ("used", "integer?"),
    ("used_by_calls", "integer?"),
    ("free", "integer?"),
    ("next_in_ms", "integer?"),
    ("waiting", "integer?"),
    ("learned", "object?"),
];

const LETTER: &[Field] = &[
    ("id", "string?"),
    ("tenant", "string?"),
    ("reason", "string"),
    ("bytes", "integer"),
    ("died_ms", "integer?"),
    ("attempt", "integer?"),
    ("waits", "integer?"),
    ("published_ms", "integer?"),
    ("first_call_ms", "integer?"),
];

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

fn strings() -> Value {
    list(json!({"type": "string"}))
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

fn pipelines() -> Value {
    let fields = &[
        ("pipeline", "string"),
        ("ready", "boolean"),
        ("queue", "string?"),
    ];
    let one = object(&[("lines", strings())], fields);
    object(&[("pipelines", list(one))], &[])
}

fn limits() -> Value {
    let all = || list(refers("Limit"));
    let plan = object(&[("limits", all())], &[("plan", "string")]);
    let none = json!({"type": "null"});
    let own = object(
        &[("limits", json!({"anyOf": [all(), none]}))],
        &[("tenant", "string"), ("plan", "string?")],
    );
    object(
        &[
            ("limits", all()),
            ("plans", list(plan)),
            ("tenants", list(own)),
            ("differing_keys", strings()),
        ],
        &[
            ("plan_header", "string?"),
            ("tenants_in_all", "integer"),
            ("next_offset", "integer?"),
            ("in_force", "boolean"),
            ("other_configurations", "integer"),
        ],
    )
}

fn tenant() -> Value {
    let limit = object(&[], &[LIMIT, USED].concat());
    let shadow = object(&[], &[LIMIT, TRIED].concat());
    let exceeded = object(
        &[],
        &[
            ("allowed", "integer?"),
            ("limit", "string?"),
            ("max_requests", "integer?"),
            ("warning", "string"),
        ],
    );
    let mut advertised = object(&[], &[("limit", "integer"), ("window_ms", "integer?")]);
    advertised["properties"]["exceeded"] = exceeded;
    let other = object(
        &[("limits", strings()), ("differing_keys", strings())],
        &[
            ("policy", "string"),
            ("since_ms", "integer"),
            ("used_ms", "integer"),
            ("until_ms", "integer"),
        ],
    );
    object(
        &[
            ("labels", json!({"type": "object"})),
            ("labels_missing", strings()),
            ("limits", list(limit)),
            ("shadows", list(shadow)),
            ("waiting_by_level", json!({"type": "object"})),
            ("held", json!({"enum": ["pause", "drain", null]})),
            ("advertised", list(advertised)),
            ("other_configurations", list(other)),
            ("other_configurations_unread", strings()),
            ("what_if", forecasts::what_if()),
        ],
        &[
            ("tenant", "string"),
            ("source", "string"),
            ("now_ms", "integer"),
            ("waiting", "integer?"),
            ("waitlist_end_in_ms", "integer?"),
            ("new_job_in_ms", "integer?"),
            ("recovery_wait_until_ms", "integer?"),
            ("recovery_wait_reason", "string?"),
            ("suspended_until_ms", "integer"),
            ("suspended_by", "string"),
            ("all_suspended_until_ms", "integer?"),
            ("all_suspended_by", "string?"),
            ("all_suspended_unread", "string?"),
            ("diverted_to", "string?"),
            ("waits_for", "string?"),
            ("reason", "string"),
            ("advertised_at_ms", "integer"),
            ("redis_round_trip_ms", "integer"),
            ("in_force", "boolean"),
        ],
    )
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

fn queues() -> Value {
    let holds = json!({"enum": ["new", "due", "recheck", "delay", "dead"]});
    let one = object(
        &[("holds", holds)],
        &[("queue", "string"), ("jobs", "integer")],
    );
    object(&[("queues", list(one))], &[])
}

fn letters() -> Value {
    let fields = [
        ("found", "integer"),
        ("not_looked_at", "integer"),
        ("next_offset", "integer?"),
    ];
    object(&[("letters", list(refers("LetterRow")))], &fields)
}

fn letter() -> Value {
    object(
        &[
            ("headers", json!({"type": "object"})),
            ("encoding", json!({"enum": ["utf-8", "hex"]})),
        ],
        &[
            ("id", "string?"),
            ("tenant", "string?"),
            ("reason", "string"),
            ("content_type", "string?"),
            ("body", "string"),
            ("bytes", "integer"),
            ("truncated", "boolean"),
        ],
    )
}

fn audit() -> Value {
    let mut entry = object(
        &[("of", json!({"type": "object"}))],
        &[
            ("number", "integer"),
            ("at_ms", "integer"),
            ("operator", "string"),
            ("peer", "string"),
            ("action", "string"),
            ("request", "object?"),
        ],
    );
    entry["properties"]["failed"] = json!({"type": "string"});
    entry["properties"]["too_long"] = json!({"const": true});
    object(&[("entries", list(entry))], &[("next", "integer?")])
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
