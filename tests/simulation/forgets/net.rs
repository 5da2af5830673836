//! The network to the store: short or long, sometimes late, and losing requests before or after the
//! store has executed them. At times the store refuses or is unreachable.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use fake_redis::FakeRedis;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use gate::GateError;
use gate::store::Store;
use rand::Rng;
use rand::rngs::SmallRng;
use redis::{Pipeline, Value};
use tokio::time::{Instant, sleep};

/// Maximum random delay in each direction, in milliseconds, unless a message is slow or hangs.
const VARIES_MS: u64 = 20;
/// Maximum delay of a message that hangs, in milliseconds. It exceeds the client's patience.
const TOO_LATE_MS: u64 = 6_000;
/// Errors with which the store refuses to run anything.
const REFUSALS: [&str; 3] = [
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
];

/// The network to the store.
pub struct Net {
    pub store: FakeRedis,
    /// Minimum duration of a round trip.
    latency_ms: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    random: SmallRng,
    troubled: bool,
    /// End of the store's impairment, and its error message, or `None` if it is unreachable.
    impairment: Option<(Instant, Option<&'static str>)>,
}

/// The fate of one message, in either direction.
struct Trip {
    takes: Duration,
    is_lost: bool,
}

impl Net {
    pub fn new(store: FakeRedis, random: SmallRng, latency_ms: u64) -> Self {
        Self {
            store,
            latency_ms,
            inner: Mutex::new(Inner {
                random,
                troubled: true,
                impairment: None,
            }),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic")
    }

    /// Starts or stops faults in the network.
    pub fn set_troubled(&self, troubled: bool) {
        let mut inner = self.inner();
        inner.troubled = troubled;
        inner.impairment = inner.impairment.filter(|_| troubled);
    }

    /// Makes the store unreachable for a time.
    pub fn cut(&self, lasts: Duration) {
        self.inner().impairment = Some((Instant::now() + lasts, None));
    }

    /// Lets the store refuse everything for a time.
    pub fn refuse(&self, lasts: Duration) {
        let mut inner = self.inner();
        let why = REFUSALS[inner.random.random_range(0..REFUSALS.len())];
        inner.impairment = Some((Instant::now() + lasts, Some(why)));
    }

    fn trip(&self) -> Trip {
        let Inner {
            random, troubled, ..
        } = &mut *self.inner();
        let mut rare = |chance| *troubled && random.random_bool(chance);
        let (slow, hangs, is_lost) = (rare(0.02), rare(0.003), rare(0.02));
        let max = match (hangs, slow) {
            (true, _) => TOO_LATE_MS,
            (_, true) => 1_500,
            _ => VARIES_MS,
        };
        let takes = self.latency_ms * 500 + random.random_range(0..=max * 1_000);
        Trip {
            takes: Duration::from_micros(takes),
            is_lost,
        }
    }

    fn illness(&self) -> Option<Option<&'static str>> {
        let (until, how) = self.inner().impairment?;
        (Instant::now() < until).then_some(how)
    }
}

impl Store for Net {
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
        async move {
            let lost = || GateError::Unreachable("lost on its way".to_owned());
            let (there, back) = (self.trip(), self.trip());
            sleep(there.takes).await;
            if there.is_lost {
                return Err(lost());
            }
            let answers = match self.illness() {
                Some(None) => return Err(lost()),
                Some(Some(why)) => {
                    let refused = redis::parse_redis_value(format!("-{why}\r\n").as_bytes());
                    Ok(vec![
                        refused.expect("an error");
                        pipeline.cmd_iter().count()
                    ])
                }
                None => Ok(self.store.run(pipeline)),
            };
            sleep(back.takes).await;
            if back.is_lost {
                return Err(lost());
            }
            answers
        }
        .boxed()
    }
}
