//! Jobs that go to workers of another system, and the reports of those workers.
//! [`super::amqp::Forwarder`] implements this for RabbitMQ.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{ExternalMessage, PublishError};

/// Publishes jobs and receives their ends.
pub trait Forwarding: Send + Sync + 'static {
    /// Returns true if something can be published now.
    fn is_up(&self) -> bool;

    /// Waits until something can be published.
    fn up(&self) -> impl Future<Output = ()> + Send;

    /// Returns the queue for reports of workers, or `None` if they don't report.
    fn done_queue(&self) -> Option<&str>;

    /// Registers `token`, so that the end of its job can be awaited.
    fn expect(&self, token: String) -> ExpectedEnd;

    /// Publishes (mandatory, persistent), and waits for the confirm. The first poll hands the job
    /// on.
    ///
    /// # Errors
    /// After [`PublishError::Unconfirmed`] or [`PublishError::Down`] a queue may have the job.
    /// After any other error, none has it.
    fn publish(
        &self,
        outgoing: ExternalMessage,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;
}

/// The registered tokens and the calls that wait for them.
#[derive(Debug, Clone, Default)]
pub struct PendingEnds(Arc<Mutex<HashMap<String, oneshot::Sender<Bytes>>>>);

impl PendingEnds {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `token`, so that the end of its job can be awaited.
    pub fn expect(&self, token: String) -> ExpectedEnd {
        let (sender, end) = oneshot::channel();
        self.waiting().insert(token.clone(), sender);
        ExpectedEnd {
            ends: self.clone(),
            token,
            end,
        }
    }

    /// Passes a worker's report on the job with `token` to the call that waits. Returns false if
    /// none does.
    pub fn report(&self, token: &str, body: Bytes) -> bool {
        let Some(waiting) = self.waiting().remove(token) else {
            return false;
        };
        // The receiver may just have given up.
        drop(waiting.send(body));
        true
    }
}

/// The expected end of one job. Dropping it removes its token.
#[derive(Debug)]
pub struct ExpectedEnd {
    ends: PendingEnds,
    token: String,
    end: oneshot::Receiver<Bytes>,
}

impl ExpectedEnd {
    /// Waits for the worker's report.
    pub async fn end(&mut self) -> Option<Bytes> {
        (&mut self.end).await.ok()
    }
}

impl Drop for ExpectedEnd {
    fn drop(&mut self) {
        self.ends.waiting().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_delivered_once_and_to_its_waiter() {
        let ends = PendingEnds::default();
        let (mut one, two) = (ends.expect("1".to_owned()), ends.expect("2".to_owned()));
        drop(two);
        let tell = |token| ends.report(token, Bytes::from_static(b"end"));
        assert!(!tell("2") && !tell("3") && tell("1") && !tell("1"));
        assert_eq!(one.end().await.as_deref(), Some(&b"end"[..]));
        assert!(ends.waiting().is_empty());
    }
}
