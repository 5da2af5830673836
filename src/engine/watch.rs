//! Looks at calls in flight to see whether the request has arrived. The scheduler draws the
//! conclusions.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::action::JobKey;
use handler::{Fate, Permit};
use rules::timing::lateness::{CLOSE, CallCheck, CallSignal};

/// Minimum delay before a call that had not arrived is checked again.
const MIN_RECHECK_DELAY: Duration = Duration::from_millis(2);
/// The delay is the call's age divided by this, if that is longer.
const AGE_PART: u32 = 8;

/// How to look at a call.
pub(super) struct CallWatch {
    /// The job.
    pub key: JobKey,
    /// When to look, in scheduler time. Its patience counts from the start of the call.
    pub check: CallCheck,
    /// When the scheduler's time began.
    pub started: Instant,
    /// Receives the findings.
    pub signals: mpsc::Sender<(JobKey, CallSignal)>,
}

/// Waits for `call`, which `permit` allows, and meanwhile reports findings that the scheduler would
/// not learn otherwise: none if the call was in time. Also returns true if the call's end is the
/// first sign of a late arrival, because the call had not arrived at the last look.
pub(super) async fn watched<T>(
    mut call: Pin<&mut impl Future<Output = T>>,
    permit: &Permit,
    watch: &CallWatch,
) -> (T, bool) {
    let CallWatch {
        key,
        check,
        started,
        signals,
    } = watch;
    let written = Instant::now();
    let CallCheck {
        at,
        closely,
        patience,
    } = *check;
    let in_time = *started + at;
    let mut next = match closely {
        true => written + CLOSE,
        false => in_time,
    };
    let mut patient_until = written + patience;
    let mut is_late = false;
    loop {
        tokio::select! {
            biased;
            result = &mut call => return (result, is_late),
            () = sleep_until(next) => {}
        }
        // The connection can't show whether this call has arrived.
        let Some(has_arrived) = permit.has_arrived() else {
            return (call.await, false);
        };
        let now = Instant::now();
        let is_sent = match has_arrived {
            true if !closely && now <= in_time + MIN_RECHECK_DELAY => return (call.await, false),
            true => signals
                .try_send((*key, CallSignal::Acked { closely }))
                .is_ok(),
            false if now >= patient_until => {
                if signals.try_send((*key, CallSignal::Nothing)).is_ok() {
                    patient_until = now + patience / 2;
                }
                false
            }
            false => false,
        };
        if is_sent && has_arrived {
            return (call.await, false);
        }
        is_late = now > in_time;
        next = now
            + match closely && now < in_time {
                true => CLOSE,
                false => MIN_RECHECK_DELAY.max((now - written) / AGE_PART),
            };
    }
}

/// Returns the finding that the end of a call allows, or `None` if it allows none. `is_late`: see
/// [`watched`].
pub(super) fn signal_at_end(fate: &Fate, permit: &Permit, is_late: bool) -> Option<CallSignal> {
    match fate {
        Fate::Unwritten => None,
        // An answered call has arrived, which needs no look at its connection.
        Fate::Answered if !permit.is_watched() => None,
        // The call had not arrived at the last look. So its lateness is certain, and no doubt is
        // left as with other answers.
        Fate::Answered if is_late => Some(CallSignal::Acked { closely: false }),
        Fate::Answered => Some(CallSignal::Answered),
        // An acknowledged arrival was reported already. Any other call may be arriving only now.
        Fate::Unknown | Fate::Abandoned { .. } => {
            let has_arrived = permit.has_arrived()?;
            (!has_arrived).then_some(CallSignal::Nothing)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use kit::MS;

    /// Returns the watch of a call that was asked for at `started`: in time within 50 ms, given up
    /// after ten times that.
    fn watch(
        closely: bool,
        started: Instant,
        signals: mpsc::Sender<(JobKey, CallSignal)>,
    ) -> CallWatch {
        let check = CallCheck {
            at: MS * 50,
            closely,
            patience: MS * 500,
        };
        CallWatch {
            key: JobKey(1),
            check,
            started,
            signals,
        }
    }

    /// Returns the findings and their times for a call that arrives after `arrives_ms` and is
    /// answered after `answer_ms`.
    async fn signals_of(arrives_ms: u32, answer_ms: u32, closely: bool) -> Vec<(u128, CallSignal)> {
        let (sender, mut receiver) = mpsc::channel(8);
        let started = Instant::now();
        let permit = Permit::until(started + MS * 25);
        let listening = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some((_, signals)) = receiver.recv().await {
                all.push((started.elapsed().as_millis(), signals));
            }
            all
        });
        let arrived = Arc::new(AtomicBool::new(false));
        let has_arrived = Arc::clone(&arrived);
        let call = async {
            permit.written(move || has_arrived.load(Ordering::Relaxed));
            let arrives = async move {
                tokio::time::sleep(MS * arrives_ms).await;
                arrived.store(true, Ordering::Relaxed);
            };
            tokio::spawn(arrives);
            tokio::time::sleep(MS * answer_ms).await;
        };
        let ((), is_late) = watched(pin!(call), &permit, &watch(closely, started, sender)).await;
        assert!(!is_late, "it was told of");
        listening.await.expect("it does not panic")
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_in_time_is_not_reported() {
        assert_eq!(signals_of(40, 2000, false).await, []);
        assert_eq!(signals_of(400, 45, false).await, [], "it was answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_call_is_reported_when_it_arrives() {
        let signals = signals_of(230, 2000, false).await;
        let [(at, CallSignal::Acked { closely: false })] = signals[..] else {
            panic!("{signals:?}");
        };
        assert!((230..260).contains(&at), "{at}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_does_not_arrive_is_reported_repeatedly() {
        let signals = signals_of(1200, 2000, false).await;
        let nothing = signals
            .iter()
            .filter(|(_, signals)| *signals == CallSignal::Nothing);
        assert_eq!(nothing.count(), 3, "{signals:?}");
        let last = CallSignal::Acked { closely: false };
        assert!(signals.last().is_some_and(|(_, signals)| *signals == last));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closely_watched_call_is_reported_at_once() {
        let signals = signals_of(30, 200, true).await;
        let [(at, CallSignal::Acked { closely: true })] = signals[..] else {
            panic!("{signals:?}");
        };
        assert!((30..=32).contains(&at), "{at}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_call_may_be_its_first_report() {
        let (sender, _heard) = mpsc::channel(8);
        let started = Instant::now();
        let permit = Permit::until(started + MS * 25);
        let call = async {
            permit.written(|| false);
            tokio::time::sleep(MS * 3000).await;
        };
        let ((), is_late) = watched(pin!(call), &permit, &watch(false, started, sender)).await;
        assert!(is_late);
        let signals = signal_at_end(&Fate::Answered, &permit, is_late);
        assert_eq!(signals, Some(CallSignal::Acked { closely: false }));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unobservable_call_is_not_reported() {
        let (sender, mut receiver) = mpsc::channel(8);
        let started = Instant::now();
        let permit = Permit::until(started + MS * 25);
        let call = tokio::time::sleep(MS * 3000);
        watched(pin!(call), &permit, &watch(true, started, sender)).await;
        assert!(receiver.recv().await.is_none());
    }
}
