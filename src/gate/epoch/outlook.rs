//! Predicts the findings of a worker that looks now, for an observer that starts no jobs: may jobs
//! start, and if not, until when and why?
//!
//! [`outlook`] takes the steps of `decide` on a copy of the hash, so there is no second set of
//! rules. The observer acts as a worker without knowledge of its own. It proves nothing, so real
//! workers may resume sooner, but not later.

use std::collections::BTreeMap;

use super::shard::Shard;
use super::{EarlierStarts, EpochFields, NextStep, ServerIdentity, WorkerKnowledge, decide};
use rules::slots::Slots;

/// Maximum number of steps from any state to a decision, with some to spare.
const STEPS: usize = 12;
/// The reason why slots of a cluster wait.
const MOVED: &str = "its slots came from a primary that did not confirm that no data was lost";

/// Whether jobs may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outlook {
    /// Redis has all usage that counts.
    Open,
    /// No job starts, until this time of Redis's clock (in milliseconds) at the latest.
    Waits {
        /// The end of the wait.
        until_ms: u64,
        /// The reason, in words.
        why: String,
    },
    /// No job starts, because Redis refuses writes; the text says why.
    Refuses(String),
    /// No epoch exists: no worker has looked since the server was empty. The first worker that
    /// looks decides.
    Unknown,
}

/// The jobs an observer asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutlookQuestion {
    /// The longest look-back of these jobs' limits, in milliseconds.
    pub span_ms: u64,
    /// The longest look-back of any job's limits, in milliseconds.
    pub longest_ms: u64,
    /// In a cluster, the primary's slots and the subset that holds the jobs' keys.
    pub slots: Option<(Slots, Slots)>,
}

/// Returns the findings of workers that look at `hash` on `memory` at `now` by Redis's clock.
pub fn outlook(
    mut hash: BTreeMap<String, String>,
    question: &OutlookQuestion,
    memory: &ServerIdentity,
    now: u64,
) -> Outlook {
    let known = WorkerKnowledge {
        span_ms: question.longest_ms.max(question.span_ms),
        shortest_ms: question.span_ms,
        start: EarlierStarts::Unknown,
        shard: (question.slots.as_ref()).map(|(owned, _)| Shard {
            owned: owned.clone(),
            ..Shard::default()
        }),
        ..WorkerKnowledge::default()
    };
    for _ in 0..STEPS {
        let stored = EpochFields::parse(&hash);
        if stored.id.is_empty() {
            return Outlook::Unknown;
        }
        match decide(&stored, &known, memory, now, "") {
            NextStep::Write(changed) => {
                for (name, value) in changed {
                    match value.as_str() {
                        "" => _ = hash.remove(&name),
                        _ => _ = hash.insert(name, value),
                    }
                }
            }
            NextStep::Wait { until, why } => {
                return Outlook::Waits {
                    until_ms: until,
                    why,
                };
            }
            NextStep::Admit { .. } => {
                let asked = question.slots.as_ref().map(|(_, asked)| asked);
                let claims = stored.claims.iter().filter(|(_, claimed)| {
                    asked.is_some_and(|asked| !claimed.both(asked).is_empty())
                });
                let from = claims.map(|(from, _)| from).max().unwrap_or(0);
                return match from > now {
                    true => Outlook::Waits {
                        until_ms: from,
                        why: MOVED.to_owned(),
                    },
                    false => Outlook::Open,
                };
            }
        }
    }
    Outlook::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;
    const MINUTE: u64 = 60_000;

    fn memory(process: &str) -> ServerIdentity {
        ServerIdentity {
            process: process.to_owned(),
            history: "h".to_owned(),
            before: "0".to_owned(),
            evicted: 0,
            evicts: false,
        }
    }

    /// Returns the outlook for an epoch on the server `p` with these fields.
    fn seen(
        fields: &[(&str, &str)],
        question: &OutlookQuestion,
        memory: &ServerIdentity,
    ) -> Outlook {
        let run = self::memory("p").text();
        let all = [("id", "e"), ("run", run.as_str())];
        let all = all.iter().chain(fields);
        let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        outlook(all.collect(), question, memory, NOW)
    }

    fn of(span_ms: u64, longest_ms: u64) -> OutlookQuestion {
        OutlookQuestion {
            span_ms,
            longest_ms,
            slots: None,
        }
    }

    fn until(outlook: Outlook) -> (u64, String) {
        match outlook {
            Outlook::Waits { until_ms, why } => (until_ms, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_complete_memory_is_open_and_an_unchecked_one_is_unknown() {
        let question = of(1_000, MINUTE);
        assert_eq!(seen(&[], &question, &memory("p")), Outlook::Open);
        let nothing = BTreeMap::new();
        let unknown = outlook(nothing, &question, &memory("p"), NOW);
        assert_eq!(unknown, Outlook::Unknown);
    }

    #[test]
    fn each_request_waits_for_its_own_span() {
        let gap = [
            ("cold", "1050000"),
            ("lost", "990000:1050000"),
            ("why", "it was emptied"),
        ];
        let at = |span_ms| seen(&gap, &of(span_ms, MINUTE), &memory("p"));
        assert_eq!(at(10_000), Outlook::Open);
        let why = || "it was emptied".to_owned();
        assert_eq!(until(at(20_000)), (1_010_000, why()));
        assert_eq!(until(at(MINUTE)), (1_050_000, why()));
    }

    #[test]
    fn a_new_memory_waits_for_workers_that_have_not_vouched() {
        let question = of(MINUTE, MINUTE);
        let restarted = memory("q");
        // No worker has noticed yet.
        let worker = ("w:a", "7:999000");
        let (at, why) = until(seen(&[worker], &question, &restarted));
        assert_eq!(at, NOW + MINUTE);
        assert!(why.contains("restarted"), "{why}");
        let next = format!("999000:1059000:{}", restarted.text());
        let (at, _) = until(seen(&[worker, ("next", &next)], &question, &restarted));
        assert_eq!(at, 1_059_000);
        let vouched = format!("7:999000:{}", restarted.text());
        let all = [("w:a", vouched.as_str()), ("next", next.as_str())];
        let (at, _) = until(seen(&all, &question, &restarted));
        assert_eq!(at, 999_000 + super::super::SETTLE_MS);
    }

    #[test]
    fn evictions_are_seen_before_a_worker_records_them() {
        let evicting = ServerIdentity {
            evicted: 3,
            ..memory("p")
        };
        let (at, why) = until(seen(&[], &of(1_000, MINUTE), &evicting));
        assert_eq!(at, NOW + 1_000);
        assert!(why.contains("evicted"), "{why}");
    }

    #[test]
    fn slots_wait_independently() {
        let claims = [("slots", "0-99 100-199@1030000"), ("sure", "1")];
        let at = |first, last| {
            let question = OutlookQuestion {
                slots: Some((Slots::range(0, 199), Slots::range(first, last))),
                ..of(1_000, MINUTE)
            };
            seen(&claims, &question, &memory("p"))
        };
        assert_eq!(at(7, 7), Outlook::Open);
        assert_eq!(until(at(150, 150)), (1_030_000, MOVED.to_owned()));
        assert_eq!(until(at(0, 199)).0, 1_030_000);
    }
}
