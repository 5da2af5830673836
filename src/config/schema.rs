//! The JSON schema of the whole file, for editors and for checks before a deployment.

use serde_json::{Map, Value as Json, json};

use super::keys::KEYS;
use super::sections::rate_limiter::limit_keys;
use super::shape;
use super::values::pipeline_name::{MAX_PIPELINES, PIPELINES, SHARED, names_schema};

/// Returns the schema (draft 2020-12) of a configuration file: each key with its description,
/// default and bounds. Mistakes that involve several keys are found by loading only.
pub fn json_schema() -> Json {
    let mut root = section("Configuration of Sluicegate");
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["$defs"] = limit_keys::definitions();
    for key in KEYS.iter() {
        let mut parts: Vec<&str> = key.path.split('.').collect();
        parts.pop();
        let mut at = &mut root;
        for depth in 0..parts.len() {
            let path = parts[..=depth].join(".");
            at = &mut at["properties"][parts[depth]];
            if at.is_null() {
                *at = section(&format!("Keys of {path}."));
            }
        }
        at["properties"][key.name()] = shape::property(key);
    }
    root["$defs"]["pipeline"] = pipeline(&root);
    root["properties"][PIPELINES] = json!({
        "description": "Several named pipelines in one process; a pipeline takes the keys that it \
            omits from the top level.",
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_PIPELINES,
        "propertyNames": names_schema(),
        "additionalProperties": {"$ref": "#/$defs/pipeline"},
    });
    root
}

/// Returns the schema of one pipeline: the sections of the top level in `root`, except sections
/// that all pipelines share.
fn pipeline(root: &Json) -> Json {
    let mut pipeline = section("Sections of one pipeline.");
    let sections = root["properties"].as_object();
    let names = sections.into_iter().flatten().map(|(name, _)| name);
    for name in names.filter(|name| !SHARED.contains(&name.as_str())) {
        pipeline["properties"][name] = json!({"$ref": format!("#/properties/{name}")});
    }
    pipeline
}

/// Returns the schema of a mapping of keys, which may be empty.
fn section(description: &str) -> Json {
    json!({
        "description": description,
        "type": ["object", "null"],
        "properties": Map::new(),
        "additionalProperties": false,
    })
}
