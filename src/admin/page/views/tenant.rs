//! A tenant: the result of `inspect`.

use askama::Template;

use super::super::text::{filters, number, query, text};
use super::{ViewRequest, ViewSource, part, rendered};
use crate::api::ApiProblem;
use operator::inspect::{
    InspectionAnswer, NOT_IN_FORCE, ShadowAnswer, UsedLimit, describe_round_trip,
};
use operator::overview::ALL_UNKNOWN;
use operator::tally;
use rules::decision::Tally;

#[derive(Template)]
#[template(path = "tenant.html")]
struct TenantView<'a> {
    asked: &'a ViewRequest,
    found: &'a InspectionAnswer,
    now_ms: u64,
    name: &'a str,
    pipeline: &'a str,
    /// Query for links to actions on the tenant.
    of_it: String,
    state: &'static str,
    state_word: &'static str,
    warnings: Vec<String>,
    /// Latest end of the recovery wait (ms).
    recovers_ms: Option<u64>,
    /// Records of shadow limits.
    shadows: Vec<ShadowRow>,
}

/// Returns what a limit counts, and in which time.
fn per(limit: &UsedLimit) -> String {
    // The units are calls if every call had one unit.
    let unit = match limit.unit.as_str() {
        "cost" if limit.used_by_calls != limit.used => "units of cost",
        _ if limit.max_requests == 1 => "call",
        _ => "calls",
    };
    match (limit.window_ms, &limit.calendar) {
        (0, _) => "in flight".to_owned(),
        (_, Some(calendar)) => format!("{unit} in each {calendar}"),
        (window, None) => format!("{unit} in {}", spoken(window)),
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
    /// End of the trial (ms).
    until_ms: u64,
    /// Query of the link that enforces it.
    enforce: String,
    /// Query of the link that ends it.
    end: String,
}

fn tried(shadow: &ShadowAnswer, of_it: &[(&str, &str)]) -> ShadowRow {
    let max = number(shadow.max_requests);
    let window = (shadow.calendar.clone()).unwrap_or_else(|| spoken(shadow.window_ms));
    let name = format!("{} ({max} in {window})", text(&shadow.name));
    let words = match shadow.starts {
        Some(starts) => {
            let tally = Tally {
                starts,
                waited: shadow.would_have_waited.unwrap_or_default(),
                never: shadow.would_never_have_started.unwrap_or_default(),
                worst_ms: shadow.longest_wait_ms.unwrap_or_default(),
            };
            tally::describe(&tally) + &tally::never(&tally)
        }
        None => "is shown if the address names the header or routing key".to_owned(),
    };
    let set = shadow.set_until_ms.map(|until_ms| {
        let max = shadow.max_requests.to_string();
        let limit = ("limit", shadow.name.as_str());
        let with = |more: &[(&str, &str)]| query([of_it, more].concat());
        TrialNote {
            until_ms,
            enforce: with(&[limit, ("max", &max)]),
            end: with(&[limit]),
        }
    });
    ShadowRow { name, words, set }
}

/// Formats a duration without zero parts: `1m`, `1h`.
fn spoken(ms: u64) -> String {
    config::show_duration(std::time::Duration::from_millis(ms))
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
    rendered(&view(asked, &found))
}

/// Returns the tenant's view.
fn view<'a>(asked: &'a ViewRequest, found: &'a InspectionAnswer) -> TenantView<'a> {
    let (name, now_ms) = (asked.value("name"), found.now_ms);
    let (state, state_word) = state(found);
    let pipeline = asked.pipeline.as_deref().unwrap_or_default();
    let of_it = [("tenant", name), ("pipeline", pipeline)];
    TenantView {
        asked,
        found,
        now_ms,
        name,
        pipeline,
        of_it: query(of_it),
        state,
        state_word,
        warnings: warnings(found),
        recovers_ms: found.recovery_noticed_ms(),
        shadows: (found.shadows.iter()).map(|it| tried(it, &of_it)).collect(),
    }
}

/// Returns the color and the word for the tenant's state.
fn state(found: &InspectionAnswer) -> (&'static str, &'static str) {
    let lasts = |until_ms: Option<u64>| until_ms.unwrap_or_default() > found.now_ms;
    match () {
        () if found.is_refused() => ("bad", "Redis refuses writes"),
        () if lasts(found.recovery_wait_until_ms) => ("bad", "Recovery wait"),
        () if is_paused(found) => ("bad", "All workers paused"),
        () if found.suspended_until_ms > found.now_ms => ("bad", "Suspended"),
        () if is_all_suspended(found) => ("bad", "All tenants suspended"),
        () if found.diverted_to.is_some() => ("warn", "Diverted"),
        () if found.waiting.unwrap_or_default() > 0 => ("warn", "Waiting"),
        () => ("good", "Open"),
    }
}

/// Returns true if all tenants are suspended: until a time, or until one of the calls that are made
/// one at a time succeeds.
fn is_all_suspended(found: &InspectionAnswer) -> bool {
    found.all_suspended_until_ms > Some(found.now_ms)
        || found.waits_for.as_deref() == Some("all-suspended")
}

fn is_paused(found: &InspectionAnswer) -> bool {
    (found.held.as_ref()).is_some_and(|held| held.0 == "pause")
}

fn warnings(found: &InspectionAnswer) -> Vec<String> {
    let mut warnings: Vec<String> = (found.advertised.iter())
        .filter_map(|quota| quota.exceeded.0.as_ref())
        .map(|exceeded| text(&exceeded.warning))
        .collect();
    let unread = found.all_suspended_unread.as_deref();
    warnings.extend(unread.map(|why| format!("{ALL_UNKNOWN}: {}", text(why))));
    if !found.in_force {
        warnings.push(NOT_IN_FORCE.to_owned());
    }
    let round_trip = describe_round_trip(found.redis_round_trip_ms);
    warnings.extend(round_trip.map(|words| format!("Redis: {words}")));
    warnings
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_shadow_limit_shows_jobs_that_would_hardly_ever_start() {
        let shadow = json!({
            "name": "day", "algorithm": "sliding-window-algo", "max_requests": 2,
            "window_ms": 1_000, "unit": "calls", "guard": "50ms", "scope": "tenant",
            "shadow": true, "worst_case": 2, "starts": 4_000, "would_have_waited": 312,
            "would_never_have_started": 3, "longest_wait_ms": 41_000,
        });
        let shadow: ShadowAnswer = serde_json::from_value(shadow).expect("an answer");
        let words = tried(&shadow, &[]).words;
        let expected = "would have made 312 of 4,000 wait, the longest 41.0s; 3 for more than ";
        assert!(words.starts_with(expected), "{words}");
    }

    #[test]
    fn a_half_open_breaker_suspends_all_tenants() {
        let found = json!({
            "tenant": "acme", "source": "rate-limiter", "now_ms": 1_700_000_000_000_u64,
            "labels": {}, "labels_missing": [], "limits": [], "shadows": [],
            "waiting": 7, "waiting_by_level": {}, "recovery_wait_until_ms": 0,
            "suspended_until_ms": 0, "suspended_by": "", "all_suspended_until_ms": 0,
            "all_suspended_by": "5 failures in a row", "waits_for": "all-suspended",
            "reason": "all tenants are suspended", "advertised": [], "advertised_at_ms": 0,
            "redis_round_trip_ms": 0, "in_force": true, "other_configurations": [],
            "other_configurations_unread": [],
        });
        let mut found: InspectionAnswer = serde_json::from_value(found).expect("an answer");
        let asked = ViewRequest::of("/tenant", "name=acme", &[]).expect("a view");
        let asked = asked.expect("it is short");
        let shown = |found: &_| rendered(&view(&asked, found)).expect("it is written");
        let html = shown(&found);
        assert!(html.contains(r#"<span class="state big bad">All tenants suspended</span>"#));
        assert!(html.contains("suspended</strong> until a call succeeds, by 5 failures in a row"));
        found.waits_for = None;
        assert!(shown(&found).contains(r#"<span class="state big warn">Waiting</span>"#));
        found.waits_for = Some("redis".to_owned());
        assert!(
            shown(&found).contains(r#"<span class="state big bad">Redis refuses writes</span>"#)
        );
    }
}
