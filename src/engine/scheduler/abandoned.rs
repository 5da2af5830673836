//! Calls that were given up: their places are held on, for as long as the calls may still be under way.

use std::time::Duration;

use super::{Scheduler, Started, millis};
use crate::engine::abandoned::Call;
use crate::engine::action::Action;
use crate::gate::End;
use crate::handler::LateEnd;
use crate::rules::tenant::Tenant;

impl Scheduler {
    /// The gate was told that a call's places are held for so long; they are free again when it has `ended`.
    pub(super) fn give_up(
        &mut self,
        now: Duration,
        tenant: Tenant,
        started: Started,
        for_ms: u64,
        ended: LateEnd,
    ) {
        let lease = Duration::from_millis(for_ms);
        let permit = started.receipt.permit.clone();
        self.abandoned.add(Call {
            tenant,
            started,
            until: now + lease,
        });
        self.actions.push(Action::Await {
            permit,
            lease,
            ended,
        });
    }

    /// What [`Action::Await`] came to: the call has ended, or its time is over.
    pub fn abandoned_is_over(&mut self, permit: &str, ended: bool) {
        let Some(Call {
            tenant, started, ..
        }) = self.abandoned.remove(permit)
        else {
            return;
        };
        self.ledger.ended(&started.limits);
        // A place whose time is over is free without a word.
        if ended {
            let over = End::Abandoned { for_ms: 0 };
            self.ledger.add_start(&tenant, &started, over);
        }
    }

    /// Their places are kept, as those of running jobs are: the gate may have lost its memory of them.
    pub(super) fn renew_abandoned(&mut self, now: Duration) {
        for call in self.abandoned.iter() {
            let for_ms = millis(call.until.saturating_sub(now));
            if for_ms > 0 {
                let held = End::Abandoned { for_ms };
                self.ledger.add_start(&call.tenant, &call.started, held);
            }
        }
    }
}
