//! Figures as text: the results of each configuration, side by side.

use std::iter::once;

use crate::figures::{
    Figures, LimitSummary, Reason, ShadowSummary, TenantSummary, UnfinishedSummary, WaitFigures,
};
pub use operator::text::grouped as number;
use operator::text::{Side, columns, plain};

/// Maximum number of characters shown of the name of a tenant or a file.
const MAX_NAME_CHARS: usize = 40;
/// Maximum number of characters shown of a dead letter's reason.
const MAX_REASON_CHARS: usize = 40;

/// Formats the figures of all runs, with their names, in columns.
pub fn table(all: &[(String, Figures)]) -> String {
    let mut rows = FigureRows::new(all);
    rows.add_run();
    for name in names(all, |f| f.limits.iter().map(|limit| limit.name.as_str())) {
        rows.add_limit(&name);
    }
    for name in names(all, |f| f.shadows.iter().map(|shadow| shadow.name.as_str())) {
        rows.add_shadow(&name);
    }
    for name in names(all, |f| {
        f.tenants.iter().map(|tenant| tenant.tenant.as_str())
    }) {
        rows.add_tenant(&name);
    }
    if rows.any(|f| f.more_tenants > 0) {
        rows.add("other tenants", &|f| number(f.more_tenants as u64));
    }
    for reason in names(all, |f| f.dead.keys().map(String::as_str)) {
        rows.add(
            &format!("dead: {}", plain(&reason, MAX_REASON_CHARS)),
            &|f| number(f.dead.get(&reason).copied().unwrap_or(0) as u64),
        );
    }
    let mut table = columns(&rows.rows, |column| match column {
        0 => Side::Left,
        _ => Side::Right,
    });
    for (name, figures) in all {
        if let Some(why) = unfinished(figures) {
            table.push_str(&format!("\n{}: {why}\n", middle(name)));
        }
    }
    table
}

/// The rows of the table of all runs, below a row with their names.
struct FigureRows<'a> {
    all: &'a [(String, Figures)],
    /// The name of the figure, and a text for each run.
    rows: Vec<Vec<String>>,
}

impl<'a> FigureRows<'a> {
    fn new(all: &'a [(String, Figures)]) -> Self {
        let names = all.iter().map(|(name, _)| middle(name));
        Self {
            all,
            rows: vec![once(String::new()).chain(names).collect()],
        }
    }

    /// Returns true if `has` is true for the figures of at least one run.
    fn any(&self, has: impl Fn(&Figures) -> bool) -> bool {
        self.all.iter().any(|(_, figures)| has(figures))
    }

    fn add(&mut self, name: &str, text: &dyn Fn(&Figures) -> String) {
        let texts = self.all.iter().map(|(_, figures)| text(figures));
        let row = once(name.to_owned()).chain(texts);
        self.rows.push(row.collect());
    }

    /// Adds the rows about the run as a whole.
    fn add_run(&mut self) {
        self.add("jobs", &|f| number(f.jobs as u64));
        self.add("makespan", &makespan);
        self.add("busiest quota: used share", &|f| percent(f.used));
        self.add("wait p50", &|f| wait(&f.waits, 50));
        self.add("wait p99", &|f| wait(&f.waits, 99));
        self.add("wait max", &|f| wait(&f.waits, 100));
        self.add("done after p50, p99, max", &|f| three(&f.done_after));
        self.add("calls", &|f| number(f.calls as u64));
        self.add("429s", &|f| number(f.throttled as u64));
        self.add("retries", &|f| number(f.retries as u64));
        self.add("deliveries per job", &|f| format!("{:.2}", f.deliveries));
        self.add("dead letters", &|f| {
            number(f.dead.values().sum::<usize>() as u64)
        });
        if self.any(|f| f.dead_uncalled > 0) {
            self.add("  never called", &|f| number(f.dead_uncalled as u64));
        }
        if self.any(|f| f.duplicates > 0) {
            self.add("duplicates", &|f| number(f.duplicates as u64));
        }
        if self.any(|f| f.unfinished > 0) {
            self.add("not done in time", &|f| number(f.unfinished as u64));
        }
        if self.any(|f| f.waits.not_over > 0) {
            self.add("  not started", &|f| number(f.waits.not_over as u64));
        }
    }

    /// Adds the rows about the limit `name`.
    fn add_limit(&mut self, name: &str) {
        let is_learned = self.any(|f| learns(f, name));
        let mut add = |title: &str, text: &dyn Fn(&LimitSummary) -> String| {
            self.add(title, &|f| {
                let limit = f.limits.iter().find(|limit| limit.name == name);
                limit.map_or("-".to_owned(), text)
            });
        };
        add(&format!("limit {name}"), &|l| l.algorithm.clone());
        add("  used: busiest, all", &|l| {
            format!("{}, {}", percent(l.most_used), percent(l.used))
        });
        add("  fullest window", &|l| {
            format!("{} of {}", number(l.fullest), number(l.allowance))
        });
        add("  waits", &|l| number(l.waits.jobs as u64));
        add("  p50, p99, max", &|l| three(&l.waits));
        if is_learned {
            add("  learned limit at the end", &|l| match l.learned {
                Some(max) => number(max),
                None => "-".to_owned(),
            });
        }
    }

    /// Adds the rows about the shadow limit `name`.
    fn add_shadow(&mut self, name: &str) {
        let mut add = |title: &str, text: &dyn Fn(&ShadowSummary) -> String| {
            self.add(title, &|f| {
                let shadow = f.shadows.iter().find(|shadow| shadow.name == name);
                shadow.map_or("-".to_owned(), text)
            });
        };
        add(&format!("shadow {name}"), &|s| s.algorithm.clone());
        add("  would have waited", &|s| {
            format!("{} of {}", number(s.would_have_waited), number(s.starts))
        });
        add("  longest", &|s| match s.would_have_waited {
            0 => "-".to_owned(),
            _ => time(s.longest_wait),
        });
        add("  over a day, or never", &|s| {
            number(s.would_never_have_started)
        });
    }

    /// Adds the rows about the tenant `name`.
    fn add_tenant(&mut self, name: &str) {
        let mut add = |title: &str, text: &dyn Fn(&TenantSummary) -> String| {
            self.add(title, &|f| {
                let tenant = f.tenants.iter().find(|tenant| tenant.tenant == name);
                tenant.map_or("-".to_owned(), text)
            });
        };
        add(&format!("tenant {}: jobs", middle(name)), &|t| {
            number(t.jobs as u64)
        });
        add("  wait p50, p99, max", &|t| three(&t.waits));
    }
}

/// Says how many jobs were not done at the end of the run, and why; `None` if all were.
pub fn unfinished(figures: &Figures) -> Option<String> {
    if figures.unfinished == 0 {
        return None;
    }
    let jobs = format!(
        "{} of {} jobs were not done",
        number(figures.unfinished as u64),
        number(figures.jobs as u64)
    );
    let Some(left) = &figures.left else {
        return Some(jobs);
    };
    let why = match left.why {
        Reason::Within => "the run ended (within)".to_owned(),
        Reason::Still => format!("no job had ended for {}", time(left.still)),
        Reason::Work => {
            "the maximum number of calls and deliveries was reached; set within to continue for \
            longer"
                .to_owned()
        }
    };
    let api = api(left);
    let later = match figures.unpublished {
        0 => String::new(),
        later => format!(" ({} not yet published)", number(later as u64)),
    };
    Some(format!("{jobs} by {}{later}: {why}{api}", time(left.at)))
}

/// Describes the problem that most of the calls had at the API; empty if there was none.
fn api(left: &UnfinishedSummary) -> String {
    let calls = left.calls;
    if calls == 0 {
        return "; no job was called in that time".to_owned();
    }
    let part = |of: usize| {
        let percent = percent(of as f64 / calls as f64);
        let plural = if calls == 1 { "" } else { "s" };
        format!("{percent} of {} call{plural}", number(calls as u64))
    };
    let of_all = [
        (left.failed, "; the API failed "),
        (left.throttled, "; the API answered 429 to "),
        (left.unanswered, "; the API did not answer in time for "),
    ];
    let max = of_all.into_iter().max_by_key(|(number, _)| *number);
    match max.filter(|(number, _)| 2 * number >= calls) {
        Some((number, words)) => format!("{words}{}", part(number)),
        None => String::new(),
    }
}

fn learns(figures: &Figures, name: &str) -> bool {
    let mut limits = figures.limits.iter();
    limits.any(|limit| limit.name == name && limit.learned.is_some())
}

/// Returns all names that occur in any of the figures, in the order of their first occurrence.
fn names<'a, I: Iterator<Item = &'a str>>(
    all: &'a [(String, Figures)],
    of: impl Fn(&'a Figures) -> I,
) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in all.iter().flat_map(|(_, figures)| of(figures)) {
        if names.iter().all(|known| known != name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn three(waits: &WaitFigures) -> String {
    [50, 99, 100].map(|part| wait(waits, part)).join(", ")
}

/// Formats a percentile of the waits. `≥` marks a lower bound, and `-` means that no job waited.
pub fn wait(waits: &WaitFigures, of_a_hundred: usize) -> String {
    let shown = time(match of_a_hundred {
        50 => waits.p50,
        99 => waits.p99,
        _ => waits.max,
    });
    match waits.jobs {
        0 => "-".to_owned(),
        _ if of_a_hundred >= waits.least_from => format!("≥ {shown}"),
        _ => shown,
    }
}

/// Formats the makespan; `≥` marks a lower bound.
pub fn makespan(figures: &Figures) -> String {
    match figures.unfinished {
        0 => time(figures.makespan),
        _ => format!("≥ {}", time(figures.makespan)),
    }
}

/// Shortens a long name to its beginning and end, which distinguish it from others.
pub fn middle(name: &str) -> String {
    let printed = |c: char| if c.is_control() { ' ' } else { c };
    let name: Vec<char> = name.chars().map(printed).collect();
    if name.len() <= MAX_NAME_CHARS {
        return name.into_iter().collect();
    }
    let (begin, end) = (
        &name[..MAX_NAME_CHARS / 2],
        &name[name.len() - (MAX_NAME_CHARS / 2 - 1)..],
    );
    let shown = begin.iter().chain(&['…']).chain(end);
    shown.collect()
}

/// Formats seconds in a readable unit.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        7200.. => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
        600.. => format!("{}m {:02}s", whole / 60, whole % 60),
        _ if seconds >= 10.0 => format!("{seconds:.1} s"),
        _ if seconds >= 1.0 => format!("{seconds:.2} s"),
        _ => format!("{:.0} ms", seconds * 1000.0),
    }
}

/// Formats a fraction as a percentage.
pub fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{EarlyEnd, RecordedCall, RunHistory, StopReason};
    use crate::jobs::SimulatedJob;
    use config::Config;

    #[test]
    fn a_long_name_is_shown_by_its_beginning_and_its_end() {
        assert_eq!(middle("acme"), "acme");
        let long = middle(&format!("begin{}end", "x".repeat(250)));
        assert_eq!(long.chars().count(), MAX_NAME_CHARS);
        assert!(
            long.starts_with("beginx") && long.ends_with("xend"),
            "{long}"
        );
    }

    #[test]
    fn a_reason_does_not_control_the_terminal() {
        let reason = format!("no\u{1b}[2J{}", "x".repeat(100));
        let history = RunHistory {
            dead: vec![(0, reason)],
            ..RunHistory::default()
        };
        let policy = &Config::default().rate_limiter.policy;
        let figures = Figures::of(policy, &[SimulatedJob::new(0.0, "a")], &history);
        let text = table(&[("run".to_owned(), figures)]);
        assert!(text.contains("dead: no\\u{1b}[2Jxx"), "{text}");
        assert!(text.contains('…'), "{text}");
    }

    #[test]
    fn unfinished_runs_are_shown_with_the_reason() {
        let call = |at_us, status| RecordedCall {
            at_us,
            until_us: at_us,
            ended_us: at_us,
            job: 0,
            status,
        };
        let shown = |left, calls: Vec<RecordedCall>| {
            let history = RunHistory {
                calls,
                unfinished: 1,
                left: Some(left),
                ..RunHistory::default()
            };
            let policy = &Config::default().rate_limiter.policy;
            let jobs = [SimulatedJob::new(0.0, "a"), SimulatedJob::new(0.0, "a")];
            unfinished(&Figures::of(policy, &jobs, &history)).expect("one is left")
        };
        let left = |why| EarlyEnd {
            at_us: 7_200_000_000,
            since_us: 3_600_000_000,
            why,
        };
        let (early, late) = (call(0, 200), call(3_600_000_000, 500));
        assert_eq!(
            shown(left(StopReason::Still), vec![early, late]),
            "1 of 2 jobs were not done by 2h 00m: no job had ended for 60m 00s; the API failed \
            100.0 % of 1 call"
        );
        assert!(
            shown(left(StopReason::Still), vec![early]).ends_with("no job was called in that time")
        );
        let refused = shown(
            left(StopReason::Within),
            vec![call(0, 429), call(1, 429), early],
        );
        assert!(
            refused.contains("(within); the API answered 429 to 66.7 % of 3 calls"),
            "{refused}"
        );
        let much = shown(left(StopReason::Work(9)), vec![early, call(1, 200)]);
        assert!(
            much.ends_with("set within to continue for longer"),
            "{much}"
        );
    }

    #[test]
    fn numbers_are_rounded_for_readers() {
        let times = [0.0, 0.0123, 1.5, 12.34, 599.0, 754.0, 7_320.0].map(time);
        let expected = [
            "0 ms", "12 ms", "1.50 s", "12.3 s", "599.0 s", "12m 34s", "2h 02m",
        ];
        assert_eq!(times, expected);
        assert_eq!(
            [7, 1_234, 1_234_567].map(number),
            ["7", "1,234", "1,234,567"]
        );
    }
}
