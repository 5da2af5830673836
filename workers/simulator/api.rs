//! The API that simulated workers call: how long it takes, when it fails, and what it allows itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sluicegate::config::Config;
use sluicegate::rules::answers::{Answers, Meaning, verdict};
use sluicegate::rules::job::Job;
use sluicegate::{Attempt, Fate, Handler, LateEnd, Outcome, Permit, Trouble};
use tokio::time::{Instant, sleep};

use crate::forms::{ApiLimit, Latency, Percent};
use crate::history::Call;
use crate::stage::micros;

/// Where nothing says how long a call may take: the default of `dispatch.http.timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the API does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Api {
    /// How long a call takes.
    pub latency: Latency,
    /// So many are answered 500.
    pub errors: Percent,
    /// So many are answered 429, with a second's `Retry-After`.
    pub throttles: Percent,
    /// More than it allows itself is answered 429, with a `Retry-After` that says when there is room.
    pub limit: Option<ApiLimit>,
}

impl Default for Api {
    /// It takes 50 ms, and never fails.
    fn default() -> Self {
        Self {
            latency: Latency::fixed(Duration::from_millis(50)),
            errors: Percent::NONE,
            throttles: Percent::NONE,
            limit: None,
        }
    }
}

/// It, with all calls so far.
pub(crate) struct Called {
    api: Api,
    began: Instant,
    epoch_us: u64,
    state: Mutex<State>,
}

struct State {
    random: SmallRng,
    /// When calls were taken, of all or of each tenant.
    taken: HashMap<String, VecDeque<u64>>,
    calls: Vec<Call>,
}

impl Called {
    pub fn new(api: Api, seed: u64, (began, epoch_us): (Instant, u64)) -> Self {
        Self {
            api,
            began,
            epoch_us,
            state: Mutex::new(State {
                // Other numbers than those of the load.
                random: SmallRng::seed_from_u64(!seed),
                taken: HashMap::new(),
                calls: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics half-way with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All calls so far.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    /// How many there were.
    pub fn count(&self) -> usize {
        self.lock().calls.len()
    }

    /// A call of `tenant` arrives: its number, its status, after how many seconds to come back, and how long it takes.
    fn arrives(&self, job: usize, tenant: &str) -> (usize, u16, Option<u64>, Duration) {
        let at_us = micros(self.began.elapsed());
        let State {
            random,
            taken,
            calls,
        } = &mut *self.lock();
        let latency = self.api.latency.next(random);
        let mut happens = |rate: Percent| rate.part() > 0.0 && random.random_bool(rate.part());
        let (fails, throttles) = (happens(self.api.errors), happens(self.api.throttles));
        let full_for = self.api.limit.and_then(|limit| {
            let whose = if limit.per_tenant { tenant } else { "" };
            if !taken.contains_key(whose) {
                taken.insert(whose.to_owned(), VecDeque::new());
            }
            let taken = taken.get_mut(whose)?;
            let window = micros(limit.window);
            while taken.front().is_some_and(|first| first + window <= at_us) {
                taken.pop_front();
            }
            if taken.len() < limit.max {
                taken.push_back(at_us);
                return None;
            }
            let first = taken.front()?;
            Some((first + window - at_us).div_ceil(1_000_000).max(1))
        });
        let (status, after) = match full_for {
            Some(seconds) => (429, Some(seconds)),
            None if throttles => (429, Some(1)),
            None if fails => (500, None),
            None => (200, None),
        };
        let until_us = at_us + micros(latency);
        calls.push(Call {
            at_us,
            until_us,
            job,
            status,
        });
        (calls.len() - 1, status, after, latency)
    }
}

/// What workers call it by.
pub(crate) struct Caller {
    pub called: Arc<Called>,
    answers: Answers,
    timeout: Duration,
    abandoned: Duration,
}

impl Caller {
    pub fn new(called: &Arc<Called>, config: &Config) -> Self {
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

impl Handler for Caller {
    async fn handle(&self, job: &Job, permit: Permit) -> Outcome {
        self.attempt(job, permit).await.outcome
    }

    async fn attempt(&self, job: &Job, permit: Permit) -> Attempt {
        if !permit.is_good() {
            return Outcome::Late.into();
        }
        let number = job.id.parse().unwrap_or_default();
        let (call, status, after, latency) = self.called.arrives(number, job.tenant.as_str());
        // Its way takes no time of its own.
        permit.written(|| true);
        if latency > self.timeout {
            self.called.lock().calls[call].status = 0;
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
        let seconds = after.map(|seconds| seconds.to_string());
        let headers = seconds
            .iter()
            .map(|seconds| ("retry-after", seconds.as_bytes()));
        let now =
            UNIX_EPOCH + Duration::from_micros(self.called.epoch_us) + self.called.began.elapsed();
        let verdict = verdict(&self.answers, status, headers, now);
        let reason = format!("the API answered {status}");
        let outcome = match verdict.meaning {
            Meaning::Done => Outcome::Done,
            Meaning::Throttle => Outcome::Throttled {
                after: verdict.seen.refused.and_then(|refused| refused.after),
                reason,
            },
            Meaning::Reject => Outcome::Reject { reason },
            Meaning::Retry => Outcome::Retry {
                after: None,
                reason,
            },
        };
        let failed = matches!(outcome, Outcome::Retry { .. });
        Attempt {
            outcome,
            seen: verdict.seen,
            fate: Fate::Answered,
            trouble: failed.then_some(Trouble::Failing),
            answered: None,
        }
    }
}
