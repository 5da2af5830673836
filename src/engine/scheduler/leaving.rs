//! How a message leaves the worker: published to a lane or to the dead letters, and acked once that is confirmed.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::Scheduler;
use crate::broker::{Message, Outgoing, PublishError, Tag};
use crate::engine::action::Key;
use crate::rules::headers::{self, HeaderValue, Headers};

impl Scheduler {
    /// The results of an [`Action::Publish`](crate::engine::action::Action::Publish): what is confirmed is acked, the rest is tried again.
    pub fn moved(&mut self, now: Duration, results: Vec<(Key, Result<(), PublishError>)>) {
        for (key, result) in results {
            let Err(why) = result else {
                self.acks.extend(self.moves.confirmed(key));
                continue;
            };
            self.metrics.publish_failed(&why);
            if let Some((again_at, failures)) = self.moves.failed(now, key) {
                self.timers.push(Reverse((again_at, key)));
                if failures == 1 {
                    warn!(reason = %why, "publish not confirmed: the job stays where it was, the publish is tried again");
                }
            }
        }
    }

    /// The job becomes a dead letter.
    pub(super) fn bury(&mut self, key: Key, kind: &'static str, reason: &str) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let (id, tenant) = (entry.message.id(), &entry.claims.tenant);
        warn!(job.id = id, %tenant, reason, "dead letter");
        self.metrics.dead(kind);
        let headers = headers::dead(entry.claims.attempt, reason);
        self.leave(key, self.settings.names.dead.clone(), headers);
    }

    /// The job becomes a message on its way to `queue`.
    pub(super) fn leave(&mut self, key: Key, queue: Arc<str>, mut headers: Headers) {
        self.let_go(key);
        if let Some(entry) = self.entries.remove(&key) {
            self.windows.forget(key);
            self.places.forget(key);
            headers.extend(headers::lasting(&entry.claims));
            headers.extend(entry.claims.first_call_ms.map(headers::called));
            self.move_to(key, entry.tag, entry.message, queue, headers);
        }
    }

    /// Publishes `message` to `queue`, and acks its delivery once that is confirmed.
    pub(super) fn move_to(
        &mut self,
        key: Key,
        tag: Tag,
        message: Message,
        queue: Arc<str>,
        mut headers: Headers,
    ) {
        if *message.routing_key != *self.settings.names.fresh {
            let key = HeaderValue::Text(message.routing_key.clone());
            headers.push((headers::ROUTING_KEY, key));
        }
        if let Some(expiration) = message.expiration() {
            let expiration = HeaderValue::Text(expiration.to_owned());
            headers.push((headers::EXPIRATION, expiration));
        }
        let mut message = message.for_republish();
        // What has its priority in a header has it nowhere else.
        if headers.iter().any(|(name, _)| *name == headers::PRIORITY) {
            message.take_priority();
        }
        let message = message.with_headers(&headers, &headers::OURS);
        self.outbox
            .push(self.moves.begin(key, tag, Outgoing { queue, message }));
    }
}
