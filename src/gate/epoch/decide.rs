//! Decides what a worker does next while it is not sure that the store still has all usage: the
//! steps and their reasons.

#[cfg(test)]
mod tests;

use super::server_identity::ServerIdentity;
#[cfg(test)]
use super::shard::HandedClaims;
use super::shard::Shard;
use super::stored::{EpochFields, Gap, Pulse};
use rules::slots::SlotOwnership;

/// Minimum time, in milliseconds, that admissions wait after a change of server, even when all
/// known workers have vouched. A worker that joined just before, and whose entry was lost, must be
/// able to object. Workers check every 2 s.
pub const SETTLE_MS: u64 = 3_000;
/// Time for workers to vouch, in milliseconds. After that, usage that no worker vouched for counts
/// as lost, so that questions with a short look-back need not wait for the longest one.
pub const DOUBT_MS: u64 = 30_000;
/// Silence, in milliseconds and on top of twice the longest look-back, after which a worker is
/// removed from the hash.
pub const FORGET_MS: u64 = 60_000;
/// Two rounded clock readings differ by less than this, in milliseconds. The margin keeps
/// admissions from closing again and again for a millisecond.
const ROUNDING_MS: u64 = 100;

/// A worker's own knowledge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerKnowledge {
    /// Its name in the hash.
    pub worker: String,
    /// The epoch and the server identity that its pulses belong to.
    pub epoch: Option<(String, String)>,
    /// Its last pulse that was answered.
    pub pulse: u64,
    /// Milliseconds since that pulse, or `None` if there was none.
    pub idle_ms: Option<u64>,
    /// The longest look-back of any limit, in milliseconds.
    pub span_ms: u64,
    /// The shortest look-back of any question: the longest of that question's limits, in
    /// milliseconds.
    pub shortest_ms: u64,
    /// Knowledge of starts before the worker began. It matters until the worker has found an epoch.
    pub start: EarlierStarts,
    /// Whether it has seen an epoch, closed or not. Other workers may have started jobs under it.
    pub seen: bool,
    /// The primary, in a cluster.
    pub shard: Option<Shard>,
}

/// Knowledge of earlier starts when a worker begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EarlierStarts {
    /// Jobs wait for their turn or other workers are alive, so jobs were started lately, or nothing
    /// was checked.
    #[default]
    Unknown,
    /// No job waits for its turn and no other worker is alive. A Redis without an epoch is then a
    /// new one.
    Idle,
    /// An operator declares that no earlier start counts any more (`run --skip-recovery-wait`).
    Fresh,
}

/// Fields to write, with their values.
type Fields = Vec<(String, String)>;

/// A worker's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Write these fields, where an empty value deletes a field, and decide again.
    Write(Fields),
    /// Admit no job now. Look again no later than this time of Redis's clock.
    Wait {
        /// Redis's clock at the next look, in milliseconds.
        until: u64,
        /// The reason, for the log.
        why: String,
    },
    /// Admit jobs: no usage is missing.
    Admit {
        /// The epoch and the text of the server identity.
        epoch: (String, String),
        /// The worker's pulse.
        pulse: u64,
    },
}

/// The hash is empty though a worker remembers an epoch.
const EMPTIED: &str = "its memory was emptied while workers ran";
/// The hash is empty, and it is not known whether this Redis was in use.
const UNKNOWN: &str = "it is empty although jobs wait for their turn or other workers are alive; \
     if no job ran within the longest window, `run --skip-recovery-wait` continues at once";
/// A worker's last writes are missing.
const TRUNCATED: &str =
    "it lost its last writes (a restart with older data, or a replica that lagged)";
/// The server's count of evicted keys has changed.
const EVICTED: &str = "it evicted keys to make room; set its maxmemory-policy to noeviction";
/// The server has changed, and its policy allows evictions.
const MAY_EVICT: &str = "it restarted or failed over and may have evicted keys unnoticed before \
     that; set its maxmemory-policy to noeviction";
/// Some workers have not vouched yet.
const DOUBTED: &str = "it restarted or failed over, and not all workers have confirmed that their last calls are in it";
/// All workers have vouched.
const SETTLING: &str = "it restarted or failed over, and all known workers have confirmed their \
    last calls; waiting briefly for other workers";

impl WorkerKnowledge {
    /// Returns the time since the worker's last pulse, or `None` if its last start no longer
    /// counts, so that it does not matter whether Redis has that start.
    fn recent(&self) -> Option<u64> {
        self.idle_ms.filter(|idle| *idle < self.span_ms)
    }
}

/// Returns a worker's next step at `now` by Redis's clock. `new_id` names the epoch that it may
/// begin.
pub fn decide(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    memory: &ServerIdentity,
    now: u64,
    new_id: &str,
) -> NextStep {
    let run = memory.text();
    let fields = begin(stored, known, memory, now, new_id)
        .or_else(|| begin_fresh(stored, known, memory, now))
        .or_else(|| close_again(stored, known, memory, now))
        .or_else(|| close_for_own_starts(stored, known, &run, now));
    if let Some(fields) = fields {
        return NextStep::Write(fields);
    }
    if stored.run != run {
        return another_memory(stored, known, memory, now);
    }
    if let Some(shard) = &known.shard {
        let claims = shard.claims(
            &stored.claims,
            stored.sure.unwrap_or(now),
            now,
            known.span_ms,
        );
        if claims != stored.claims {
            return NextStep::Write(vec![field("slots", &claims.text())]);
        }
    }
    // Announces this worker before it may start jobs. If the server fails, the others then wait for
    // its confirmation, even if its first pulse is lost together with the server.
    let own = stored.workers.get(&known.worker);
    let number = own.map_or(0, |own| own.number);
    if own.is_none_or(|own| own.at.saturating_add(SETTLE_MS) <= now) {
        let here = format!("{number}:{now}");
        return NextStep::Write(vec![field(&format!("w:{}", known.worker), &here)]);
    }
    let opens = stored.gap(now).opens_at(known.shortest_ms);
    if opens > now {
        return NextStep::Wait {
            until: opens,
            why: stored.why.clone(),
        };
    }
    NextStep::Admit {
        epoch: (stored.id.clone(), run),
        pulse: number,
    }
}

/// Begins an epoch where none is stored, or where this primary's epoch moves.
fn begin(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    memory: &ServerIdentity,
    now: u64,
    new_id: &str,
) -> Option<Fields> {
    let (run, span, new) = (memory.text(), known.span_ms, known.epoch.is_none());
    let later = known.shard.as_ref().is_some_and(|shard| shard.later);
    // This primary's epoch moves here from another key. The epoch stored here belongs to the
    // primary that the slot came from.
    let moves = (known.shard.as_ref()).is_some_and(|shard| new && shard.moves());
    let begins = stored.id.is_empty() || (moves && stored.run != run);
    if !begins {
        return None;
    }
    let whole = stored.gap(u64::MAX);
    let (gap, why) = match known.start {
        _ if !new || (known.seen && stored.id.is_empty()) => (whole.with(now, span), EMPTIED),
        // The claims already express the wait.
        _ if later => (whole, ""),
        EarlierStarts::Unknown => (whole.with(now, span), UNKNOWN),
        EarlierStarts::Idle | EarlierStarts::Fresh => (whole, ""),
    };
    let mut fields = close(gap, why);
    fields.extend([field("id", new_id), field("run", &run), field("next", "")]);
    fields.push(field("evicted", &memory.evicted_text()));
    if let Some(shard) = &known.shard {
        let (sure, claims) = if new && later {
            let sure = shard.sure(now);
            (
                sure,
                shard.claims(&SlotOwnership::default(), sure, now, span),
            )
        } else {
            let sure = if new { shard.sure(now) } else { now };
            (sure, SlotOwnership::always(shard.owned.clone()))
        };
        fields.extend([
            field("slots", &claims.text()),
            field("sure", &sure.to_string()),
        ]);
    }
    Some(fields)
}

/// Confirms an epoch for a fleet whose limits are fresh: no start counts.
fn begin_fresh(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    memory: &ServerIdentity,
    now: u64,
) -> Option<Fields> {
    let run = memory.text();
    let later = known.shard.as_ref().is_some_and(|shard| shard.later);
    if known.epoch.is_some() || later || known.start != EarlierStarts::Fresh {
        return None;
    }
    // Workers that know of starts close it again.
    let claims = (known.shard.as_ref()).map(|shard| SlotOwnership::always(shard.owned.clone()));
    let claims = claims.filter(|claims| *claims != stored.claims);
    let evicted = memory.evicted_since(&stored.evicted);
    if stored.cold > now || stored.run != run || evicted || claims.is_some() {
        let mut fields = close(stored.gap(u64::MAX), "");
        fields.extend([field("run", &run), field("next", "")]);
        fields.push(field("evicted", &memory.evicted_text()));
        fields.extend(claims.map(|claims| field("slots", &claims.text())));
        return Some(fields);
    }
    None
}

/// Closes the gate where the clock went back or usage was evicted.
fn close_again(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    memory: &ServerIdentity,
    now: u64,
) -> Option<Fields> {
    if let Some(gap) = stored.gap(now).pulled_back(now + ROUNDING_MS) {
        return Some(close(gap, &stored.why));
    }
    // The evicted key is unknown, and so is the time of its eviction.
    if memory.evicted_since(&stored.evicted) {
        let mut fields = close(stored.gap(now).with(now, known.span_ms), EVICTED);
        fields.push(field("evicted", &memory.evicted_text()));
        let sure = known.shard.as_ref().map(|_| now.to_string());
        fields.extend(sure.map(|sure| field("sure", &sure)));
        return Some(fields);
    }
    None
}

/// Closes the gate where this worker's last starts are not known.
fn close_for_own_starts(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    run: &str,
    now: u64,
) -> Option<Fields> {
    let (own, span) = (stored.workers.get(&known.worker), known.span_ms);
    let number = own.map_or(0, |own| own.number);
    let same_epoch = known.epoch.as_ref().is_some_and(|(id, _)| *id == stored.id);
    let intact = same_epoch && number >= known.pulse;
    // This worker's pulses belong to another epoch, or its last one is missing: its last starts are
    // not known here. They stop counting one span after that pulse.
    if let Some(idle) = known.recent().filter(|_| !intact) {
        let last = now.saturating_sub(idle);
        if !stored.gap(now).covers(last, span) {
            let why = if same_epoch { TRUNCATED } else { EMPTIED };
            // If the server changed, or was emptied, it may also lack later starts of workers that
            // are gone. On a changed server no worker starts jobs until it is confirmed, so lost
            // starts are no later than its first sighting, however late a longer limit asks.
            let seen = (stored.pending_at(run, now)).map_or(now, |pending| pending.since);
            let lost = match same_epoch {
                true if stored.run == *run => last,
                true => seen.max(last),
                false => now,
            };
            let gap = stored.gap(now).with(lost + ROUNDING_MS, span);
            return Some(close(gap, why));
        }
    }
    None
}

/// Decides on a server that the epoch has not been confirmed for. No worker admits jobs until it
/// is confirmed.
fn another_memory(
    stored: &EpochFields,
    known: &WorkerKnowledge,
    memory: &ServerIdentity,
    now: u64,
) -> NextStep {
    let run = memory.text();
    let confirmed = || vec![field("run", &run), field("next", "")];
    if memory.continues(&stored.run) {
        return NextStep::Write(confirmed());
    }
    let Some(pending) = stored.pending_at(&run, now) else {
        let next = format!("{now}:{}:{run}", now + known.span_ms);
        return NextStep::Write(vec![field("next", &next)]);
    };
    // This worker's starts are in this dataset, or it has closed admissions until they no longer
    // count. A server that fails over while closed does not stay closed any longer.
    if let Some(own) = stored.workers.get(&known.worker)
        && own.vouched != run
    {
        let vouched = format!("{}:{}:{run}", own.number, own.at);
        return NextStep::Write(vec![field(&format!("w:{}", known.worker), &vouched)]);
    }
    // Pulses older than a span belong to starts that no longer count.
    let counts = |pulse: &&Pulse| pulse.at.saturating_add(known.span_ms) > pending.since;
    let mut others = stored.workers.values().filter(counts);
    let all = others.all(|pulse| pulse.vouched == run);
    // If no worker vouches, the hash may be from before the first pulse.
    let somebody = stored.workers.values().any(|pulse| pulse.vouched == run);
    let first = known.epoch.is_none() && known.start == EarlierStarts::Idle;
    let settled = pending.since + SETTLE_MS;
    // A start that no longer counts for any question needs no proof. A question that looks back
    // further then waits for its whole span.
    let shortest = pending.since + known.shortest_ms;
    let (until, given_up, why) = if memory.evicts {
        // A pulse proves that the last writes are present, but not that no earlier key was evicted.
        (pending.until, shortest, MAY_EVICT)
    } else if all && (somebody || first) && settled < pending.until {
        (settled, settled, SETTLING)
    } else {
        let given_up = shortest.max(pending.since + DOUBT_MS);
        (pending.until, given_up, DOUBTED)
    };
    if now >= until.min(given_up) {
        let mut fields = confirmed();
        if now < until {
            // The worker that saw the server first may know of limits that look back further.
            let span = pending.until.saturating_sub(pending.since);
            let span = span.max(known.span_ms);
            let gap = stored.gap(now).with(pending.since, span);
            fields.extend(close(gap, why));
        }
        if let Some(shard) = &known.shard {
            // The hash may have come here with its slot. Nothing is known here about the other
            // slots of its former primary.
            let mut claims = stored.claims.clone();
            claims.keep(&shard.owned);
            fields.push(field("slots", &claims.text()));
            // Keys that arrived from other primaries, and starts without a later pulse, may be
            // lost.
            fields.push(field("sure", &now.to_string()));
        }
        return NextStep::Write(fields);
    }
    // The reason of a known loss is more useful than that of a doubt.
    let why = if stored.cold > now { &stored.why } else { why };
    NextStep::Wait {
        until: until
            .min(given_up)
            .max(stored.gap(now).opens_at(known.shortest_ms)),
        why: why.to_owned(),
    }
}

fn close(gap: Gap, why: &str) -> Fields {
    let Gap { since, until } = gap;
    let lost = since.filter(|_| until > 0);
    let lost = lost.map(|at| format!("{at}:{until}"));
    vec![
        field("cold", &until.to_string()),
        field("lost", &lost.unwrap_or_default()),
        field("why", why),
    ]
}

fn field(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
