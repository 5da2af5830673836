//! Jobs that crash their worker. A job that RabbitMQ delivers again is a suspect: its worker died,
//! or lost its session and lives. RabbitMQ's delivery count rises in both cases, and for all jobs
//! that the worker had, so it does not show which job is guilty. It only selects the jobs to watch,
//! so that other jobs cost nothing extra. A worker writes a note to the store before a suspect asks
//! for its permit, renews it while the call may run, and removes it when the call has ended. A note
//! that is neither renewed nor removed means that its worker crashed. A live worker also removes
//! the notes of a lost session, so lost sessions do not count, however many there are.
//!
//! Suspects that were called beside a guilty job have notes as well, and are counted with it. So a
//! job with crashes is called *alone*: a worker calls at most one such job at a time, and the
//! others wait without a note. An innocent job is then counted at most twice: with the guilty job's
//! first call, which is not watched, and with the guilty job's first watched call. An answer to the
//! innocent job's next call clears its count.

use crate::tenant::Tenant;

/// Time after its last renewal at which a note counts as a crash, in milliseconds. Until then no
/// other delivery of the job is called.
pub const NOTE_LEASE_MS: u64 = 20_000;
/// Time after its last note at which a suspect is forgotten, in milliseconds.
pub const KEEP_MS: u64 = 7 * 86_400_000;

/// A worker's note about a suspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectNote {
    /// The job's tenant.
    pub tenant: Tenant,
    /// The job's ID.
    pub job: String,
    /// The owner of the note: a name that is unique among the deliveries of all workers.
    pub owner: String,
    /// The state of the call.
    pub note: Note,
}

/// The state of a suspect's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The call is about to be made.
    Begin {
        /// Number of crashes from which on the job is not called any more.
        max: u32,
        /// Whether the worker calls no other job with crashes meanwhile.
        alone: bool,
    },
    /// The call may still be in flight.
    Renew,
    /// The worker is alive, and the call has ended or was not made.
    End {
        /// Whether the call was made, which proves the job innocent.
        answered: bool,
    },
}

/// The store's decision on a suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspectDecision {
    /// The job may ask for its permit, and the note is stored. Also the reply to all notes except
    /// for [`Note::Begin`].
    Proceed,
    /// Calls of the job have crashed workers, so it must be called alone. The note is not stored.
    RunAlone {
        /// Number of crashes.
        crashes: u32,
    },
    /// Another call of the job may be in flight.
    Wait {
        /// How long to wait, in milliseconds.
        ms: u64,
    },
    /// The job has crashed too many workers and becomes a dead letter.
    Dead {
        /// Number of calls that crashed their workers.
        crashes: u32,
    },
}

/// The store's record of a suspect.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Suspect {
    crashes: u32,
    /// The time until which a call counts as in flight; 0 if there is none.
    until_ms: u64,
    /// The owner of that call's note.
    owner: String,
}

impl Suspect {
    /// Applies a note that the owner `owner` wrote at `now` (milliseconds since the epoch).
    pub fn apply_note(&mut self, now: u64, owner: &str, note: Note) -> SuspectDecision {
        // The clock may have been stepped back.
        self.until_ms = self.until_ms.min(now + NOTE_LEASE_MS);
        let is_own = self.owner == owner;
        let verdict = match note {
            Note::Begin { .. } if self.until_ms > now && !is_own => SuspectDecision::Wait {
                ms: self.until_ms - now,
            },
            Note::Begin { max, alone } => {
                // The note expired: its worker crashed.
                self.crashes += u32::from(self.until_ms > 0 && !is_own);
                self.until_ms = 0;
                self.begin(now, owner, max, alone)
            }
            Note::Renew => {
                // A note that was removed is not stored again.
                if self.until_ms > 0 && is_own {
                    self.until_ms = now + NOTE_LEASE_MS;
                }
                SuspectDecision::Proceed
            }
            Note::End { answered } => {
                if answered {
                    self.crashes = 0;
                }
                if is_own {
                    self.until_ms = 0;
                }
                SuspectDecision::Proceed
            }
        };
        if self.until_ms == 0 {
            self.owner.clear();
        }
        verdict
    }

    fn begin(&mut self, now: u64, owner: &str, max: u32, alone: bool) -> SuspectDecision {
        let crashes = self.crashes;
        if crashes >= max {
            // A dead letter that is replayed, or that could not be published, gets one more call.
            self.crashes = max.saturating_sub(1);
            return SuspectDecision::Dead { crashes };
        }
        if crashes > 0 && !alone {
            return SuspectDecision::RunAlone { crashes };
        }
        self.until_ms = now + NOTE_LEASE_MS;
        owner.clone_into(&mut self.owner);
        SuspectDecision::Proceed
    }

    /// Returns true if there is nothing to remember.
    pub fn is_clear(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDED: Note = Note::End { answered: false };
    const ANSWERED: Note = Note::End { answered: true };

    fn begin(max: u32, alone: bool) -> Note {
        Note::Begin { max, alone }
    }

    #[test]
    fn each_call_without_an_end_is_a_crash_and_too_many_kill_the_job() {
        let (mut suspect, mut now) = (Suspect::default(), 1_000);
        for (crashes, owner) in ["a", "b", "c"].into_iter().enumerate() {
            let alone = crashes > 0;
            assert_eq!(
                suspect.apply_note(now, owner, begin(3, alone)),
                SuspectDecision::Proceed
            );
            // The job comes back at once and waits: it is not yet known whether the worker crashed.
            let ms = NOTE_LEASE_MS - 5;
            let wait = SuspectDecision::Wait { ms };
            assert_eq!(suspect.apply_note(now + 5, "other", begin(3, true)), wait);
            now += NOTE_LEASE_MS;
        }
        let dead = SuspectDecision::Dead { crashes: 3 };
        assert_eq!(suspect.apply_note(now, "d", begin(3, true)), dead);
        // Replayed, the job gets one call; likewise if the dead letter was not confirmed.
        assert_eq!(
            suspect.apply_note(now, "e", begin(3, true)),
            SuspectDecision::Proceed
        );
        assert_eq!(
            suspect.apply_note(now + NOTE_LEASE_MS, "f", begin(3, true)),
            dead
        );
    }

    #[test]
    fn lost_sessions_are_not_crashes() {
        let mut suspect = Suspect::default();
        for now in 1..=50 {
            let owner = now.to_string();
            assert_eq!(
                suspect.apply_note(now, &owner, begin(1, false)),
                SuspectDecision::Proceed
            );
            suspect.apply_note(now, &owner, ENDED);
            assert!(suspect.is_clear());
        }
    }

    #[test]
    fn a_job_with_crashes_runs_alone_until_an_answer_clears_them() {
        let mut suspect = Suspect::default();
        suspect.apply_note(0, "a", begin(5, false));
        let (now, alone) = (NOTE_LEASE_MS, SuspectDecision::RunAlone { crashes: 1 });
        assert_eq!(suspect.apply_note(now, "b", begin(5, false)), alone);
        let repeated = suspect.apply_note(now, "b", begin(5, false));
        assert_eq!(repeated, alone, "it is not noted");
        assert_eq!(
            suspect.apply_note(now, "b", begin(5, true)),
            SuspectDecision::Proceed
        );
        suspect.apply_note(now, "b", ENDED);
        let repeated = suspect.apply_note(now, "b", begin(5, false));
        assert_eq!(repeated, alone, "it was not called");
        assert_eq!(
            suspect.apply_note(now, "b", begin(5, true)),
            SuspectDecision::Proceed
        );
        suspect.apply_note(now, "b", ANSWERED);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_long_call_is_renewed_until_it_ends() {
        let mut suspect = Suspect::default();
        suspect.apply_note(0, "a", begin(1, false));
        for now in (0..3_600_000).step_by(5_000) {
            suspect.apply_note(now, "a", Note::Renew);
            let ms = NOTE_LEASE_MS - 4_999;
            let other = suspect.apply_note(now + 4_999, "b", begin(1, false));
            assert_eq!(other, SuspectDecision::Wait { ms });
        }
        suspect.apply_note(3_600_000, "a", ENDED);
        // The renewal was on its way when the call ended.
        suspect.apply_note(3_600_001, "a", Note::Renew);
        assert!(suspect.is_clear());
    }

    #[test]
    fn only_its_owner_renews_or_ends_a_note() {
        let mut suspect = Suspect::default();
        suspect.apply_note(0, "a", begin(5, false));
        // The reply to the first note was lost, so it is sent again.
        assert_eq!(
            suspect.apply_note(5, "a", begin(5, false)),
            SuspectDecision::Proceed
        );
        suspect.apply_note(10_000, "b", ENDED);
        suspect.apply_note(10_000, "b", Note::Renew);
        let ms = 5 + NOTE_LEASE_MS - 10_000;
        let wait = suspect.apply_note(10_000, "b", begin(5, false));
        assert_eq!(wait, SuspectDecision::Wait { ms });
        // A worker that hung for longer is alive after all: its answer clears the job's crashes,
        // and the other worker's call goes on.
        assert_eq!(
            suspect.apply_note(30_000, "b", begin(5, true)),
            SuspectDecision::Proceed
        );
        suspect.apply_note(31_000, "a", ANSWERED);
        let wait = suspect.apply_note(31_000, "c", begin(1, false));
        assert_eq!(wait, SuspectDecision::Wait { ms: 19_000 });
        suspect.apply_note(32_000, "b", ENDED);
        assert!(suspect.is_clear());
    }

    #[test]
    fn a_clock_step_back_never_makes_a_job_wait_beyond_a_lease() {
        let mut suspect = Suspect::default();
        suspect.apply_note(9_000_000, "a", begin(2, false));
        let ms = NOTE_LEASE_MS;
        let wait = suspect.apply_note(1_000, "b", begin(2, false));
        assert_eq!(wait, SuspectDecision::Wait { ms });
        let after = suspect.apply_note(1_000 + NOTE_LEASE_MS, "b", begin(2, true));
        assert_eq!(after, SuspectDecision::Proceed);
    }
}
