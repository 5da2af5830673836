//! The dead letters: which there are, one of them, and to replay or to drop them.

use std::cmp::Reverse;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::NotDone;
use super::letters::{Row, again, headers, hex, reason};
use super::pace::Rate;
use super::steer::followed;
use crate::broker::amqp::{Client, Fetched};
use crate::broker::{Message, Outgoing};
use crate::config::{Config, TenantField};
use crate::gate::boards::drop_all;
use crate::gate::redis::RedisGate;
use crate::rules::headers::ROUTING_KEY;
use crate::rules::job::{self, Field};
use crate::rules::steering::{CANCELLED, Instruction};
use crate::rules::tenant::Tenant;

/// Jobs that are published again at once, before their confirms are awaited.
const BATCH: usize = 100;
/// Bytes of their bodies, and one job more.
const BATCH_BYTES: usize = 4 << 20;
/// So many at most that a filter lets through are listed: the queue gives the oldest first, and the newest are shown first.
const MOST_LISTED: usize = 10_000;
/// Nor is more fetched for a list, in bytes of bodies: each message comes over the network, though only its headers are shown.
const MOST_LISTED_BYTES: usize = 256 << 20;

/// Which dead letters.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only those whose reason contains this.
    pub reason: Option<String>,
    /// Only those of this tenant.
    pub tenant: Option<String>,
    /// Only the one with this id.
    pub id: Option<String>,
}

impl Filter {
    /// It names none in particular.
    pub fn is_all(&self) -> bool {
        self.reason.is_none() && self.tenant.is_none() && self.id.is_none()
    }
}

/// What becomes of dead letters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// They go back to the work queue, as new jobs; not faster than this.
    Replay(Option<Rate>),
    /// They are deleted.
    Drop,
}

impl Change {
    /// `filter` and `all` name dead letters, and with `config` this can be done to them.
    ///
    /// # Errors
    /// [`NotDone::Wrong`]
    pub fn check(self, filter: &Filter, all: bool, config: &Config) -> Result<(), NotDone> {
        if !all && filter.is_all() {
            return Err(NotDone::Wrong(
                "which dead letters? name --reason, --tenant or --id, or all with --all".to_owned(),
            ));
        }
        if config.job.tenant == TenantField::RoutingKey && matches!(self, Self::Replay(_)) {
            return Err(NotDone::Wrong(
                "job.tenant is routing-key, which a dead letter may have lost: publish it to your exchange again"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// What was done.
    pub fn word(self) -> &'static str {
        match self {
            Self::Replay(_) => "replayed",
            Self::Drop => "dropped",
        }
    }
}

/// Those that were looked at, the newest first.
pub struct Listed {
    /// Those that the filter lets through.
    pub rows: Vec<Row>,
    /// How far the look came.
    pub look: Look,
}

/// How far a look at the queue has come.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Of those that were there at its beginning: not looked at yet.
    pub left: u32,
    /// Messages that were looked at.
    pub seen: u64,
    /// Of their bodies.
    pub bytes: usize,
    /// It ends when they are as many as this.
    pub most_bytes: usize,
}

impl Look {
    /// At the first `left` messages.
    fn at(left: u32, most_bytes: usize) -> Self {
        Self {
            left,
            seen: 0,
            bytes: 0,
            most_bytes,
        }
    }

    /// It ended since so many bytes were fetched.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.most_bytes
    }
}

/// What was done.
pub struct Done {
    /// So many were replayed or dropped.
    pub done: u64,
    /// RabbitMQ refused so many.
    pub refused: u64,
    /// It was asked to end before all were looked at.
    pub stopped: bool,
    /// Why it ended before.
    pub failure: Option<NotDone>,
}

impl Done {
    /// For programs; what was done, in a word.
    pub fn as_json(&self, what: &str) -> Value {
        json!({what: self.done, "refused": self.refused, "interrupted": self.stopped})
    }
}

/// A queue of dead letters, or of a diverted tenant's jobs.
pub struct Dead<'a> {
    /// Its name.
    pub queue: Arc<str>,
    /// A connection of its own: what is looked at goes back to the queue when it closes.
    pub client: &'a Client,
    /// Where a job's tenant is.
    pub config: &'a Config,
    /// No more are looked at from then on.
    pub until: Option<Instant>,
    /// Workers follow within this, or it is not done.
    pub follow_within: Duration,
}

impl Dead<'_> {
    /// Lists those that `filter` lets through. How many were found, and how many messages are left to look at, is `told` after each.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn list(
        &self,
        filter: &Filter,
        mut told: impl FnMut(usize, u32),
    ) -> Result<Listed, NotDone> {
        let mut look = Look::at(self.client.depth(&self.queue).await?, MOST_LISTED_BYTES);
        let mut rows = Vec::new();
        while rows.len() < MOST_LISTED
            && let Some(fetched) = self.next(filter, &mut look).await?
        {
            let message = &fetched.message;
            rows.push(Row::new(message, self.tenant(message)));
            told(rows.len(), look.left);
        }
        // Of those without a time, in the order of the queue.
        rows.sort_by_key(|row| Reverse(row.died_ms));
        Ok(Listed { rows, look })
    }

    /// The first that `filter` lets through, of the first `most` messages and so many bytes of bodies; and how far the look came.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]
    pub async fn first(
        &self,
        filter: &Filter,
        (most, most_bytes): (u32, usize),
    ) -> Result<(Option<Message>, Look), NotDone> {
        let depth = self.client.depth(&self.queue).await?;
        let mut look = Look::at(depth.min(most), most_bytes);
        let found = self.next(filter, &mut look).await?;
        look.left += depth.saturating_sub(most);
        Ok((found.map(|fetched| fetched.message), look))
    }

    /// The one with this id.
    ///
    /// # Errors
    /// [`NotDone::Missing`]: there is none; [`NotDone::RabbitMq`]
    pub async fn find(&self, id: &str) -> Result<Message, NotDone> {
        let filter = Filter {
            id: Some(id.to_owned()),
            ..Filter::default()
        };
        let mut look = Look::at(self.client.depth(&self.queue).await?, usize::MAX);
        let found = self.next(&filter, &mut look).await?;
        let missing = || match look.left {
            0 => NotDone::Missing(format!(
                "{} holds no dead letter with the id {id:?}",
                self.queue
            )),
            left => NotDone::Failed(format!(
                "no dead letter with the id {id:?} among those that were looked at in time; {left} are left in {}",
                self.queue
            )),
        };
        Ok(found.ok_or_else(missing)?.message)
    }

    /// `letter` for programs: its headers, and at most `longest` bytes of its body.
    pub fn as_json(&self, letter: &Message, longest: usize) -> Value {
        let all = letter.body.len();
        let mut body = &letter.body[..all.min(longest)];
        let is_text = match std::str::from_utf8(body) {
            Ok(_) => true,
            // The bound may be in the middle of a character.
            Err(why) => body.len() < all && why.error_len().is_none(),
        };
        if let (true, Err(why)) = (is_text, std::str::from_utf8(body)) {
            body = &body[..why.valid_up_to()];
        }
        let kind = letter.properties.content_type();
        json!({
            "id": letter.id(),
            "tenant": self.tenant(letter),
            "reason": reason(letter),
            "content_type": kind.as_ref().map(|kind| kind.as_str()),
            "headers": headers(letter),
            // Bytes that are no text are shown as hexadecimal digits.
            "encoding": if is_text { "utf-8" } else { "hex" },
            "body": match is_text {
                true => String::from_utf8_lossy(body).into_owned(),
                false => hex(body),
            },
        })
    }

    /// Does this to those that `filter` lets through, `limit` at most, until `stop`. How many are done, and how many messages are left to
    /// look at, is `told` after each batch.
    ///
    /// # Errors
    /// [`NotDone::RabbitMq`]: nothing was done. What goes wrong later is in [`Done`].
    pub async fn change(
        &self,
        (filter, limit): (&Filter, Option<u32>),
        change: Change,
        stop: impl Future<Output = ()>,
        mut told: impl FnMut(u64, u32),
    ) -> Result<Done, NotDone> {
        let rate = match change {
            Change::Replay(rate) => rate,
            Change::Drop => None,
        };
        let replay = matches!(change, Change::Replay(_));
        let most = rate.map_or(BATCH, Rate::batch).min(BATCH);
        let mut stop = pin!(stop);
        let began = Instant::now();
        // What dies again meanwhile is behind these.
        let mut look = Look::at(self.client.depth(&self.queue).await?, usize::MAX);
        let limit = u64::from(limit.unwrap_or(u32::MAX));
        let mut all = Done {
            done: 0,
            refused: 0,
            stopped: false,
            failure: None,
        };
        let mut more = true;
        while more {
            let mut batch = Vec::new();
            let mut bytes = 0;
            while batch.len() < most && bytes < BATCH_BYTES {
                let taken = all.done + all.refused + batch.len() as u64;
                match if taken < limit {
                    self.next(filter, &mut look).await
                } else {
                    Ok(None)
                } {
                    Ok(Some(fetched)) => {
                        bytes += fetched.message.body.len();
                        batch.push(fetched);
                    }
                    Ok(None) => {
                        more = false;
                        all.stopped = taken < limit && look.left > 0;
                        break;
                    }
                    Err(error) => {
                        all.failure = Some(error);
                        more = false;
                        break;
                    }
                }
            }
            match self.settle(batch, replay).await {
                Ok((settled, not)) => {
                    all.done += settled;
                    all.refused += not;
                }
                Err(error) => {
                    all.failure = Some(error);
                    more = false;
                }
            }
            if more {
                told(all.done, look.left);
            }
            let gone = all.done + all.refused;
            let due = began + rate.map_or(Duration::ZERO, |rate| rate.due(gone));
            tokio::select! {
                biased;
                () = &mut stop, if more => (all.stopped, more) = (true, false),
                () = sleep_until(due), if more => {}
                else => {}
            }
        }
        Ok(all)
    }

    /// Publishes `batch` anew when it is to be replayed, then acks what is safe. How many were, and how many
    /// RabbitMQ refused.
    async fn settle(&self, batch: Vec<Fetched>, replay: bool) -> Result<(u64, u64), NotDone> {
        let tags: Vec<u64> = batch.iter().map(|fetched| fetched.tag).collect();
        let mut safe = vec![true; tags.len()];
        if replay && !batch.is_empty() {
            self.end_cancels(&batch).await?;
            let names = self.client.names();
            let jobs: Vec<Outgoing> = (batch.into_iter())
                .map(|fetched| again(fetched.message, names))
                .collect();
            let answers = self.client.publish(&jobs).await?;
            safe = answers.iter().map(Result::is_ok).collect();
        }
        let (mut done, mut refused) = (0, 0);
        for (tag, safe) in tags.into_iter().zip(safe) {
            if safe {
                self.client.ack(tag).await?;
                done += 1;
            } else {
                refused += 1;
            }
        }
        Ok((done, refused))
    }

    /// Jobs that were cancelled are cancelled no more, at any worker.
    async fn end_cancels(&self, batch: &[Fetched]) -> Result<(), NotDone> {
        let cancelled = batch.iter().filter(|it| reason(&it.message) == CANCELLED);
        let names = cancelled.filter_map(|Fetched { message, .. }| {
            let tenant = Tenant::parse(&self.tenant(message)?).ok()?;
            Some(Instruction::Cancel(tenant, message.id()?.to_owned(), 0).name())
        });
        let names: Vec<String> = names.collect();
        if names.is_empty() {
            return Ok(());
        }
        let gate = RedisGate::connect(&self.config.redis.url, &self.config.redis.prefix)?;
        let versions = drop_all(&gate, &names).await?;
        let (_, followers) = followed(&gate, &versions, self.follow_within).await?;
        if !followers.are_all() {
            return Err(NotDone::Failed(format!(
                "cancelled jobs are not replayed yet: {}; run it again",
                followers.in_words()
            )));
        }
        Ok(())
    }

    /// The next dead letter that `filter` names, of those that `look` has left. The others stay fetched until the
    /// connection closes, so none is met twice.
    async fn next(&self, filter: &Filter, look: &mut Look) -> Result<Option<Fetched>, NotDone> {
        while look.left > 0
            && !look.is_full()
            && self.until.is_none_or(|until| Instant::now() < until)
        {
            let Some(fetched) = self.client.get(&self.queue).await? else {
                look.left = 0;
                return Ok(None);
            };
            look.left -= 1;
            look.seen += 1;
            look.bytes += fetched.message.body.len();
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
            && tenant.is_none_or(|tenant| self.tenant(message).as_deref() == Some(tenant))
    }

    /// The tenant as the message names it, usable or not.
    pub fn tenant(&self, message: &Message) -> Option<String> {
        let place = &self.config.job.tenant;
        if let TenantField::Header(name) = place {
            return match message.header(name) {
                Field::Text(tenant) => Some(tenant.to_owned()),
                Field::Int(tenant) => Some(tenant.to_string()),
                _ => None,
            };
        }
        if let (TenantField::RoutingKey, Field::Text(key)) = (place, message.header(ROUTING_KEY)) {
            return Some(key.to_owned());
        }
        let tenant = job::read_tenant(message, place).ok()?;
        Some(tenant.as_str().to_owned())
    }
}
