//! A thread that observes something at an interval.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Observes in a thread of its own, until it is dropped.
pub(crate) struct Watch<T> {
    seen: Arc<Mutex<Vec<T>>>,
    _running: Sender<()>,
}

impl<T: Clone + Send + 'static> Watch<T> {
    /// Calls `look` at each `interval`, and appends its results to `seen`.
    pub fn start(
        interval: Duration,
        seen: Vec<T>,
        mut look: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Self {
        let seen = Arc::new(Mutex::new(seen));
        let (running, dropped) = channel();
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            while dropped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let found = look();
                all.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(found);
            }
        });
        Self {
            seen,
            _running: running,
        }
    }

    /// Returns all that was seen until now, in order.
    pub fn seen(&self) -> Vec<T> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }
}
