//! Dead letters: lists them, shows one, replays them or drops them.

use std::cmp::Reverse;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::NotDone;
use super::answer::{Answer as _, answers};
use super::held_letters::HeldLetters;
use super::letters::{LetterAnswer, LetterRow, for_replay, headers, hex, reason};
use super::rate::Rate;
use super::steer::{FOLLOW_TIMEOUT, followed};
use super::text::count;
use broker::amqp::{Client, FetchedMessage};
use broker::{Message, Outgoing};
use config::{Config, TenantField};
use gate::instructions::drop_all;
use gate::redis::RedisGate;
use rules::headers::ROUTING_KEY;
use rules::job::{self, Field};
use rules::steering::{CANCELED, Instruction};
use rules::tenant::Tenant;

/// Maximum number of jobs that are published before their confirms are awaited.
const MAX_BATCH: usize = 100;
/// A batch takes no further job once its bodies have this many bytes. The last job may exceed it.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Maximum number of matching dead letters in a list. The queue returns the oldest first, but the
/// list shows the newest first.
const MAX_LISTED: usize = 10_000;
/// Maximum number of bytes of bodies fetched for a list. RabbitMQ sends whole messages although the
/// list shows only headers.
const MAX_LISTED_BYTES: usize = 256 << 20;

/// Selects dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Selects dead letters whose reason contains this text.
    pub reason: Option<String>,
    /// Selects dead letters of this tenant. An empty text selects those without a tenant.
    pub tenant: Option<String>,
    /// Selects the dead letter with this ID.
    pub id: Option<String>,
}

impl Filter {
    /// Returns true if the filter selects all dead letters.
    pub fn is_all(&self) -> bool {
        self.reason.is_none() && self.tenant.is_none() && self.id.is_none()
    }

    /// Returns the request of a command for the audit: to change at most `limit` of these.
    pub fn audited(&self, limit: Option<u32>) -> Value {
        let Self { reason, tenant, id } = self;
        let all = self.is_all();
        json!({"reason": reason, "tenant": tenant, "id": id, "all": all, "limit": limit})
    }
}

/// A change to dead letters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LetterChange {
    /// Publish them to the work queue as new jobs, not faster than the given rate.
    Replay(Option<Rate>),
    /// Delete them.
    Drop,
}

impl LetterChange {
    /// Checks that `filter` or `all` selects dead letters explicitly and that `config` permits this
    /// change.
    ///
    /// # Errors
    /// [`NotDone::Wrong`]
    pub fn check(self, filter: &Filter, all: bool, config: &Config) -> Result<(), NotDone> {
        if !all && filter.is_all() {
            return Err(NotDone::Wrong(
                "no dead letters selected; set reason, tenant, id or all".to_owned(),
            ));
        }
        if config.job.tenant == TenantField::RoutingKey && matches!(self, Self::Replay(_)) {
            return Err(NotDone::Wrong(
                "job.tenant is routing-key, which a dead letter may have lost; publish the job to \
                your exchange again"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the change as a past participle.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Replay(_) => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// Dead letters that a list found, newest first.
#[derive(Debug, Default)]
pub struct LetterList {
    /// Dead letters that match the filter.
    pub rows: Vec<LetterRow>,
    /// How far the look at the queue got.
    pub progress: SearchProgress,
}

/// Progress of a look at the queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct SearchProgress {
    /// Messages that were in the queue at the start and are not looked at yet.
    pub left: u32,
    /// Number of messages that were looked at.
    pub seen: u64,
    /// Total size of their bodies in bytes.
    pub bytes: usize,
    /// Number of bytes at which the look ends.
    pub max_bytes: usize,
}

impl SearchProgress {
    /// Starts a look at the first `left` messages.
    fn at(left: u32, max_bytes: usize) -> Self {
        Self {
            left,
            seen: 0,
            bytes: 0,
            max_bytes,
        }
    }

    /// Returns true if the look ended because it fetched `max_bytes` or more.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.max_bytes
    }
}

/// Result of a change to dead letters.
#[derive(Default)]
pub struct ChangeResult {
    /// Number of dead letters that were replayed or dropped.
    pub done: u64,
    /// Number of dead letters that RabbitMQ refused.
    pub refused: u64,
    /// Whether the change was interrupted before it looked at all dead letters.
    pub stopped: bool,
    /// Error that ended the change early.
    pub failure: Option<NotDone>,
}

answers! {
    /// Dead letters that were replayed.
    pub struct Replayed as "Replayed" {
        pub replayed: u64,
        pub refused: u64,
        pub interrupted: bool,
    }

    /// Dead letters that were dropped.
    pub struct Dropped {
        pub dropped: u64,
        pub refused: u64,
        pub interrupted: bool,
    }
}

impl ChangeResult {
    /// Describes why entries of `queue` were not changed, or returns `None` if all were. `noun` is
    /// the name of an entry.
    pub fn remainder(&self, queue: &str, noun: &str) -> Option<String> {
        let failure = self.failure.as_ref().map(ToString::to_string);
        let stopped = self.stopped.then(|| "interrupted".to_owned());
        let refused = count(self.refused, "job");
        let refused = (self.refused > 0).then(|| format!("RabbitMQ refused {refused}"));
        let which = match (failure.is_some() || self.stopped, self.refused) {
            (true, _) => format!("the other {noun}s are"),
            (false, 1) => "it is".to_owned(),
            (false, _) => "they are".to_owned(),
        };
        let why: Vec<String> = [failure.or(stopped), refused]
            .into_iter()
            .flatten()
            .collect();
        (!why.is_empty()).then(|| format!("{}: {which} still in {queue}", why.join("; ")))
    }

    /// Returns the result of a replay.
    pub fn replayed(&self) -> Replayed {
        Replayed {
            replayed: self.done,
            refused: self.refused,
            interrupted: self.stopped,
        }
    }

    /// Returns the result of `change` as JSON.
    pub fn as_json(&self, change: LetterChange) -> Value {
        match change {
            LetterChange::Replay(_) => self.replayed().as_json(),
            LetterChange::Drop => Dropped {
                dropped: self.done,
                refused: self.refused,
                interrupted: self.stopped,
            }
            .as_json(),
        }
    }
}

/// A queue of dead letters, or of a diverted tenant's jobs.
pub struct LetterQueue<'a> {
    /// Name of the queue.
    pub queue: Arc<str>,
    /// A connection for this look only: messages that were fetched return to the queue when it
    /// closes.
    pub client: &'a Client,
    /// Configuration, which says where a job names its tenant.
    pub config: &'a Config,
    /// Time at which the look ends.
    pub until: Option<Instant>,
    /// Time limit for all workers to follow an instruction. If they don't, nothing is replayed.
    pub follow_within: Duration,
}

impl<'a> LetterQueue<'a> {
    /// Returns the dead letters of the pipeline with this configuration, without an end of the
    /// look.
    pub fn new(client: &'a Client, config: &'a Config) -> Self {
        Self {
            queue: Arc::clone(&client.names().dead),
            client,
            config,
            until: None,
            follow_within: FOLLOW_TIMEOUT,
        }
    }

    /// Lists the dead letters that match `filter`. Calls `progress` after each one with the number
    /// found and the number of messages left to check.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn list(
        &self,
        filter: &Filter,
        mut progress: impl FnMut(usize, u32),
    ) -> Result<LetterList, NotDone> {
        let mut look = SearchProgress::at(self.client.depth(&self.queue).await?, MAX_LISTED_BYTES);
        let mut rows = Vec::new();
        while rows.len() < MAX_LISTED
            && let Some(fetched) = self.next(filter, &mut look).await?
        {
            let message = &fetched.message;
            rows.push(LetterRow::new(message, self.tenant(message)));
            progress(rows.len(), look.left);
        }
        // Stable: dead letters without a time keep the order of the queue.
        rows.sort_by_key(|row| Reverse(row.died_ms));
        Ok(LetterList {
            rows,
            progress: look,
        })
    }

    /// Returns the first dead letter that matches `filter`, with the progress of the look. Looks at
    /// no more than `max` messages and stops after `max_bytes` of bodies.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn first(
        &self,
        filter: &Filter,
        (max, max_bytes): (u32, usize),
    ) -> Result<(Option<Message>, SearchProgress), NotDone> {
        let depth = self.client.depth(&self.queue).await?;
        let mut progress = SearchProgress::at(depth.min(max), max_bytes);
        let found = self.next(filter, &mut progress).await?;
        progress.left += depth.saturating_sub(max);
        Ok((found.map(|fetched| fetched.message), progress))
    }

    /// Returns the first dead letter in the queue with this ID, and with this tenant if one is
    /// named. An empty text means no tenant.
    ///
    /// # Errors
    /// [`NotDone::Missing`] if no dead letter has the ID, [`NotDone::Failed`] if the look ended
    /// before the whole queue was searched, [`NotDone::RabbitMq`]
    pub async fn find(&self, id: &str, tenant: Option<&str>) -> Result<Message, NotDone> {
        let filter = Filter {
            id: Some(id.to_owned()),
            tenant: tenant.map(str::to_owned),
            ..Filter::default()
        };
        let mut progress = SearchProgress::at(self.client.depth(&self.queue).await?, usize::MAX);
        let found = self.next(&filter, &mut progress).await?;
        let of = match tenant {
            None => String::new(),
            Some("") => " without a tenant".to_owned(),
            Some(tenant) => format!(" of {tenant:?}"),
        };
        let missing = || match progress.left {
            0 => NotDone::Missing(format!(
                "{} has no dead letter{of} with the id {id:?}",
                self.queue
            )),
            left => NotDone::Failed(format!(
                "no dead letter{of} with the id {id:?} was found in time; {left} are left in {}",
                self.queue
            )),
        };
        Ok(found.ok_or_else(missing)?.message)
    }

    /// Returns `letter` with its headers and at most `longest` bytes of its body.
    pub fn answer(&self, letter: &Message, longest: usize) -> LetterAnswer {
        let all = letter.body.len();
        let mut body = &letter.body[..all.min(longest)];
        let is_text = match std::str::from_utf8(body) {
            Ok(_) => true,
            // The bound may cut a character in two.
            Err(why) => body.len() < all && why.error_len().is_none(),
        };
        if let (true, Err(why)) = (is_text, std::str::from_utf8(body)) {
            body = &body[..why.valid_up_to()];
        }
        let kind = letter.properties.content_type();
        LetterAnswer {
            id: letter.id().map(str::to_owned),
            tenant: self.tenant(letter),
            reason: reason(letter),
            content_type: kind.as_ref().map(|kind| kind.as_str().to_owned()),
            headers: headers(letter),
            encoding: if is_text { "utf-8" } else { "hex" }.into(),
            body: match is_text {
                true => String::from_utf8_lossy(body).into_owned(),
                false => hex(body),
            },
        }
    }

    /// Applies `change` to at most `limit` dead letters that match `filter`, until `stop`
    /// completes. Calls `report` after each batch with the number done and the number of messages
    /// left to look at.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]: nothing was done. Later errors are in [`ChangeResult::failure`].
    pub async fn change(
        &self,
        (filter, limit): (&Filter, Option<u32>),
        change: LetterChange,
        stop: impl Future<Output = ()>,
        mut report: impl FnMut(u64, u32),
    ) -> Result<ChangeResult, NotDone> {
        let rate = match change {
            LetterChange::Replay(rate) => rate,
            LetterChange::Drop => None,
        };
        let replay = matches!(change, LetterChange::Replay(_));
        let max = rate.map_or(MAX_BATCH, Rate::batch).min(MAX_BATCH);
        let mut stop = pin!(stop);
        let mut due = Instant::now();
        // New dead letters, such as replayed jobs that fail again, are behind the ones that are
        // counted here.
        let mut progress = SearchProgress::at(self.client.depth(&self.queue).await?, usize::MAX);
        let limit = u64::from(limit.unwrap_or(u32::MAX));
        let mut all = ChangeResult::default();
        let mut held = HeldLetters::new(due, self.config.amqp.consumer_timeout);
        let mut more = true;
        while more {
            let left = limit - all.done - all.refused;
            let max = max.min(usize::try_from(left).unwrap_or(max));
            let mut batch = Vec::new();
            match self
                .fill(&mut batch, (filter, max), &mut progress, &mut stop)
                .await
            {
                Ok(true) => {}
                Ok(false) => {
                    more = false;
                    all.stopped = progress.left > 0;
                }
                Err(error) => {
                    all.failure = Some(error);
                    more = false;
                }
            }
            let (began, before) = (Instant::now(), all.done + all.refused);
            if let Err(error) = self.settle(batch, replay, &mut all).await {
                all.failure = Some(error);
                more = false;
            }
            if more {
                report(all.done, progress.left);
            }
            let steps = all.done + all.refused - before;
            // The last batch needs no pause after it.
            more &= progress.left > 0 && all.done + all.refused < limit;
            due = rate.map_or(due, |rate| rate.next(due, began, steps));
            if more && held.must_return(due.max(Instant::now()), all.done) {
                match self.client.return_all().await {
                    Ok(()) => {
                        let changed = (all.done, all.refused);
                        progress.left += held.returned(Instant::now(), progress.seen, changed);
                        (progress.seen, all.refused) = (0, 0);
                    }
                    Err(error) => {
                        all.failure = Some(error.into());
                        more = false;
                    }
                }
            }
            tokio::select! {
                biased;
                () = &mut stop, if more => (all.stopped, more) = (true, false),
                () = sleep_until(due), if more => {}
                else => {}
            }
        }
        if all.done > 0
            && let Err(error) = self.client.acks_applied(&self.queue).await
        {
            all.failure.get_or_insert(error.into());
        }
        all.refused = held.refused(progress.seen, all.refused);
        Ok(all)
    }

    /// Fetches letters that match until `batch` has `max` of them or is large. Returns false if
    /// there are no more, or if `stop` has completed.
    async fn fill(
        &self,
        batch: &mut Vec<FetchedMessage>,
        (filter, max): (&Filter, usize),
        progress: &mut SearchProgress,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Result<bool, NotDone> {
        let mut bytes = 0;
        while batch.len() < max && bytes < MAX_BATCH_BYTES {
            // A search through other letters can take long.
            let next = tokio::select! {
                biased;
                () = &mut *stop => None,
                next = self.next(filter, progress) => next?,
            };
            let Some(fetched) = next else {
                return Ok(false);
            };
            bytes += fetched.message.body.len();
            batch.push(fetched);
        }
        Ok(true)
    }

    /// Publishes the jobs of `batch` if they are replayed, then acks each message that is safe to
    /// remove. Adds to `all` how many were acked and how many RabbitMQ refused, also if it fails.
    async fn settle(
        &self,
        batch: Vec<FetchedMessage>,
        replay: bool,
        all: &mut ChangeResult,
    ) -> Result<(), NotDone> {
        let tags: Vec<u64> = batch.iter().map(|fetched| fetched.tag).collect();
        let mut safe = vec![true; tags.len()];
        if replay && !batch.is_empty() {
            self.end_cancels(&batch).await?;
            let names = self.client.names();
            let jobs: Vec<Outgoing> = (batch.into_iter())
                .map(|fetched| for_replay(fetched.message, names))
                .collect();
            let answers = self.client.publish(&jobs).await?;
            safe = answers.iter().map(Result::is_ok).collect();
        }
        for (tag, safe) in tags.into_iter().zip(safe) {
            if safe {
                self.client.ack(tag).await?;
                all.done += 1;
            } else {
                all.refused += 1;
            }
        }
        Ok(())
    }

    /// Ends the cancellation of replayed jobs, at all workers.
    async fn end_cancels(&self, batch: &[FetchedMessage]) -> Result<(), NotDone> {
        let canceled = batch.iter().filter(|it| reason(&it.message) == CANCELED);
        let names = canceled.filter_map(|FetchedMessage { message, .. }| {
            let tenant = Tenant::parse(&self.tenant(message)?).ok()?;
            Some(Instruction::Cancel(tenant, message.id()?.to_owned(), 0).name())
        });
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            return Ok(());
        }
        let gate = RedisGate::new(&self.config.redis.url, &self.config.redis.prefix)?;
        let versions = drop_all(&gate, &names).await?;
        let (_, followers) = followed(&gate, &versions, self.follow_within).await?;
        if !followers.are_all() {
            return Err(NotDone::Failed(format!(
                "canceled jobs were not replayed: {}",
                followers.describe()
            )));
        }
        Ok(())
    }

    /// Returns the next message that `filter` selects among those left in `progress`. The others
    /// stay unacked until the connection closes or [`HeldLetters`] are returned, so RabbitMQ sends
    /// none of them twice in a row.
    async fn next(
        &self,
        filter: &Filter,
        progress: &mut SearchProgress,
    ) -> Result<Option<FetchedMessage>, NotDone> {
        while progress.left > 0
            && !progress.is_full()
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            let Some(fetched) = self.client.get(&self.queue).await? else {
                progress.left = 0;
                return Ok(None);
            };
            progress.left -= 1;
            progress.seen += 1;
            progress.bytes += fetched.message.body.len();
            if self.matches(filter, &fetched.message) {
                return Ok(Some(fetched));
            }
        }
        Ok(None)
    }

    fn matches(&self, filter: &Filter, message: &Message) -> bool {
        let id = filter.id.as_deref();
        let tenant = filter.tenant.as_deref();
        id.is_none_or(|id| message.id() == Some(id))
            && (filter.reason.as_deref()).is_none_or(|part| reason(message).contains(part))
            && tenant.is_none_or(|tenant| self.tenant(message).unwrap_or_default() == tenant)
    }

    /// Returns the tenant that the message names, whether or not it is valid.
    pub fn tenant(&self, message: &Message) -> Option<String> {
        let field = &self.config.job.tenant;
        if let TenantField::Header(name) = field {
            return match message.header(name) {
                Field::Text(tenant) => Some(tenant.to_owned()),
                Field::Int(tenant) => Some(tenant.to_string()),
                _ => None,
            };
        }
        if let (TenantField::RoutingKey, Field::Text(key)) = (field, message.header(ROUTING_KEY)) {
            return Some(key.to_owned());
        }
        let tenant = job::read_tenant(message, field).ok()?;
        Some(tenant.as_str().to_owned())
    }
}
