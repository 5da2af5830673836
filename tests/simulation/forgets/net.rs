//! The way to the store: late, or lost before or after the store has done what it was asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rand::Rng;
use rand::rngs::SmallRng;
use sluicegate::gate::GateError;
use sluicegate::gate::memory::store::MemoryStore;
use sluicegate::gate::store::{Command, Store};
use tokio::time::sleep;

pub type Memory = MemoryStore<Box<dyn Fn() -> u64 + Send + Sync>>;

/// The way to the store.
pub struct Net {
    pub store: Arc<Memory>,
    random: Mutex<SmallRng>,
    troubled: AtomicBool,
}

impl Net {
    pub fn new(store: Memory, random: SmallRng) -> Self {
        Self {
            store: Arc::new(store),
            random: Mutex::new(random),
            troubled: AtomicBool::new(true),
        }
    }

    /// From now on nothing is lost on its way.
    pub fn heal(&self) {
        self.troubled.store(false, Ordering::Relaxed);
    }

    /// How long it takes, and whether what is sent is lost.
    fn way(&self) -> (Duration, bool) {
        let mut random = self.random.lock().expect("nobody panics with it");
        let troubled = self.troubled.load(Ordering::Relaxed);
        let slow = troubled && random.random_bool(0.02);
        let most = if slow { 1_500 } else { 20 };
        let way = Duration::from_millis(random.random_range(0..=most));
        (way, troubled && random.random_bool(0.02))
    }
}

impl Store for Net {
    fn run<'a>(
        &'a self,
        commands: Vec<Command<'a>>,
    ) -> BoxFuture<'a, Result<Vec<redis::Value>, GateError>> {
        async move {
            let lost = || Err(GateError::Unreachable("lost on its way".to_owned()));
            let ([there, back], [unsent, unheard]) = {
                let (one, two) = (self.way(), self.way());
                ([one.0, two.0], [one.1, two.1])
            };
            sleep(there).await;
            if unsent {
                return lost();
            }
            let answers = self.store.run(commands).await;
            sleep(back).await;
            if unheard { lost() } else { answers }
        }
        .boxed()
    }
}
