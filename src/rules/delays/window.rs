//! How many jobs a worker takes from one delay queue.

/// A worker holds waiting jobs of each delay queue up to its prefetch divided by this, in addition
/// to running jobs.
const WINDOW_SHARE: usize = 8;

/// Returns how many jobs of one delay queue a worker has at once, with `prefetch` for each of its
/// main queues and `concurrency` running jobs. All running jobs may come from one delay queue and
/// stay unacked meanwhile, and the jobs behind them may be due as well.
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
