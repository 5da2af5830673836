//! Compares the result of a case with its expectations.

use operator::text::{count, plain};

use super::Case;
use super::keys::Time;
use crate::figures::Figures;
use crate::history::RunHistory;
use crate::jobs::SimulatedJob;
use crate::table;

/// Maximum number of starts that are shown.
const SHOWN: usize = 12;
/// Maximum number of characters of a dead letter's reason that are shown.
const MAX_REASON_CHARS: usize = 80;

/// Returns a text for each difference. In a text, lines with `-` were expected and lines with `+`
/// are the result.
pub(super) fn differences(case: &Case, history: &RunHistory) -> Vec<String> {
    let mut judge = Judge::new(case, history);
    judge.compare_starts();
    judge.compare_start_of_jobs();
    judge.compare_order();
    judge.compare_durations();
    judge.compare_fullest_windows();
    judge.compare_shadows();
    judge.compare_counts();
    if let Some(came) = table::unfinished(&judge.figures) {
        judge.differs("jobs", "all are done".to_owned(), came);
    }
    judge.found
}

/// The result of a case, and the differences found so far.
struct Judge<'a> {
    case: &'a Case,
    history: &'a RunHistory,
    figures: Figures,
    /// Start of each job, in seconds.
    first: Vec<Option<f64>>,
    /// Jobs in the order in which they started.
    order: Vec<usize>,
    found: Vec<String>,
}

impl<'a> Judge<'a> {
    fn new(case: &'a Case, history: &'a RunHistory) -> Self {
        let mut first: Vec<Option<f64>> = vec![None; case.jobs.len()];
        let mut order = Vec::new();
        for call in &history.calls {
            if let Some(start) = first.get_mut(call.job)
                && start.is_none()
            {
                *start = Some(call.at_us as f64 / 1e6);
                order.push(call.job);
            }
        }
        Self {
            case,
            history,
            figures: Figures::of(&case.config.rate_limiter.policy, &case.jobs, history),
            first,
            order,
            found: Vec::new(),
        }
    }

    fn differs(&mut self, what: &str, wanted: String, came: String) {
        self.found.push(format!("{what}\n  - {wanted}\n  + {came}"));
    }

    /// Compares the start times of all jobs.
    fn compare_starts(&mut self) {
        let Some(wanted) = &self.case.expected.starts else {
            return;
        };
        let wanted: Vec<f64> = wanted
            .iter()
            .filter_map(|time| time.seconds().ok())
            .collect();
        let starts: Vec<f64> = (self.order.iter())
            .filter_map(|job| self.first[*job])
            .collect();
        let tolerance = self.case.expected.tolerance();
        let as_wanted = |(wanted, came): (&f64, &f64)| (wanted - came).abs() <= tolerance;
        let pairs = wanted.iter().zip(&starts);
        if wanted.len() == starts.len() && pairs.clone().all(as_wanted) {
            return;
        }
        let same = pairs.take_while(|pair| as_wanted(*pair)).count();
        let what = match wanted.len() == starts.len() {
            true => format!(
                "starts: the {} differs by more than {tolerance} s",
                nth(same + 1)
            ),
            false => format!(
                "starts: {} started, not {}",
                count(starts.len() as u64, "job"),
                wanted.len()
            ),
        };
        let came = list(&starts) + &reasons(&self.case.jobs, self.history);
        self.differs(&what, list(&wanted), came);
    }

    /// Compares the start times of jobs that are named.
    fn compare_start_of_jobs(&mut self) {
        let case = self.case;
        let tolerance = case.expected.tolerance();
        for (name, wanted) in case.expected.start.iter().flatten() {
            let number = case.names.iter().position(|known| known == name);
            let came = number.and_then(|job| self.first[job]);
            let wanted = wanted.seconds().unwrap_or_default();
            if came.is_none_or(|came| (came - wanted).abs() > tolerance) {
                let came = match came {
                    Some(came) => format!("{came:.3} s"),
                    None => format!("never{}", death(number, self.history)),
                };
                self.differs(&format!("start of {name}"), format!("{wanted:.3} s"), came);
            }
        }
    }

    /// Compares the order in which jobs started.
    fn compare_order(&mut self) {
        let case = self.case;
        let Some(wanted) = &case.expected.order else {
            return;
        };
        let came = self.order.iter().map(|job| &case.names[*job]);
        let came: Vec<&String> = came.filter(|name| wanted.contains(name)).collect();
        if came.iter().copied().ne(wanted) {
            let words = |names: Vec<&String>| {
                names
                    .iter()
                    .map(|name| name.as_str())
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            self.differs("order", words(wanted.iter().collect()), words(came));
        }
    }

    /// Compares waits and the makespan with their maximums.
    fn compare_durations(&mut self) {
        let expected = &self.case.expected;
        if let Some(max) = &expected.waits_at_most {
            let waits = self.figures.waits;
            self.at_most("wait p50", max.p50.as_ref(), waits.p50);
            self.at_most("wait p99", max.p99.as_ref(), waits.p99);
            self.at_most("longest wait", max.max.as_ref(), waits.max);
        }
        if let Some(max) = &expected.done_after_at_most {
            let done = self.figures.done_after;
            self.at_most("done after p50", max.p50.as_ref(), done.p50);
            self.at_most("done after p99", max.p99.as_ref(), done.p99);
            self.at_most("longest done after", max.max.as_ref(), done.max);
        }
        let makespan = self.figures.makespan;
        self.at_most("makespan", expected.makespan_at_most.as_ref(), makespan);
    }

    fn at_most(&mut self, what: &str, wanted: Option<&Time>, came: f64) {
        let tolerance = self.case.expected.tolerance();
        let wanted = wanted.and_then(|time| time.seconds().ok());
        if let Some(wanted) = wanted.filter(|wanted| came > wanted + tolerance) {
            let wanted = format!("at most {wanted:.3} s");
            self.differs(what, wanted, format!("{came:.3} s"));
        }
    }

    /// Compares the units in the fullest window of each limit.
    fn compare_fullest_windows(&mut self) {
        for (name, wanted) in self.case.expected.fullest_window.iter().flatten() {
            let figures = &self.figures;
            let limit = figures.limits.iter().find(|limit| limit.name == *name);
            let came = limit.map(|limit| limit.fullest);
            if came == Some(*wanted) {
                continue;
            }
            let is_shadow = figures.shadows.iter().any(|shadow| shadow.name == *name);
            let came = match came {
                Some(units) => units.to_string(),
                None if is_shadow => "it is a shadow: use would-have-waited".to_owned(),
                None => "there is no such limit".to_owned(),
            };
            let what = format!("fullest window of {name}");
            self.differs(&what, wanted.to_string(), came);
        }
    }

    /// Compares the number of jobs that each shadow limit would have delayed.
    fn compare_shadows(&mut self) {
        for (name, wanted) in self.case.expected.would_have_waited.iter().flatten() {
            let mut shadows = self.figures.shadows.iter();
            let shadow = shadows.find(|shadow| shadow.name == *name);
            let came = shadow.map(|shadow| shadow.would_have_waited);
            if came == Some(*wanted) {
                continue;
            }
            let came = came.map_or_else(
                || "there is no such shadow limit".to_owned(),
                |jobs| jobs.to_string(),
            );
            let what = format!("jobs that would have waited for the shadow {name}");
            self.differs(&what, wanted.to_string(), came);
        }
    }

    /// Compares the numbers of dead letters, 429s and deliveries.
    fn compare_counts(&mut self) {
        let (expected, history) = (&self.case.expected, self.history);
        // A case expects no dead letters unless it says so. Otherwise a bound on waits would hold
        // even if no job ever started.
        let (wanted, came) = (expected.dead_letters.unwrap_or(0), history.dead.len());
        if came != wanted {
            let came = format!("{came}{}", reasons(&self.case.jobs, history));
            self.differs("dead letters", wanted.to_string(), came);
        }
        let came = self.figures.throttled;
        if let Some(wanted) = expected.throttled.filter(|wanted| *wanted != came) {
            self.differs("429s", wanted.to_string(), came.to_string());
        }
        let came = self.figures.deliveries;
        if let Some(max) = expected.deliveries_at_most.filter(|max| came > *max) {
            let wanted = format!("at most {max}");
            self.differs("deliveries per job", wanted, came.to_string());
        }
    }
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
        let reason = plain(reason, MAX_REASON_CHARS);
        format!("; it is a dead letter: {reason}")
    })
}

/// Lists dead letters with their tenants and reasons.
fn reasons(jobs: &[SimulatedJob], history: &RunHistory) -> String {
    let each = history.dead.iter().take(3).filter_map(|(job, reason)| {
        let tenant = &jobs.get(*job)?.tenant;
        let tenant = table::middle(tenant);
        let reason = plain(reason, MAX_REASON_CHARS);
        Some(format!("a job of {tenant} is a dead letter: {reason}"))
    });
    let each: Vec<String> = each.collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(" ({})", each.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_does_not_control_the_terminal() {
        let history = RunHistory {
            dead: vec![(0, "no\u{1b}[2J".to_owned())],
            ..RunHistory::default()
        };
        let death = death(Some(0), &history);
        assert_eq!(death, r"; it is a dead letter: no\u{1b}[2J");
        let reasons = reasons(&[SimulatedJob::new(0.0, "a")], &history);
        assert_eq!(reasons, r" (a job of a is a dead letter: no\u{1b}[2J)");
    }
}
