//! Jobs that go to workers of others, and what these say of them: RabbitMQ's side is [`super::amqp::Forwarder`].

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{PublishError, Reply};

/// Publishes jobs, and hears of their ends.
pub trait Forwarding: Send + Sync + 'static {
    /// Whether something can be published now.
    fn is_up(&self) -> bool;

    /// Waits until something can be published.
    fn up(&self) -> impl Future<Output = ()> + Send;

    /// The queue for what workers say of jobs; `None`: they are not asked to.
    fn done_queue(&self) -> Option<&str>;

    /// The end of the job with `token` is waited for from now on.
    fn expect(&self, token: String) -> Expected;

    /// Publishes (mandatory, persistent), and waits for the confirm. Its first poll hands the job on. An error: no queue has it for
    /// certain.
    fn publish(&self, outgoing: Reply) -> impl Future<Output = Result<(), PublishError>> + Send;
}

/// Who waits for which token.
#[derive(Debug, Clone, Default)]
pub struct Ends(Arc<Mutex<HashMap<String, oneshot::Sender<Bytes>>>>);

impl Ends {
    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the job with `token` is waited for from now on.
    pub fn expect(&self, token: String) -> Expected {
        let (sender, end) = oneshot::channel();
        self.waiting().insert(token.clone(), sender);
        Expected {
            ends: self.clone(),
            token,
            end,
        }
    }

    /// A worker says this of the job with `token`; false: nobody waits for that.
    pub fn tell(&self, token: &str, body: Bytes) -> bool {
        let Some(waiting) = self.waiting().remove(token) else {
            return false;
        };
        // Who waited may just have given up.
        drop(waiting.send(body));
        true
    }
}

/// The end of one job, which is waited for; dropped, it is not any more.
#[derive(Debug)]
pub struct Expected {
    ends: Ends,
    token: String,
    end: oneshot::Receiver<Bytes>,
}

impl Expected {
    /// What the worker said of it.
    pub async fn end(&mut self) -> Option<Bytes> {
        (&mut self.end).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.ends.waiting().remove(&self.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_is_told_once_and_to_whoever_waits_for_it() {
        let ends = Ends::default();
        let (mut one, two) = (ends.expect("1".to_owned()), ends.expect("2".to_owned()));
        drop(two);
        let tell = |token| ends.tell(token, Bytes::from_static(b"end"));
        assert!(!tell("2") && !tell("3") && tell("1") && !tell("1"));
        assert_eq!(one.end().await.as_deref(), Some(&b"end"[..]));
        assert!(ends.waiting().is_empty());
    }
}
