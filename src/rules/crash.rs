//! Jobs that end their worker. A job that RabbitMQ delivers again is a suspect: its worker died, or lost its session and lives. So the
//! store is told before a suspect's call may begin, while it may run, and when it has ended; a call that is neither renewed nor ended
//! has ended its worker. A worker that lives ends its calls' notes, also those of a session that is gone, so such losses count nothing.

/// A call that is not renewed for so long, in milliseconds, has ended its worker. Until then nobody calls the job again.
pub const LEASE_MS: u64 = 60_000;

/// What a suspect may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may be called; so many calls of it have ended their workers. One with any is called alone among such jobs of a worker,
    /// so that its neighbours are not suspected with it.
    Go {
        /// Calls that ended their workers.
        crashes: u32,
    },
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
    /// Somebody wants to call it. After `most` crashes nobody may.
    pub fn begin(&mut self, now: u64, most: u32) -> Verdict {
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
            return Verdict::Dead { crashes };
        }
        self.until_ms = now + LEASE_MS;
        Verdict::Go { crashes }
    }

    /// Its call may still be under way.
    pub fn renew(&mut self, now: u64) {
        self.until_ms = now + LEASE_MS;
    }

    /// Its call has ended, or was not made, and its worker lives.
    pub fn end(&mut self) {
        self.until_ms = 0;
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
            assert_eq!(suspect.begin(now, 3), Verdict::Go { crashes });
            // It comes back at once, and waits: nobody knows yet.
            let ms = LEASE_MS - 5;
            assert_eq!(suspect.begin(now + 5, 3), Verdict::Wait { ms });
            now += LEASE_MS;
        }
        let dead = Verdict::Dead { crashes: 3 };
        assert_eq!(suspect.begin(now, 3), dead);
        assert_eq!(suspect.begin(now, 3), dead, "also after a lost dead letter");
    }

    #[test]
    fn sessions_that_are_lost_count_nothing() {
        let mut suspect = Suspect::default();
        for now in 1..=50 {
            assert_eq!(suspect.begin(now, 1), Verdict::Go { crashes: 0 });
            suspect.end();
            assert!(suspect.is_clear());
        }
    }

    #[test]
    fn a_long_call_is_renewed() {
        let mut suspect = Suspect::default();
        suspect.begin(0, 1);
        for now in (0..3_600_000).step_by(20_000) {
            suspect.renew(now);
            assert!(matches!(suspect.begin(now + 19_999, 1), Verdict::Wait { .. }));
        }
        suspect.end();
        assert_eq!(suspect.begin(3_600_001, 1), Verdict::Go { crashes: 0 });
    }

    #[test]
    fn a_clock_that_was_stepped_back_lets_nobody_wait_for_longer_than_a_lease() {
        let mut suspect = Suspect::default();
        suspect.begin(9_000_000, 2);
        let ms = LEASE_MS;
        assert_eq!(suspect.begin(1_000, 2), Verdict::Wait { ms });
        assert_eq!(suspect.begin(1_000 + LEASE_MS, 2), Verdict::Go { crashes: 1 });
    }
}
