//! `dispatch.http.answers`: meanings of the API's answers that differ from the defaults.

use serde_json::{Value as Json, json};

use super::error::shown;
use super::parse::{self, ValueError};
use super::yaml::Raw;
use crate::rules::answers::{AnswerPattern, Answers, Consequence};

const MUST: &str = "statuses with what they mean, such as {409: retry, 403+retry-after: throttle}";
const STATUS: &str = "a status (409), a class (4xx), or either with +retry-after";

/// Parses statuses with their meanings.
pub(super) fn answers(raw: &Raw) -> Result<Answers, ValueError> {
    let Raw::Map(fields) = raw else {
        return Err(parse::wrong(raw, MUST));
    };
    let mut answers = Answers::default();
    for field in fields {
        let called = shown(&field.name);
        let which = AnswerPattern::parse(&field.name)
            .ok_or_else(|| format!("{called} is not a status; it must be {STATUS}"))?;
        let meaning = parse::choice(&field.raw, &Consequence::NAMES)
            .map_err(|words| format!("{called} {words}"))?;
        if !answers.set(which, meaning) {
            return Err(format!("{called} is set twice"));
        }
    }
    Ok(answers)
}

pub(super) fn schema() -> Json {
    let meanings = Consequence::NAMES.map(|(name, _)| name);
    json!({
        "type": "object",
        "propertyNames": {"pattern": "^([1-5][0-9][0-9]|[1-5]xx)(\\+retry-after)?$"},
        "additionalProperties": {"enum": meanings},
    })
}
