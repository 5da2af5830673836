//! `dispatch.http.answers` and `dispatch.http.cost` as they are shown, and their JSON schemas.

use serde_json::{Value as Json, json};

use super::answers::{MAX_PARTS, MAX_RULES, MAX_TEXT_BYTES, MAX_WAIT, MIN_WAIT, SCOPES};
use crate::reading::shown_value::{QuotedScalar, ShownValue};
use crate::shape;
use crate::values::header::HTTP_NAME;
use rules::answers::{
    AnswerRule, Answers, Conditions, Consequence, ExpectedValue, TimeForm, ValueSource, ValueTest,
    WaitSource,
};
use rules::named::Named;

/// Returns the configured meanings, or `None` if there are none.
pub(crate) fn answers(answers: &Answers) -> Option<ShownValue> {
    let rules = &answers.rules().rules;
    if !rules.is_empty() {
        return Some(ShownValue::List(rules.iter().map(rule).collect()));
    }
    let own = answers.own();
    let own = own.map(|(which, meaning)| (which, ShownValue::bare(meaning.name())));
    (own.len() > 0).then(|| ShownValue::names(own))
}

/// Returns the configured sources of the cost, or `None` if there are none.
pub(crate) fn cost(answers: &Answers) -> Option<ShownValue> {
    let cost = &answers.rules().cost;
    let sources = cost.iter().map(|from| ShownValue::map([source(from)]));
    (!cost.is_empty()).then(|| ShownValue::List(sources.collect()))
}

fn rule(rule: &AnswerRule) -> ShownValue {
    let AnswerRule {
        when,
        means,
        stops_all,
        wait,
        why,
    } = rule;
    let scope = SCOPES.iter().find(|(_, all)| Some(*all) == *stops_all);
    let parts = [
        Some(("when", conditions(when))),
        Some(("means", ShownValue::bare(means.name()))),
        scope.map(|(name, _)| ("scope", ShownValue::bare(name))),
        (!wait.is_empty()).then(|| {
            (
                "wait",
                ShownValue::List(wait.iter().map(wait_source).collect()),
            )
        }),
        (!why.is_empty()).then(|| ("why", ShownValue::text(why))),
    ];
    ShownValue::map(parts.into_iter().flatten())
}

fn conditions(when: &Conditions) -> ShownValue {
    let status: Vec<String> = when.status.iter().map(ToString::to_string).collect();
    let headers = when
        .headers
        .iter()
        .map(|(name, test)| (name, value_test(test)));
    let body = when
        .body
        .iter()
        .map(|(place, test)| (place, value_test(test)));
    let parts = [
        (!status.is_empty()).then(|| {
            let text = format!("[{}]", status.join(", "));
            ("status", ShownValue::bare(text))
        }),
        (headers.len() > 0).then(|| ("headers", ShownValue::names(headers))),
        (body.len() > 0).then(|| ("body", ShownValue::names(body))),
    ];
    ShownValue::map(parts.into_iter().flatten())
}

fn value_test(test: &ValueTest) -> ShownValue {
    let one = |name, value| ShownValue::map([(name, value)]);
    match test {
        ValueTest::OneOf(values) => {
            let quoted = |value: &ExpectedValue| match value {
                ExpectedValue::Text(text) => QuotedScalar(text).to_string(),
                value => value.to_string(),
            };
            let values: Vec<String> = values.iter().map(quoted).collect();
            one(
                "one-of",
                ShownValue::bare(format_args!("[{}]", values.join(", "))),
            )
        }
        ValueTest::Contains(part) => one("contains", ShownValue::text(part)),
        ValueTest::StartsWith(start) => one("starts-with", ShownValue::text(start)),
        ValueTest::AtMost(most) => one("at-most", ShownValue::bare(most)),
        ValueTest::AtLeast(least) => one("at-least", ShownValue::bare(least)),
        ValueTest::Present(present) => one("present", ShownValue::bare(present)),
    }
}

fn source(source: &ValueSource) -> (&'static str, ShownValue) {
    match source {
        ValueSource::Header(name) => ("header", ShownValue::text(name)),
        ValueSource::Body(place) => ("body", ShownValue::text(place)),
    }
}

fn wait_source(wait: &WaitSource) -> ShownValue {
    match wait {
        WaitSource::At(from, form) => {
            let form = form.map(|form| ("as", ShownValue::bare(form.name())));
            ShownValue::map([source(from)].into_iter().chain(form))
        }
        WaitSource::Refill {
            needed,
            left,
            per_second,
        } => ShownValue::map([
            ("needed", ShownValue::text(needed)),
            ("left", ShownValue::text(left)),
            ("per-second", ShownValue::text(per_second)),
        ]),
        WaitSource::Time(time) => ShownValue::map([("time", ShownValue::duration(*time))]),
    }
}

/// Returns the schema of `dispatch.http.answers`.
pub(super) fn answers_schema() -> Json {
    let meanings = Consequence::names();
    let lines = json!({
        "type": "object",
        "propertyNames": {"pattern": "^([1-5][0-9][0-9]|[1-5]xx)(\\+retry-after)?$"},
        "additionalProperties": {"enum": meanings},
    });
    json!({"anyOf": [lines, {"type": "array", "maxItems": MAX_RULES, "items": rule_schema()}]})
}

/// Returns the schema of `dispatch.http.cost`.
pub(super) fn cost_schema() -> Json {
    let one = |name: &str, place: Json| closed(json!({name: place}), &[name]);
    json!({
        "type": "array",
        "maxItems": MAX_PARTS,
        "items": {"anyOf": [one("header", header_schema()), one("body", pointer_schema())]},
    })
}

/// Returns the schema of a mapping with no other keys than `properties`, of which it has
/// `required`.
fn closed(properties: Json, required: &[&str]) -> Json {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn header_schema() -> Json {
    json!({"type": "string", "pattern": HTTP_NAME})
}

fn pointer_schema() -> Json {
    json!({"type": "string", "pattern": "^(/[^/]*){1,16}$"})
}

fn rule_schema() -> Json {
    let status = json!({"anyOf": [
        {"type": "integer", "minimum": 100, "maximum": 599},
        {"type": "string", "pattern": "^([1-5][0-9][0-9]|[1-5]xx)$"},
    ]});
    let text = json!({"type": "string", "minLength": 1, "maxLength": MAX_TEXT_BYTES});
    let scalar = json!({"anyOf": [text, {"type": ["integer", "boolean"]}]});
    let one = |name: &str, value: Json| closed(json!({name: value}), &[name]);
    let integer = json!({"type": "integer"});
    let list = |min: u64, items: &Json| json!({"type": "array", "minItems": min, "maxItems": MAX_PARTS, "items": items});
    let test = json!({"anyOf": [
        scalar,
        one("equals", scalar.clone()),
        one("one-of", list(1, &scalar)),
        one("contains", text.clone()),
        one("starts-with", text.clone()),
        one("at-most", integer.clone()),
        one("at-least", integer),
        one("present", json!({"type": "boolean"})),
    ]});
    let tests = |names: Json| {
        json!({
            "type": "object",
            "minProperties": 1,
            "maxProperties": MAX_PARTS,
            "propertyNames": names,
            "additionalProperties": test,
        })
    };
    let mut when = closed(
        json!({
            "status": {"anyOf": [status, {"type": "array", "minItems": 1, "maxItems": MAX_PARTS, "items": status}]},
            "headers": tests(header_schema()),
            "body": tests(pointer_schema()),
        }),
        &[],
    );
    when["minProperties"] = 1.into();
    let form = json!({"enum": TimeForm::names()});
    let wait = json!({"anyOf": [
        closed(json!({"header": header_schema(), "as": form}), &["header"]),
        closed(json!({"body": pointer_schema(), "as": form}), &["body"]),
        closed(
            json!({"needed": pointer_schema(), "left": pointer_schema(), "per-second": pointer_schema()}),
            &["needed", "left", "per-second"],
        ),
        one("time", shape::duration(MIN_WAIT, MAX_WAIT, &[])),
    ]});
    closed(
        json!({
            "when": when,
            "means": {"enum": Consequence::names()},
            "scope": {"enum": SCOPES.map(|(name, _)| name)},
            "wait": list(0, &wait),
            "why": text,
        }),
        &["when", "means"],
    )
}
