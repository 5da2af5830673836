//! The slots that an epoch covers in a cluster, and how they pass from one epoch to another.
//! `gate::epoch::shard` decides.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Pipeline, Value, from_redis_value_ref};

use super::pulse::PulseKind;
use super::{BATCH_RETRY_DELAY, SentPulse, Watch, WatchTarget};
use crate::epoch::shard::HandedClaims;
use crate::link::{Link, PrimaryLink};
use crate::{GateError, scripts};
use rules::slots::{SlotOwnership, Slots};

impl Watch {
    /// Checks that the epoch covers `slot` by now. Used in a cluster.
    ///
    /// # Errors
    /// [`GateError::Cold`] if it does not yet.
    pub fn speaks_for(&self, sent: &SentPulse, slot: u16) -> Result<(), GateError> {
        let (wait, why) = match (sent.found.claims.from(slot), sent.now()) {
            (Some(0), _) => return Ok(()),
            (Some(from), Some(now)) if from <= now => return Ok(()),
            (Some(from), now) => {
                let wait = Duration::from_millis(from.saturating_sub(now.unwrap_or(0)));
                (
                    wait,
                    format!(
                        "slot {slot} came from a primary that did not confirm that no data was lost"
                    ),
                )
            }
            (None, _) => (
                BATCH_RETRY_DELAY,
                format!("slot {slot} is unknown, since it is moving"),
            ),
        };
        Err(GateError::Cold { wait, why })
    }

    /// Gives up the claims on `slots`, if this epoch is sound here and now. `memory` is the
    /// identity of the server that receives them.
    async fn hand_over(
        &self,
        link: &Link,
        shard: &PrimaryLink,
        slots: &Slots,
        memory: &str,
    ) -> Option<Vec<HandedClaims>> {
        let sent = self.sent(None)?;
        let found = &sent.found;
        let given = found.claims.slots().both(slots);
        if given.is_empty() {
            return None;
        }
        let mut rest = SlotOwnership::clone(&found.claims);
        rest.keep(&found.claims.slots().without(&given));
        let mut pipeline = Pipeline::with_capacity(4);
        let by = link.scripts();
        let pulse = self.pulse(&sent, (PulseKind::Proof, by));
        scripts::pulse().add(&mut pipeline, by, pulse);
        let read = [
            ("id", sent.epoch.0.as_str()),
            ("run", &sent.epoch.1),
            ("cold", &found.cold),
            ("next", &found.next),
            ("slots", &found.slots),
        ];
        let changed = [("slots".to_owned(), rest.text())];
        self.add_write(&mut pipeline, by, &read, &changed);
        let answers = link.on(shard, &pipeline).await.ok()?;
        let each = answers.chunks(scripts::answers_per_call(by));
        let own: Vec<&Value> = each.filter_map(<[Value]>::last).collect();
        let [pulse, Value::Int(1)] = own[..] else {
            return None;
        };
        self.beaten(&sent, pulse).ok()?;
        let numbers: Vec<u64> = from_redis_value_ref(pulse).unwrap_or_default();
        let now = *numbers.get(1)?;
        {
            let mut state = self.state();
            state.found.slots = rest.text();
            state.found.claims = Arc::new(rest);
        }
        let sure = found.sure.filter(|_| sent.epoch.1 == memory);
        Some(HandedClaims::of(
            &found.claims,
            &given,
            found.gap,
            now,
            sure,
        ))
    }

    /// Drops claims that `others` have by now.
    pub async fn forget(&self, link: &Link, shard: &PrimaryLink, others: &Slots) {
        let mapped = self.state().found.mapped.clone();
        let gone = others.without(&mapped);
        self.hand_over(link, shard, &gone, "").await;
    }

    /// Returns the claimed slots, or none if the epoch is not sound.
    pub fn claimed(&self) -> Slots {
        self.sent(None)
            .map(|sent| sent.found.claims.slots())
            .unwrap_or_default()
    }
}

/// Asks the other epochs for slots that are `owned` here but not claimed yet.
pub(super) async fn ask_for(
    owned: &Slots,
    claims: &SlotOwnership,
    memory: &str,
    now: u64,
    at: &WatchTarget<'_>,
) -> Vec<HandedClaims> {
    let sound = claims.iter().filter(|(from, _)| *from <= now);
    let sound = sound.fold(Slots::default(), |all, (_, slots)| all.either(slots));
    let mut uncovered = owned.without(&sound);
    let mut all = Vec::new();
    for (other, shard) in at.others {
        if uncovered.is_empty() {
            break;
        }
        let handed = other.hand_over(at.link, shard, &uncovered, memory).await;
        for handed in handed.into_iter().flatten() {
            uncovered = uncovered.without(&handed.slots);
            all.push(handed);
        }
    }
    all
}
