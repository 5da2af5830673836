//! Whether workers admit jobs, for commands that only look.

use futures_util::future::join_all;

use super::RedisGate;
use super::health::WRITE;
use crate::GateError;
use crate::epoch::outlook::Outlook;
use crate::epoch::{Watch, WatchTarget};
use crate::link::slot_of;
use crate::primaries::Primary;
use crate::refusal;
use rules::limit::{Limits, floor_ms};
use rules::policy::Policy;
use rules::slots::Slots;
use rules::tenant::Tenant;

/// The findings at one primary.
#[derive(Debug, Clone)]
pub struct PrimaryOutlook {
    /// The primary's name in a cluster, else empty.
    pub primary: String,
    /// Redis's clock, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Whether workers admit jobs there.
    pub outlook: Outlook,
}

impl RedisGate {
    /// Reports whether workers admit jobs with `limits`, since Redis may have lost data or refuse
    /// writes: jobs of `tenant` at its primary, or any jobs at each primary. `policy` bounds how
    /// far limits look back. Changes nothing.
    ///
    /// # Errors
    /// [`GateError`] if nothing is known. One primary's own error takes its place in the list.
    pub async fn outlook(
        &self,
        tenant: Option<&Tenant>,
        limits: &Limits,
        policy: &Policy,
    ) -> Result<Vec<Result<PrimaryOutlook, GateError>>, GateError> {
        let longest_ms = floor_ms(policy.memory());
        let spans = (limits.memory_ms(), longest_ms);
        let slot = tenant.map(|tenant| slot_of(&self.keys.waitlist(tenant)));
        let slot = slot.map(|slot| Slots::range(slot, slot));
        let primaries = self.finder.all(&self.link, true).await?;
        let asked = primaries.iter().filter_map(|primary| {
            let slots = match &slot {
                Some(slot) if self.link.is_cluster() => primary.shard.slots.both(slot),
                _ => primary.shard.slots.clone(),
            };
            let asked = tenant.is_none() || !self.link.is_cluster() || !slots.is_empty();
            asked.then_some((primary, slots))
        });
        let looks = asked.map(|(primary, slots)| async move {
            let (outlook, now_ms) = self.outlook_at(primary, spans, &slots).await?;
            Ok(PrimaryOutlook {
                primary: primary.shard.name().to_owned(),
                now_ms,
                outlook,
            })
        });
        Ok(join_all(looks).await)
    }

    async fn outlook_at(
        &self,
        primary: &Primary,
        spans: (u64, u64),
        slots: &Slots,
    ) -> Result<(Outlook, u64), GateError> {
        let at = WatchTarget {
            link: &self.link,
            finder: &self.finder,
            primary,
            others: &[],
        };
        let watch = Watch::new(primary.epoch.clone(), std::time::Duration::ZERO, true);
        let (outlook, now_ms) = watch.outlook(&at, spans, slots).await?;
        let outlook = match self.write_error(primary).await? {
            Some(error) if refusal::is_read_only(&error) => {
                Outlook::Refuses(refusal::refused(&error, WRITE).to_string())
            }
            // The workers' user may have rights that this one lacks.
            _ => outlook,
        };
        Ok((outlook, now_ms))
    }
}
