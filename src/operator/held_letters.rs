//! The letters that a change of dead letters has fetched and leaves in their queue, unacked. At the
//! end of RabbitMQ's `consumer_timeout` it would close the channel, so they are returned before.

use std::time::Duration;

use tokio::time::Instant;

/// The state since the letters were last returned.
#[derive(Debug)]
pub struct HeldLetters {
    longest: Duration,
    since: Instant,
    /// Number of letters that were changed before.
    done: u64,
    /// Number of letters that were returned. They come first.
    again: u64,
    /// Number of letters that RabbitMQ refused before they were returned.
    refused: u64,
}

impl HeldLetters {
    /// Begins at `now`. `timeout` is the `consumer_timeout`.
    pub fn new(now: Instant, timeout: Duration) -> Self {
        Self {
            longest: timeout / 4 * 3,
            since: now,
            done: 0,
            again: 0,
            refused: 0,
        }
    }

    /// Returns true if the letters have to be returned now, because the next ones are fetched at
    /// `due`. Letters that are returned come next, so this is false until one has been changed, of
    /// which there are `done` in all: otherwise a search would never end.
    pub fn must_return(&self, due: Instant, done: u64) -> bool {
        due >= self.since + self.longest && done > self.done
    }

    /// Begins anew at `now`, after the letters were returned. Returns how many of `seen` fetched
    /// letters they are. `done` and `refused` are the numbers of letters that were changed and that
    /// RabbitMQ refused.
    pub fn returned(&mut self, now: Instant, seen: u64, (done, refused): (u64, u64)) -> u32 {
        let number = seen - (done - self.done);
        *self = Self {
            longest: self.longest,
            since: now,
            done,
            again: number,
            refused: self.refused(seen, refused),
        };
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    /// Returns how many letters RabbitMQ refused: `refused` of the `seen` ones since the last
    /// return, or more before it if some of those have not come again.
    pub fn refused(&self, seen: u64, refused: u64) -> u64 {
        match seen >= self.again {
            true => refused,
            false => refused.max(self.refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn letters_are_returned_before_the_timeout_if_one_was_changed() {
        let began = Instant::now();
        let mut held = HeldLetters::new(began, 20 * SECOND);
        assert!(!held.must_return(began + 14 * SECOND, 1));
        assert!(!held.must_return(began + 15 * SECOND, 0));
        assert!(held.must_return(began + 15 * SECOND, 1));
        // A pause that lasts longer than the timeout.
        assert!(held.must_return(began + 3_600 * SECOND, 1));
        assert_eq!(held.returned(began + 10 * SECOND, 7, (2, 3)), 5);
        assert_eq!((held.refused(0, 0), held.refused(5, 1)), (3, 1));
        assert!(!held.must_return(began + 24 * SECOND, 3));
        assert!(!held.must_return(began + 25 * SECOND, 2));
        assert!(held.must_return(began + 25 * SECOND, 3));
        assert_eq!(held.returned(began + 25 * SECOND, 6, (3, 1)), 5);
        assert_eq!((held.refused(4, 0), held.refused(5, 0)), (1, 0));
    }
}
