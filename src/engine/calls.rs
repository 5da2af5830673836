//! Prepares and makes one call of the handler while its permit is good. A panic of the handler
//! counts as a failed call.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::watch::{CallWatch, signal_at_end, watched};
use gate::LEASE_MS;
use handler::{Attempt, Fate, LateEnd, Outcome, Permit, PreparingHandler};
use rules::job::Job;
use rules::timing::lateness::CallSignal;

/// The end of a call.
pub(super) struct CallEnd {
    pub attempt: Attempt,
    pub took: Duration,
    /// The finding about when the call arrived at the API, if its end allows one.
    pub signal: Option<CallSignal>,
}

/// Prepares a call. Also returns how long that took.
pub(super) async fn prepare<H: PreparingHandler>(
    handler: &H,
    job: &Job,
) -> (Result<H::Ready, Attempt>, Duration) {
    let started = Instant::now();
    let call = AssertUnwindSafe(handler.prepare(job)).catch_unwind().await;
    let ready = match call {
        Ok(ready) => ready,
        Err(_) => Err(panicked().into()),
    };
    (ready, started.elapsed())
}

/// Makes the call if it is prepared and the permit is still good when this task runs. Otherwise the
/// outcome is [`Outcome::Late`].
pub(super) async fn attempt<H: PreparingHandler>(
    handler: &H,
    job: &Job,
    call: Option<H::Ready>,
    permit: &Permit,
    watch: Option<&CallWatch>,
) -> CallEnd {
    let started = Instant::now();
    let Some(call) = call.filter(|_| permit.is_good()) else {
        return CallEnd {
            attempt: Outcome::Late.into(),
            took: Duration::ZERO,
            signal: None,
        };
    };
    // Pinned here because it is a kilobyte large.
    let sent = pin!(AssertUnwindSafe(handler.send(job, call, permit.clone())).catch_unwind());
    let (attempt, is_late) = match watch {
        Some(watch) => watched(sent, permit, watch).await,
        None => (sent.await, false),
    };
    let attempt = attempt.unwrap_or_else(|_| Attempt {
        // The call may have been made.
        fate: Fate::Abandoned {
            lease: Duration::from_millis(LEASE_MS),
            ended: LateEnd::never(),
        },
        ..panicked().into()
    });
    CallEnd {
        signal: signal_at_end(&attempt.fate, permit, is_late),
        attempt,
        took: started.elapsed(),
    }
}

fn panicked() -> Outcome {
    let reason = "the handler panicked".to_owned();
    Outcome::Retry {
        after: None,
        reason,
    }
}
