//! Requests to servers and operators' actions, each with a timeout. This module decides nothing.

use std::sync::Arc;
use std::time::Duration;

use config::Config;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::redis::RedisGate;
use operator::NotDone;
use operator::dead::{Filter, LetterChange, LetterList, LetterQueue};
use operator::inspect::inspect;
use operator::labels::GivenLabels;
use operator::overview::Overview;
use operator::rabbitmq::{LETTERS_TIMEOUT, close, connect};
use operator::tenant_action::TenantAction;
use operator::text::count;
use rules::tenant::Tenant;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::action::{Act, LetterSelection};
use super::model::{Glance, ServerAnswer, ServerRequest};
use crate::commands::Failure;
use crate::commands::audit::written;
use crate::commands::steer::FOLLOW_TIMEOUT;

/// Timeout for a look at Redis.
const OVERVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// One pipeline's servers.
struct PipelineServers {
    config: Config,
    gate: RedisGate,
}

/// The servers of all pipelines.
#[derive(Clone)]
pub struct Servers {
    parts: Arc<[PipelineServers]>,
    stop: Arc<Notify>,
}

impl Servers {
    /// Creates the servers of these pipelines. It does not connect yet. `stop` makes a running
    /// replay end before the next dead letter.
    ///
    /// # Errors
    /// A URL is not valid.
    pub fn new<'a>(
        configs: impl Iterator<Item = &'a Config>,
        stop: &Arc<Notify>,
    ) -> Result<Self, Failure> {
        let part = |config: &Config| {
            Ok::<_, Failure>(PipelineServers {
                gate: RedisGate::new(&config.redis.url, &config.redis.prefix)?,
                config: config.clone(),
            })
        };
        let parts: Result<Vec<PipelineServers>, Failure> = configs.map(part).collect();
        Ok(Self {
            parts: parts?.into(),
            stop: Arc::clone(stop),
        })
    }

    /// Performs a request. Long ones report their progress with `send_progress`.
    pub async fn perform(
        &self,
        request: ServerRequest,
        send_progress: impl Fn(ServerAnswer) + Send + Sync,
    ) -> Option<ServerAnswer> {
        Some(match request {
            ServerRequest::Overview(at, selection) => {
                let part = &self.parts[at];
                let seen = Overview::of(&part.gate, &part.config, selection.as_ref());
                let seen = within(OVERVIEW_TIMEOUT, seen.boxed()).await;
                ServerAnswer::Overview(at, seen.map(Box::new))
            }
            ServerRequest::Glance(at, tenant) => {
                let seen = self.parts[at].glance(tenant).boxed();
                ServerAnswer::Glance(within(OVERVIEW_TIMEOUT, seen).await.map(Box::new))
            }
            ServerRequest::DeadLetters(at) => {
                ServerAnswer::DeadLetters(at, self.parts[at].letters().boxed().await)
            }
            ServerRequest::Act(at, act) => {
                ServerAnswer::Done(self.act(at, act, send_progress).boxed().await)
            }
            ServerRequest::Stop => return None,
        })
    }

    async fn act(
        &self,
        at: usize,
        act: Act,
        send_progress: impl Fn(ServerAnswer) + Send + Sync,
    ) -> Result<String, String> {
        let part = &self.parts[at];
        match act {
            Act::Tenant(action) => {
                let (name, of, request) = action.audited();
                let unwritten = written(&part.gate, name, of, request).await.err();
                let (max, effect) = match action {
                    TenantAction::Change(..) => (OVERVIEW_TIMEOUT, "; effective now"),
                    // They wait for workers.
                    _ => (FOLLOW_TIMEOUT + OVERVIEW_TIMEOUT, ""),
                };
                let done = action.perform(&part.gate, FOLLOW_TIMEOUT);
                let text = within(max, done.boxed()).await?.text;
                Ok(with_audit(text + effect, unwritten))
            }
            Act::Replay(which) => part.replay(&which, &self.stop, send_progress).await,
        }
    }
}

fn with_audit(text: String, unwritten: Option<NotDone>) -> String {
    match unwritten {
        Some(why) => format!("{text}; NOT in the audit log: {why}"),
        None => text,
    }
}

async fn within<T, E: ToString>(
    max: Duration,
    asking: BoxFuture<'_, Result<T, E>>,
) -> Result<T, String> {
    let late = |_| format!("no answer within {max:?}");
    let answer = timeout(max, asking).await.map_err(late)?;
    answer.map_err(|why| why.to_string())
}

impl PipelineServers {
    async fn glance(&self, tenant: Tenant) -> Result<Glance, NotDone> {
        let labels = |limits: &[_]| GivenLabels::of(Vec::new(), None, limits);
        let found = inspect(&self.gate, &self.config, (tenant, None), labels, &[]).await?;
        Ok(Glance {
            found: found.answer(),
            limits: found.fullness(),
            description: found.describe(),
        })
    }

    async fn letters(&self) -> Result<LetterList, String> {
        let client = connect(&self.config).await.map_err(|why| why.to_string())?;
        let dead = LetterQueue {
            until: Some(Instant::now() + LETTERS_TIMEOUT),
            ..LetterQueue::new(&client, &self.config)
        };
        let all = Filter::default();
        let listed = dead.list(&all, |_, _| {}).boxed();
        let listed = within(2 * LETTERS_TIMEOUT, listed).await;
        close(client).await;
        listed
    }

    async fn replay(
        &self,
        which: &LetterSelection,
        stop: &Notify,
        send_progress: impl Fn(ServerAnswer) + Send + Sync,
    ) -> Result<String, String> {
        // Registered first, so that Esc during connecting counts.
        let stopped = stop.notified();
        let client = connect(&self.config).await.map_err(|why| why.to_string())?;
        let request = which.filter.audited(None);
        let unwritten = written(&self.gate, "dead replay", json!({}), request).await;
        let progress = |done: u64, left: u32| {
            let done = count(done, "dead letter");
            send_progress(ServerAnswer::Progress(format!(
                "{done} so far, {left} left to read"
            )));
        };
        let dead = LetterQueue::new(&client, &self.config);
        let (queue, change) = (Arc::clone(&dead.queue), LetterChange::Replay(None));
        let which = (&which.filter, None);
        let ended = dead.change(which, change, stopped, progress).await;
        close(client).await;
        let ended = ended.map_err(|why| why.to_string())?;
        let mut text = format!("{} {}", change.keyword(), count(ended.done, "dead letter"));
        if let Some(left) = ended.remainder(&queue, "dead letter") {
            text += &format!("; {left}");
        }
        let text = with_audit(text, unwritten.err());
        match ended.failure.is_some() || ended.refused > 0 {
            true => Err(text),
            false => Ok(text),
        }
    }
}
