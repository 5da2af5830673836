//! What an operator asks of one job that waits: to be cancelled, and how it stands.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::NotDone;
use super::steer::{EVERY, Followers, followed};
use crate::gate::boards::{Seen, Versions, drop_all, put, see};
use crate::gate::redis::RedisGate;
use crate::rules::limit::ceil_ms;
use crate::rules::steering::{Instruction, MAX_ID_BYTES, Sighting, State};
use crate::rules::tenant::Tenant;

/// For answers that are on their way when a wait ends.
const GRACE: Duration = Duration::from_secs(5);

/// One job.
#[derive(Debug, Clone)]
pub struct Which {
    /// Whose.
    pub tenant: Tenant,
    /// Its message's id.
    pub id: String,
    /// When a job is looked at that no worker has in its memory (`delay.max-delay`).
    pub looked_at_within: Duration,
}

/// What became of a request to cancel a job.
pub struct Cancelling {
    /// What is known of it.
    pub state: Cancelled,
    /// Until when it stays cancelled (ms).
    pub until_ms: u64,
    /// Who follows.
    pub followers: Followers,
    /// What a worker said of it last.
    pub seen: Option<Sighting>,
}

/// What is known of a job that is to be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It is a dead letter, and nobody calls it any more.
    Cancelled,
    /// It was called before.
    Done,
    /// It is being called, and not again.
    Running,
    /// No worker has it in its memory.
    Requested,
}

impl Cancelled {
    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Done => "done",
            Self::Running => "running",
            Self::Requested => "requested",
        }
    }
}

/// How a job stands.
pub struct Shown {
    /// Who follows.
    pub followers: Followers,
    /// What a worker says of it; `None`: no worker has it in its memory.
    pub seen: Option<Sighting>,
}

/// A number that no other request has.
fn new_number() -> u64 {
    // The low half is random, the high one a time.
    let [.., a, b, c, d, e, f] = ulid::Ulid::new().to_bytes();
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

impl Which {
    /// The job `id` of `tenant`.
    ///
    /// # Errors
    /// [`NotDone::Wrong`]: no job has such an id.
    pub fn new(tenant: Tenant, id: &str, looked_at_within: Duration) -> Result<Self, NotDone> {
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return Err(NotDone::Wrong(format!(
                "the id has {} bytes; it must have 1 to {MAX_ID_BYTES}",
                id.len()
            )));
        }
        Ok(Self {
            tenant,
            id: id.to_owned(),
            looked_at_within,
        })
    }

    /// The request to cancel this job that is in force already.
    fn known(&self, seen: &[Seen]) -> Option<(u64, u64, Versions)> {
        let posted = |board: &Seen| {
            board.posted.iter().find_map(|(instruction, until_ms)| {
                let Instruction::Cancel(tenant, id, number) = instruction else {
                    return None;
                };
                let is_it = *tenant == self.tenant && *id == self.id;
                is_it.then_some((*number, *until_ms))
            })
        };
        // All boards have the same one; else it is asked anew.
        let mut all = seen.iter().map(posted);
        let first = all.next()??;
        let same = all.all(|other| other.is_some_and(|(number, _)| number == first.0));
        let versions = seen
            .iter()
            .map(|board| (board.board.clone(), board.version));
        same.then(|| (first.0, first.1, versions.collect()))
    }

    /// Asks all workers to call it no more for `for_ms`, and waits for so long at most until one has seen it.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn cancel(
        &self,
        gate: &RedisGate,
        wait: Duration,
        for_ms: u64,
    ) -> Result<Cancelling, NotDone> {
        let until = Instant::now() + wait;
        let seen = see(gate).await?;
        let (number, until_ms, versions) = match self.known(&seen) {
            Some(known) => known,
            None => {
                let number = new_number();
                let cancel = Instruction::Cancel(self.tenant.clone(), self.id.clone(), number);
                let versions = put(gate, &cancel, for_ms).await?;
                let until_ms = self.known(&see(gate).await?).map_or(0, |known| known.1);
                (number, until_ms, versions)
            }
        };
        let (seen, followers) = loop {
            let sighting = gate.sighting(&self.tenant, &self.id).await?;
            let sighting = sighting.filter(|sighting| sighting.cancel == Some(number));
            let followers = Followers::of(&see(gate).await?, &versions);
            let state = sighting.as_ref().map(|sighting| sighting.state);
            // Until all follow, one of the others might still call a copy of it.
            let is_over = matches!(state, Some(State::Cancelled | State::Done));
            if is_over && followers.are_all() || Instant::now() >= until {
                break (sighting, followers);
            }
            sleep(EVERY).await;
        };
        let state = match seen.as_ref().map(|sighting| sighting.state) {
            Some(State::Cancelled) if followers.are_all() => Cancelled::Cancelled,
            Some(State::Done) => Cancelled::Done,
            Some(State::Running) => Cancelled::Running,
            _ => Cancelled::Requested,
        };
        Ok(Cancelling {
            state,
            until_ms,
            followers,
            seen,
        })
    }

    /// Ends what [`Which::cancel`] asked: a job that no worker has seen yet may be called.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn undo(&self, gate: &RedisGate, within: Duration) -> Result<Followers, NotDone> {
        let name = Instruction::Cancel(self.tenant.clone(), self.id.clone(), 0).name();
        let versions = drop_all(gate, &[name]).await?;
        Ok(followed(gate, &versions, within).await?.1)
    }

    /// Asks all workers how it stands, and waits for so long at most until one has said it.
    ///
    /// # Errors
    /// [`NotDone::Redis`]
    pub async fn show(&self, gate: &RedisGate, wait: Duration) -> Result<Shown, NotDone> {
        let until = Instant::now() + wait;
        let number = new_number();
        let show = Instruction::Show(self.tenant.clone(), self.id.clone(), number);
        let versions = put(gate, &show, ceil_ms(wait + GRACE)).await?;
        let seen = loop {
            let sighting = gate.sighting(&self.tenant, &self.id).await?;
            let now = |seen: &Sighting| seen.show == Some(number);
            if sighting.as_ref().is_some_and(now) {
                break sighting;
            }
            if Instant::now() >= until {
                // Nobody has it any more, and the last who had it said why.
                break sighting.filter(|seen| seen.state.is_end());
            }
            sleep(EVERY).await;
        };
        let followers = Followers::of(&see(gate).await?, &versions);
        // It ends by itself, too.
        let _ = drop_all(gate, &[show.name()]).await;
        Ok(Shown { followers, seen })
    }

    fn as_json(&self, followers: &Followers) -> Value {
        json!({
            "tenant": self.tenant.as_str(),
            "id": self.id,
            "workers": followers.all,
            "workers_following": followers.following,
        })
    }

    /// What became of its cancelling, for programs.
    pub fn cancelling_as_json(&self, now: &Cancelling) -> Value {
        let mut json = self.as_json(&now.followers);
        json["state"] = now.state.word().into();
        json["until_ms"] = now.until_ms.into();
        json["looked_at_within_ms"] = ceil_ms(self.looked_at_within).into();
        json["seen"] = json!(now.seen);
        json
    }

    /// That it is not to be cancelled any more, for programs.
    pub fn undone_as_json(&self, followers: &Followers) -> Value {
        let mut json = self.as_json(followers);
        json["state"] = "undone".into();
        json
    }

    /// How it stands, for programs.
    pub fn shown_as_json(&self, now: &Shown) -> Value {
        let mut json = self.as_json(&now.followers);
        json["looked_at_within_ms"] = ceil_ms(self.looked_at_within).into();
        json["seen"] = json!(now.seen);
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_numbers_of_their_own() {
        assert_ne!(new_number(), new_number());
    }
}
