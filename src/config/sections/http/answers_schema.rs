//! The JSON schemas of `dispatch.http.answers` and `dispatch.http.cost`.

use serde_json::{Value as Json, json};

use super::answers::{MAX_PARTS, MAX_RULES, MAX_TEXT_BYTES, MAX_WAIT, MIN_WAIT, SCOPES};
use crate::shape::{closed, duration, pattern};
use crate::values::header::HTTP_NAME;
use rules::answers::{Consequence, TimeForm};
use rules::named::Named;

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
        "items": {"anyOf": [one("header", pattern(HTTP_NAME)), one("body", pattern(POINTER))]},
    })
}

const POINTER: &str = "^(/[^/]*){1,16}$";

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
            "headers": tests(pattern(HTTP_NAME)),
            "body": tests(pattern(POINTER)),
        }),
        &[],
    );
    when["minProperties"] = 1.into();
    let form = json!({"enum": TimeForm::names()});
    let wait = json!({"anyOf": [
        closed(json!({"header": pattern(HTTP_NAME), "as": form}), &["header"]),
        closed(json!({"body": pattern(POINTER), "as": form}), &["body"]),
        closed(
            json!({"needed": pattern(POINTER), "left": pattern(POINTER), "per-second": pattern(POINTER)}),
            &["needed", "left", "per-second"],
        ),
        one("time", duration(MIN_WAIT, MAX_WAIT, &[])),
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
