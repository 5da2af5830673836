//! Jobs that end their worker. A job that RabbitMQ delivers again is a suspect: its worker died, or lost its session and lives. RabbitMQ's
//! count rises for both, and for all that the worker had, so it can't tell who is guilty; it says who is to be watched, for nothing
//! else pays. The store is told before a suspect asks for its permit, while its call may run and when that has ended; a note that is
//! neither renewed nor ended has ended its worker. A worker that lives ends its notes, also those of a session that is gone, so such
//! losses count nothing, however many there are.
//!
//! Who was beside a guilty job is noted, too, and counted with it. So a job with crashes is begun *alone*: at most one such job at a time
//! in a worker, the others wait without a note. Then who is innocent is counted once by each guilty job that nobody knew of yet, and an
//! answer to its next call clears it.

/// A note that is not renewed for so long, in milliseconds, is that of a worker that died. Until then nobody calls the job again.
pub const LEASE_MS: u64 = 20_000;

/// What a suspect may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may ask for its permit. It is noted.
    Go,
    /// Calls of it have ended workers: it is to be begun alone. It is not noted.
    Alone,
    /// Another call of it may be under way for so long.
    Wait {
        /// In milliseconds.
        ms: u64,
    },
    /// It has ended too many workers: a dead letter.
    Dead {
        /// Calls that ended their workers.
        crashes: u32,
    },
}

/// What the store knows of a suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Suspect {
    crashes: u32,
    /// Until when a call is taken to be under way; 0: there is none.
    until_ms: u64,
}

impl Suspect {
    /// Somebody wants to call it, `alone` or beside others with crashes. After `most` crashes nobody may.
    pub fn begin(&mut self, now: u64, most: u32, alone: bool) -> Verdict {
        // The clock may have been stepped back.
        self.until_ms = self.until_ms.min(now + LEASE_MS);
        if self.until_ms > now {
            let ms = self.until_ms - now;
            return Verdict::Wait { ms };
        }
        if self.until_ms > 0 {
            self.crashes += 1;
            self.until_ms = 0;
        }
        let crashes = self.crashes;
        if crashes >= most {
            // A dead letter that is replayed is called once more.
            self.crashes = most - 1;
            return Verdict::Dead { crashes };
        }
        if crashes > 0 && !alone {
            return Verdict::Alone;
        }
        self.until_ms = now + LEASE_MS;
        Verdict::Go
    }

    /// Its call may still be under way. One whose note is gone is not noted anew: somebody has ended it.
    pub fn renew(&mut self, now: u64) {
        if self.until_ms > 0 {
            self.until_ms = now + LEASE_MS;
        }
    }

    /// Its worker lives, and its call has ended or was not made. `answered`: it was made and has ended, which proves it innocent.
    pub fn end(&mut self, answered: bool) {
        self.until_ms = 0;
        if answered {
            self.crashes = 0;
        }
    }

    /// There is nothing to remember.
    pub fn is_clear(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_that_nobody_ended_is_a_crash_and_the_last_is_dead() {
        let (mut suspect, mut now) = (Suspect::default(), 1_000);
        for crashes in 0..3 {
            assert_eq!(suspect.begin(now, 3, crashes > 0), Verdict::Go);
            // It comes back at once, and waits: nobody knows yet.
            let ms = LEASE_MS - 5;
            assert_eq!(suspect.begin(now + 5, 3, true), Verdict::Wait { ms });
            now += LEASE_MS;
        }
        let dead = Verdict::Dead { crashes: 3 };
        assert_eq!(suspect.begin(now, 3, true), dead);
        // Replayed, it has one call; the same where the dead letter was not confirmed.
        assert_eq!(suspect.begin(now, 3, true), Verdict::Go);
        assert_eq!(suspect.begin(now + LEASE_MS, 3, true), dead);
    }

    #[test]
    fn sessions_that_are_lost_count_nothing() {
        let mut suspect = Suspect::default();
        for now in 1..=50 {
            assert_eq!(suspect.begin(now, 1, false), Verdict::Go);
            suspect.end(false);
            assert!(suspect.is_clear());
        }
    }

    #[test]
    fn who_has_crashes_is_begun_alone_and_an_answer_clears_it() {
        let mut suspect = Suspect::default();
        suspect.begin(0, 5, false);
        let now = LEASE_MS;
        assert_eq!(suspect.begin(now, 5, false), Verdict::Alone);
        assert_eq!(
            suspect.begin(now, 5, false),
            Verdict::Alone,
            "it is not noted"
        );
        assert_eq!(suspect.begin(now, 5, true), Verdict::Go);
        suspect.end(false);
        assert_eq!(
            suspect.begin(now, 5, false),
            Verdict::Alone,
            "it was not called"
        );
        assert_eq!(suspect.begin(now, 5, true), Verdict::Go);
        suspect.end(true);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_long_call_is_renewed_until_it_ends() {
        let mut suspect = Suspect::default();
        suspect.begin(0, 1, false);
        for now in (0..3_600_000).step_by(5_000) {
            suspect.renew(now);
            let ms = LEASE_MS - 4_999;
            assert_eq!(suspect.begin(now + 4_999, 1, false), Verdict::Wait { ms });
        }
        suspect.end(false);
        // It was on its way when the call ended.
        suspect.renew(3_600_001);
        assert_eq!(suspect.begin(3_600_001, 1, false), Verdict::Go);
    }

    #[test]
    fn a_clock_that_was_stepped_back_lets_nobody_wait_for_longer_than_a_lease() {
        let mut suspect = Suspect::default();
        suspect.begin(9_000_000, 2, false);
        let ms = LEASE_MS;
        assert_eq!(suspect.begin(1_000, 2, false), Verdict::Wait { ms });
        assert_eq!(suspect.begin(1_000 + LEASE_MS, 2, true), Verdict::Go);
    }
}
