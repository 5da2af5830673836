//! `job.priorities`: levels of a tenant's jobs, and their weights.

use serde_json::{Value as Json, json};

use crate::reading::error::shown;
use crate::reading::parse::{self, ValueError};
use crate::reading::yaml::Raw;
use rules::headers::is_name;
use rules::job::priority::{MAX_WEIGHT_SUM, Priorities};

const MUST: &str = "a mapping of levels to weights, such as {high: 4, normal: 2, low: 1}";
/// Maximum length of a level's name in bytes.
const MAX_LEVEL_BYTES: usize = 32;

/// Parses `job.priorities`.
pub(crate) fn priorities(raw: &Raw) -> Result<Priorities, ValueError> {
    let Raw::Map(fields) = raw else {
        return Err(parse::wrong(raw, MUST));
    };
    let mut levels: Vec<(String, u32)> = Vec::with_capacity(fields.len());
    for field in fields {
        let called = shown(&field.name);
        if !is_name(&field.name) || field.name.len() > MAX_LEVEL_BYTES {
            return Err(format!(
                "{called} is not a valid level: it must have 1 to {MAX_LEVEL_BYTES} bytes, no \
                control characters, and no spaces at its ends"
            ));
        }
        let weight = parse::integer(&field.raw, 1, MAX_WEIGHT_SUM.into());
        let weight = weight.map_err(|words| format!("{called} {words}"))?;
        levels.push((field.name.clone(), weight));
    }
    let all = Priorities::new(levels);
    let sum: u32 = all.levels().iter().map(|(_, weight)| weight).sum();
    if sum > MAX_WEIGHT_SUM {
        return Err(format!(
            "has weights with a sum of {sum}, including 1 for the level normal if it is not \
            listed; the maximum is {MAX_WEIGHT_SUM}: {{high: 4, low: 1}} has the same effect as \
            {{high: 32, low: 8}}"
        ));
    }
    Ok(all)
}

pub(crate) fn schema() -> Json {
    json!({
        "type": "object",
        "propertyNames": {"minLength": 1, "maxLength": MAX_LEVEL_BYTES},
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT_SUM},
    })
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn read(levels: &str) -> Result<Vec<(String, u32)>, String> {
        let yaml = format!("job: {{priorities: {levels}}}");
        let config = Config::parse("c.yaml", &yaml, std::iter::empty());
        let config = config.map_err(|errors| errors.to_string())?;
        Ok(config.job.priorities.levels().to_vec())
    }

    #[test]
    fn levels_have_weights_and_the_normal_level_has_a_default() {
        let level = |name: &str, weight| (name.to_owned(), weight);
        let all = read("{high: 4, low: 1}").expect("valid");
        assert_eq!(all, [level("high", 4), level("low", 1), level("normal", 1)]);
        let all = read("{normal: 2, '9': 30}").expect("valid");
        assert_eq!(all, [level("normal", 2), level("9", 30)]);
        assert_eq!(read("{}").expect("valid"), []);
    }

    #[test]
    fn invalid_levels_and_weights_are_reported() {
        for (levels, why) in [
            ("high", "a mapping of levels to weights"),
            ("{high: 0}", "1 to 32"),
            ("{high: 1.5}", "1 to 32"),
            ("{high: 32}", "weights with a sum of 33"),
            ("{'': 1}", "is not a valid level"),
            ("{' high': 1}", "is not a valid level"),
        ] {
            let error = read(levels).expect_err(levels);
            assert!(
                error.contains("job.priorities") && error.contains(why),
                "{levels}: {error}"
            );
        }
    }
}
