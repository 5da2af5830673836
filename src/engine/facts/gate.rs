//! Events of the gate: its answers, permits and calls that arrive late.

use std::time::Duration;

use strum::IntoStaticStr;
use tracing::warn;

use gate::GateError;
use rules::decision::Tally;
use rules::limit::floor_ms;
use rules::timing::lateness::CallSignal;
use telemetry::metrics::Metrics;

/// The gate's decision on one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Decision {
    /// The job may start.
    #[strum(serialize = "start")]
    Admitted,
    /// A limit has no quota for it.
    #[strum(serialize = "wait")]
    Denied,
    /// Quota is available, but no worker slot is free.
    #[strum(serialize = "capacity")]
    NoSlot,
}

/// An event between the scheduler and the gate.
#[derive(Debug)]
pub enum GateFact {
    /// A round trip to the gate took this long, and was answered (true) or failed.
    Answered(Duration, bool),
    /// The gate decided on a job.
    Decided(Decision),
    /// Jobs started. The shadow limit of this name reports its own decisions.
    Tried(String, Tally),
    /// All permits of the last seconds arrived too late.
    NoYoungPermit {
        /// Duration of the last round trip.
        took: Duration,
        /// Minimum duration of a round trip.
        base: Duration,
        /// How long a permit is good.
        good_for: Duration,
    },
    /// The permit of an admitted job expired before the call was sent.
    ExpiredPermit,
    /// A call arrived this much later than the guard covers, and counts for that much longer.
    LateCall(CallSignal, Duration),
    /// A late answer could not be counted, because the guard budget is used up.
    LateCallNotCounted,
    /// The usage of this many starts could not be settled.
    UsageLost(usize, GateError),
}

impl GateFact {
    /// Counts the event, if it has a metric.
    pub(super) fn count(&self, metrics: &Metrics) {
        match self {
            Self::Answered(took, ok) => {
                metrics.gate_round_trips.inc();
                metrics.gate_seconds.observe(took.as_secs_f64());
                if !ok {
                    metrics.gate_failures.inc();
                }
            }
            Self::Decided(decision) => metrics.decisions.count(decision.into()),
            Self::Tried(limit, tally) => metrics.shadow_tally(limit, tally),
            Self::ExpiredPermit => _ = metrics.expired_permits.inc(),
            Self::LateCall(signal, late) => {
                metrics.late_calls.count(signal.into());
                metrics.late_calls_seconds.inc_by(late.as_secs_f64());
            }
            Self::LateCallNotCounted => _ = metrics.late_calls_not_counted.inc(),
            // These are logged.
            Self::NoYoungPermit { .. } | Self::UsageLost(..) => {}
        }
    }

    /// Logs the event, if it has a line.
    pub(super) fn log(&self) {
        match self {
            Self::NoYoungPermit {
                took,
                base,
                good_for,
            } => {
                let [took_ms, base_ms, good_for_ms] = [*took, *base, *good_for].map(floor_ms);
                warn!(
                    took_ms,
                    base_ms,
                    good_for_ms,
                    "all permits expire: Redis's answers are late by more than half the guard, so no \
                    job is called; raise guard, or move Redis closer"
                );
            }
            Self::UsageLost(calls, why) => {
                warn!(calls, reason = %why, "settlements could not be stored: some quota is wasted");
            }
            // These are counted.
            Self::Answered(..)
            | Self::Decided(..)
            | Self::Tried(..)
            | Self::ExpiredPermit
            | Self::LateCall(..)
            | Self::LateCallNotCounted => {}
        }
    }
}
