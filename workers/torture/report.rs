//! The verdict in words, and how fast it went while nothing was broken.

use std::fmt::Write;

use crate::checker::Verdict;
use crate::faults::Kind;
use crate::history::{Event, What};
use crate::plan::{MAX, Plan};

/// Findings that are shown; the history has all.
const SHOWN: usize = 20;
/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// What a fault may still cost after it is mended: reconnects back off up to 10 s.
const RECOVERY: u64 = 12 * SECOND;
/// What was under way in a worker that was killed holds its places for a minute, and what Redis forgot for as long.
const HELD: u64 = 65 * SECOND;

/// How much of what the limits allow was used in the seconds in which nothing was broken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Used {
    pub seconds: usize,
    pub calls: usize,
    pub allowed: f64,
}

/// Counts whole seconds from the first confirmed job until no more are published.
pub fn used(events: &[Event], plan: &Plan) -> Used {
    let at = |which: fn(&What) -> bool| events.iter().find(|e| which(&e.what)).map(|e| e.at);
    let begin = at(|what| matches!(what, What::Confirmed { .. })).unwrap_or(0) + 3 * SECOND;
    let end = at(|what| matches!(what, What::Draining)).unwrap_or(0);
    let mut faults: Vec<(u64, u64, u64)> = Vec::new();
    let mut calls = vec![0; usize::try_from(end / SECOND).unwrap_or(0) + 1];
    for event in events {
        match &event.what {
            What::Broken { fault, kind, .. } => {
                let holds = kind.forgets() || *kind == Kind::WorkerKill && plan.guard.is_none();
                let after = if holds { HELD } else { RECOVERY };
                faults.push((*fault, event.at, after));
            }
            What::Mended { fault } => {
                if let Some(open) = faults.iter_mut().find(|open| open.0 == *fault) {
                    open.2 += event.at;
                }
            }
            What::Arrived { .. } if event.at < end => {
                calls[usize::try_from(event.at / SECOND).unwrap_or(0)] += 1;
            }
            _ => {}
        }
    }
    let mut used = Used {
        seconds: 0,
        calls: 0,
        allowed: 0.0,
    };
    for (second, calls) in calls.iter().enumerate() {
        let from = second as u64 * SECOND;
        let to = from + SECOND;
        let whole = !faults
            .iter()
            .any(|(_, begins, over)| *begins < to && *over > from);
        if whole && from >= begin && to <= end {
            used.seconds += 1;
            used.calls += calls;
        }
    }
    let each = MAX as f64 / plan.period().as_secs_f64();
    used.allowed = each * f64::from(plan.tenants) * used.seconds as f64;
    used
}

/// The table. `left`: messages that were still in queues at the end.
pub fn table(verdict: &Verdict, used: Used, left: u64) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:24} {value}");
    };
    let faults: usize = verdict.faults.values().sum();
    line("faults", format!("{faults}: {}", list(&verdict.faults)));
    line(
        "jobs confirmed",
        format!(
            "{} ({} more were published, and RabbitMQ did not say)",
            verdict.confirmed, verdict.unsure
        ),
    );
    line(
        "done / dead",
        format!("{} / {}", verdict.done, verdict.dead),
    );
    line("left in queues", left.to_string());
    line(
        "calls",
        format!(
            "{}, {} of them not answered with 2xx; the highest attempt was {}",
            verdict.calls, verdict.refused, verdict.attempts
        ),
    );
    let repeated: usize = verdict.repeated.values().sum();
    line(
        "ran again after the end",
        format!("{repeated} calls, after: {}", list(&verdict.repeated)),
    );
    line(
        "windows",
        format!(
            "{} too full; the fullest had {} of {}",
            verdict.overfull, verdict.fullest.0, verdict.fullest.1
        ),
    );
    line(
        "used while all was whole",
        match used.seconds {
            0 => "no such second".to_owned(),
            seconds => format!(
                "{:.1} % of what the limits allow, in {seconds} s",
                100.0 * used.calls as f64 / used.allowed
            ),
        },
    );
    for finding in verdict.findings.iter().take(SHOWN) {
        let _ = writeln!(text, "FAIL {finding}");
    }
    if verdict.findings.len() > SHOWN {
        let _ = writeln!(text, "... and {} more", verdict.findings.len() - SHOWN);
    }
    text
}

fn list(counts: &std::collections::BTreeMap<Kind, usize>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    let all: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    all.join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::history::Job;
    use crate::plan::Args;

    fn plan() -> Plan {
        let args = Args::try_parse_from(["torture", "--tenants", "1", "--guard", "100"]);
        Plan::new(&args.expect("arguments")).expect("a plan")
    }

    /// 11 calls a second for 100 s, of 10 in 1.1 s, with a fault.
    fn events(kind: Kind) -> Vec<Event> {
        let job = Job {
            tenant: 0,
            number: 0,
        };
        let mut events = vec![Event {
            at: 0,
            what: What::Confirmed { job },
        }];
        for call in 0..1100 {
            let (attempt, worker, life) = (1, 0, 1);
            let what = What::Arrived {
                call,
                job,
                attempt,
                worker,
                life,
            };
            events.push(Event {
                at: call * SECOND / 11,
                what,
            });
        }
        let (fault, worker, how) = (1, None, String::new());
        events.push(Event {
            at: 10 * SECOND,
            what: What::Broken {
                fault,
                kind,
                worker,
                how,
            },
        });
        events.push(Event {
            at: 20 * SECOND,
            what: What::Mended { fault },
        });
        events.push(Event {
            at: 100 * SECOND,
            what: What::Draining,
        });
        events.sort_by_key(|event| event.at);
        events
    }

    #[test]
    fn seconds_in_which_something_was_broken_do_not_count() {
        let used_with = |kind| used(&events(kind), &plan());
        // From 3 to 10 and from 32 to 100; from 85 where Redis forgot.
        let cut = used_with(Kind::RedisCut);
        assert_eq!((cut.seconds, cut.calls), (75, 825));
        assert!((cut.allowed - 75.0 * 10.0 / 1.1).abs() < 1e-6);
        assert_eq!(used_with(Kind::RedisFlush).seconds, 22);
    }
}
