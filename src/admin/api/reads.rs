//! Queries that show something.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::Value;
use tokio::time::Instant;

use super::answers::{
    CanceledJob, DivertedTenant, InstructionsAnswer, LettersAnswer, LimitsAnswer, PipelineAnswer,
    PipelinesAnswer, PlanLimits, QueueAnswer, QueuesAnswer, ShownLetter, TenantLimits, TriedLimit,
};
use super::input::RequestInput;
use super::pipelines::{PipelineContext, PipelineContexts};
use super::problem::ApiProblem;
use crate::{PipelineStates, Readiness};
use broker::amqp::Client;
use gate::{instructions, reports};
use operator::answer::Answer as _;
use operator::dead::{Filter, LetterQueue};
use operator::explain::explain;
use operator::explain::letters::{FailedSearch, LetterInQueue, search};
use operator::fleet::{BusiestTenants, TenantsPage};
use operator::hold::held;
use operator::inspect::{WhatIf, inspect};
use operator::job::JobRef;
use operator::labels::{GivenLabels, value};
use operator::limits::LimitAnswer;
use operator::{NotDone, audit, fleet, other_policies, steer, tenant};
use rules::limit::Limits;
use rules::policy::EntryLimits;
use rules::report::view::Sort;
use rules::steering::Instruction;

/// Maximum time that a request waits for workers or looks at dead letters.
pub const WORKER_TIMEOUT: Duration = Duration::from_secs(5);
/// Default time that a request waits for a worker's report on a job.
const DEFAULT_WAIT: Duration = Duration::from_secs(2);
/// Default number of rows of a page.
const DEFAULT_ROWS: u64 = 100;
/// Maximum number of bytes shown of a dead letter's body.
const MAX_SHOWN_BODY_BYTES: usize = 1 << 20;

/// The queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRead {
    OpenApi,
    Pipelines,
    Limits,
    Workers,
    Tenants,
    Tenant,
    Job,
    Explanation,
    Instructions,
    Queues,
    DeadLetters,
    DeadLetter,
    Audit,
}

/// Answers a query.
pub async fn answer(
    read: ApiRead,
    (states, contexts): (&PipelineStates, &Arc<PipelineContexts>),
    input: &RequestInput,
) -> Result<Value, ApiProblem> {
    match read {
        ApiRead::OpenApi => return Ok(super::openapi::document()),
        ApiRead::Pipelines => return Ok(pipelines(states)),
        _ => {}
    }
    let context = contexts.one(input)?;
    match read {
        ApiRead::OpenApi | ApiRead::Pipelines => Ok(Value::Null),
        ApiRead::Limits => Ok(in_force(&context, input).boxed().await?),
        ApiRead::Workers => Ok(workers(&context).boxed().await?),
        ApiRead::Tenants => Ok(tenants(&context, input).boxed().await?),
        ApiRead::Tenant => Ok(one_tenant(&context, input).boxed().await?),
        ApiRead::Job => Ok(job(&context, input).boxed().await?),
        ApiRead::Explanation => Ok(explanation((&context, contexts), input).boxed().await?),
        ApiRead::Instructions => Ok(instructions(&context).boxed().await?),
        ApiRead::Audit => Ok(done(&context, input).boxed().await?),
        ApiRead::Queues | ApiRead::DeadLetters | ApiRead::DeadLetter => {
            let _turn = contexts.turn_to_read()?;
            let client = context.client().boxed().await?;
            let looked = match read {
                ApiRead::Queues => queues(&client).boxed().await,
                ApiRead::DeadLetters => letters(&context, &client, input).boxed().await,
                _ => letter(&context, &client, input).boxed().await,
            };
            // Closing the connection returns the fetched messages to their queue.
            client.close().await;
            Ok(looked?)
        }
    }
}

fn page(input: &RequestInput) -> (usize, usize) {
    let number = |name, usual| usize::try_from(input.number(name).unwrap_or(usual));
    let (limit, offset) = (number("limit", DEFAULT_ROWS), number("offset", 0));
    // Both values have bounds.
    (limit.unwrap_or(usize::MAX), offset.unwrap_or(usize::MAX))
}

fn pipelines(states: &PipelineStates) -> Value {
    let all = states.pipelines().into_iter().map(|(name, seen)| {
        let Readiness { is_ready, lines } = Readiness::from(&seen);
        PipelineAnswer {
            pipeline: name,
            ready: is_ready,
            lines,
            queue: seen
                .config
                .get()
                .map(|config| config.amqp.queue.to_string()),
        }
    });
    let pipelines = all.collect();
    PipelinesAnswer { pipelines }.as_json()
}

async fn in_force(context: &PipelineContext, input: &RequestInput) -> Result<Value, NotDone> {
    let policy = &context.config.rate_limiter.policy;
    let all = |set: &Limits| set.all().iter().map(LimitAnswer::from).collect::<Vec<_>>();
    let plans = policy.plans().iter().map(|(name, set)| PlanLimits {
        plan: name.clone(),
        limits: all(set),
    });
    let (limit, offset) = page(input);
    let tenants = policy.tenants();
    let rows = tenants.iter().skip(offset).take(limit);
    let rows = rows.map(|(pattern, own)| {
        let (plan, limits) = match own {
            EntryLimits::Limits(set) => (None, Some(all(set))),
            EntryLimits::Plan(plan) => (Some(plan.clone()), None),
        };
        TenantLimits {
            tenant: pattern.to_string(),
            plan,
            limits,
        }
    });
    let others = other_policies::others(&context.gate, policy).await?;
    let answer = LimitsAnswer {
        limits: all(policy.default_limits()),
        plan_header: policy.plan_header().map(str::to_owned),
        plans: plans.collect(),
        tenants: rows.collect(),
        tenants_in_all: tenants.len() as u64,
        next_offset: next(offset, limit, tenants.len()),
        in_force: others.in_force,
        other_configurations: others.number() as u64,
        differing_keys: others.keys().into_iter().map(str::to_owned).collect(),
    };
    Ok(answer.as_json())
}

fn next(offset: usize, limit: usize, all: usize) -> Option<u64> {
    let next = offset.saturating_add(limit);
    (next < all).then_some(next as u64)
}

async fn workers(context: &PipelineContext) -> Result<Value, NotDone> {
    Ok(fleet::workers(&reports::see(&context.gate).await?).as_json())
}

async fn tenants(context: &PipelineContext, input: &RequestInput) -> Result<Value, NotDone> {
    let sort = input.text("sort").and_then(Sort::named);
    let sort = sort.unwrap_or(Sort::Waiting);
    let (limit, offset) = page(input);
    let mut fleet = reports::see(&context.gate).await?;
    if let Some(part) = input.text("search") {
        fleet.view.keep(part);
    }
    // Rows before the page are looked at, too, since the gate's figures decide the order.
    let max = offset.saturating_add(limit);
    let all = fleet.view.tenants.len();
    let mut shown = BusiestTenants::of(&context.gate, &context.config, &fleet, (sort, max)).await;
    shown.rows.drain(..offset.min(shown.rows.len()));
    let page = TenantsPage {
        base: shown.answer(&fleet),
        next_offset: next(offset, limit, all),
    };
    Ok(page.as_json())
}

async fn one_tenant(context: &PipelineContext, input: &RequestInput) -> Result<Value, NotDone> {
    let tenant = tenant::parse(input.text("tenant").unwrap_or_default())?;
    let headers = input.texts("header").map(|text| {
        let (name, text) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some((name.to_owned(), value(text).ok()?))
    });
    let headers: Option<Vec<_>> = headers.collect();
    let wrong = || NotDone::Wrong("header: must be NAME=VALUE, such as x-endpoint=/v1".to_owned());
    let headers = headers.ok_or_else(wrong)?;
    let key = input.text("routing-key").map(value).transpose();
    let key = key.map_err(|why| NotDone::Wrong(format!("routing-key: {why}")))?;
    let labels = |limits: &_| GivenLabels::of(headers, key, limits);
    let plan = input.text("plan");
    let what_if = input.texts("what-if").map(WhatIf::parse);
    let what_if: Result<Vec<WhatIf>, String> = what_if.collect();
    let what_if = what_if.map_err(|why| NotDone::Wrong(format!("what-if: {why}")))?;
    let found = inspect(
        &context.gate,
        &context.config,
        (tenant, plan),
        labels,
        &what_if,
    )
    .await?;
    Ok(found.answer().as_json())
}

/// Returns how long the request waits for a worker's report on a job.
pub fn wait(input: &RequestInput) -> Result<Duration, NotDone> {
    let given = input.text("wait").map(steer::wait).transpose();
    match given.map_err(|why| NotDone::Wrong(format!("wait: {why}")))? {
        Some(wait) if wait > WORKER_TIMEOUT => Err(NotDone::Wrong(format!(
            "wait: must be at most {WORKER_TIMEOUT:?}"
        ))),
        wait => Ok(wait.unwrap_or(DEFAULT_WAIT)),
    }
}

/// Returns the job that the request names.
pub fn requested_job(context: &PipelineContext, input: &RequestInput) -> Result<JobRef, NotDone> {
    let tenant = tenant::parse(input.text("tenant").unwrap_or_default())?;
    let id = input.text("id").unwrap_or_default();
    JobRef::new(tenant, id, context.config.delay.max_delay)
}

async fn job(context: &PipelineContext, input: &RequestInput) -> Result<Value, NotDone> {
    let (which, wait) = (requested_job(context, input)?, wait(input)?);
    let shown = which.show(&context.gate, wait).await?;
    Ok(shown.as_json())
}

async fn explanation(
    (context, contexts): (&PipelineContext, &PipelineContexts),
    input: &RequestInput,
) -> Result<Value, NotDone> {
    let (which, wait) = (requested_job(context, input)?, wait(input)?);
    let mut found = explain(&context.gate, &context.config, which.clone(), wait).await?;
    if found.may_be_dead() {
        found = found.with(among_letters((context, contexts), &which).boxed().await);
    }
    Ok(found.as_json())
}

/// Searches the dead letters for a job that no worker has.
async fn among_letters(
    (context, contexts): (&PipelineContext, &PipelineContexts),
    which: &JobRef,
) -> Result<LetterInQueue, FailedSearch> {
    let Ok(_turn) = contexts.turn_to_read() else {
        return Err(FailedSearch::unread(
            "too many requests read queues at the same time: try again".to_owned(),
        ));
    };
    let connected = context.client().await;
    let client = connected.map_err(|why| FailedSearch::unread(why.to_string()))?;
    let found = search(&dead(context, &client), which).await;
    client.close().await;
    found
}

async fn instructions(context: &PipelineContext) -> Result<Value, NotDone> {
    let seen = instructions::see(&context.gate).await?;
    let now_ms = seen.iter().map(|board| board.now_ms).max();
    let held = held(&seen);
    let (mut diverted, mut canceled, mut tried) = (Vec::new(), Vec::new(), Vec::new());
    // Each board of a cluster has all instructions.
    let first = seen.first().map(|board| board.posted.as_slice());
    for (instruction, until_ms) in first.unwrap_or_default() {
        match instruction {
            Instruction::Divert(tenant, queue) => diverted.push(DivertedTenant {
                tenant: tenant.to_string(),
                queue: queue.to_string(),
                until_ms: *until_ms,
            }),
            Instruction::Cancel(tenant, id, _) => canceled.push(CanceledJob {
                tenant: tenant.to_string(),
                id: id.clone(),
                until_ms: *until_ms,
            }),
            Instruction::Try(tenant, limit, max) => tried.push(TriedLimit {
                tenant: tenant.to_string(),
                limit: limit.clone(),
                max_requests: *max,
                until_ms: *until_ms,
            }),
            Instruction::All(_) | Instruction::Show(..) | Instruction::Wake(..) => {}
        }
    }
    let answer = InstructionsAnswer {
        now_ms,
        held: held.map(|(hold, _)| hold.keyword().into()),
        held_until_ms: held.map(|(_, until_ms)| until_ms),
        diverted,
        canceled,
        tried,
    };
    Ok(answer.as_json())
}

async fn done(context: &PipelineContext, input: &RequestInput) -> Result<Value, NotDone> {
    let (limit, _) = page(input);
    let page = audit::read(&context.gate, input.number("before"), limit).await?;
    Ok(page.as_json())
}

async fn queues(client: &Client) -> Result<Value, NotDone> {
    let names = client.names();
    let one = |kind: &'static str, queue: &Arc<str>| (kind, Arc::clone(queue));
    let mut all = vec![one("new", &names.fresh)];
    all.extend(names.more().iter().map(|queue| one("new", queue)));
    all.extend([one("due", &names.due), one("recheck", &names.recheck)]);
    all.extend(names.delays().iter().map(|queue| one("delay", queue)));
    all.push(one("dead", &names.dead));
    let mut rows = Vec::with_capacity(all.len());
    for (kind, queue) in all {
        let jobs = client.depth(&queue).await?;
        rows.push(QueueAnswer {
            queue: queue.to_string(),
            holds: kind.into(),
            jobs: jobs.into(),
        });
    }
    Ok(QueuesAnswer { queues: rows }.as_json())
}

/// Returns the dead letters of a pipeline, with the time limit of a request.
pub fn dead<'a>(context: &'a PipelineContext, client: &'a Client) -> LetterQueue<'a> {
    LetterQueue {
        until: Some(Instant::now() + WORKER_TIMEOUT),
        follow_within: WORKER_TIMEOUT,
        ..LetterQueue::new(client, &context.config)
    }
}

/// Returns the request's filter for dead letters.
pub fn filter(input: &RequestInput) -> Result<Filter, NotDone> {
    let text = |name| input.text(name).map(str::to_owned);
    let tenant = match (text("tenant"), input.flag("no-tenant")) {
        (Some(_), true) => {
            let words = "give either tenant or no-tenant, not both";
            return Err(NotDone::Wrong(words.to_owned()));
        }
        (None, true) => Some(String::new()),
        (tenant, false) => tenant,
    };
    Ok(Filter {
        reason: text("reason"),
        tenant,
        id: text("id"),
    })
}

async fn letters(
    context: &PipelineContext,
    client: &Client,
    input: &RequestInput,
) -> Result<Value, NotDone> {
    let listed = dead(context, client)
        .list(&filter(input)?, |_, _| ())
        .await?;
    let (limit, offset) = page(input);
    let rows = listed.rows.iter().skip(offset).take(limit);
    let answer = LettersAnswer {
        letters: rows.cloned().collect(),
        found: listed.rows.len() as u64,
        not_looked_at: listed.progress.left.into(),
        next_offset: next(offset, limit, listed.rows.len()),
    };
    Ok(answer.as_json())
}

async fn letter(
    context: &PipelineContext,
    client: &Client,
    input: &RequestInput,
) -> Result<Value, NotDone> {
    let dead = dead(context, client);
    let id = input.text("id").unwrap_or_default();
    let letter = dead.find(id, filter(input)?.tenant.as_deref()).await?;
    let answer = ShownLetter {
        base: dead.answer(&letter, MAX_SHOWN_BODY_BYTES),
        bytes: letter.body.len() as u64,
        truncated: letter.body.len() > MAX_SHOWN_BODY_BYTES,
    };
    Ok(answer.as_json())
}
