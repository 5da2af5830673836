//! Decides whether a call opens a connection or waits for one that another call is opening: a
//! shared connection is enough for several calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Counts connections that are being opened and calls that need one.
pub(super) struct Openings {
    counts: Mutex<OpeningCounts>,
    changed: Arc<Notify>,
}

struct OpeningCounts {
    /// Calls that have no connection yet.
    wanted: usize,
    /// Connections that are being opened.
    in_flight: usize,
    /// Number of simultaneous calls that the last opened connection takes.
    each: usize,
}

impl Openings {
    /// Starts with the assumption that a connection takes one call, until a server offers more.
    /// `changed` is notified when another call may fit on an existing connection.
    pub(super) fn new(changed: Arc<Notify>) -> Self {
        let counts = OpeningCounts {
            wanted: 0,
            in_flight: 0,
            each: 1,
        };
        Self {
            counts: Mutex::new(counts),
            changed,
        }
    }

    /// Registers a call that needs a connection, for as long as the returned value lives.
    pub(super) fn want(&self) -> Demand<'_> {
        self.lock().wanted += 1;
        Demand(self)
    }

    fn lock(&self) -> MutexGuard<'_, OpeningCounts> {
        // The counts are consistent at any time.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that needs a connection.
pub(super) struct Demand<'a>(&'a Openings);

impl<'a> Demand<'a> {
    /// Resolves after the next change of the existing connections or of those being opened.
    pub(super) fn change(&self) -> Notified<'a> {
        self.0.changed.notified()
    }

    /// Starts to open another connection if the ones being opened are not enough for all calls.
    pub(super) fn begin(&self) -> Option<Opening<'a>> {
        let mut counts = self.0.lock();
        let enough = counts.in_flight.saturating_mul(counts.each) >= counts.wanted;
        if enough {
            return None;
        }
        counts.in_flight += 1;
        Some(Opening(self.0))
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        self.0.lock().wanted -= 1;
    }
}

/// A connection that is being opened.
pub(super) struct Opening<'a>(&'a Openings);

impl Opening<'_> {
    /// Reports that it is open and takes `calls` simultaneous calls.
    pub(super) fn ended(self, calls: usize) {
        self.0.lock().each = calls.max(1);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
        // The other calls use an existing connection or open the next one.
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
        let opened = wanted.iter().filter_map(|wanted| wanted.begin());
        let opened: Vec<_> = opened.collect();
        assert_eq!(opened.len(), 3, "for twelve calls");
    }

    #[tokio::test]
    async fn a_waiting_call_learns_of_a_failed_connection() {
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
