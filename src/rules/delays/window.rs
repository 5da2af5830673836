//! How many jobs of one delay queue a worker takes.

/// A worker has so much of its prefetch of each delay queue waiting, beside what runs: 1 / this.
const WINDOW_SHARE: usize = 8;

/// How many jobs of one delay queue a worker has at once, if it has `prefetch` of each of its main queues and runs `concurrency` jobs:
/// all that run may have come from one delay queue, and stay unacked meanwhile; those behind them may be due, too.
pub fn delivery_window(prefetch: usize, concurrency: usize) -> usize {
    (prefetch / WINDOW_SHARE).max(1) + concurrency.min(prefetch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_room_for_all_that_run() {
        assert_eq!(delivery_window(500, 64), 62 + 64);
        assert_eq!(delivery_window(1, 64), 2);
    }
}
