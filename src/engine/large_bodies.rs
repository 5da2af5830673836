//! Reads large bodies from which a value is needed, next to the engine's loop, which goes on
//! meanwhile.

use std::panic::resume_unwind;

use tokio::task::spawn_blocking;

use broker::Delivery;
use rules::job::{Fields, InBody};

/// Size in bytes of a body that the loop reads itself. This takes less than a millisecond.
const MAX_SMALL_BODY: usize = 64 << 10;

/// Deliveries with large bodies. One batch is read at a time, in the order of arrival. The prefetch
/// bounds them.
#[derive(Debug, Default)]
pub(super) struct LargeBodies {
    waiting: Vec<Delivery>,
    /// Number of deliveries of the batch that is being read.
    reading: usize,
}

impl LargeBodies {
    /// Keeps the large ones of `deliveries`, and returns the others.
    pub fn keep_large(&mut self, deliveries: Vec<Delivery>, fields: &Fields) -> Vec<Delivery> {
        let large = |delivery: &Delivery| delivery.message.body.len() > MAX_SMALL_BODY;
        if !deliveries.iter().any(large) || !InBody::is_needed(fields) {
            return deliveries;
        }
        let (large, small) = deliveries.into_iter().partition(large);
        self.waiting.extend::<Vec<_>>(large);
        small
    }

    /// Returns the next batch, or `None` while one is being read.
    pub fn next(&mut self) -> Option<Vec<Delivery>> {
        if self.reading > 0 || self.waiting.is_empty() {
            return None;
        }
        self.reading = self.waiting.len();
        Some(std::mem::take(&mut self.waiting))
    }

    /// Records that a batch was read.
    pub fn done(&mut self) {
        self.reading = 0;
    }

    /// Returns the number of deliveries that were not read yet.
    pub fn unread(&self) -> usize {
        self.waiting.len() + self.reading
    }
}

/// Reads `batch` on a thread for blocking work.
pub(super) async fn read(batch: Vec<Delivery>, fields: Fields) -> Vec<(Delivery, InBody)> {
    let read_all = move |delivery: Delivery| {
        let inside = InBody::read(&delivery.message.body, &fields);
        (delivery, inside)
    };
    match spawn_blocking(move || batch.into_iter().map(read_all).collect()).await {
        Ok(read) => read,
        Err(why) => match why.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => Vec::new(),
        },
    }
}
