//! The keys of `rate-limiter` and of a single limit. The keys of a limit may be directly below
//! `rate-limiter`, in a plan, in a tenant's entry or in an item of a list.

use std::time::Duration;

use serde_json::{Map, Value as Json, json};

use super::window_size::{WindowSize, starts, starts_schema, time_zone, window_size};
use crate::reading::key::{
    DAY, SECOND, as_written, boolean, choice, choice_of, duration, integer, text, tree,
};
use crate::reading::parse::{duration as parse_duration_of, text as parse_text};
use crate::reading::{AnySetting, Raw, Setting, ValueError, hint, keys, parse, shown, wrong};
use crate::shape;
use crate::values::header::{TRIMMED, after_prefix, header_name};
use rules::answers::ThrottleScope;
use rules::calendar::Zone;
use rules::limit::{self, Algorithm, MAX_LIMITS, MAX_WINDOW, MIN_WINDOW, Unit, is_name};
use rules::scope::Scope;
use rules::tenant::MAX_TENANT_BYTES;
use rules::text::parse_duration;

const MAX_UNITS: u64 = limit::MAX_REQUESTS;

keys! {
    USE_ALGO: Algorithm = choice_of(
        "rate-limiter.use-algo",
        || Algorithm::ALL.map(Algorithm::name).to_vec(),
        |raw| parse::choice(raw, &Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm))),
    )
        .default("sliding-window-algo")
        .live()
        .about("How units are counted.")
        .note("See [algorithms](LIMITS.md#choose-an-algorithm).");
    WINDOW_SIZE: WindowSize = text(
        "rate-limiter.window-size",
        "100ms to 31d; for `fixed-window-algo` also `day`, `week`, `month`",
        || shape::duration(MIN_WINDOW, MAX_WINDOW, &["day", "week", "month"]),
        window_size,
    )
        .default("60")
        .live()
        .about("Length of the window, or the period of the calendar that is a window.")
        .note("See [calendar windows](LIMITS.md#calendar-windows).");
    TIME_ZONE: Zone = text(
        "rate-limiter.time-zone",
        "an IANA name, such as `America/Los_Angeles`",
        || json!({"type": "string", "minLength": 1, "examples": ["America/Los_Angeles", "UTC"]}),
        time_zone,
    )
        .live()
        .about("Time zone in which a day, week or month begins.")
        .note("The default is UTC. The database of time zones is part of the program.");
    STARTS: String = text(
        "rate-limiter.starts",
        "`HH:MM`; for a week also a weekday, for a month a day from 1 to 31, alone or before the \
        time: `monday 08:00`, `15`",
        starts_schema,
        starts,
    )
        .live()
        .about("When a day, week or month begins.")
        .note("The default is midnight, of Monday or of the 1st. A month without the day begins on \
            its last day.");
    MAX_REQUESTS: u64 = integer::<_, 1, MAX_UNITS>("rate-limiter.max-requests", "units")
        .default("5")
        .live()
        .about("Units that each tenant can use per window.")
        .note("A sliding log takes about 120 bytes of Redis memory for each call that counts.");
    BURST: u64 = integer::<_, 1, MAX_UNITS>("rate-limiter.burst", "units")
        .live()
        .about("Units that a bucket admits at once.")
        .note("The default is `max-requests` for the token bucket and 1 for the leaky bucket. \
            Other algorithms have no burst.");
    UNIT: Unit = choice("rate-limiter.unit")
        .default("cost")
        .live()
        .about("What a limit counts: calls, or their cost.")
        .note("If an item of a list sets `unit: cost`, items without a unit count calls. If the \
            common `limits` are such a list, this also applies to plans and tenants, unless \
            `rate-limiter.unit` (or the plan's) is set.");
    GUARD: GuardSetting = text(
        "rate-limiter.guard",
        "`auto`: 50 ms, less for windows below 200 ms and for buckets whose window is below 1650 \
        ms; a duration below half the window; or `strict`, for `sliding-window-algo`: a unit \
        becomes available one window after the answer, and calls in flight always count, so the \
        limit holds at any latency",
        || shape::duration(Duration::ZERO, MAX_WINDOW, &["auto", "strict"]),
        guard,
    )
        .default("auto")
        .live()
        .about("Variation of the latency from the gate to the API that is absorbed; it costs \
            guard / window of the throughput.")
        .note("With `sliding-window-algo` and `fixed-window-algo`, a later call counts from when \
            the worker detects it. See [the guard](LIMITS.md#the-guard).");
    GUARD_BUDGET: f64 = text(
        "rate-limiter.guard-budget",
        "`0%` to `100%`",
        || shape::pattern("^(100(\\.0+)?|[0-9]{1,2}(\\.[0-9]+)?)%$"),
        guard_budget,
    )
        .default("1%")
        .live()
        .about("Share of the quota that late answers can cost.")
        .note("See [the guard](LIMITS.md#the-guard).");
    SCOPE: Scope = text(
        "rate-limiter.scope",
        "`tenant`, `global`, `header:NAME`, `routing-key`",
        || json!({"type": "string", "pattern": "^(tenant|global|routing-key|header:.+)$", "examples": ["tenant", "global", "header:x-endpoint", "routing-key"]}),
        scope,
    )
        .default("tenant")
        .live()
        .about("Which jobs share the quota: one quota per tenant, one for all tenants, or one per \
            value of a header or routing key within a tenant.")
        .note("See [scopes](LIMITS.md#scopes).");
    ADAPTIVE: Option<u8> = tree(
        "rate-limiter.adaptive",
        "`off`, or `{within: N%..100%}` (`N%..100%` for short) with N from 1 to 99",
        adaptive_schema,
        adaptive,
    )
        .default("off")
        .live()
        .about("Lowest percentage to which the limit sinks when the API answers 429 within it or \
            advertises less.")
        .note("It never rises above `max-requests`. See [learned limits](LIMITS.md#learned-limits).");
    SHADOW: bool = boolean("rate-limiter.shadow")
        .default("false")
        .live()
        .about("Whether the limit only counts: it denies nothing, and metrics and `inspect` show \
            how many jobs would have waited, and for how long.")
        .note("For an additional limit in `rate-limiter.limits`, of a plan or of a tenant; at \
            least one limit must be enforced. See [try a limit \
            first](LIMITS.md#try-a-limit-first).");
    LIMITS: Raw = tree("rate-limiter.limits", "list of up to 16 limits", || reference("limits"), as_written)
        .live()
        .about("Several limits, all of which must admit a job.")
        .note("See [several limits](LIMITS.md#several-limits).");
    PLANS: Raw = tree(
        "rate-limiter.plans",
        "mapping of a name of 1 to 64 bytes to limits",
        || names_schema(64, &reference("set")),
        as_written,
    )
        .live()
        .about("Named sets of limits.")
        .note("See [plans](LIMITS.md#plans-and-tenants).");
    TENANTS: Raw = tree(
        "rate-limiter.tenants",
        "mapping of an id, or `start*`, to limits or `plan: NAME`",
        || names_schema(MAX_TENANT_BYTES, &own_schema()),
        as_written,
    )
        .live()
        .about("Limits or plans of single tenants; the first matching entry applies.")
        .note("See [plans](LIMITS.md#plans-and-tenants).");
    PLAN_HEADER: String = text(
        "rate-limiter.plan-header",
        "a header's name",
        || json!({"type": "string", "maxLength": 255, "pattern": TRIMMED}),
        header_name,
    )
        .live()
        .about("Header in which a job names its tenant's plan.")
        .note("**Only trusted publishers may set it**, since it chooses the limits. \
            `rate-limiter.tenants` takes precedence; a job with an unknown plan becomes a dead \
            letter.");
    MAX_THROTTLE: Duration = duration::<SECOND, { 7 * DAY }>("rate-limiter.max-throttle")
        .default("1h")
        .live()
        .about("Longest time that one answer of the API (429, 403 or 503 with Retry-After, or a \
            failure that reports an exhausted quota) can throttle a tenant.")
        .note("A 429 without a time throttles for the shortest window of the job's limits (one \
            second if all of them are `max-concurrent`). An even flow (`leaky-bucket-algo`, or \
            `burst: 1`) is throttled for the distance between two starts, twice as long with each \
            further 429, up to the window.");
    THROTTLE_SCOPE: ThrottleScope = choice("rate-limiter.throttle-scope")
        .default("auto")
        .about("Which tenants such an answer throttles: the job's tenant, or all; auto: all if \
            each limit of the job has scope: global, otherwise the job's tenant.")
        .note("All workers stop within two seconds; `sluicegate tenant resume --all` ends the \
            throttle.");
}

/// Key of an item that limits calls in flight. It is not in [`KEYS`], since it is allowed in a list
/// only.
pub(super) const MAX_CONCURRENT: &str = "max-concurrent";
pub(super) static CONCURRENT: Setting<u64> =
    integer::<_, 1, MAX_UNITS>("rate-limiter.limits[].max-concurrent", "calls")
        .about("Maximum number of calls in flight over all workers.");
/// The keys of one limit.
pub(super) static FLAT: [&dyn AnySetting; 11] = [
    &USE_ALGO,
    &WINDOW_SIZE,
    &TIME_ZONE,
    &STARTS,
    &MAX_REQUESTS,
    &BURST,
    &UNIT,
    &GUARD,
    &SCOPE,
    &ADAPTIVE,
    &SHADOW,
];

/// `rate-limiter.guard`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GuardSetting {
    /// `auto`
    Auto,
    /// `strict`
    Strict,
    /// A duration.
    Within(Duration),
}

fn guard(raw: &Raw) -> Result<GuardSetting, ValueError> {
    const MUST: &str = "auto, strict, or a whole number with a unit, such as 50ms or 1s";
    match raw {
        Raw::Text(text) if text == "auto" => Ok(GuardSetting::Auto),
        Raw::Text(text) if text == "strict" => Ok(GuardSetting::Strict),
        Raw::Text(text) if parse_duration(text).is_none() => Err(wrong(raw, MUST)),
        Raw::Text(_) | Raw::Int(_) => {
            parse_duration_of(raw, Duration::ZERO, MAX_WINDOW).map(GuardSetting::Within)
        }
        raw => Err(wrong(raw, MUST)),
    }
}

/// Parses `rate-limiter.adaptive`. Returns the lower end of the band in percent, or `None` if it is
/// off.
fn adaptive(raw: &Raw) -> Result<Option<u8>, ValueError> {
    const MUST: &str = "off, or a band that ends at 100%, such as {within: 50%..100%}";
    let within = match raw {
        // YAML 1.2 reads a bare `off` as a text, older YAML as false.
        Raw::Bool(false) => return Ok(None),
        Raw::Text(text) if text == "off" => return Ok(None),
        Raw::Text(text) => text,
        Raw::Map(fields) => match fields.iter().find(|field| field.name != "within") {
            Some(other) => {
                return Err(format!(
                    "has {}, but `within` is its only key; it must be {MUST}",
                    shown(&other.name)
                ));
            }
            None => {
                let within = fields.first();
                let within = within.ok_or_else(|| format!("sets nothing; it must be {MUST}"))?;
                parse_text(&within.raw, "a band, such as 50%..100%")
                    .map_err(|words| format!("has a `within` that {words}"))?
            }
        },
        raw => return Err(wrong(raw, MUST)),
    };
    let percent = |text: &str| text.trim().strip_suffix('%')?.parse::<u32>().ok();
    let ends = within.split_once("..");
    let ends = ends.and_then(|(low, high)| Some((percent(low)?, percent(high)?)));
    let Some((low, high)) = ends else {
        return Err(format!("is {}; it must be {MUST}", shown(within)));
    };
    if high != 100 {
        return Err(format!(
            "ends at {high}%; a band must end at 100%, since an adaptive limit starts at \
            max-requests; change max-requests instead"
        ));
    }
    match u8::try_from(low) {
        Ok(low @ 1..100) => Ok(Some(low)),
        _ => Err(format!(
            "begins at {low}%; a band must begin at 1% to 99%, such as 50%..100%"
        )),
    }
}

fn adaptive_schema() -> Json {
    let band = json!({"type": "string", "pattern": "^[1-9][0-9]?%\\.\\.100%$"});
    json!({"anyOf": [
        {"enum": ["off", false]},
        band,
        shape::closed(json!({"within": band}), &["within"]),
    ]})
}

/// Parses a percentage.
fn guard_budget(raw: &Raw) -> Result<f64, ValueError> {
    let must = "a percentage from 0% to 100%, such as 1% or 0.5%";
    let number = match raw {
        Raw::Text(text) => text.strip_suffix('%'),
        _ => None,
    };
    let percent = number.and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| wrong(raw, must))
}

fn scope(raw: &Raw) -> Result<Scope, ValueError> {
    let text = parse_text(raw, "tenant, global, header:NAME or routing-key")?;
    match (text.strip_prefix("header:"), Scope::parse(text)) {
        (Some(name), _) => after_prefix(name).map(Scope::Header),
        (None, Some(scope)) => Ok(scope),
        (None, None) => Err(format!(
            "is {}, an unknown scope; use tenant, global, header:NAME or routing-key{}",
            shown(text),
            hint(text, ["tenant", "global", "routing-key"])
        )),
    }
}

/// Parses `rate-limiter.limits[…].name`.
pub(super) fn limit_name(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "1 to 32 characters a-z, 0-9 and -, beginning with a letter";
    let name = parse_text(raw, MUST)?;
    if is_name(name) {
        return Ok(name.to_owned());
    }
    Err(wrong(raw, MUST))
}

/// Returns the definitions that the schemas of this section refer to, by name.
pub(crate) fn definitions() -> Json {
    json!({"limit": limit_schema(), "limits": limits_schema(), "set": set_schema()})
}

fn reference(name: &str) -> Json {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// Returns the keys of one limit as schema properties.
fn flat_schema() -> Map<String, Json> {
    let property = |setting: &&dyn AnySetting| {
        let key = setting.key();
        let mut schema = shape::property(key);
        // A missing key takes its value from an outer level.
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("default");
        }
        (key.name().to_owned(), schema)
    };
    FLAT.iter().map(property).collect()
}

/// Returns the schema of a list item: a limit, or a limit on calls in flight.
fn limit_schema() -> Json {
    let name = json!({
        "type": "string",
        "pattern": "^[a-z][a-z0-9-]{0,31}$",
        "description": "Name of the limit; its usage is stored under this name.",
    });
    let mut properties = flat_schema();
    let scope = properties[SCOPE.key.name()].clone();
    properties.insert("name".into(), name.clone());
    let concurrent = json!({
        "name": name,
        "scope": scope,
        MAX_CONCURRENT: shape::property(&CONCURRENT.key),
    });
    json!({"anyOf": [
        {"type": "object", "properties": properties, "additionalProperties": false},
        shape::closed(concurrent, &[MAX_CONCURRENT]),
    ]})
}

fn limits_schema() -> Json {
    json!({"type": "array", "minItems": 1, "maxItems": MAX_LIMITS, "items": reference("limit")})
}

/// Returns the schema of the limits of a plan or a tenant.
fn set_schema() -> Json {
    let mut properties = flat_schema();
    properties.insert("limits".into(), reference("limits"));
    json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "minProperties": 1,
    })
}

/// Returns the schema of a tenant's limits or plan.
fn own_schema() -> Json {
    let plan = json!({"type": "string", "minLength": 1, "description": "The name of a plan."});
    json!({"anyOf": [reference("set"), shape::closed(json!({"plan": plan}), &["plan"])]})
}

/// Returns the schema of a mapping from names of at most `longest` bytes to values of `schema`.
fn names_schema(longest: usize, schema: &Json) -> Json {
    json!({
        "type": ["object", "null"],
        "propertyNames": {"minLength": 1, "maxLength": longest},
        "additionalProperties": schema,
    })
}

/// Reason why `max-concurrent` is rejected outside of a list.
pub(crate) const LIST_ONLY: &str = "is a separate limit; put it into a list, such as limits: \
    [{name: minute}, {name: running, max-concurrent: 5}]";
