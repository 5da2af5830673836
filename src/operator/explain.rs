//! Explains one job: the causes for which it waits, its place in the waitlist, its start, and how
//! certain that is.
//!
//! The workers' answer about a job ([`job`](super::job)) has its waitlist and its ticket. The gate
//! then computes that ticket's turn. A job that no worker has may be a dead letter, which
//! [`letters`] looks for.

pub mod letters;

use std::time::Duration;

use serde_json::{Value, json};

use self::letters::{FailedSearch, LetterInQueue};
use super::NotDone;
use super::answer::{Schema, answers};
use super::hold::held;
use super::inspect::{around, counts_cost, not_before};
use super::job::{JobRef, JobState};
use super::recovery::Recovery;
use super::text::plain;
use super::times::{at, when};
use config::Config;
use gate::fleet::registry::{self, NamedPolicy};
use gate::redis::RedisGate;
use gate::{Gate as _, GateError, Inspection, Standing, Ticket, instructions};
use rules::gate::forecast::{
    Certainty, ForecastEnd, ForecastRequest, ForecastTarget, Schedule, end,
};
use rules::layout::Layout;
use rules::limit::Limits;
use rules::scope::Labels;
use rules::steering::{Hold, SightedState, Sighting, Steering, WaitState, WaitsFor};

/// A job's announced turn and the gate's current one count as the same if they differ by at most
/// this. A job asks the gate at the turn that it was given last.
const SAME_TURN_MS: u64 = 500;

answers! {
    /// One cause for which a job waits.
    pub struct WaitCause {
        /// Keyword for programs.
        pub what: String,
        /// Description for people.
        pub words: String,
        /// End of the cause, if known.
        pub until_ms: Option<u64>,
    }

    /// Everything known about one job.
    pub struct JobExplanation: JobState {
        /// Time by the store's clock.
        pub now_ms: u64,
        /// Units in the waitlist up to and including the job's own.
        pub place: Option<u64>,
        /// Units that wait in all.
        pub waiting: Option<u64>,
        /// Whether these units are units of cost, because jobs may cost more than 1; otherwise they
        /// are jobs.
        pub counts_cost: bool,
        pub waits_for: Vec<WaitCause>,
        pub starts_at_ms: Option<u64>,
        pub starts_in_ms: Option<u64>,
        pub promised_at_ms: Option<u64>,
        pub sure: Certainty,
        pub why: String,
        /// The job's dead letter, if one was found.
        pub dead_letter: Option<LetterInQueue>,
        /// The search among the dead letters, if it did not find the job.
        pub dead_letters: Option<FailedSearch>,
    }
}

impl Schema for Certainty {
    fn schema() -> Value {
        json!({"enum": [Self::Exact, Self::Estimated, Self::Unknown]})
    }
}

/// Asks the workers about the job for at most `wait`, and then the gate for its turn.
///
/// # Errors
/// [`NotDone::Redis`]
pub async fn explain(
    gate: &RedisGate,
    config: &Config,
    job: JobRef,
    wait: Duration,
) -> Result<JobExplanation, NotDone> {
    let mut explained = JobExplanation::new(job.show(gate, wait).await?);
    let boards = instructions::see(gate).await?;
    let now_ms = boards.iter().map(|board| board.now_ms).max();
    explained.now_ms = now_ms.unwrap_or_default();
    let Some(seen) = explained.seen.clone() else {
        return Ok(explained);
    };
    let Some(waits) = &seen.waits else {
        let why = match seen.state {
            state if state.is_end() => "it no longer waits",
            SightedState::Running => "it is being called",
            _ => "its worker does not report what it waits for",
        };
        explained.why = why.to_owned();
        return Ok(explained);
    };
    let tenant = &job.tenant;
    let policy = &config.rate_limiter.policy;
    let own = NamedPolicy::new(policy.clone())?;
    let mut fleet = registry::read_policies(gate).await?.fleet(&own);
    let limits = fleet.limits(tenant, waits.plan.as_deref());
    let labels = Labels::from_pairs(&waits.labels);
    let found = gate.inspect(tenant, &labels, &limits).await?;
    let (all, recovery) = around(gate, tenant, &limits, policy).await?;
    let asked = ForecastRequest {
        target: ForecastTarget::Job(ticket(&seen, waits), seen.cost),
        ..ForecastRequest::as_it_is(&limits, not_before(&recovery, &all))
    };
    let [schedule, _] = gate.forecast((tenant, &labels), &limits, &asked).await?;
    let shares = !Layout::of(&limits, tenant, &labels).shared.is_empty();
    let turn = end(&limits, &schedule, shares);
    let beside = ExplainContext {
        found: &found,
        all: &all,
        recovery: &recovery,
        steering: &instructions::in_force(&boards),
        paused_until_ms: held(&boards).map(|(_, until_ms)| until_ms),
    };
    explained.waits_for = causes((&job, &seen, waits), &limits, &turn, &beside);
    explained.fill_in((&job, &seen, waits), (&schedule, turn), &beside);
    let rows: Vec<_> = limits.iter().zip(&found.limits).collect();
    explained.counts_cost = counts_cost(&rows, &found);
    Ok(explained)
}

fn ticket(seen: &Sighting, waits: &WaitState) -> Option<Ticket> {
    Some(Ticket {
        generation: waits.generation?,
        number: seen.ticket?,
    })
}

/// State outside the job's waitlist that may hold it up.
struct ExplainContext<'a> {
    found: &'a Inspection,
    all: &'a Result<Standing, GateError>,
    recovery: &'a Recovery,
    steering: &'a Steering,
    paused_until_ms: Option<u64>,
}

impl WaitCause {
    fn new(what: &str, words: String, until_ms: Option<u64>) -> Self {
        Self {
            what: what.to_owned(),
            words,
            until_ms,
        }
    }
}

/// Returns every cause for which the job waits.
fn causes(
    (job, seen, waits): (&JobRef, &Sighting, &WaitState),
    limits: &Limits,
    turn: &ForecastEnd,
    around: &ExplainContext<'_>,
) -> Vec<WaitCause> {
    let mut causes = causes_around(job, around);
    causes.extend(own_cause((seen, waits), limits, turn));
    causes
}

/// Returns the causes outside the job's waitlist.
fn causes_around(job: &JobRef, around: &ExplainContext<'_>) -> Vec<WaitCause> {
    let mut causes = Vec::new();
    let mut add = |what: &str, words, until_ms| causes.push(WaitCause::new(what, words, until_ms));
    if around.steering.hold == Some(Hold::Paused) {
        let words = "an operator's pause of all workers; sluicegate resume --all ends it";
        add("pause", words.to_owned(), around.paused_until_ms);
    }
    if let Some(queue) = around.steering.diverts(&job.tenant) {
        let queue = plain(queue, 255);
        let words = format!(
            "nothing: its tenant is diverted, so the job moves to {queue} and is not \
                called"
        );
        add("divert", words, None);
    }
    if let Recovery::Waits { until_ms, why, .. } = around.recovery {
        let words = format!("the recovery wait, since Redis may have lost data: {why}");
        add("recovery", words, Some(*until_ms));
    }
    if let Ok(all) = around.all
        && (all.closed_until_ms > all.now_ms || all.is_open)
    {
        let until = Some(all.closed_until_ms).filter(|until| *until > all.now_ms);
        let words = format!(
            "the end of the suspension of all tenants: {}",
            plain(&all.reason, 200)
        );
        add("all-suspended", words, until);
    }
    let found = around.found;
    if found.blocked_until_ms > found.now_ms {
        let words = format!(
            "the end of its tenant's suspension: {}",
            plain(&found.blocked_by, 200)
        );
        add("suspended", words, Some(found.blocked_until_ms));
    }
    causes
}

/// Returns the cause that the job's worker reports.
fn own_cause(
    (seen, waits): (&Sighting, &WaitState),
    limits: &Limits,
    turn: &ForecastEnd,
) -> Option<WaitCause> {
    let waits_until_ms = waits_until_ms(seen);
    let (what, words, until_ms) = match waits.what {
        WaitsFor::Turn => {
            let now_by = turn.limit.and_then(|index| limits.get(index));
            let name = now_by.map(|limit| limit.name().to_owned());
            let name = name.or_else(|| seen.limit.clone());
            let name = plain(&name.unwrap_or_default(), 64);
            let words = format!("its turn under the limit {name}");
            ("limit", words, Some(turn.at_ms))
        }
        WaitsFor::DelayedStart => {
            let words = "the start time set by its publisher (x-delay, x-not-before)";
            ("delayed-start", words.to_owned(), waits_until_ms)
        }
        WaitsFor::Retry => {
            let words = format!("its attempt {}, after a failed attempt", seen.attempt);
            ("retry", words, waits_until_ms)
        }
        WaitsFor::Later => {
            let words = "a time before which it does not ask: its call was postponed, or a server \
                was unavailable";
            ("later", words.to_owned(), waits_until_ms)
        }
        WaitsFor::Breaker => {
            let words = "the circuit breaker, which stopped calls because the API fails";
            ("breaker", words.to_owned(), None)
        }
        WaitsFor::Agreement => {
            let words =
                "workers that can admit jobs: they are paused or do not yet agree on the limits";
            ("agreement", words.to_owned(), None)
        }
        WaitsFor::Slot => {
            let words = "a worker slot: all slots of its worker are taken (dispatch.concurrency)";
            ("worker-slot", words.to_owned(), None)
        }
        WaitsFor::Redis => ("redis", "an answer from Redis".to_owned(), None),
        WaitsFor::Connection => ("connection", "a connection to the API".to_owned(), None),
        WaitsFor::Nothing | WaitsFor::Other => return None,
    };
    Some(WaitCause::new(what, words, until_ms))
}

/// Returns the time before which the job does not ask, as its worker reports it.
fn waits_until_ms(seen: &Sighting) -> Option<u64> {
    seen.wait_ms.map(|ms| seen.at_ms.saturating_add(ms))
}

impl JobExplanation {
    /// Starts an explanation of a job that waits for nothing known.
    fn new(state: JobState) -> Self {
        let seen = state.seen.as_ref();
        let waits = seen.and_then(|seen| seen.waits.as_ref());
        Self {
            now_ms: seen.map_or(0, |seen| seen.at_ms),
            place: None,
            waiting: None,
            counts_cost: false,
            waits_for: Vec::new(),
            starts_at_ms: None,
            starts_in_ms: None,
            promised_at_ms: waits.and_then(|waits| waits.promised_ms),
            sure: Certainty::Unknown,
            why: "no worker has it in memory".to_owned(),
            dead_letter: None,
            dead_letters: None,
            base: state,
        }
    }

    /// Fills in the job's place and start.
    fn fill_in(
        &mut self,
        (job, seen, waits): (&JobRef, &Sighting, &WaitState),
        (schedule, turn): (&Schedule, ForecastEnd),
        around: &ExplainContext<'_>,
    ) {
        self.now_ms = schedule.now_ms;
        // A job that has not asked yet has no place.
        let has_place = seen.ticket.is_some() || !waits.what.is_time();
        self.place = has_place.then_some(schedule.units);
        self.waiting = Some(schedule.waiting.max(self.place.unwrap_or(0)));
        let waits_until_ms = waits_until_ms(seen).unwrap_or(schedule.now_ms);
        let is_away = around.steering.diverts(&job.tenant).is_some();
        let is_stopped = around.steering.hold == Some(Hold::Paused);
        let doubts = turn.doubts.words();
        let (sure, why) = match waits.what {
            _ if is_away => (
                Certainty::Unknown,
                "it is not called while its tenant is diverted",
            ),
            _ if is_stopped => (
                Certainty::Unknown,
                "it starts after an operator resumes the workers",
            ),
            WaitsFor::Breaker | WaitsFor::Agreement | WaitsFor::Redis | WaitsFor::Other => (
                Certainty::Unknown,
                "it starts after that, and not before its turn",
            ),
            WaitsFor::Slot | WaitsFor::Connection => (
                Certainty::Estimated,
                "its turn is known, but not when a worker has a free slot",
            ),
            what if what.is_time() => (
                Certainty::Estimated,
                "it asks for its turn at that time, behind the jobs that wait then",
            ),
            _ if seen.queue.contains(".delay.") => (
                Certainty::Estimated,
                "it waits in a delay queue's window, and jobs ahead of it may be in delay queues",
            ),
            WaitsFor::Turn if waits_until_ms > turn.at_ms + SAME_TURN_MS => (
                Certainty::Estimated,
                "its turn has moved forward, but it asks at the time that it was given",
            ),
            _ => match turn.sure {
                Certainty::Exact => (
                    Certainty::Exact,
                    "as computed by the gate, if the limits do not change and the jobs ahead ask \
                    in time",
                ),
                sure => (sure, doubts.as_str()),
            },
        };
        (self.sure, self.why) = (sure, why.to_owned());
        if self.sure != Certainty::Unknown {
            let starts_ms = turn.at_ms.max(waits_until_ms);
            self.starts_at_ms = Some(starts_ms);
            self.starts_in_ms = Some(starts_ms.saturating_sub(self.now_ms));
        }
    }

    /// Returns true if a worker has or had the job, or if it is a dead letter.
    pub fn is_found(&self) -> bool {
        self.seen.is_some() || self.dead_letter.is_some()
    }

    /// Returns true if the job may be a dead letter: no worker has it, or the last report says that
    /// the job was canceled.
    pub fn may_be_dead(&self) -> bool {
        let seen = self.seen.as_ref();
        seen.is_none_or(|seen| seen.state == SightedState::Canceled)
    }

    /// Adds the result of the search among the dead letters.
    #[must_use]
    pub fn with(mut self, search: Result<LetterInQueue, FailedSearch>) -> Self {
        match search {
            Ok(letter) => {
                self.dead_letter = Some(letter);
                self.why = "it is a dead letter and is not called unless it is replayed".to_owned();
            }
            Err(search) => self.dead_letters = Some(search),
        }
        self
    }

    /// Describes a search among the dead letters that did not find the job; `None` if there was
    /// none.
    pub fn search_failure(&self) -> Option<String> {
        let search = self.dead_letters.as_ref();
        search.map(|search| search.describe(&self.tenant, &self.id))
    }

    /// Returns the explanation for people, one line for each fact.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
        for cause in &self.waits_for {
            let until = cause.until_ms.filter(|until| *until > self.now_ms);
            let until = until.map(|until| format!(", {}", when(self.now_ms, until - self.now_ms)));
            line(
                "waits for",
                cause.words.clone() + &until.unwrap_or_default(),
            );
        }
        if let Some((place, waiting)) = self.place.zip(self.waiting) {
            let units = if self.counts_cost {
                " units of cost"
            } else {
                ""
            };
            line(
                "place",
                format!("{place} of {waiting}{units} in the waitlist"),
            );
        }
        let starts = match self.starts_in_ms {
            Some(0) => "now".to_owned(),
            Some(in_ms) => when(self.now_ms, in_ms),
            None => "unknown".to_owned(),
        };
        if let Some(letter) = &self.dead_letter {
            return text + &letter.describe(&self.tenant, &self.id);
        }
        if self.is_over() {
            line("why", self.why.clone());
            return text;
        }
        line("starts", starts);
        if let Some(promised_ms) = self.promised_at_ms {
            line(
                "promised",
                format!("{}, when it was first denied", at(promised_ms)),
            );
        }
        line("sure", format!("{}: {}", self.sure.keyword(), self.why));
        text
    }

    /// Returns true if the job no longer waits.
    fn is_over(&self) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|seen| seen.waits.is_none())
    }
}

#[cfg(test)]
mod tests;
