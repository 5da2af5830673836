//! Lessons of answers for adaptive limits, and the limits that this worker's lessons have lowered.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::facts::LimitFact;
use crate::scheduler::Scheduler;
use crate::scheduler::entry::StartRecord;
use crate::scheduler::outbox::Outbox;
use gate::{Evidence, GateError, LearnReplies, LimitEvidence, MaxChange};
use handler::Outcome;
use rules::answers::{Excess, Quotas};
use rules::limit::{Limit, Limits, Unit, ceil_ms, floor_ms};
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Maximum number of lessons per request, and of lessons that wait for the next one. Further
/// lessons are dropped.
const MAX_LESSONS: usize = 256;
/// Maximum number of lowered limits that are followed. For further limits, no fact reports that
/// they are whole.
const MAX_LOWERED: usize = 10_000;
/// Minimum interval between checks for limits that are whole again. Each check looks at all lowered
/// limits.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// A limit of one tenant, or of all tenants together.
type LimitKey = (Option<Tenant>, String);

/// Lessons that are queued and being stored, and the lowered limits.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Lessons {
    /// The lesson of the answer that is being handled. It is stored after its throttle.
    refused: Option<Box<LimitEvidence>>,
    outbox: Outbox<LimitEvidence>,
    /// When each limit was lowered, and when it is whole again.
    lowered: HashMap<LimitKey, (Duration, Duration), RandomState>,
    /// When a limit may be whole again.
    next_check: Duration,
}

/// A call under limits of which at least one is adaptive.
pub(in crate::scheduler) struct Learner {
    labels: Labels,
    limits: Limits,
    started_ms: u64,
    cost: u64,
}

impl Learner {
    /// Returns `None` if no limit of the call is adaptive.
    fn of(started: &StartRecord) -> Option<Self> {
        let learns = started.limits.iter().any(|limit| limit.band().is_some());
        learns.then(|| Self {
            labels: started.labels.clone(),
            limits: started.limits.clone(),
            started_ms: started.receipt.started_ms,
            cost: started.receipt.cost,
        })
    }

    fn lesson(&self, tenant: &Tenant, evidence: Evidence) -> LimitEvidence {
        LimitEvidence {
            tenant: tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            evidence,
        }
    }

    /// Returns for each limit the `max` that respects the advertised limits, or 0 if the limit
    /// respects them already. A limit that counts cost is left alone (`None`) if the call cost more
    /// than one unit, because an API counts calls.
    fn keeps(&self, quotas: Quotas) -> Vec<Option<u64>> {
        let excesses = quotas
            .iter()
            .filter_map(|quota| Excess::of(&self.limits, quota));
        let excesses: Vec<Excess> = excesses.collect();
        let keeps = |limit: &Limit| {
            let counts_calls = limit.unit() == Unit::Calls || self.cost == 1;
            let of_this = excesses
                .iter()
                .filter(|excess| excess.limit() == Some(limit));
            let max = of_this.filter_map(|excess| excess.max_requests().or(Some(1)));
            counts_calls.then(|| max.min().unwrap_or(0))
        };
        self.limits.iter().map(keeps).collect()
    }
}

impl Lessons {
    /// Records the end of a call. If the API refused the call, its lesson is stored after its
    /// throttle. Returns `None` if its answer has no lesson.
    pub(in crate::scheduler) fn called(
        &mut self,
        tenant: &Tenant,
        started: &StartRecord,
        outcome: &Outcome,
        is_refused: bool,
    ) -> Option<Learner> {
        let learner = Learner::of(started)?;
        if let Outcome::Throttled { after, .. } = outcome
            && is_refused
        {
            let after_ms = after.map_or(0, floor_ms);
            let evidence = Evidence::Refused {
                started_ms: learner.started_ms,
                cost: learner.cost,
                after_ms,
                closed_ms: 0,
            };
            self.refused = Some(Box::new(learner.lesson(tenant, evidence)));
        }
        Some(learner)
    }

    /// Takes the lesson that goes with the throttle of the answer that is being handled.
    pub(super) fn take_refused(&mut self) -> Option<Box<LimitEvidence>> {
        self.refused.take()
    }

    /// Records the lesson of a refused call. The throttle lasts for `left`, and stops all tenants
    /// if `stops_all`.
    pub(super) fn refused(&mut self, mut lesson: LimitEvidence, stops_all: bool, left: Duration) {
        // If only one tenant is stopped, the other tenants still use shared limits.
        let mut learn = (lesson.limits.iter()).filter(|limit| limit.band().is_some());
        let is_unused = stops_all || learn.all(|limit| !limit.is_global());
        if let Evidence::Refused { closed_ms, .. } = &mut lesson.evidence
            && is_unused
        {
            *closed_ms = ceil_ms(left);
        }
        self.add(lesson);
    }

    /// Records the lesson of advertised limits.
    pub(super) fn advertised(&mut self, tenant: &Tenant, learner: &Learner, quotas: Quotas) {
        if quotas.iter().any(|quota| quota.window.is_some()) {
            let keeps = Evidence::Advertised(learner.keeps(quotas));
            self.add(learner.lesson(tenant, keeps));
        }
    }

    fn add(&mut self, lesson: LimitEvidence) {
        if self.outbox.waiting().len() < MAX_LESSONS {
            self.outbox.push(lesson);
        }
    }

    /// Returns the lessons to store now: none while a request is in flight.
    pub(in crate::scheduler) fn send(&mut self, now: Duration) -> Option<Vec<LimitEvidence>> {
        let batch = self.outbox.send(now, MAX_LESSONS)?;
        Some(batch.to_vec())
    }

    /// Records that a limit is lowered. Returns a fact if that is news.
    fn max_changed(
        &mut self,
        now: Duration,
        (tenant, limit): (&Tenant, &Limit),
        change: &MaxChange,
        left: Duration,
    ) -> Option<LimitFact> {
        let scope = (!limit.is_global()).then(|| tenant.clone());
        let key = (scope.clone(), limit.name().to_owned());
        if change.to >= change.set {
            return self.restored(now, &key);
        }
        let until = now.saturating_add(left);
        if self.lowered.len() < MAX_LOWERED || self.lowered.contains_key(&key) {
            let (_, ends) = self.lowered.entry(key).or_insert((now, until));
            *ends = until;
            self.next_check = match self.lowered.len() {
                1 => until,
                _ => self.next_check.min(until),
            };
        }
        let is_news = change.is_new && change.to < change.from;
        is_news.then(|| LimitFact::Lowered {
            scope,
            limit: limit.name().to_owned(),
            from: change.from,
            to: change.to,
            max: change.set,
            left,
            lowered: self.count(limit.name()),
        })
    }

    fn restored(&mut self, now: Duration, key: &LimitKey) -> Option<LimitFact> {
        let (since, _) = self.lowered.remove(key)?;
        let (scope, limit) = key.clone();
        let lowered = self.count(&limit);
        Some(LimitFact::Restored {
            scope,
            limit,
            after: now.saturating_sub(since),
            lowered,
        })
    }

    /// Returns the number of tenants for which the limit of this name is lowered.
    fn count(&self, limit: &str) -> usize {
        self.lowered
            .keys()
            .filter(|(_, name)| name == limit)
            .count()
    }

    /// Returns facts on the limits that are whole again.
    pub(in crate::scheduler) fn check_limits(&mut self, now: Duration) -> Vec<LimitFact> {
        if self.lowered.is_empty() || now < self.next_check {
            return Vec::new();
        }
        let (mut restored, mut next) = (Vec::new(), Duration::MAX);
        for (key, (_, until)) in &self.lowered {
            match *until <= now {
                true => restored.push(key.clone()),
                false => next = next.min(*until),
            }
        }
        self.next_check = next.max(now + CHECK_INTERVAL);
        // Sorted, because the map has no stable order, and equal events must have equal results.
        restored.sort_unstable();
        let facts = restored.iter().filter_map(|key| self.restored(now, key));
        facts.collect()
    }

    /// Returns when [`Lessons::check_limits`] may find something.
    pub(in crate::scheduler) fn next(&self) -> Option<Duration> {
        (!self.lowered.is_empty()).then_some(self.next_check)
    }
}

impl Scheduler {
    /// Handles the result of [`Action::Learn`](crate::action::Action::Learn).
    pub fn learned(&mut self, now: Duration, result: Result<LearnReplies, GateError>) {
        let sent = self.lessons.outbox.take_sent();
        let all = match result {
            Ok(all) => all,
            Err(why) => return self.facts.push(LimitFact::LessonNotStored(why)),
        };
        let clock_ms = self.clock.at_least(now).unwrap_or(0);
        for (lesson, learned) in sent.iter().zip(all) {
            let (tenant, limits) = (&lesson.tenant, &lesson.limits);
            let learned = match learned {
                Ok(learned) => learned,
                Err(why) => {
                    self.facts.push(LimitFact::LessonNotStored(why));
                    continue;
                }
            };
            for change in learned {
                let Some(limit) = limits.get(change.limit) else {
                    continue;
                };
                let left = Duration::from_millis(change.ends_ms.saturating_sub(clock_ms));
                let of = (tenant, limit);
                self.facts
                    .extend(self.lessons.max_changed(now, of, &change, left));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::SECOND;
    use kit::gate::tenant;
    use rules::limit::Algorithm;
    use rules::scope::Scope;

    fn limits() -> Limits {
        let limit = |name, max, seconds| {
            let limit = Limit::new(
                name,
                Algorithm::SlidingWindow,
                max,
                seconds * SECOND,
                SECOND / 20,
            );
            limit.expect("a limit").with_band(50)
        };
        Limits::new(vec![limit("second", 10, 1), limit("minute", 100, 60)]).expect("two names")
    }

    fn sink(lessons: &mut Lessons, at: u32, number: usize, to: u64, left: u32) -> Vec<String> {
        let change = MaxChange {
            limit: 1,
            from: 100,
            to,
            set: 100,
            ends_ms: 0,
            is_new: true,
        };
        let of = (&tenant(number), &limits()[1]);
        words(lessons.max_changed(at * SECOND, of, &change, left * SECOND))
    }

    fn words(facts: impl IntoIterator<Item = LimitFact>) -> Vec<String> {
        let word = |fact| match fact {
            LimitFact::Lowered { to, lowered, .. } => format!("to {to}, {lowered} lowered"),
            LimitFact::Restored { after, lowered, .. } => {
                format!("whole {after:?}, {lowered} lowered")
            }
            other => panic!("{other:?}"),
        };
        facts.into_iter().map(word).collect()
    }

    #[test]
    fn a_limit_is_reported_when_it_sinks_and_recovers() {
        let mut lessons = Lessons::default();
        assert_eq!(lessons.next(), None);
        assert_eq!(sink(&mut lessons, 1, 1, 80, 60), ["to 80, 1 lowered"]);
        assert_eq!(sink(&mut lessons, 9, 2, 90, 20), ["to 90, 2 lowered"]);
        // Lowered again before it was whole.
        assert_eq!(sink(&mut lessons, 19, 1, 70, 90), ["to 70, 2 lowered"]);
        assert_eq!(lessons.next(), Some(29 * SECOND));
        assert_eq!(
            words(lessons.check_limits(29 * SECOND)),
            ["whole 20s, 1 lowered"]
        );
        assert!(lessons.check_limits(108 * SECOND).is_empty());
        assert_eq!(
            words(lessons.check_limits(113 * SECOND)),
            ["whole 112s, 0 lowered"]
        );
        // The API no longer advertises less.
        sink(&mut lessons, 200, 3, 80, 3_600);
        assert_eq!(sink(&mut lessons, 201, 3, 100, 0), ["whole 1s, 0 lowered"]);
        for number in 0..=MAX_LOWERED {
            sink(&mut lessons, 300, number, 80, 60);
        }
        assert_eq!(lessons.lowered.len(), MAX_LOWERED);
    }

    #[test]
    fn other_tenants_use_a_shared_limit_while_one_is_throttled() {
        let closed_ms_of = |limits: Limits, stops_all| {
            let lesson = LimitEvidence {
                tenant: tenant(1),
                labels: Labels::default(),
                limits,
                evidence: Evidence::Refused {
                    started_ms: 0,
                    cost: 1,
                    after_ms: 0,
                    closed_ms: 0,
                },
            };
            let mut lessons = Lessons::default();
            lessons.refused(lesson, stops_all, 3 * SECOND);
            let sent = lessons.send(SECOND).expect("one");
            match &sent[0].evidence {
                Evidence::Refused { closed_ms, .. } => *closed_ms,
                Evidence::Advertised(_) => panic!("it was refused"),
            }
        };
        let shared = || -> Limits { limits()[1].clone().with_scope(Scope::Global).into() };
        assert_eq!(closed_ms_of(limits(), false), 3_000);
        assert_eq!(closed_ms_of(shared(), true), 3_000);
        assert_eq!(closed_ms_of(shared(), false), 0);
    }

    #[test]
    fn an_advertised_limit_is_assigned_to_the_most_generous_limit() {
        let learner = |cost| Learner {
            labels: Labels::default(),
            limits: limits(),
            started_ms: 0,
            cost,
        };
        for (quotas, cost, keeps) in [
            ("80/60", 1, [Some(0), Some(80)]),
            ("80/60,5/1", 1, [Some(5), Some(80)]),
            ("100/60", 1, [Some(0), Some(0)]),
            ("80/0", 1, [Some(0), Some(0)]),
            ("80/60", 3, [None, None]),
        ] {
            assert_eq!(learner(cost).keeps(Quotas::read(quotas)), keeps, "{quotas}");
        }
        let mut lessons = Lessons::default();
        lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/0"));
        assert_eq!(lessons.send(SECOND), None, "it names no window");
        for _ in 0..2 * MAX_LESSONS {
            lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/60"));
        }
        assert_eq!(
            lessons.send(SECOND).map(|batch| batch.len()),
            Some(MAX_LESSONS)
        );
        lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/60"));
        assert_eq!(lessons.send(SECOND), None, "one at a time");
    }
}
