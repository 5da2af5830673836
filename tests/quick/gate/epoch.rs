//! A pulse shows a worker that another one has found a loss.

use std::sync::Arc;
use std::time::Duration;

use fake_redis::FakeRedis;
use gate::redis::RedisGate;
use gate::{EarlierStarts, Gate, GateError};
use kit::gate::{FRESH, LimitedGate, clock, gate_on, limit, started};
use rules::limit::{Algorithm, Limits};

const MAX: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Interval at which workers look.
const LOOK: Duration = Duration::from_secs(2);

/// A Redis that may lose its last writes, and the workers on it.
struct Bed {
    server: Arc<FakeRedis>,
    limits: Limits,
}

impl Bed {
    fn new() -> Self {
        let window = u64::try_from(WINDOW.as_millis()).expect("short");
        Self {
            server: Arc::new(FakeRedis::new(clock()).may_lose(100)),
            limits: limit(Algorithm::SlidingWindow, MAX as u64, window).into(),
        }
    }

    async fn worker(&self, start: EarlierStarts) -> LimitedGate<RedisGate> {
        let gate = gate_on(&self.server, "p").watching(WINDOW);
        gate.begin(start).await.expect("nothing was lost");
        LimitedGate::new(gate, self.limits.clone())
    }
}

/// Asks for a job. Returns whether it starts, or `None` if Redis may have lost data.
async fn starts(worker: &LimitedGate<RedisGate>) -> Option<bool> {
    let replies = worker.ask(&[worker.question("t", 1, &[FRESH])]).await;
    match replies.and_then(|mut replies| replies.remove(0)) {
        Ok(reply) => Some(started(&reply.answers) == 1),
        Err(GateError::Cold { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// A worker that begins on an emptied Redis may find no trace of the running ones.
#[tokio::test(start_paused = true)]
async fn a_new_epoch_stops_workers_of_the_one_before() {
    for start in [EarlierStarts::Idle, EarlierStarts::Fresh] {
        let bed = Bed::new();
        let old = bed.worker(EarlierStarts::Idle).await;
        for _ in 0..MAX {
            assert_eq!(starts(&old).await, Some(true));
        }
        bed.server.flush();
        let new = bed.worker(start).await;
        // The pulse is refused, and then the old one reads the epoch and closes it.
        for worker in [&old, &old, &new] {
            assert_eq!(starts(worker).await, None);
        }
        tokio::time::sleep(WINDOW + LOOK).await;
        for worker in [&old, &new] {
            worker.ping().await.expect("the recovery wait is over");
            assert_eq!(starts(worker).await, Some(true));
        }
    }
}

/// A worker stands still while Redis restarts without its last writes. If all of its own are lost,
/// the other worker does not wait for its word.
#[tokio::test(start_paused = true)]
async fn a_worker_that_misses_its_starts_stops_the_others() {
    let mut open = 0;
    for lost in 1..=9 {
        let bed = Bed::new();
        let other = bed.worker(EarlierStarts::Idle).await;
        assert_eq!(starts(&other).await, Some(true));
        let late = bed.worker(EarlierStarts::Unknown).await;
        for _ in 1..MAX {
            assert_eq!(starts(&late).await, Some(true));
        }
        bed.server.restart(lost);
        for _ in 0..4 {
            open += usize::from(other.ping().await.is_ok());
            tokio::time::sleep(LOOK).await;
        }
        // The pulse may be refused, and then the late one reads the epoch and closes it.
        for worker in [&late, &late, &other] {
            assert_eq!(starts(worker).await, None, "{lost}");
        }
        tokio::time::sleep(WINDOW).await;
        other.ping().await.expect("the recovery wait is over");
        assert_eq!(starts(&other).await, Some(true), "{lost}");
    }
    assert!(open > 0, "the other one always waited");
}
