//! Compares the result of a case with its expectations.

use super::Case;
use super::keys::Time;
use crate::figures::Figures;
use crate::history::RunHistory;
use crate::jobs::SimulatedJob;
use crate::table;

/// Maximum number of starts that are shown.
const SHOWN: usize = 12;

/// Returns a text for each difference. In a text, lines with `-` were expected and lines with `+`
/// are the result.
pub(super) fn differences(case: &Case, history: &RunHistory) -> Vec<String> {
    let (jobs, expected) = (&case.jobs, &case.expected);
    let policy = &case.config.rate_limiter.policy;
    let figures = Figures::of(policy, jobs, history);
    let tolerance = expected.tolerance();
    let mut found = Vec::new();
    let mut differs = |what: &str, wanted: String, came: String| {
        found.push(format!("{what}\n  - {wanted}\n  + {came}"));
    };

    let mut first: Vec<Option<f64>> = vec![None; jobs.len()];
    let mut order = Vec::new();
    for call in &history.calls {
        if let Some(start) = first.get_mut(call.job)
            && start.is_none()
        {
            *start = Some(call.at_us as f64 / 1e6);
            order.push(call.job);
        }
    }
    let starts: Vec<f64> = order.iter().filter_map(|job| first[*job]).collect();
    if let Some(wanted) = &expected.starts {
        let wanted: Vec<f64> = wanted
            .iter()
            .filter_map(|time| time.seconds().ok())
            .collect();
        let as_wanted = |(wanted, came): (&f64, &f64)| (wanted - came).abs() <= tolerance;
        let pairs = wanted.iter().zip(&starts);
        if wanted.len() != starts.len() || !pairs.clone().all(as_wanted) {
            let same = pairs.take_while(|pair| as_wanted(*pair)).count();
            let what = match wanted.len() == starts.len() {
                true => format!(
                    "starts: the {} differs by more than {tolerance} s",
                    nth(same + 1)
                ),
                false => format!(
                    "starts: {} jobs, and {} are expected to start",
                    starts.len(),
                    wanted.len()
                ),
            };
            let came = list(&starts) + &reasons(jobs, history);
            differs(&what, list(&wanted), came);
        }
    }
    let number = |name: &String| case.names.iter().position(|known| known == name);
    for (name, wanted) in expected.start.iter().flatten() {
        let came = number(name).and_then(|job| first[job]);
        let wanted = wanted.seconds().unwrap_or_default();
        if came.is_none_or(|came| (came - wanted).abs() > tolerance) {
            let came = match came {
                Some(came) => format!("{came:.3} s"),
                None => format!("never{}", death(number(name), history)),
            };
            differs(&format!("start of {name}"), format!("{wanted:.3} s"), came);
        }
    }
    if let Some(wanted) = &expected.order {
        let came = order.iter().map(|job| &case.names[*job]);
        let came: Vec<&String> = came.filter(|name| wanted.contains(name)).collect();
        if came.iter().copied().ne(wanted) {
            let words = |names: Vec<&String>| {
                names
                    .iter()
                    .map(|name| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            differs("order", words(wanted.iter().collect()), words(came));
        }
    }
    let mut at_most = |what: &str, wanted: Option<&Time>, came: f64| {
        let wanted = wanted.and_then(|time| time.seconds().ok());
        if let Some(wanted) = wanted.filter(|wanted| came > wanted + tolerance) {
            differs(
                what,
                format!("at most {wanted:.3} s"),
                format!("{came:.3} s"),
            );
        }
    };
    if let Some(waits) = &expected.waits_at_most {
        at_most("wait p50", waits.p50.as_ref(), figures.waits.p50);
        at_most("wait p99", waits.p99.as_ref(), figures.waits.p99);
        at_most("longest wait", waits.max.as_ref(), figures.waits.max);
    }
    if let Some(max) = &expected.done_after_at_most {
        let done = &figures.done_after;
        at_most("done after p50", max.p50.as_ref(), done.p50);
        at_most("done after p99", max.p99.as_ref(), done.p99);
        at_most("longest done after", max.max.as_ref(), done.max);
    }
    at_most(
        "makespan",
        expected.makespan_at_most.as_ref(),
        figures.makespan,
    );
    for (name, wanted) in expected.fullest_window.iter().flatten() {
        let limit = figures.limits.iter().find(|limit| limit.name == *name);
        let came = limit.map(|limit| limit.fullest);
        if came != Some(*wanted) {
            let is_shadow = figures.shadows.iter().any(|shadow| shadow.name == *name);
            let came = match came {
                Some(units) => units.to_string(),
                None if is_shadow => "it is a shadow: use would-have-waited".to_owned(),
                None => "there is no such limit".to_owned(),
            };
            differs(
                &format!("fullest window of {name}"),
                wanted.to_string(),
                came,
            );
        }
    }
    for (name, wanted) in expected.would_have_waited.iter().flatten() {
        let shadow = figures.shadows.iter().find(|shadow| shadow.name == *name);
        let came = shadow.map(|shadow| shadow.would_have_waited);
        if came != Some(*wanted) {
            let came = came.map_or_else(
                || "there is no such shadow limit".to_owned(),
                |jobs| jobs.to_string(),
            );
            differs(
                &format!("jobs that would have waited for the shadow {name}"),
                wanted.to_string(),
                came,
            );
        }
    }
    let mut same = |what: &str, wanted: Option<usize>, came: usize, more: String| {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != came) {
            differs(what, wanted.to_string(), format!("{came}{more}"));
        }
    };
    // A case expects no dead letters unless it says so. Otherwise a bound on waits would hold even
    // if no job ever started.
    same(
        "dead letters",
        Some(expected.dead_letters.unwrap_or(0)),
        history.dead.len(),
        reasons(jobs, history),
    );
    same("429s", expected.throttled, figures.throttled, String::new());
    if let Some(max) = expected
        .deliveries_at_most
        .filter(|max| figures.deliveries > *max)
    {
        differs(
            "deliveries per job",
            format!("at most {max}"),
            figures.deliveries.to_string(),
        );
    }
    if let Some(came) = table::unfinished(&figures) {
        differs("jobs", "all are done".to_owned(), came);
    }
    found
}

fn nth(number: usize) -> String {
    let end = match (number % 10, number % 100) {
        (1, 1..=10 | 12..) => "st",
        (2, 0..=11 | 13..) => "nd",
        (3, 0..=12 | 14..) => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

fn list(times: &[f64]) -> String {
    if times.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = times
        .iter()
        .take(SHOWN)
        .map(|time| format!("{time:.3}"))
        .collect();
    let more = match times.len() > SHOWN {
        true => format!(", … ({} in all)", times.len()),
        false => String::new(),
    };
    format!("{}{more} s", shown.join(", "))
}

/// Returns a text with the reason why the job is a dead letter; empty if it is none.
fn death(job: Option<usize>, history: &RunHistory) -> String {
    let mut dead = history.dead.iter();
    let found = dead.find(|(dead, _)| Some(*dead) == job);
    found.map_or_else(String::new, |(_, reason)| {
        format!("; it is a dead letter: {}", short(reason))
    })
}

fn short(reason: &str) -> String {
    reason.chars().take(80).collect()
}

/// Lists dead letters with their tenants and reasons.
fn reasons(jobs: &[SimulatedJob], history: &RunHistory) -> String {
    let each = history.dead.iter().take(3).filter_map(|(job, reason)| {
        let tenant = &jobs.get(*job)?.tenant;
        let tenant = table::middle(tenant);
        Some(format!(
            "a job of {tenant} is a dead letter: {}",
            short(reason)
        ))
    });
    let each: Vec<String> = each.collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" ({})", each.join("; ")),
    }
}
