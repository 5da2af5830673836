//! An in-memory broker for simulations: queues, confirms, returns, redelivery, and injected faults.
//!
//! It runs on tokio's clock, so under paused time hours of waiting take no time. Several workers
//! share one server by [`MemoryBroker::join`].

mod client;
mod queue;
mod server;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Broker, BrokerEvent, ExternalMessage, Message, Outgoing, PublishError, Tag};
use rules::delays::{DelayLevels, QueueNames};
use server::MemoryServerState;

/// Capacity of the channel for events, the same as that of the real broker.
const EVENT_CAPACITY: usize = 16;

/// A fault of one publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishFault {
    /// The message is stored, but the confirm is lost: [`PublishError::Down`].
    LoseConfirm,
    /// The message is lost before it is stored: [`PublishError::Down`].
    LosePublish,
    /// [`PublishError::Nacked`].
    Nack,
    /// [`PublishError::Returned`], though the queue exists.
    Return,
    /// The message is stored, and then the session ends before the confirm.
    Disconnect,
}

/// Selects the fault of the n-th publish of the server, counted from 1.
type FaultPlan = Box<dyn FnMut(u64, &Outgoing) -> Option<PublishFault> + Send>;

struct MemoryServer(Mutex<MemoryServerState>);

impl MemoryServer {
    fn lock(&self) -> MutexGuard<'_, MemoryServerState> {
        // Only a test's own fault plan can panic here, and then that test has failed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client of an in-memory server.
#[derive(Clone)]
pub struct MemoryBroker {
    server: Arc<MemoryServer>,
    client: usize,
}

impl MemoryBroker {
    /// Creates a server with the queues of `work` and `levels`, and its first client. The client
    /// takes at most `prefetch` unacked messages from each of `jobs` and `jobs.due`, an eighth of
    /// that from `jobs.recheck`, and `window` from each delay queue. Must be called within a tokio
    /// runtime.
    pub fn start(
        work: &str,
        levels: &DelayLevels,
        prefetch: u16,
        window: usize,
    ) -> (Self, mpsc::Receiver<BrokerEvent>) {
        let server = Arc::new(MemoryServer(Mutex::new(MemoryServerState::new(
            work, levels,
        ))));
        Self { server, client: 0 }.join(prefetch, window)
    }

    /// Adds a client to the same server.
    pub fn join(&self, prefetch: u16, window: usize) -> (Self, mpsc::Receiver<BrokerEvent>) {
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
        let client = self.server.lock().connect(prefetch.max(1), window);
        let broker = Self {
            server: self.server.clone(),
            client,
        };
        tokio::spawn(serve(self.server.clone(), client, events));
        (broker, receiver)
    }

    /// Returns the queues' names.
    pub fn names(&self) -> QueueNames {
        self.server.lock().names.clone()
    }

    /// Returns the ready messages of a queue, in order.
    pub fn messages(&self, queue: &str) -> Vec<Message> {
        self.server.lock().messages(queue)
    }

    /// Returns the number of unacked messages of all clients.
    pub fn unacked(&self) -> usize {
        self.server.lock().unacked()
    }

    /// Returns the number of ready messages in `jobs`, `jobs.due` and `jobs.recheck`.
    pub fn ready(&self) -> usize {
        self.server.lock().ready()
    }

    /// Returns the number of ready messages in delay queues.
    pub fn waiting(&self) -> usize {
        self.server.lock().waiting()
    }

    /// Returns the number of deliveries of all messages to all clients.
    pub fn deliveries(&self) -> u64 {
        self.server.lock().deliveries
    }

    /// Returns the number of publishes of all clients.
    pub fn publishes(&self) -> u64 {
        self.server.lock().publishes
    }

    /// Lets `plan` select the fault of each publish from now on.
    pub fn plan(&self, plan: impl FnMut(u64, &Outgoing) -> Option<PublishFault> + Send + 'static) {
        self.server.lock().plan = Box::new(plan);
    }

    /// Deletes a queue with its messages. The first publish that is returned for it restores it, as
    /// the real client does by declaring it again.
    pub fn delete_queue(&self, queue: &str) {
        self.server.lock().delete(queue);
    }

    /// Creates a queue for results, which no client of this kind consumes, and binds it to
    /// `exchange` with `key`.
    pub fn bind(&self, exchange: &str, key: &str, queue: &str) {
        self.server.lock().bind(exchange, key, queue);
    }

    /// Returns the results in `queue`.
    pub fn results(&self, queue: &str) -> Vec<Message> {
        let state = self.server.lock();
        state.results.get(queue).cloned().unwrap_or_default()
    }

    /// Ends this client's session. The next one begins after `outage`.
    pub fn kill_session_for(&self, outage: Duration) {
        self.server.lock().disconnect(self.client, outage);
    }
}

impl Broker for MemoryBroker {
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        // A confirm never comes within the same poll.
        tokio::task::yield_now().await;
        let mut state = self.server.lock();
        let publish = |outgoing| state.publish(self.client, outgoing);
        batch.into_iter().map(publish).collect()
    }

    async fn publish_results(&self, batch: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        tokio::task::yield_now().await;
        let mut state = self.server.lock();
        let publish = |result| state.publish_external(self.client, result);
        batch.into_iter().map(publish).collect()
    }

    async fn ack(&self, tags: Vec<Tag>) {
        self.server.lock().ack(self.client, &tags);
    }

    async fn give_back(&self, tags: Vec<Tag>) {
        self.server.lock().give_back(self.client, &tags);
    }

    async fn rest(&self) {
        self.server.lock().rest(self.client);
    }

    async fn take(&self) {
        self.server.lock().take(self.client, false);
    }

    async fn take_few(&self) {
        self.server.lock().take(self.client, true);
    }

    async fn take_new(&self, enabled: bool) {
        self.server.lock().take_new(self.client, enabled);
    }

    async fn stop_consuming(&self) {
        self.server.lock().stop(self.client);
    }

    async fn close(&self) {
        self.server.lock().close(self.client);
    }
}

/// Passes a client's deliveries to its events until it is closed.
async fn serve(server: Arc<MemoryServer>, client: usize, events: mpsc::Sender<BrokerEvent>) {
    let bell = server.lock().bell(client);
    loop {
        let step = server.lock().step(client, Instant::now());
        if step.closed {
            return;
        }
        let alarm = async {
            match step.wake {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = events.closed() => {
                // The engine is gone, and so is the session.
                server.lock().close(client);
                return;
            }
            permit = events.reserve(), if step.ready => {
                // `closed` handles an error in the next round.
                let Ok(permit) = permit else { continue };
                if let Some(event) = server.lock().next_event(client) {
                    permit.send(event);
                }
            }
            // `Notify` keeps a notification until it is awaited.
            () = bell.notified() => {}
            () = alarm => {}
        }
    }
}
