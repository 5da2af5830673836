//! Actions that change something. Each is recorded in the audit before it starts; an action that
//! can't be recorded is not done.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::input::RequestInput;
use super::pipelines::{PipelineContext, PipelineContexts};
use super::problem::ApiProblem;
use super::reads::{WORKER_TIMEOUT, dead, filter, requested_job, wait};
use broker::amqp::Client;
use gate::Change;
use gate::instructions::put;
use operator::answer::{Answer as _, Omittable};
use operator::audit::{self, AuditEntry};
use operator::dead::{self as letters, ChangeResult, Filter};
use operator::divert::{self, Undiverted};
use operator::job::JobRef;
use operator::rate::Rate;
use operator::tenant_action::TenantAction;
use operator::trials::Trial;
use operator::{NotDone, hold, steer, tenant};
use rules::delays::DelayLevels;
use rules::limit::ceil_ms;
use rules::steering::{Hold, Instruction};
use rules::tenant::Tenant;

/// Default time for which a job stays canceled.
const DEFAULT_CANCEL_TIME: Duration = Duration::from_secs(86_400);

/// Time for all workers to end a diversion before its jobs return. Together with that of the return
/// (`WORKER_TIMEOUT`) it is shorter than the time limit of an answer.
const FOLLOW_BEFORE_BACK: Duration = Duration::from_secs(2);

const MAX_OR_CLEAR: &str = "give either max (a number) or clear (true)";

/// Maximum time between two jobs of a replay. A request waits for it after its last job, so that
/// repeated requests keep the rate.
const MAX_REPLAY_INTERVAL: Duration = Duration::from_secs(2);
const TOO_SLOW: &str = "rate: must be at least 30/m; `sluicegate dead replay` takes lower ones";

/// The actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionKind {
    Pause,
    Resume,
    Limit,
    Reset,
    Divert,
    Undivert,
    Cancel,
    PauseAll,
    ResumeAll,
    Drain,
    ResumeCalls,
    Replay,
    Drop,
}

impl ActionKind {
    /// Returns the name of the action in the audit.
    fn keyword(self) -> &'static str {
        match self {
            Self::Pause => "tenant pause",
            Self::Resume => "tenant resume",
            Self::Limit => "tenant limit",
            Self::Reset => "tenant reset",
            Self::Divert => "tenant divert",
            Self::Undivert => "tenant undivert",
            Self::Cancel => "job cancel",
            Self::PauseAll => "pause --all",
            Self::ResumeAll => "resume --all",
            Self::Drain => "drain",
            Self::ResumeCalls => "tenant resume --all",
            Self::Replay => "dead replay",
            Self::Drop => "dead drop",
        }
    }

    /// Returns true if the action concerns all pipelines unless the request names one.
    fn concerns_all_pipelines(self) -> bool {
        matches!(self, Self::PauseAll | Self::ResumeAll | Self::Drain)
    }
}

/// The client that requests an action.
#[derive(Debug, Clone)]
pub struct ActionClient {
    /// Operator's name as the client states it.
    pub name: String,
    /// Address of the client.
    pub peer: String,
}

/// A valid action with its parameters.
enum ActionRequest {
    Tenant(TenantAction),
    Divert(Tenant, Option<String>, u64),
    Undivert(Tenant, Option<Option<String>>),
    Cancel(JobRef, Duration, u64),
    Undo(JobRef),
    Hold(Hold, u64),
    ResumeAll,
    ResumeCalls,
    DeadLetters(letters::LetterChange, Filter, Option<u32>),
}

/// Performs the action and returns its result.
pub async fn act(
    act: ActionKind,
    contexts: Arc<PipelineContexts>,
    input: RequestInput,
    asker: ActionClient,
) -> Result<Value, ApiProblem> {
    let chosen = match act.concerns_all_pipelines() {
        true => contexts.all(&input)?,
        false => vec![contexts.one(&input)?],
    };
    let _turn = match act {
        ActionKind::Divert
        | ActionKind::Undivert
        | ActionKind::Drain
        | ActionKind::Replay
        | ActionKind::Drop => Some(contexts.turn_to_act()?),
        _ => None,
    };
    let mut planned = Vec::new();
    for context in &chosen {
        planned.push((context, ActionRequest::of(act, context, &input)?));
    }
    let doing = planned.into_iter().map(async |(context, action)| {
        let done = written_down(act, context, action, (&input, &asker)).await;
        (context.name.clone(), done)
    });
    let mut done = join_all(doing).await;
    if let (Some((_, only)), 1) = (done.pop_if(|_| chosen.len() == 1), chosen.len()) {
        return Ok(only?);
    }
    let failed = done.iter().any(|(_, done)| done.is_err());
    let each = done.into_iter().map(|(name, done)| {
        let answer = done.unwrap_or_else(|why| json!({"error": why.to_string()}));
        (name, answer)
    });
    let each: Map<String, Value> = each.collect();
    match failed {
        false => Ok(json!({"pipelines": each})),
        true => {
            let words = "the action failed in some pipelines".to_owned();
            Err(ApiProblem::from(NotDone::Failed(words)).with_pipelines(each.into()))
        }
    }
}

/// Performs the action and records it in the audit: before it starts, and again if it fails.
async fn written_down(
    act: ActionKind,
    context: &PipelineContext,
    action: ActionRequest,
    (input, asker): (&RequestInput, &ActionClient),
) -> Result<Value, NotDone> {
    let of = ["tenant", "id"].into_iter().filter_map(|name| {
        // Only parameters in the path; parameters in the body are recorded as `request`.
        let text = input
            .text(name)
            .filter(|_| !input.body.contains_key(name))?;
        Some((name.to_owned(), text.into()))
    });
    let mut entry = AuditEntry {
        operator: asker.name.clone(),
        peer: asker.peer.clone(),
        action: act.keyword(),
        of: of.collect(),
        request: input.body.clone().into(),
        failed: None,
    };
    let number = audit::add(&context.gate, &entry).boxed().await?;
    let (pipeline, of) = (
        context.name.as_str(),
        Value::from(entry.of.clone()).to_string(),
    );
    let (operator, peer) = (asker.name.as_str(), asker.peer.as_str());
    info!(
        pipeline,
        number,
        operator,
        peer,
        action = act.keyword(),
        of,
        request = %entry.request,
        "operator action over HTTP"
    );
    let done = action.perform(context).boxed().await;
    if let Err(why) = &done {
        warn!(pipeline, number, reason = %why, "an action over HTTP failed");
        entry.failed = Some(why.to_string());
        // An error is ignored here: the start of the action is recorded already.
        let _ = audit::add(&context.gate, &entry).boxed().await;
    }
    done
}

/// Returns the duration (ms) that the request asks for, or `usual`.
fn span_ms(input: &RequestInput, usual: Duration) -> Result<u64, NotDone> {
    let given = input.text("for").map(steer::span).transpose();
    let given = given.map_err(|why| NotDone::Wrong(format!("for: {why}")))?;
    Ok(ceil_ms(given.unwrap_or(usual)))
}

/// Returns the queue from which diverted jobs return, if they do. It is the diversion's if the
/// request names none.
fn back_from(
    context: &PipelineContext,
    input: &RequestInput,
) -> Result<Option<Option<String>>, NotDone> {
    let (from, back) = (input.text("from"), input.flag("back"));
    if from.is_some() && !back {
        return Err(NotDone::Wrong("from requires back (true)".to_owned()));
    }
    if let Some(from) = from {
        let levels = DelayLevels::new(context.config.delay.max_delay);
        divert::checked(from.to_owned(), &context.config.amqp.names(&levels))?;
    }
    Ok(back.then(|| from.map(str::to_owned)))
}

impl ActionRequest {
    fn of(
        act: ActionKind,
        context: &PipelineContext,
        input: &RequestInput,
    ) -> Result<Self, NotDone> {
        let of_it = || tenant::parse(input.text("tenant").unwrap_or_default());
        let text = |name| input.text(name).map(str::to_owned);
        let limit = || {
            input
                .number("limit")
                .and_then(|most| u32::try_from(most).ok())
        };
        let year = || span_ms(input, steer::YEAR);
        let change = |tenant, change| Self::Tenant(TenantAction::Change(tenant, change));
        Ok(match act {
            ActionKind::Pause => {
                let duration_ms = year()?;
                change(of_it()?, Change::Pause { duration_ms })
            }
            ActionKind::Resume => change(of_it()?, Change::Resume),
            ActionKind::Reset => change(of_it()?, Change::Reset),
            ActionKind::Limit => {
                let tenant = of_it()?;
                let policy = &context.config.rate_limiter.policy;
                let name = tenant::limit_name(policy, &tenant, input.text("limit"))?;
                let max = input.number("max");
                let (clear, shadow) = (input.flag("clear"), input.flag("shadow"));
                Self::Tenant(match (max, clear, shadow) {
                    (Some(max), false, true) => {
                        TenantAction::Try(Trial::new(policy, tenant, name, max)?, year()?)
                    }
                    (None, true, true) => TenantAction::EndTry(tenant, name),
                    (Some(max), false, false) => {
                        let duration_ms = year()?;
                        let change = Change::Limit {
                            name,
                            max,
                            duration_ms,
                        };
                        TenantAction::Change(tenant, change)
                    }
                    (None, true, false) => TenantAction::Change(tenant, Change::Unlimit { name }),
                    _ => return Err(NotDone::Wrong(MAX_OR_CLEAR.to_owned())),
                })
            }
            ActionKind::Divert => Self::Divert(of_it()?, text("to"), year()?),
            ActionKind::Undivert => Self::Undivert(of_it()?, back_from(context, input)?),
            ActionKind::Cancel if input.flag("undo") => Self::Undo(requested_job(context, input)?),
            ActionKind::Cancel => {
                let for_ms = span_ms(input, DEFAULT_CANCEL_TIME)?;
                Self::Cancel(requested_job(context, input)?, wait(input)?, for_ms)
            }
            ActionKind::PauseAll => Self::Hold(Hold::Paused, year()?),
            ActionKind::Drain => Self::Hold(Hold::Draining, year()?),
            ActionKind::ResumeAll => Self::ResumeAll,
            ActionKind::ResumeCalls => Self::ResumeCalls,
            ActionKind::Replay | ActionKind::Drop => {
                let rate = input.text("rate").map(str::parse::<Rate>).transpose();
                let rate = rate.map_err(NotDone::Wrong)?;
                if rate.is_some_and(|rate| rate.lasts(1) > MAX_REPLAY_INTERVAL) {
                    return Err(NotDone::Wrong(TOO_SLOW.to_owned()));
                }
                let change = match act {
                    ActionKind::Replay => letters::LetterChange::Replay(rate),
                    _ => letters::LetterChange::Drop,
                };
                let filter = filter(input)?;
                change.check(&filter, input.flag("all"), &context.config)?;
                if input.flag("all") && !filter.is_all() {
                    let words = "give either all or a filter, not both";
                    return Err(NotDone::Wrong(words.to_owned()));
                }
                Self::DeadLetters(change, filter, limit())
            }
        })
    }

    async fn perform(self, context: &PipelineContext) -> Result<Value, NotDone> {
        let gate = &*context.gate;
        Ok(match self {
            Self::Tenant(action) => {
                let done = action.perform(gate, WORKER_TIMEOUT).boxed().await?;
                done.answer.as_json()
            }
            Self::ResumeCalls => tenant::resume_all(gate).boxed().await?.as_json(),
            Self::Divert(tenant, to, for_ms) => {
                let times = (for_ms, WORKER_TIMEOUT);
                let diverted = divert::divert((gate, &context.config), &tenant, to, times)
                    .boxed()
                    .await?;
                diverted.as_json()
            }
            Self::Undivert(tenant, None) => {
                let ended = divert::undivert(gate, &tenant, WORKER_TIMEOUT);
                ended.boxed().await?.0.as_json()
            }
            Self::Undivert(tenant, Some(from)) => {
                let client = context.client().boxed().await?;
                let done = bring_back(context, &client, &tenant, from).boxed().await;
                client.close().await;
                done?.as_json()
            }
            Self::Cancel(which, wait, for_ms) => {
                which.cancel(gate, wait, for_ms).boxed().await?.as_json()
            }
            Self::Undo(which) => which.undo(gate, WORKER_TIMEOUT).boxed().await?.as_json(),
            Self::Hold(Hold::Paused, for_ms) => {
                let versions = put(gate, &Instruction::All(Hold::Paused), for_ms)
                    .boxed()
                    .await?;
                hold::paused(gate, &versions, WORKER_TIMEOUT)
                    .boxed()
                    .await?
                    .as_json()
            }
            Self::Hold(Hold::Draining, for_ms) => drained(context, for_ms).boxed().await?.as_json(),
            Self::ResumeAll => {
                let resuming = hold::resume(gate).boxed().await?;
                resuming
                    .resumed(gate, WORKER_TIMEOUT)
                    .boxed()
                    .await?
                    .as_json()
            }
            Self::DeadLetters(change, filter, limit) => {
                let client = context.client().boxed().await?;
                let dead = dead(context, &client);
                let done = changed(&dead, change, (&filter, limit)).boxed().await;
                client.close().await;
                done?.as_json(change)
            }
        })
    }
}

/// Changes the selected dead letters until the request's time is up.
async fn changed(
    dead: &letters::LetterQueue<'_>,
    change: letters::LetterChange,
    which: (&Filter, Option<u32>),
) -> Result<ChangeResult, NotDone> {
    let began = Instant::now();
    let until = dead.until.unwrap_or(began);
    let done = dead
        .change(which, change, sleep_until(until), |_, _| ())
        .await?;
    if let letters::LetterChange::Replay(Some(rate)) = change
        && done.stopped
    {
        sleep_until(began + rate.lasts(done.done + done.refused)).await;
    }
    match &done.failure {
        Some(why) => Err(NotDone::Failed(format!(
            "{} {}, and then: {why}",
            done.done,
            change.keyword()
        ))),
        None => Ok(done),
    }
}

/// Ends the diversion of `tenant` and returns its jobs from the queue `from`, or from the
/// diversion's queue. Errors of the return name that queue, since the diversion that named it has
/// ended.
async fn bring_back(
    context: &PipelineContext,
    client: &Client,
    tenant: &Tenant,
    from: Option<String>,
) -> Result<Undiverted, NotDone> {
    let (mut undiverted, known) =
        divert::undivert(&context.gate, tenant, FOLLOW_BEFORE_BACK).await?;
    let from = from.or(known);
    let from = from.unwrap_or_else(|| divert::usual(&client.names().fresh));
    let mut jobs = dead(context, client);
    jobs.queue = from.as_str().into();
    let filter = Filter {
        tenant: Some(tenant.as_str().to_owned()),
        ..Filter::default()
    };
    let back = changed(&jobs, letters::LetterChange::Replay(None), (&filter, None)).await;
    let back =
        back.map_err(|why| NotDone::Failed(format!("{from} still has diverted jobs: {why}")))?;
    undiverted.back = Omittable(Some(back.replayed()));
    undiverted.from = Omittable(Some(from));
    Ok(undiverted)
}

/// Makes all workers take no new jobs.
async fn drained(context: &PipelineContext, for_ms: u64) -> Result<hold::Draining, NotDone> {
    let client = context.client().boxed().await?;
    let drain = async {
        let versions = put(&context.gate, &Instruction::All(Hold::Draining), for_ms).await?;
        hold::draining(&context.gate, &client, &versions, WORKER_TIMEOUT).await
    };
    let done = drain.await;
    client.close().await;
    done
}
