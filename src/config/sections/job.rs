//! `job`: where a message has the fields of a job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::priorities;
use crate::reading::error::shown;
use crate::reading::input::ConfigInput;
use crate::reading::key::{DAY, duration, keys, text, tree};
use crate::reading::parse::{ValueError, text as parse_text, wrong};
use crate::reading::shown_value::{Show, ShownValue};
use crate::reading::yaml::Raw;
use crate::values::header::after_prefix;
use rules::job::call::CarriedFields;
use rules::job::priority::Priorities;
use rules::job::{Fields, TenantField, ValueField};
use rules::limit::ceil_ms;

keys! {
    TENANT: TenantField = text(
        "job.tenant",
        "`header:NAME`, `routing-key`, `json:/pointer` (RFC 6901, into the body), `all`",
        || field_schema("^(header:.+|routing-key|json:/.*|all)$"),
        tenant_field,
    )
        .default("header:x-tenant")
        .example("json:/customer/id")
        .about("Where a job names its tenant.")
        .note("The routing key is the one that the job was published with. With `all`, all jobs \
            belong to the tenant `all`.");
    COST: ValueField = text(
        "job.cost",
        "`header:NAME`, `json:/pointer`; the job's value is a whole number from 1",
        || field_schema("^(header:.+|json:/.*)$"),
        value_field,
    )
        .default("header:x-cost")
        .example("json:/tokens")
        .about("Where a job states its cost in units; the default cost is 1.")
        .note("A job whose cost exceeds its tenant's limits can never be admitted and goes to \
            `jobs.dead`.");
    DEADLINE: ValueField = text(
        "job.deadline",
        "`header:NAME`, `json:/pointer`; the job's value is a time of RFC 3339 \
        (`2026-01-31T12:00:00Z`), an AMQP timestamp, or a number of seconds since 1970 (of \
        milliseconds from 100000000000 on)",
        || field_schema("^(header:.+|json:/.*)$"),
        value_field,
    )
        .example("header:x-deadline")
        .about("Where a job states its deadline, after which it is not called.")
        .note("See [jobs that expire](HANDLERS.md#jobs-that-expire).");
    MAX_DELAYED_START: Duration = duration::<0, { 366 * DAY }>("job.max-delayed-start")
        .default("30d")
        .example("7d")
        .about("Longest delay that a publisher can request (`x-delay`, `x-not-before`); a job \
            that requests more goes to `jobs.dead`.")
        .note("With 0, both headers are ignored. See [jobs that start \
            later](HANDLERS.md#jobs-that-start-later).");
    DEDUPE_FOR: Duration = duration::<0, { 7 * DAY }>("job.dedupe-for")
        .default("0s")
        .example("10m")
        .about("Time within which only one job per tenant and `x-dedupe-key` is called; the \
            others are dropped and counted.")
        .note("With 0, the header is ignored. See [jobs that are published \
            twice](HANDLERS.md#jobs-that-are-published-twice).");
    PRIORITIES: Priorities = tree(
        "job.priorities",
        "mapping of levels to weights",
        priorities::schema,
        priorities::priorities,
    )
        .example("{high: 4, low: 1}")
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

impl ConfigInput {
    /// Reads the section. Returns `None` after a problem.
    pub(crate) fn job(&mut self) -> Option<Fields> {
        let tenant = self.get(&TENANT);
        let cost = self.get(&COST);
        let deadline = self.optional(&DEADLINE);
        let max_delayed_start = self.get(&MAX_DELAYED_START);
        let dedupe_for = self.get(&DEDUPE_FOR);
        let priorities = self.optional(&PRIORITIES);
        Some(Fields {
            tenant: tenant?,
            cost: cost?,
            deadline: deadline?,
            max_delayed_start_ms: ceil_ms(max_delayed_start?),
            dedupe_for_ms: ceil_ms(dedupe_for?),
            priorities: priorities?.unwrap_or_default(),
            call: CarriedFields::default(),
        })
    }
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

fn field_schema(pattern: &str) -> Json {
    json!({"type": "string", "pattern": pattern})
}
