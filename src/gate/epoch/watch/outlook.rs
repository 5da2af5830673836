//! A look at the epoch by an observer that starts no jobs. `gate::epoch::outlook` draws the
//! conclusions.

use super::{Watch, WatchTarget};
use crate::GateError;
use crate::epoch::outlook::{Outlook, OutlookQuestion, outlook};
use rules::slots::Slots;

impl Watch {
    /// Returns the findings of workers that look now at this primary, for jobs with keys in `slots`
    /// (in a cluster), and Redis's clock in milliseconds. Writes nothing.
    ///
    /// # Errors
    /// [`GateError`] if they are not known.
    pub async fn outlook(
        &self,
        at: &WatchTarget<'_>,
        spans: (u64, u64),
        slots: &Slots,
    ) -> Result<(Outlook, u64), GateError> {
        let read = self.read(at).await?;
        if let Some((owned, _)) = &read.owned
            && !at.primary.keeps_epoch_of(owned)
        {
            at.link.doubt();
            return Err(at.primary.moving());
        }
        let question = OutlookQuestion {
            span_ms: spans.0,
            longest_ms: spans.1,
            slots: read.owned.map(|(owned, _)| (owned, slots.clone())),
        };
        let found = outlook(read.fields, &question, &read.memory, read.now);
        Ok((found, read.now))
    }
}
