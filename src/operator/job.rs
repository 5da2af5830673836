//! Operations on one waiting job: cancel it, or show its state.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::NotDone;
use super::answer::{Omittable, Schema, answers};
use super::steer::{Followers, POLL_INTERVAL, followed};
use gate::instructions::{BoardView, Versions, drop_all, drop_own, put, see};
use gate::redis::RedisGate;
use rules::limit::ceil_ms;
use rules::steering::{Instruction, MAX_ID_BYTES, SightedState, Sighting};
use rules::tenant::Tenant;

/// Time left for answers that are in flight when a wait ends.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Identifies one job.
#[derive(Debug, Clone)]
pub struct JobRef {
    /// The job's tenant.
    pub tenant: Tenant,
    /// ID of the job's message.
    pub id: String,
    /// Maximum time until a worker looks at a job that no worker has in memory (`delay.max-delay`).
    pub max_check_delay: Duration,
}

answers! {
    /// Result of a request to cancel a job. The end of such a request has only a state.
    pub struct Canceling: Followers {
        pub tenant: String,
        pub id: String,
        pub state: CancelState,
        /// Time until which the request stands.
        pub until_ms: Omittable<u64>,
        pub looked_at_within_ms: Omittable<u64>,
        /// Latest report of a worker on the job.
        pub seen: Omittable<Option<Sighting>>,
    }

    /// State of a job.
    pub struct JobState: Followers {
        pub tenant: String,
        pub id: String,
        /// Maximum time until a worker looks at a job that no worker has in memory.
        pub looked_at_within_ms: u64,
        /// A worker's report on the job, or `None` if no worker has it in memory.
        pub seen: Option<Sighting>,
    }
}

impl Schema for Sighting {
    fn schema() -> Value {
        json!({"$ref": "#/components/schemas/Sighting"})
    }
}

/// State of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CancelState {
    /// The job is a dead letter and is not called again.
    Canceled,
    /// The job was called before.
    Done,
    /// The job is being called now and is not called again.
    Running,
    /// No worker has the job in memory.
    Requested,
    /// The job is no longer to be canceled.
    Undone,
}

impl Schema for CancelState {
    fn schema() -> Value {
        let all = [
            Self::Canceled,
            Self::Done,
            Self::Running,
            Self::Requested,
            Self::Undone,
        ];
        json!({"enum": all})
    }
}

/// Returns a number that no other request has.
fn new_number() -> u64 {
    // The first six bytes of a ULID are a time, the last ten are random.
    let [.., a, b, c, d, e, f] = ulid::Ulid::new().to_bytes();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl JobRef {
    /// Identifies the job `id` of `tenant`.
    ///
    /// # Errors
    /// [`NotDone::Wrong`]: the ID is empty or too long.
    pub fn new(tenant: Tenant, id: &str, max_check_delay: Duration) -> Result<Self, NotDone> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return Err(NotDone::Wrong(format!(
                "the id has {} bytes; it must have 1 to {MAX_ID_BYTES}",
                id.len()
            )));
        }
        Ok(Self {
            tenant,
            id: id.to_owned(),
            max_check_delay,
        })
    }

    /// Returns the number of the request if `instruction` cancels this job.
    fn canceled_by(&self, instruction: &Instruction) -> Option<u64> {
        match instruction {
            Instruction::Cancel(tenant, id, number) => {
                (*tenant == self.tenant && *id == self.id).then_some(*number)
            }
            _ => None,
        }
    }

    /// Returns the request to cancel this job that is already in force, if any.
    fn known(&self, seen: &[BoardView]) -> Option<(u64, u64, Versions)> {
        let posted = |board: &BoardView| {
            let mut posted = board.posted.iter();
            posted.find_map(|(posted, until_ms)| Some((self.canceled_by(posted)?, *until_ms)))
        };
        // All boards must have the same request; otherwise a new one is made.
        let mut all = seen.iter().map(posted);
        let first = all.next()??;
        let same = all.all(|other| other.is_some_and(|(number, _)| number == first.0));
        let versions = seen
            .iter()
            .map(|board| (board.board.clone(), board.version));
        same.then(|| (first.0, first.1, versions.collect()))
    }

    /// Asks all workers not to call the job any more. The request stands for `for_ms` or longer, if
    /// an earlier one does. Waits at most `wait` until a worker has seen the job.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn cancel(
        &self,
        gate: &RedisGate,
        wait: Duration,
        for_ms: u64,
    ) -> Result<Canceling, NotDone> {
        let until = Instant::now() + wait;
        let seen = see(gate).await?;
        let lasts = |until_ms| (seen.iter()).all(|board| until_ms >= board.now_ms + for_ms);
        let (number, until_ms, versions) = match self.known(&seen) {
            Some(known) if lasts(known.1) => known,
            known => {
                let number = known.map_or_else(new_number, |known| known.0);
                let cancel = Instruction::Cancel(self.tenant.clone(), self.id.clone(), number);
                let versions = put(gate, &cancel, for_ms).await?;
                let until_ms = self.known(&see(gate).await?).map_or(0, |known| known.1);
                (number, until_ms, versions)
            }
        };
        let (seen, followers, stands) = loop {
            let sighting = gate.sighting(&self.tenant, &self.id).await?;
            let boards = see(gate).await?;
            let followers = Followers::of(&boards, &versions);
            // A request of another operator may have replaced this one, and cancels the job, too.
            let posted = boards.iter().flat_map(|board| &board.posted);
            let posted = posted.filter_map(|(posted, _)| self.canceled_by(posted));
            let posted: Vec<u64> = posted.collect();
            let sighting = sighting.filter(|sighting| {
                let mut cancel = sighting.cancel.iter();
                cancel.any(|cancel| *cancel == number || posted.contains(cancel))
            });
            let stands = !posted.is_empty();
            let state = sighting.as_ref().map(|sighting| sighting.state);
            // Another worker might still call a copy of the job until all workers follow.
            let is_over = matches!(state, Some(SightedState::Canceled | SightedState::Done));
            if is_over && followers.are_all() || !stands || Instant::now() >= until {
                break (sighting, followers, stands);
            }
            sleep(POLL_INTERVAL).await;
        };
        let state = match seen.as_ref().map(|sighting| sighting.state) {
            Some(SightedState::Canceled) if followers.are_all() => CancelState::Canceled,
            Some(SightedState::Done) => CancelState::Done,
            // Its time is over, or another operator withdrew it.
            _ if !stands => CancelState::Undone,
            Some(SightedState::Running) => CancelState::Running,
            _ => CancelState::Requested,
        };
        Ok(Canceling {
            base: followers,
            tenant: self.tenant.to_string(),
            id: self.id.clone(),
            state,
            until_ms: Omittable(Some(until_ms)),
            looked_at_within_ms: Omittable(Some(ceil_ms(self.max_check_delay))),
            seen: Omittable(Some(seen)),
        })
    }

    /// Ends the request of [`JobRef::cancel`]: a job that no worker has seen yet may be called.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn undo(&self, gate: &RedisGate, within: Duration) -> Result<Canceling, NotDone> {
        let name = Instruction::Cancel(self.tenant.clone(), self.id.clone(), 0).name();
        let versions = drop_all(gate, &[name]).await?;
        let (_, followers) = followed(gate, &versions, within).await?;
        Ok(Canceling {
            base: followers,
            tenant: self.tenant.to_string(),
            id: self.id.clone(),
            state: CancelState::Undone,
            until_ms: Omittable(None),
            looked_at_within_ms: Omittable(None),
            seen: Omittable(None),
        })
    }

    /// Asks all workers for the state of the job and waits at most `wait` for one to report it.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn show(&self, gate: &RedisGate, wait: Duration) -> Result<JobState, NotDone> {
        let until = Instant::now() + wait;
        // Requests that show the same job replace each other's instruction, so each takes any
        // report that is newer than itself.
        let before = gate.sighting(&self.tenant, &self.id).await?;
        let before = before.and_then(|seen| seen.show);
        let number = new_number();
        let show = Instruction::Show(self.tenant.clone(), self.id.clone(), number);
        let versions = put(gate, &show, ceil_ms(wait + ANSWER_GRACE)).await?;
        let seen = loop {
            let sighting = gate.sighting(&self.tenant, &self.id).await?;
            let now = |seen: &Sighting| seen.show.is_some() && seen.show != before;
            if sighting.as_ref().is_some_and(now) {
                break sighting;
            }
            if Instant::now() >= until {
                // No worker has the job any more. The last report counts if it says how the job
                // ended.
                break sighting.filter(|seen| seen.state.is_end());
            }
            sleep(POLL_INTERVAL).await;
        };
        let followers = Followers::of(&see(gate).await?, &versions);
        // An error is ignored here: the instruction also ends by itself.
        let _ = drop_own(gate, &show).await;
        Ok(self.state(followers, seen))
    }

    /// Returns the state of the job that a worker reported, if any did.
    pub(super) fn state(&self, followers: Followers, seen: Option<Sighting>) -> JobState {
        JobState {
            base: followers,
            tenant: self.tenant.to_string(),
            id: self.id.clone(),
            looked_at_within_ms: ceil_ms(self.max_check_delay),
            seen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_unique_numbers() {
        assert_ne!(new_number(), new_number());
    }
}
