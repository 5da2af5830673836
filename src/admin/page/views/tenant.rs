//! A tenant: the result of `inspect`.

use askama::Template;

use super::super::text::{Bar, ShownName, ShownTime, number, query, text};
use super::{ViewRequest, ViewSource, part, rendered};
use crate::admin::api::ApiProblem;
use crate::operator::inspect::{InspectionAnswer, ShadowAnswer, UsedLimit};
use crate::operator::times::span;

#[derive(Template)]
#[template(path = "tenant.html")]
struct TenantView {
    now: ShownTime,
    name: ShownName,
    pipeline: String,
    /// Query for links to actions on the tenant.
    of_it: String,
    letters: String,
    source: String,
    plan: String,
    state: &'static str,
    state_word: &'static str,
    reason: String,
    waiting: Option<String>,
    levels: Vec<(String, String)>,
    empty: Option<ShownTime>,
    new_job: Option<String>,
    suspended: Option<ShownTime>,
    suspended_by: String,
    warnings: Vec<String>,
    all_suspended: Option<ShownTime>,
    all_suspended_by: String,
    recovery: Option<ShownTime>,
    recovery_why: String,
    held: Option<String>,
    diverted_to: Option<String>,
    limits: Vec<LimitRow>,
    /// Records of shadow limits.
    shadows: Vec<ShadowRow>,
    advertised: Vec<String>,
    missing: Vec<String>,
    others: Vec<(ShownTime, Vec<String>)>,
}

/// A limit of the tenant.
struct LimitRow {
    name: String,
    used: Option<String>,
    taken: Bar,
    max: String,
    free: String,
    next: Option<ShownTime>,
    per: String,
    how: String,
    whose: String,
    set: Option<OperatorLimit>,
    /// The maximum before the API's answers lowered it.
    sank_from: Option<String>,
}

/// An operator's override.
struct OperatorLimit {
    max: String,
    /// Configured maximum.
    configured: String,
    /// End of the override.
    until: ShownTime,
}

fn row(now_ms: u64, limit: &UsedLimit) -> LimitRow {
    // The units are calls if every call had one unit.
    let unit = match limit.unit.as_str() {
        "cost" if limit.used_by_calls != limit.used => "units of cost",
        _ if limit.max_requests == 1 => "call",
        _ => "calls",
    };
    let per = match (limit.window_ms, &limit.calendar) {
        (0, _) => "in flight".to_owned(),
        (_, Some(calendar)) => format!("{unit} in each {calendar}"),
        (window, None) => format!("{unit} in {}", spoken(window)),
    };
    let burst = limit.burst.map(|burst| format!(", burst {burst}"));
    LimitRow {
        name: text(&limit.name),
        used: limit.used.map(number),
        taken: Bar::of(limit.used.unwrap_or(0), limit.max_requests),
        max: number(limit.max_requests),
        free: limit.free.map_or_else(|| "–".to_owned(), number),
        next: limit
            .next_in_ms
            .and_then(|ms| ShownTime::end_if(now_ms, now_ms + ms)),
        per,
        how: format!(
            "{}{}, guard {}",
            limit.algorithm,
            burst.unwrap_or_default(),
            limit.guard
        ),
        whose: match limit.scope.as_str() {
            "tenant" => "of its own".to_owned(),
            "global" => "of all tenants".to_owned(),
            other => format!("per {}", text(other)),
        },
        sank_from: {
            let set = (limit.operator_max_requests).unwrap_or(limit.configured_max_requests);
            (limit.max_requests < set).then(|| number(set))
        },
        set: limit.operator_max_requests.map(|max| OperatorLimit {
            max: number(max),
            configured: number(limit.configured_max_requests),
            until: ShownTime::end(now_ms, limit.override_until_ms),
        }),
    }
}

/// A shadow limit.
struct ShadowRow {
    /// Name with its numbers.
    name: String,
    /// The effect it would have had, in a sentence.
    words: String,
    /// The trial, if an operator tries this limit.
    set: Option<TrialNote>,
}

/// An operator's trial.
struct TrialNote {
    /// End of the trial.
    until: ShownTime,
    /// Query of the link that enforces it.
    enforce: String,
    /// Query of the link that ends it.
    end: String,
}

fn tried(shadow: &ShadowAnswer, now_ms: u64, of_it: &[(&str, &str)]) -> ShadowRow {
    let max = number(shadow.max_requests);
    let window = (shadow.calendar.clone()).unwrap_or_else(|| spoken(shadow.window_ms));
    let name = format!("{} ({max} in {window})", text(&shadow.name));
    let words = match (shadow.starts, shadow.would_have_waited) {
        (Some(0), _) => "has counted no start".to_owned(),
        (Some(starts), Some(waited)) => {
            let longest = match shadow.longest_wait_ms.unwrap_or_default() {
                0 => String::new(),
                ms => format!(", the longest {}", span(ms)),
            };
            let (starts, waited) = (number(starts), number(waited));
            format!("would have made {waited} of {starts} starts wait{longest}")
        }
        _ => "is shown if the address names the header or routing key".to_owned(),
    };
    let set = shadow.set_until_ms.map(|until_ms| {
        let max = shadow.max_requests.to_string();
        let limit = ("limit", shadow.name.as_str());
        let with = |more: &[(&str, &str)]| query([of_it, more].concat());
        TrialNote {
            until: ShownTime::end(now_ms, until_ms),
            enforce: with(&[limit, ("max", &max)]),
            end: with(&[limit]),
        }
    });
    ShadowRow { name, words, set }
}

/// Formats a duration without zero parts: `1m`, `1h`.
fn spoken(ms: u64) -> String {
    crate::config::show_duration(std::time::Duration::from_millis(ms))
}

pub(super) async fn html(
    source: &ViewSource<'_>,
    asked: &ViewRequest,
) -> Result<String, ApiProblem> {
    let name = asked.value("name");
    let given = asked.values.iter().filter(|(known, _)| *known != "name");
    let given = given.map(|(known, value)| (*known, value.as_str()));
    let path = format!("/tenants/{}", part(name));
    let found: InspectionAnswer = source.read(&path, &asked.query(given)).await?;
    let now_ms = found.now_ms;
    let after = |ms: Option<u64>| ms.and_then(|ms| ShownTime::end_if(now_ms, now_ms + ms));
    let is_suspended = found.suspended_until_ms > now_ms;
    let all_suspended = ShownTime::end_if(now_ms, found.all_suspended_until_ms.unwrap_or_default());
    let recovery = ShownTime::end_if(now_ms, found.recovery_wait_until_ms.unwrap_or_default());
    let waits = found.waiting.unwrap_or_default() > 0;
    let held = found.held.as_ref().map(|held| held.0.as_str());
    let (state, state_word) = match () {
        () if recovery.is_some() => ("bad", "Recovery wait"),
        () if held == Some("pause") => ("bad", "All workers paused"),
        () if is_suspended => ("bad", "Suspended"),
        () if all_suspended.is_some() => ("bad", "All tenants suspended"),
        () if found.diverted_to.is_some() => ("warn", "Diverted"),
        () if waits => ("warn", "Waiting"),
        () => ("good", "Open"),
    };
    let levels = found.waiting_by_level.iter();
    let mut warnings: Vec<String> = (found.advertised.iter())
        .filter_map(|quota| quota.exceeded.0.as_ref())
        .map(|exceeded| text(&exceeded.warning))
        .collect();
    warnings.extend(found.all_suspended_unread.as_deref().map(|why| {
        format!(
            "it is unknown whether all tenants are suspended: {}",
            text(why)
        )
    }));
    if !found.in_force {
        warnings.push("no worker enforces the limits of this configuration".to_owned());
    }
    if found.redis_round_trip_ms >= 10 {
        warnings.push(format!(
            "a round trip to Redis takes {} ms, which delays each permit",
            found.redis_round_trip_ms
        ));
    }
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let of_it = [("tenant", name), ("pipeline", pipeline)];
    let view = TenantView {
        now: ShownTime::of(now_ms, now_ms),
        pipeline: pipeline.to_owned(),
        of_it: query(of_it),
        letters: query(of_it),
        source: text(&found.source),
        plan: asked.value("plan").to_owned(),
        state,
        state_word,
        reason: capitalized(&text(&found.reason)),
        waiting: found.waiting.map(number),
        levels: levels
            .map(|(level, waiting)| (text(level), waiting.to_string()))
            .collect(),
        empty: after(found.waitlist_end_in_ms),
        new_job: found.new_job_in_ms.map(|ms| match ms {
            0 => "now".to_owned(),
            ms => format!("in {}", span(ms)),
        }),
        suspended: ShownTime::end_if(now_ms, found.suspended_until_ms),
        suspended_by: text(&found.suspended_by),
        warnings,
        all_suspended,
        all_suspended_by: text(found.all_suspended_by.as_deref().unwrap_or_default()),
        recovery,
        recovery_why: text(found.recovery_wait_reason.as_deref().unwrap_or_default()),
        held: held.map(str::to_owned),
        diverted_to: found.diverted_to.as_deref().map(text),
        limits: (found.limits.iter()).map(|it| row(now_ms, it)).collect(),
        shadows: (found.shadows.iter())
            .map(|it| tried(it, now_ms, &of_it))
            .collect(),
        advertised: (found.advertised.iter())
            .map(|quota| match quota.window_ms {
                Some(ms) => format!("{} in {}", number(quota.limit), spoken(ms)),
                None => format!("{} in a window that it does not name", number(quota.limit)),
            })
            .collect(),
        missing: found.labels_missing.iter().map(|it| text(it)).collect(),
        others: (found.other_configurations.iter())
            .map(|other| {
                let limits = other.limits.iter().map(|it| text(it)).collect();
                (ShownTime::end(now_ms, other.until_ms), limits)
            })
            .collect(),
        name: ShownName::new(name),
    };
    rendered(&view)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}
