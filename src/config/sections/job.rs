//! `job`: where a message has the fields of a job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::section::{or_empty, section};
use crate::reading::key::{DAY, duration, text, tree};
use crate::reading::parse::{integer as parse_integer, text as parse_text};
use crate::reading::{ConfigInput, Raw, Setting, Show, ShownValue, ValueError, keys, shown, wrong};
use crate::shape;
use crate::values::header::after_prefix;
use rules::headers::is_name;
use rules::job::call::CarriedFields;
use rules::job::priority::{MAX_WEIGHT_SUM, Priorities};
use rules::job::{Fields, TenantField, ValueField};
use rules::limit::ceil_ms;

const LEVELS: &str = "a mapping of levels to weights, such as {high: 4, normal: 2, low: 1}";
/// Maximum length of a level's name in bytes.
const MAX_LEVEL_BYTES: usize = 32;

keys! {
    TENANT: TenantField = text(
        "job.tenant",
        "`header:NAME`, `routing-key`, `json:/pointer` (RFC 6901, into the body), `all`",
        || shape::pattern("^(header:.+|routing-key|json:/.*|all)$"),
        tenant_field,
    )
        .default("header:x-tenant")
        .about("Where a job names its tenant.")
        .note("The routing key is the one that the job was published with. With `all`, all jobs \
            belong to the tenant `all`.");
    COST: ValueField = text(
        "job.cost",
        "`header:NAME`, `json:/pointer`; the job's value is a whole number from 1",
        || shape::pattern("^(header:.+|json:/.*)$"),
        value_field,
    )
        .default("header:x-cost")
        .about("Where a job states its cost in units; the default cost is 1.")
        .note("A job whose cost exceeds its tenant's limits can never be admitted and goes to \
            `jobs.dead`.");
    DEADLINE: ValueField = text(
        "job.deadline",
        "`header:NAME`, `json:/pointer`; the job's value is a time of RFC 3339 \
        (`2026-01-31T12:00:00Z`), an AMQP timestamp, or a number of seconds since 1970 (of \
        milliseconds from 100000000000 on)",
        || shape::pattern("^(header:.+|json:/.*)$"),
        value_field,
    )
        .about("Where a job states its deadline, after which it is not called.")
        .note("See [jobs that expire](HANDLERS.md#jobs-that-expire).");
    MAX_DELAYED_START: Duration = duration::<0, { 366 * DAY }>("job.max-delayed-start")
        .default("30d")
        .about("Longest delay that a publisher can request (`x-delay`, `x-not-before`); a job \
            that requests more goes to `jobs.dead`.")
        .note("With 0, both headers are ignored. See [jobs that start \
            later](HANDLERS.md#jobs-that-start-later).");
    DEDUPE_FOR: Duration = duration::<0, { 7 * DAY }>("job.dedupe-for")
        .default("0s")
        .about("Time within which only one job per tenant and `x-dedupe-key` is called; the \
            others are dropped and counted.")
        .note("With 0, the header is ignored. See [jobs that are published \
            twice](HANDLERS.md#jobs-that-are-published-twice).");
    PRIORITIES: Priorities = tree(
        "job.priorities",
        "mapping of levels to weights",
        priorities_schema,
        priorities,
    )
        .about("Priority levels of a tenant's jobs (`x-priority`), with each level's share of \
            turns while other levels wait.")
        .note("The sum of all weights is at most 32. A job without a level is `normal`, with \
            weight 1 unless it is listed here. See [jobs that go \
            first](HANDLERS.md#jobs-that-go-first).");
}

impl Show for Priorities {
    fn shown(&self) -> Option<ShownValue> {
        let levels = self.levels();
        let weights = levels.iter().map(|(name, weight)| (name, weight));
        (!levels.is_empty()).then(|| ShownValue::weights(weights))
    }
}

section! {
    impl Fields {
        tenant = TENANT,
        cost = COST,
        deadline = DEADLINE,
        max_delayed_start_ms = millis(&MAX_DELAYED_START),
        dedupe_for_ms = millis(&DEDUPE_FOR),
        priorities = or_empty(&PRIORITIES),
        // `dispatch` determines it.
        call = |_: &mut ConfigInput| Some(CarriedFields::default()),
    }
}

/// Returns the source of a number of milliseconds.
fn millis(setting: &'static Setting<Duration>) -> impl Fn(&mut ConfigInput) -> Option<u64> {
    |input| input.get(setting).map(ceil_ms)
}

/// Parses `job.tenant`.
fn tenant_field(raw: &Raw) -> Result<TenantField, ValueError> {
    const MUST: &str = "header:NAME, routing-key, json:/pointer, or all";
    let text = parse_text(raw, MUST)?;
    match text {
        "routing-key" => return Ok(TenantField::RoutingKey),
        "all" => return Ok(TenantField::All),
        _ => {}
    }
    match field(text)? {
        Some(ValueField::Header(name)) => Ok(TenantField::Header(name)),
        Some(ValueField::Json(pointer)) => Ok(TenantField::Json(pointer)),
        None => Err(wrong(raw, MUST)),
    }
}

/// Parses `job.cost` and `job.deadline`.
fn value_field(raw: &Raw) -> Result<ValueField, ValueError> {
    const MUST: &str = "header:NAME or json:/pointer";
    field(parse_text(raw, MUST)?)?.ok_or_else(|| wrong(raw, MUST))
}

/// Parses `header:NAME` or `json:/pointer`. Returns `None` for other texts.
pub(crate) fn field(text: &str) -> Result<Option<ValueField>, ValueError> {
    if let Some(name) = text.strip_prefix("header:") {
        return after_prefix(name).map(|name| Some(ValueField::Header(name)));
    }
    if let Some(pointer) = text.strip_prefix("json:") {
        let escapes = pointer.split('~').skip(1);
        if pointer.starts_with('/') && escapes.into_iter().all(|rest| rest.starts_with(['0', '1']))
        {
            return Ok(Some(ValueField::Json(pointer.to_owned())));
        }
        return Err(format!(
            "is {}; a JSON pointer (RFC 6901) begins with `/`, and `~` is written `~0`",
            shown(text)
        ));
    }
    Ok(None)
}

/// Parses `job.priorities`.
fn priorities(raw: &Raw) -> Result<Priorities, ValueError> {
    let Raw::Map(fields) = raw else {
        return Err(wrong(raw, LEVELS));
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
        let weight = parse_integer(&field.raw, 1, MAX_WEIGHT_SUM.into());
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

fn priorities_schema() -> Json {
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
