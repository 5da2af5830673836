//! The API that simulated workers call: its latency, its failures and its own limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use config::Config;
use handler::{Attempt, Fate, Handler, LateEnd, Outcome, Permit, Trouble};
use http::HeaderValue;
use http::header::RETRY_AFTER;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rules::answers::{Answers, Consequence, ReceivedAnswer, verdict};
use rules::job::Job;
use tokio::time::{Instant, sleep};

use crate::environment::micros;
use crate::forms::{ApiLimit, Latency, Percent};
use crate::history::RecordedCall;
use crate::limiter::{CallCounter, CountedCall};

/// Timeout of a call if the caller sets none; equals the default of `dispatch.http.timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Describes how the API behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiModel {
    /// How long a call takes.
    pub latency: Latency,
    /// Share of calls answered with 500.
    pub errors: Percent,
    /// Share of calls answered with 429 and a `Retry-After` of one second.
    pub throttles: Percent,
    /// The API's own limits. Calls above one of them are answered with 429 and a `Retry-After` that
    /// says when there is room, and count nowhere.
    pub limits: Vec<ApiLimit>,
}

impl Default for ApiModel {
    /// Returns an API that takes 50 ms for each call and never fails.
    fn default() -> Self {
        Self {
            latency: Latency::fixed(Duration::from_millis(50)),
            errors: Percent::NONE,
            throttles: Percent::NONE,
            limits: Vec::new(),
        }
    }
}

/// The API's answer to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedAnswer {
    /// 200, 429 or 500.
    pub status: u16,
    /// Seconds until there is room, with a 429.
    pub retry_after: Option<u64>,
    /// Delay before the answer.
    pub latency: Duration,
}

/// An API and the calls it has taken so far. Serves simulated calls, and real ones in `sluicegate
/// echo`.
pub struct ServedApi {
    api: ApiModel,
    random: SmallRng,
    /// For each limit, a counter for all tenants together, or one for each tenant.
    taken: Vec<HashMap<String, CallCounter>>,
    max_tenants: usize,
}

impl ServedApi {
    /// Creates an API whose random values derive from `seed`. It counts at most `max_tenants`
    /// tenants at a time; further tenants are not limited.
    pub fn new(api: ApiModel, seed: u64, max_tenants: usize) -> Self {
        Self {
            taken: api.limits.iter().map(|_| HashMap::new()).collect(),
            api,
            // Inverted, so that the API does not draw the same numbers as the load.
            random: SmallRng::seed_from_u64(!seed),
            max_tenants,
        }
    }

    /// Takes a call of `tenant` with this cost and returns the answer.
    pub fn arrives(&mut self, (tenant, cost): (&str, u64), at_us: u64) -> ServedAnswer {
        let latency = self.api.latency.next(&mut self.random);
        let mut happens = |rate: Percent| rate.part() > 0.0 && self.random.random_bool(rate.part());
        let (fails, throttles) = (happens(self.api.errors), happens(self.api.throttles));
        let call = CountedCall {
            at_us,
            until_us: at_us + micros(latency),
            cost: usize::try_from(cost).unwrap_or(usize::MAX),
        };
        let full_for = self.full_for(tenant, call);
        let (status, retry_after) = match full_for {
            Some(seconds) => (429, Some(seconds)),
            None if throttles => (429, Some(1)),
            None if fails => (500, None),
            None => (200, None),
        };
        ServedAnswer {
            status,
            retry_after,
            latency,
        }
    }

    /// Returns the seconds until all limits have room for `call` of `tenant`. Returns `None`, and
    /// counts the call, if they have room now.
    fn full_for(&mut self, tenant: &str, call: CountedCall) -> Option<u64> {
        let mut wait = None;
        for (limit, taken) in self.api.limits.iter().zip(&mut self.taken) {
            let counter = counter(taken, (*limit, tenant), call.at_us, self.max_tenants);
            wait = wait.max(counter.and_then(|counter| counter.wait(*limit, call)));
        }
        if let Some(wait) = wait {
            return Some(wait.div_ceil(1_000_000).max(1));
        }
        for (limit, taken) in self.api.limits.iter().zip(&mut self.taken) {
            if let Some(counter) = taken.get_mut(whose(*limit, tenant)) {
                counter.take(*limit, call);
            }
        }
        None
    }
}

/// Returns the name of the counter of `tenant`.
fn whose(limit: ApiLimit, tenant: &str) -> &str {
    if limit.per_tenant { tenant } else { "" }
}

/// Returns the counter of `tenant`, or `None` if there are too many tenants.
fn counter<'a>(
    taken: &'a mut HashMap<String, CallCounter>,
    (limit, tenant): (ApiLimit, &str),
    at_us: u64,
    max_tenants: usize,
) -> Option<&'a mut CallCounter> {
    let whose = whose(limit, tenant);
    if !taken.contains_key(whose) {
        if taken.len() >= max_tenants {
            taken.retain(|_, counter| !counter.is_idle(limit, at_us));
        }
        if taken.len() >= max_tenants {
            return None;
        }
        taken.insert(whose.to_owned(), CallCounter::default());
    }
    taken.get_mut(whose)
}

/// The API with a record of all its calls.
pub(crate) struct RecordedApi {
    began: Instant,
    epoch_us: u64,
    state: Mutex<ApiState>,
}

struct ApiState {
    answering: ServedApi,
    calls: Vec<RecordedCall>,
}

impl RecordedApi {
    pub fn new(api: ApiModel, seed: u64, (began, epoch_us): (Instant, u64)) -> Self {
        Self {
            began,
            epoch_us,
            state: Mutex::new(ApiState {
                // A run has no more tenants than jobs, so no bound is needed.
                answering: ServedApi::new(api, seed, usize::MAX),
                calls: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ApiState> {
        // A poisoned lock is harmless: no holder leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes and returns all calls so far.
    pub fn take_calls(&self) -> Vec<RecordedCall> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Returns the number of calls so far.
    pub fn count(&self) -> usize {
        self.lock().calls.len()
    }

    /// Takes the call of a job, which has this number; returns the call's number and its answer.
    fn arrives(&self, number: usize, job: &Job) -> (usize, ServedAnswer) {
        let at_us = micros(self.began.elapsed());
        let ApiState { answering, calls } = &mut *self.lock();
        // Aligned windows begin at multiples of their length since the Unix epoch.
        let answer = answering.arrives(
            (job.tenant.as_str(), job.cost),
            self.epoch_us.saturating_add(at_us),
        );
        let until_us = at_us + micros(answer.latency);
        calls.push(RecordedCall {
            at_us,
            until_us,
            ended_us: until_us,
            job: number,
            status: answer.status,
        });
        (calls.len() - 1, answer)
    }
}

/// The handler through which a worker calls the API.
pub(crate) struct ApiHandler {
    pub called: Arc<RecordedApi>,
    answers: Answers,
    timeout: Duration,
    abandoned: Duration,
}

impl ApiHandler {
    pub fn new(called: &Arc<RecordedApi>, config: &Config) -> Self {
        let dispatch = &config.dispatch;
        let http = dispatch.http.as_ref();
        let timeout = http
            .map(|http| http.timeout)
            .or(dispatch.exec.as_ref().map(|exec| exec.timeout))
            .or(dispatch.forward.as_ref().map(|forward| forward.timeout));
        Self {
            called: Arc::clone(called),
            answers: http.map(|http| http.answers.clone()).unwrap_or_default(),
            timeout: timeout.unwrap_or(TIMEOUT),
            abandoned: http.map(|http| http.abandoned).unwrap_or_default(),
        }
    }
}

impl Handler for ApiHandler {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    async fn attempt(&self, job: &Job, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        let number = job.id.parse().unwrap_or_default();
        let (call, answer) = self.called.arrives(number, job);
        let ServedAnswer {
            status,
            retry_after,
            latency,
        } = answer;
        // The request itself takes no time to send.
        permit.written(|| true);
        if latency > self.timeout {
            {
                let call = &mut self.called.lock().calls[call];
                call.status = 0;
                call.ended_us = call.at_us + micros(self.timeout);
            }
            sleep(self.timeout).await;
            let reason = format!("no answer within {:?}", self.timeout);
            let ended = LateEnd::new(sleep(latency - self.timeout));
            let lease = self.abandoned;
            return Attempt {
                fate: Fate::Abandoned { lease, ended },
                ..Outcome::Retry {
                    after: None,
                    reason,
                }
                .into()
            };
        }
        sleep(latency).await;
        let header = retry_after.map(|seconds| (RETRY_AFTER, HeaderValue::from(seconds)));
        let answer = ReceivedAnswer {
            status,
            headers: &header.into_iter().collect(),
            body: None,
        };
        let now =
            UNIX_EPOCH + Duration::from_micros(self.called.epoch_us) + self.called.began.elapsed();
        let verdict = verdict(&self.answers, &answer, now);
        let reason = || format!("the API answered {status}");
        let outcome = match verdict.meaning {
            Consequence::Done => Outcome::Done,
            Consequence::Throttle => Outcome::Throttled {
                after: verdict.seen.refused.and_then(|refused| refused.after),
                reason: reason(),
            },
            Consequence::Reject => Outcome::Reject { reason: reason() },
            Consequence::Retry => Outcome::Retry {
                after: verdict.retry_after,
                reason: reason(),
            },
        };
        Attempt {
            outcome,
            seen: verdict.lesson(),
            fate: Fate::Answered,
            trouble: verdict.is_failure.then_some(Trouble::Failing),
            answered: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::answers::{AnswerRule, AnswerRules, Conditions, StatusPattern};
    use rules::tenant::Tenant;

    /// Calls `api` under a rule for answers with this status.
    async fn attempt(api: ApiModel, (status, means): (u16, Consequence)) -> Attempt {
        let rule = AnswerRule {
            when: Conditions {
                status: vec![StatusPattern::One(status)],
                ..Conditions::default()
            },
            means,
            stops_all: None,
            wait: Vec::new(),
            why: String::new(),
        };
        let (rules, cost) = (vec![rule], Vec::new());
        let handler = ApiHandler {
            called: Arc::new(RecordedApi::new(api, 1, (Instant::now(), 0))),
            answers: Answers::default().with_rules(AnswerRules { rules, cost }),
            timeout: TIMEOUT,
            abandoned: Duration::ZERO,
        };
        let job = Job::new("0", Tenant::parse("a").expect("a tenant"), "");
        let permit = Permit::until(Instant::now() + TIMEOUT);
        handler.attempt(&job, permit).await
    }

    /// A worker waits as the answer says, and its breaker counts no answer below 500.
    #[tokio::test(start_paused = true)]
    async fn a_429_that_means_retry_is_no_failure_and_says_when() {
        let api = ApiModel {
            throttles: "100%".parse().expect("a share"),
            ..ApiModel::default()
        };
        let Attempt {
            outcome, trouble, ..
        } = attempt(api, (429, Consequence::Retry)).await;
        let second = Some(Duration::from_secs(1));
        assert!(
            matches!(outcome, Outcome::Retry { after, .. } if after == second),
            "{outcome:?}"
        );
        assert_eq!(trouble, None);
    }

    #[tokio::test(start_paused = true)]
    async fn no_limit_learns_from_a_500_that_throttles() {
        let api = ApiModel {
            errors: "100%".parse().expect("a share"),
            ..ApiModel::default()
        };
        let Attempt { outcome, seen, .. } = attempt(api, (500, Consequence::Throttle)).await;
        assert!(matches!(outcome, Outcome::Throttled { .. }), "{outcome:?}");
        assert_eq!(seen.refused, None);
    }

    fn answering(limit: &str, max_tenants: usize) -> ServedApi {
        let api = ApiModel {
            limits: vec![limit.parse().expect("a limit")],
            ..ApiModel::default()
        };
        ServedApi::new(api, 1, max_tenants)
    }

    /// Returns the seconds until there is room for a call that arrives `ms` milliseconds after the
    /// beginning.
    fn after(answering: &mut ServedApi, tenant: &str, ms: u64) -> Option<u64> {
        let answer = answering.arrives((tenant, 1), ms * 1_000);
        assert_eq!(answer.status == 429, answer.retry_after.is_some());
        answer.retry_after
    }

    #[test]
    fn calls_above_the_limit_learn_when_quota_is_available() {
        let mut each = answering("2/10s:tenant", 10);
        let mut come = |tenant, ms| after(&mut each, tenant, ms);
        assert_eq!([come("a", 0), come("a", 4_000)], [None, None]);
        // Refused calls do not count.
        assert_eq!([come("a", 5_500), come("a", 9_999)], [Some(5), Some(1)]);
        assert_eq!(come("b", 9_999), None);
        assert_eq!([come("a", 10_000), come("a", 10_001)], [None, Some(4)]);
        let mut all = answering("2/10s", 10);
        let mut come = |tenant| after(&mut all, tenant, 0);
        assert_eq!([come("a"), come("b"), come("c")], [None, None, Some(10)]);
    }

    #[test]
    fn the_number_of_counted_tenants_is_bounded() {
        let mut each = answering("1/10s:tenant", 3);
        for tenant in ["a", "b", "c", "d", "d"] {
            assert_eq!(after(&mut each, tenant, 0), None, "{tenant}");
        }
        assert_eq!(after(&mut each, "c", 0), Some(10));
        assert_eq!(after(&mut each, "late", 10_000), None);
        assert_eq!(
            (after(&mut each, "late", 10_000), each.taken[0].len()),
            (Some(10), 1)
        );
    }
}
