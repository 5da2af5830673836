//! The actions for the engine, in the order in which it must perform them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::action::{Action, JobKey};
use broker::{ExternalMessage, Outgoing, Tag};

/// Maximum number of actions for releases, results, publishes, acks and returns.
const MAX_BATCHES: usize = 5;

/// Actions that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Jobs whose prepared calls, or results for direct reply-to targets, are not needed.
    released: Vec<JobKey>,
    actions: Vec<Action>,
    results: Vec<(JobKey, ExternalMessage)>,
    publishes: Vec<(JobKey, Outgoing)>,
    /// Messages whose confirms must not delay others, by queue.
    separate: BTreeMap<Arc<str>, Vec<(JobKey, Outgoing)>>,
    acks: Vec<Tag>,
    returns: Vec<Tag>,
}

impl Agenda {
    /// Adds `action`. Publishes, acks and releases have methods of their own, because they are
    /// performed together.
    pub(super) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Releases the prepared call of a job, and its result for a direct reply-to target.
    pub(super) fn release(&mut self, key: JobKey) {
        self.released.push(key);
    }

    /// Publishes a result.
    pub(super) fn publish_result(&mut self, result: (JobKey, ExternalMessage)) {
        self.results.push(result);
    }

    /// Publishes a message.
    pub(super) fn publish(&mut self, publish: (JobKey, Outgoing)) {
        self.publishes.push(publish);
    }

    /// Publishes a message whose confirm must not delay others.
    pub(super) fn publish_separately(&mut self, publish: (JobKey, Outgoing)) {
        let queue = Arc::clone(&publish.1.queue);
        self.separate.entry(queue).or_default().push(publish);
    }

    /// Acks a delivery.
    pub(super) fn ack(&mut self, tag: Tag) {
        self.acks.push(tag);
    }

    /// Returns a delivery to its queue.
    pub(super) fn give_back(&mut self, tag: Tag) {
        self.returns.push(tag);
    }

    /// Performs the pending acks even though the session is about to end.
    pub(super) fn ack_first(&mut self) {
        push_batch(&mut self.actions, &mut self.acks, Action::Ack);
    }

    /// Drops everything that can't be acked or need not be published after the end of the session,
    /// and releases the prepared calls of `jobs`.
    pub(super) fn end_session(&mut self, jobs: impl IntoIterator<Item = JobKey>) {
        self.released.extend(jobs);
        // Sorted into the order of arrival; the map has no stable order.
        self.released.sort_unstable();
        self.results.clear();
        self.publishes.clear();
        self.separate.clear();
        self.acks.clear();
        self.returns.clear();
    }

    /// Takes all actions. Releases come first, because another job may need the call. Acks
    /// and returns come last.
    pub(super) fn take(&mut self) -> Vec<Action> {
        let acks = self.acks.len();
        let mut actions = Vec::with_capacity(self.actions.len() + MAX_BATCHES);
        push_batch(&mut actions, &mut self.released, Action::Release);
        actions.append(&mut self.actions);
        push_batch(&mut actions, &mut self.results, Action::PublishResults);
        push_batch(&mut actions, &mut self.publishes, Action::Publish);
        let apart = std::mem::take(&mut self.separate);
        actions.extend(apart.into_values().map(Action::Publish));
        push_batch(&mut actions, &mut self.acks, Action::Ack);
        // The next turns with acks have about as many.
        self.acks.reserve_exact(acks);
        push_batch(&mut actions, &mut self.returns, Action::GiveBack);
        actions
    }
}

/// Adds the action with all of `batch`, unless that is empty.
fn push_batch<T>(actions: &mut Vec<Action>, batch: &mut Vec<T>, action: fn(Vec<T>) -> Action) {
    if !batch.is_empty() {
        actions.push(action(std::mem::take(batch)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::{DeliverySource, Message};

    fn filled() -> Agenda {
        let mut agenda = Agenda::default();
        agenda.ack(Tag {
            session: 1,
            source: DeliverySource::Fresh,
            tag: 7,
        });
        let message = Message {
            routing_key: "jobs".to_owned(),
            properties: Default::default(),
            body: Default::default(),
        };
        let queue = "jobs.dead".into();
        agenda.publish((JobKey(2), Outgoing { queue, message }));
        agenda.push(Action::Take);
        agenda.release(JobKey(9));
        agenda
    }

    #[test]
    fn releases_come_first_and_acks_last() {
        let mut agenda = filled();
        let actions = agenda.take();
        let [
            Action::Release(keys),
            Action::Take,
            Action::Publish(batch),
            Action::Ack(tags),
        ] = &actions[..]
        else {
            panic!("{actions:?}");
        };
        assert_eq!((keys.len(), batch.len(), tags.len()), (1, 1, 1));
        assert!(agenda.take().is_empty(), "all was taken");
    }

    #[test]
    fn a_lost_session_publishes_and_acks_nothing() {
        let mut agenda = filled();
        agenda.end_session([JobKey(5), JobKey(3)]);
        let actions = agenda.take();
        let [Action::Release(keys), Action::Take] = &actions[..] else {
            panic!("{actions:?}");
        };
        assert_eq!(*keys, [JobKey(3), JobKey(5), JobKey(9)]);
    }
}
