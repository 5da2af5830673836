//! Who opens a connection, and who waits for those that others are opening: one that calls share is enough for several.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The connections that are being opened, and the calls that want one.
pub(super) struct Openings {
    counts: Mutex<Counts>,
    changed: Arc<Notify>,
}

struct Counts {
    /// Calls that have nothing yet to be sent over.
    wanted: usize,
    /// Connections that are being opened.
    under_way: usize,
    /// So many calls the last one that was opened takes at once.
    each: usize,
}

impl Openings {
    /// As long as no server has said that it takes more, a connection is for one call. `changed` is told when another call might be
    /// sent over a connection that is there.
    pub(super) fn new(changed: Arc<Notify>) -> Self {
        let counts = Counts {
            wanted: 0,
            under_way: 0,
            each: 1,
        };
        Self {
            counts: Mutex::new(counts),
            changed,
        }
    }

    /// One more call wants a connection, as long as what is returned lives.
    pub(super) fn want(&self) -> Wanted<'_> {
        self.lock().wanted += 1;
        Wanted(self)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // What it holds is whole at any time.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that wants a connection.
pub(super) struct Wanted<'a>(&'a Openings);

impl<'a> Wanted<'a> {
    /// Resolves after the next change: of what is there, or of what is being opened.
    pub(super) fn change(&self) -> Notified<'a> {
        self.0.changed.notified()
    }

    /// Another connection is to be opened, if those that are being opened are not enough for all.
    pub(super) fn begin(&self) -> Option<Opening<'a>> {
        let mut counts = self.0.lock();
        let enough = counts.under_way.saturating_mul(counts.each) >= counts.wanted;
        if enough {
            return None;
        }
        counts.under_way += 1;
        Some(Opening(self.0))
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.lock().wanted -= 1;
    }
}

/// A connection that is being opened.
pub(super) struct Opening<'a>(&'a Openings);

impl Opening<'_> {
    /// It is open, and takes so many calls at once.
    pub(super) fn ended(self, calls: usize) {
        self.0.lock().each = calls.max(1);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
        // The others see what is there, or open the next one.
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_opens_a_connection_until_one_takes_several() {
        let openings = Openings::new(Arc::default());
        let wanted: Vec<_> = (0..12).map(|_| openings.want()).collect();
        let mut all: Vec<_> = wanted.iter().map(|wanted| wanted.begin()).collect();
        assert!(all.iter().all(Option::is_some), "nothing is known");
        all.pop().flatten().expect("it began").ended(5);
        drop(all);
        let begun = wanted.iter().filter_map(|wanted| wanted.begin());
        let begun: Vec<_> = begun.collect();
        assert_eq!(begun.len(), 3, "for twelve calls");
    }

    #[tokio::test]
    async fn who_waits_hears_of_an_opening_that_failed() {
        let openings = Openings::new(Arc::default());
        let first = openings.want();
        first.begin().expect("it began").ended(100);
        let opening = first.begin().expect("it began");
        let second = openings.want();
        let change = second.change();
        assert!(second.begin().is_none(), "one is enough for both");
        drop((opening, first));
        change.await;
        assert!(second.begin().is_some());
    }
}
