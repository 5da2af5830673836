//! What the gate is to be told of limits that learn, and which limits are lowered, as far as this worker's answers lowered them.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::super::Scheduler;
use super::super::entry::Started;
use crate::engine::facts::Fact;
use crate::gate::{Evidence, GateError, LearnedAll, Lesson, Sunk};
use crate::handler::Outcome;
use crate::rules::answers::{Excess, Quotas};
use crate::rules::limit::{Limit, Limits, Unit, ceil_ms};
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

/// Lessons in one call, and those that wait for it; of more, nothing is learned.
const MOST: usize = 256;
/// So many lowered limits are followed. Of others it is not told when they are whole.
const MOST_LOWERED: usize = 10_000;
/// What is whole again is looked for so often at most: it takes a look at each.
const LOOK: Duration = Duration::from_secs(5);

/// A limit of one tenant, or of all together.
type Whose = (Option<Tenant>, String);

/// What was learned, is to be told, and being told.
#[derive(Debug, Default)]
pub(in crate::engine::scheduler) struct Lessons {
    /// Of the answer that is being looked at: it is told once its throttle is.
    refused: Option<Box<Lesson>>,
    open: Vec<Lesson>,
    sent: Option<Vec<(Tenant, Limits)>>,
    /// Since when each limit is lowered, and until when.
    lowered: HashMap<Whose, (Duration, Duration), RandomState>,
    /// When one of them may be whole.
    look_at: Duration,
}

/// A call of limits of which some learn.
pub(in crate::engine::scheduler) struct Learner {
    labels: Labels,
    limits: Limits,
    started_ms: u64,
    cost: u32,
}

impl Learner {
    /// `None`: nothing is to be learned from the call's answer.
    fn of(started: &Started) -> Option<Self> {
        let learns = started.limits.iter().any(|limit| limit.band().is_some());
        learns.then(|| Self {
            labels: started.labels.clone(),
            limits: started.limits.clone(),
            started_ms: started.receipt.started_ms,
            cost: started.receipt.cost,
        })
    }

    fn lesson(&self, tenant: &Tenant, evidence: Evidence) -> Lesson {
        Lesson {
            tenant: tenant.clone(),
            labels: self.labels.clone(),
            limits: self.limits.clone(),
            evidence,
        }
    }

    /// For each limit the `max` that keeps what the API says of its own; 0: the limit keeps it. A limit of cost is left alone where
    /// calls cost more than one: an API counts calls.
    fn keeps(&self, quotas: Quotas) -> Vec<u32> {
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
            max.filter(|_| counts_calls).min().unwrap_or(0)
        };
        self.limits.iter().map(keeps).collect()
    }
}

impl Lessons {
    /// A call has ended. Where the API refused it, that is told once its throttle is. `None`: nothing is to be learned from its answer.
    pub(in crate::engine::scheduler) fn called(
        &mut self,
        tenant: &Tenant,
        started: &Started,
        outcome: &Outcome,
        is_refused: bool,
    ) -> Option<Learner> {
        let learner = Learner::of(started)?;
        if let Outcome::Throttled { after, .. } = outcome
            && is_refused
        {
            let after_ms = after.map_or(0, |after| {
                u64::try_from(after.as_millis()).unwrap_or(u64::MAX)
            });
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

    /// What goes with the throttle of the answer that is being looked at.
    pub(super) fn take_refused(&mut self) -> Option<Box<Lesson>> {
        self.refused.take()
    }

    /// A call was refused, and for so long its tenant is stopped, or all tenants are.
    pub(super) fn refused(&mut self, mut lesson: Lesson, stops_all: bool, left: Duration) {
        // Where one tenant is stopped, the others use what all share.
        let mut learn = (lesson.limits.iter()).filter(|limit| limit.band().is_some());
        let is_unused = stops_all || learn.all(|limit| !limit.is_global());
        if let Evidence::Refused { closed_ms, .. } = &mut lesson.evidence
            && is_unused
        {
            *closed_ms = ceil_ms(left);
        }
        self.add(lesson);
    }

    /// The API said what its own limits are.
    pub(super) fn advertised(&mut self, tenant: &Tenant, learner: &Learner, quotas: Quotas) {
        if quotas.iter().any(|quota| quota.window.is_some()) {
            let keeps = Evidence::Advertised(learner.keeps(quotas));
            self.add(learner.lesson(tenant, keeps));
        }
    }

    fn add(&mut self, lesson: Lesson) {
        if self.open.len() < MOST {
            self.open.push(lesson);
        }
    }

    /// What is to be told now: nothing while something is being told.
    pub(in crate::engine::scheduler) fn send(&mut self) -> Option<Vec<Lesson>> {
        if self.sent.is_some() || self.open.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.open);
        let whose = batch
            .iter()
            .map(|one| (one.tenant.clone(), one.limits.clone()));
        self.sent = Some(whose.collect());
        Some(batch)
    }

    /// A limit has sunk, or is told anew. What is news goes to `facts`.
    fn sunk(
        &mut self,
        now: Duration,
        (tenant, limit): (&Tenant, &Limit),
        sunk: &Sunk,
        left: Duration,
        facts: &mut Vec<Fact>,
    ) {
        let whose = (!limit.is_global()).then(|| tenant.clone());
        let key = (whose.clone(), limit.name().to_owned());
        if sunk.to >= sunk.set {
            facts.extend(self.whole(now, &key));
            return;
        }
        let until = now.saturating_add(left);
        if self.lowered.len() < MOST_LOWERED || self.lowered.contains_key(&key) {
            let (_, ends) = self.lowered.entry(key).or_insert((now, until));
            *ends = until;
            self.look_at = match self.lowered.len() {
                1 => until,
                _ => self.look_at.min(until),
            };
        }
        if sunk.is_new && sunk.to < sunk.from {
            facts.push(Fact::LimitSunk {
                whose,
                limit: limit.name().to_owned(),
                from: sunk.from,
                to: sunk.to,
                max: sunk.set,
                left,
                lowered: self.count(limit.name()),
            });
        }
    }

    fn whole(&mut self, now: Duration, key: &Whose) -> Option<Fact> {
        let (since, _) = self.lowered.remove(key)?;
        let (whose, limit) = key.clone();
        let lowered = self.count(&limit);
        Some(Fact::LimitWhole {
            whose,
            limit,
            after: now.saturating_sub(since),
            lowered,
        })
    }

    /// How many of this name are lowered.
    fn count(&self, limit: &str) -> usize {
        self.lowered
            .keys()
            .filter(|(_, name)| name == limit)
            .count()
    }

    /// Which limits are whole again.
    pub(in crate::engine::scheduler) fn look(&mut self, now: Duration) -> Vec<Fact> {
        if self.lowered.is_empty() || now < self.look_at {
            return Vec::new();
        }
        let (mut whole, mut next) = (Vec::new(), Duration::MAX);
        for (key, (_, until)) in &self.lowered {
            match *until <= now {
                true => whole.push(key.clone()),
                false => next = next.min(*until),
            }
        }
        self.look_at = next.max(now + LOOK);
        // In an order of their own, not the map's: the same events say the same.
        whole.sort_unstable();
        let facts = whole.iter().filter_map(|key| self.whole(now, key));
        facts.collect()
    }

    /// When [`Lessons::look`] may find anything.
    pub(in crate::engine::scheduler) fn next(&self) -> Option<Duration> {
        (!self.lowered.is_empty()).then_some(self.look_at)
    }
}

impl Scheduler {
    /// What [`Action::Learn`](crate::engine::action::Action::Learn) came to.
    pub fn learned(&mut self, now: Duration, result: Result<LearnedAll, GateError>) {
        let sent = self.lessons.sent.take().unwrap_or_default();
        let all = match result {
            Ok(all) => all,
            Err(why) => return self.facts.push(Fact::LessonUntold(why)),
        };
        let clock_ms = self.clock.at_least(now).unwrap_or(0);
        for ((tenant, limits), learned) in sent.iter().zip(all) {
            let learned = match learned {
                Ok(learned) => learned,
                Err(why) => {
                    self.facts.push(Fact::LessonUntold(why));
                    continue;
                }
            };
            for sunk in learned {
                let Some(limit) = limits.get(sunk.limit) else {
                    continue;
                };
                let left = Duration::from_millis(sunk.ends_ms.saturating_sub(clock_ms));
                let of = (tenant, limit);
                self.lessons.sunk(now, of, &sunk, left, &mut self.facts);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::limit::Algorithm;
    use crate::rules::scope::Scope;

    const SECOND: Duration = Duration::from_secs(1);

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

    fn tenant(number: usize) -> Tenant {
        Tenant::parse(&number.to_string()).expect("a tenant")
    }

    fn sink(lessons: &mut Lessons, at: u32, number: usize, to: u32, left: u32) -> Vec<String> {
        let sunk = Sunk {
            limit: 1,
            from: 100,
            to,
            set: 100,
            ends_ms: 0,
            is_new: true,
        };
        let mut facts = Vec::new();
        let of = (&tenant(number), &limits()[1]);
        lessons.sunk(at * SECOND, of, &sunk, left * SECOND, &mut facts);
        words(facts)
    }

    fn words(facts: Vec<Fact>) -> Vec<String> {
        let word = |fact| match fact {
            Fact::LimitSunk { to, lowered, .. } => format!("to {to}, {lowered} lowered"),
            Fact::LimitWhole { after, lowered, .. } => {
                format!("whole {after:?}, {lowered} lowered")
            }
            other => panic!("{other:?}"),
        };
        facts.into_iter().map(word).collect()
    }

    #[test]
    fn a_limit_is_told_when_it_sinks_and_when_it_is_whole() {
        let mut lessons = Lessons::default();
        assert_eq!(lessons.next(), None);
        assert_eq!(sink(&mut lessons, 1, 1, 80, 60), ["to 80, 1 lowered"]);
        assert_eq!(sink(&mut lessons, 9, 2, 90, 20), ["to 90, 2 lowered"]);
        // Again, before it was whole.
        assert_eq!(sink(&mut lessons, 19, 1, 70, 90), ["to 70, 2 lowered"]);
        assert_eq!(lessons.next(), Some(29 * SECOND));
        assert_eq!(words(lessons.look(29 * SECOND)), ["whole 20s, 1 lowered"]);
        assert!(lessons.look(108 * SECOND).is_empty());
        assert_eq!(words(lessons.look(113 * SECOND)), ["whole 112s, 0 lowered"]);
        // What the API advertises is no longer less.
        sink(&mut lessons, 200, 3, 80, 3_600);
        assert_eq!(sink(&mut lessons, 201, 3, 100, 0), ["whole 1s, 0 lowered"]);
        for number in 0..=MOST_LOWERED {
            sink(&mut lessons, 300, number, 80, 60);
        }
        assert_eq!(lessons.lowered.len(), MOST_LOWERED);
    }

    #[test]
    fn what_all_share_is_used_by_others_while_one_tenant_is_throttled() {
        let told = |limits: Limits, stops_all| {
            let lesson = Lesson {
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
            let sent = lessons.send().expect("one");
            match &sent[0].evidence {
                Evidence::Refused { closed_ms, .. } => *closed_ms,
                Evidence::Advertised(_) => panic!("it was refused"),
            }
        };
        let shared = || -> Limits { limits()[1].clone().with_scope(Scope::Global).into() };
        assert_eq!(told(limits(), false), 3_000);
        assert_eq!(told(shared(), true), 3_000);
        assert_eq!(told(shared(), false), 0);
    }

    #[test]
    fn what_the_api_advertises_is_told_of_the_limit_that_lets_more_through() {
        let learner = |cost| Learner {
            labels: Labels::default(),
            limits: limits(),
            started_ms: 0,
            cost,
        };
        for (said, cost, keeps) in [
            ("80/60", 1, [0, 80]),
            ("80/60,5/1", 1, [5, 80]),
            ("100/60", 1, [0, 0]),
            ("80/0", 1, [0, 0]),
            ("80/60", 3, [0, 0]),
        ] {
            assert_eq!(learner(cost).keeps(Quotas::read(said)), keeps, "{said}");
        }
        let mut lessons = Lessons::default();
        lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/0"));
        assert_eq!(lessons.send(), None, "it names no window");
        for _ in 0..2 * MOST {
            lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/60"));
        }
        assert_eq!(lessons.send().map(|batch| batch.len()), Some(MOST));
        lessons.advertised(&tenant(1), &learner(1), Quotas::read("80/60"));
        assert_eq!(lessons.send(), None, "one at a time");
    }
}
