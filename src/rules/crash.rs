//! Jobs that end their worker. A job that RabbitMQ delivers again is a suspect: its worker died, or lost its session and lives. RabbitMQ's
//! count rises for both, and for all that the worker had, so it can't tell who is guilty; it says who is to be watched, for nothing
//! else pays. The store is told before a suspect asks for its permit, while its call may run and when that has ended; a note that is
//! neither renewed nor ended has ended its worker. A worker that lives ends its notes, also those of a session that is gone, so such
//! losses count nothing, however many there are.
//!
//! Who was beside a guilty job is noted, too, and counted with it. So a job with crashes is begun *alone*: at most one such job at a time
//! in a worker, the others wait without a note. Then who is innocent is counted with another's first call, which nobody watches, and with
//! its first watched one, and no more; an answer to its next call clears it.

use crate::rules::tenant::Tenant;

/// A note that is not renewed for so long, in milliseconds, is that of a worker that died. Until then nobody calls the job again.
pub const LEASE_MS: u64 = 20_000;
/// What is known of a suspect is forgotten so long after the last word of it, in milliseconds.
pub const KEEP_MS: u64 = 7 * 86_400_000;

/// A worker's word on a suspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspected {
    /// Whose it is.
    pub tenant: Tenant,
    /// Its id.
    pub job: String,
    /// Whose note it is: a name that no other delivery of any worker has.
    pub by: String,
    /// What is said.
    pub note: Note,
}

/// What is said of a suspect's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// It is to be called.
    Begin {
        /// After so many crashes nobody may call it.
        most: u32,
        /// No other one with crashes is called in this worker.
        alone: bool,
    },
    /// It may still be in flight.
    Renew,
    /// Its worker lives, and its call has ended or was not made.
    End {
        /// It was made, which proves the job innocent.
        answered: bool,
    },
}

/// What a suspect may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may ask for its permit, and is noted; also the reply to all but [`Note::Begin`].
    Go,
    /// Calls of it have ended workers: it is to be begun alone. It is not noted.
    Alone {
        /// How many.
        crashes: u32,
    },
    /// Another call of it may be in flight for so long.
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Suspect {
    crashes: u32,
    /// Until when a call is taken to be in flight; 0: there is none.
    until_ms: u64,
    /// Whose call that is.
    by: String,
}

impl Suspect {
    /// A worker says this at `now` (milliseconds since the epoch), in the name of `by`.
    pub fn hear(&mut self, now: u64, by: &str, note: Note) -> Verdict {
        // The clock may have been stepped back.
        self.until_ms = self.until_ms.min(now + LEASE_MS);
        let is_own = self.by == by;
        let verdict = match note {
            Note::Begin { .. } if self.until_ms > now && !is_own => Verdict::Wait {
                ms: self.until_ms - now,
            },
            Note::Begin { most, alone } => {
                // Nobody ended it.
                self.crashes += u32::from(self.until_ms > 0 && !is_own);
                self.until_ms = 0;
                self.begin(now, by, most, alone)
            }
            Note::Renew => {
                // One whose note is gone is not noted anew: somebody has ended it.
                if self.until_ms > 0 && is_own {
                    self.until_ms = now + LEASE_MS;
                }
                Verdict::Go
            }
            Note::End { answered } => {
                if answered {
                    self.crashes = 0;
                }
                if is_own {
                    self.until_ms = 0;
                }
                Verdict::Go
            }
        };
        if self.until_ms == 0 {
            self.by.clear();
        }
        verdict
    }

    fn begin(&mut self, now: u64, by: &str, most: u32, alone: bool) -> Verdict {
        let crashes = self.crashes;
        if crashes >= most {
            // A dead letter that is replayed, or could not be published, has one call more.
            self.crashes = most.saturating_sub(1);
            return Verdict::Dead { crashes };
        }
        if crashes > 0 && !alone {
            return Verdict::Alone { crashes };
        }
        self.until_ms = now + LEASE_MS;
        by.clone_into(&mut self.by);
        Verdict::Go
    }

    /// There is nothing to remember.
    pub fn is_clear(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDED: Note = Note::End { answered: false };
    const ANSWERED: Note = Note::End { answered: true };

    fn begin(most: u32, alone: bool) -> Note {
        Note::Begin { most, alone }
    }

    #[test]
    fn each_call_that_nobody_ended_is_a_crash_and_the_last_is_dead() {
        let (mut suspect, mut now) = (Suspect::default(), 1_000);
        for (crashes, by) in ["a", "b", "c"].into_iter().enumerate() {
            let alone = crashes > 0;
            assert_eq!(suspect.hear(now, by, begin(3, alone)), Verdict::Go);
            // It comes back at once, and waits: nobody knows yet.
            let ms = LEASE_MS - 5;
            let wait = Verdict::Wait { ms };
            assert_eq!(suspect.hear(now + 5, "other", begin(3, true)), wait);
            now += LEASE_MS;
        }
        let dead = Verdict::Dead { crashes: 3 };
        assert_eq!(suspect.hear(now, "d", begin(3, true)), dead);
        // Replayed, it has one call; the same where the dead letter was not confirmed.
        assert_eq!(suspect.hear(now, "e", begin(3, true)), Verdict::Go);
        assert_eq!(suspect.hear(now + LEASE_MS, "f", begin(3, true)), dead);
    }

    #[test]
    fn sessions_that_are_lost_count_nothing() {
        let mut suspect = Suspect::default();
        for now in 1..=50 {
            let by = now.to_string();
            assert_eq!(suspect.hear(now, &by, begin(1, false)), Verdict::Go);
            suspect.hear(now, &by, ENDED);
            assert!(suspect.is_clear());
        }
    }

    #[test]
    fn who_has_crashes_is_begun_alone_and_an_answer_clears_it() {
        let mut suspect = Suspect::default();
        suspect.hear(0, "a", begin(5, false));
        let (now, alone) = (LEASE_MS, Verdict::Alone { crashes: 1 });
        assert_eq!(suspect.hear(now, "b", begin(5, false)), alone);
        let again = suspect.hear(now, "b", begin(5, false));
        assert_eq!(again, alone, "it is not noted");
        assert_eq!(suspect.hear(now, "b", begin(5, true)), Verdict::Go);
        suspect.hear(now, "b", ENDED);
        let again = suspect.hear(now, "b", begin(5, false));
        assert_eq!(again, alone, "it was not called");
        assert_eq!(suspect.hear(now, "b", begin(5, true)), Verdict::Go);
        suspect.hear(now, "b", ANSWERED);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_long_call_is_renewed_until_it_ends() {
        let mut suspect = Suspect::default();
        suspect.hear(0, "a", begin(1, false));
        for now in (0..3_600_000).step_by(5_000) {
            suspect.hear(now, "a", Note::Renew);
            let ms = LEASE_MS - 4_999;
            let other = suspect.hear(now + 4_999, "b", begin(1, false));
            assert_eq!(other, Verdict::Wait { ms });
        }
        suspect.hear(3_600_000, "a", ENDED);
        // It was on its way when the call ended.
        suspect.hear(3_600_001, "a", Note::Renew);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_note_is_its_owners_and_nobody_else_renews_or_ends_it() {
        let mut suspect = Suspect::default();
        suspect.hear(0, "a", begin(5, false));
        // The word that it began was lost on the way back: it is said again.
        assert_eq!(suspect.hear(5, "a", begin(5, false)), Verdict::Go);
        suspect.hear(10_000, "b", ENDED);
        suspect.hear(10_000, "b", Note::Renew);
        let ms = 5 + LEASE_MS - 10_000;
        let wait = suspect.hear(10_000, "b", begin(5, false));
        assert_eq!(wait, Verdict::Wait { ms });
        // A worker that stood still for longer lives after all: its job is cleared, and another's call goes on.
        assert_eq!(suspect.hear(30_000, "b", begin(5, true)), Verdict::Go);
        suspect.hear(31_000, "a", ANSWERED);
        let wait = suspect.hear(31_000, "c", begin(1, false));
        assert_eq!(wait, Verdict::Wait { ms: 19_000 });
        suspect.hear(32_000, "b", ENDED);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_clock_that_was_stepped_back_lets_nobody_wait_for_longer_than_a_lease() {
        let mut suspect = Suspect::default();
        suspect.hear(9_000_000, "a", begin(2, false));
        let ms = LEASE_MS;
        let wait = suspect.hear(1_000, "b", begin(2, false));
        assert_eq!(wait, Verdict::Wait { ms });
        let after = suspect.hear(1_000 + LEASE_MS, "b", begin(2, true));
        assert_eq!(after, Verdict::Go);
    }
}
