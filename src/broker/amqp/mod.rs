//! RabbitMQ through `lapin`.
//!
//! Each connection has a supervisor that reconnects forever. One connection consumes and acks, and
//! one publishes to our own queues. Two more, opened on demand, publish results: one to queues and
//! exchanges, the other to direct reply-to targets. Each connects to one node of a cluster, and to
//! the next node when that session ends. When the broker blocks publishers (a memory or disk
//! alarm), consuming and acking go on. `lapin`'s own recovery is not used: it neither reports stale
//! deliveries nor fails fast, and it replays consumers and publishes on its own.

mod ack;
mod attempts;
mod backlog;
mod client;
mod confirm_channel;
mod confirm_times;
mod connection;
mod consume;
pub mod content;
mod existing;
mod external;
mod forward;
mod inventory;
mod lane;
mod nodes;
mod publish;
mod refused_targets;
pub mod screen;
mod timeout;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use client::{Client, FetchedMessage, REPLY_TO, Replies};
pub use confirm_times::{Confirms, MOVED_AT_ONCE, confirms};
pub use forward::{Forwarder, target_exists};
pub use inventory::{Inventory, QueueState, in_use, inventory};

use crate::topology::Topology;
use crate::{
    Broker, BrokerError, BrokerEvent, ExternalMessage, Outgoing, PublishError, QueueBacklog, Tag,
};
use ack::Acks;
use confirm_channel::{Answer, Publish};
use nodes::Nodes;
use publish::Publisher;
use rules::delays::{DelayLevels, QueueNames};
use runtime::tasks::WatchedTask;

/// Capacity of the channel for events to the engine. A batch of deliveries counts as one event; the
/// prefetch bounds the deliveries.
const EVENT_CAPACITY: usize = 16;
/// Reason for a supervisor's end that was not requested.
const NO_WORK_LEFT: &str = "the engine has ended";
/// Name of the connection for results to queues and exchanges, in logs and in RabbitMQ's tools.
const RESULTS_NAME: &str = "sluicegate results";
/// Name of the connection for results to direct reply-to targets.
const DIRECT_RESULTS_NAME: &str = "sluicegate direct results";
/// Timeout for closing each connection, in addition to the timeouts of its steps.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to RabbitMQ that reconnects by itself.
///
/// [`AmqpBroker::start`] never waits; the state of the connection is reported by events. Commands,
/// which should fail fast, use [`Client`].
#[derive(Debug)]
pub struct AmqpBroker {
    moves: Publisher,
    letters: Publisher,
    results: Publisher,
    direct_results: Publisher,
    shared: Arc<BrokerState>,
    supervisors: Vec<WatchedTask>,
}

/// The deliveries that the worker wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WantedDeliveries {
    Nothing,
    /// One at a time from each queue.
    Few,
    All,
}

/// The state that the supervisors and the handle share.
#[derive(Debug)]
struct BrokerState {
    nodes: Nodes,
    topology: Topology,
    prefetch: u16,
    /// The queues of new jobs, and their shares of the prefetch.
    shares: Vec<(Arc<str>, u16)>,
    /// The prefetch of each delay queue.
    window: u16,
    acks: Acks,
    /// `amqp.consumer-timeout`
    consumer_timeout: Duration,
    /// The log lines on queues that Sluicegate does not declare.
    risks: Mutex<Vec<String>>,
    /// Notified if a publish was returned, because a queue is missing.
    heal: tokio::sync::Notify,
    /// The number of jobs in the queues, or `None` if it is unknown.
    backlog: watch::Sender<Option<QueueBacklog>>,
    /// The deliveries that the worker wants. Without any it has no consuming session.
    taking: watch::Sender<WantedDeliveries>,
    /// Whether new jobs are wanted.
    taking_new: watch::Sender<bool>,
    /// Canceled when no more deliveries are to be taken.
    stop: CancellationToken,
    /// Canceled when no delivery will come anymore.
    stopped: CancellationToken,
    /// Canceled when all connections are to end.
    closed: CancellationToken,
}

impl AmqpBroker {
    /// Connects in the background, forever, and declares the queues of `amqp.queue` and `levels`
    /// again in each session. Takes at most `window` unacked messages of each delay queue; `window`
    /// must not be 0. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError`] for errors that need no server to be found: the URL or the queue's name
    /// can't be used.
    pub fn start(
        amqp: &config::Amqp,
        levels: &DelayLevels,
        window: usize,
    ) -> Result<(Self, mpsc::Receiver<BrokerEvent>), BrokerError> {
        let shared = Arc::new(BrokerState {
            nodes: Nodes::new(amqp)?,
            topology: Topology::wanted(amqp, levels)?,
            prefetch: amqp.prefetch.max(1),
            shares: amqp.shares(),
            window: u16::try_from(window).unwrap_or(u16::MAX),
            acks: Acks::default(),
            consumer_timeout: amqp.consumer_timeout,
            risks: Mutex::default(),
            heal: tokio::sync::Notify::new(),
            backlog: watch::Sender::new(None),
            taking: watch::Sender::new(WantedDeliveries::All),
            taking_new: watch::Sender::new(true),
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
            closed: CancellationToken::new(),
        });
        let (events, receiver) = mpsc::channel(EVENT_CAPACITY);
        let (moves, of_moves) = Publisher::new();
        let (letters, of_letters) = Publisher::new();
        let (consuming, publishing) = (shared.clone(), shared.clone());
        let mut supervisors = vec![
            WatchedTask::spawn(async move {
                consume::supervise(consuming, events).await;
                NO_WORK_LEFT
            }),
            WatchedTask::spawn(async move {
                publish::supervise(publishing, [of_moves, of_letters]).await;
                NO_WORK_LEFT
            }),
        ];
        let [results, direct_results] = [RESULTS_NAME, DIRECT_RESULTS_NAME].map(|name| {
            let (publisher, requests) = Publisher::new();
            let shared = shared.clone();
            supervisors.push(WatchedTask::spawn(async move {
                external::supervise((name, &shared.nodes), &shared.closed, requests).await;
                NO_WORK_LEFT
            }));
            publisher
        });
        let broker = Self {
            moves,
            letters,
            results,
            direct_results,
            shared,
            supervisors,
        };
        Ok((broker, receiver))
    }

    /// Waits until a supervisor has ended without being asked to, or panicked, and returns the
    /// reason.
    pub async fn failed(&self) -> String {
        let ends = self.supervisors.iter().map(async |supervisor| {
            match supervisor.ended().await {
                // It was asked to end.
                Ok(_) if self.shared.stop.is_cancelled() => std::future::pending().await,
                Ok(why) | Err(why) => why,
            }
        });
        let ends = ends.map(Box::pin);
        futures_util::future::select_all(ends).await.0
    }

    /// Returns the number of jobs in the queues, updated at intervals, or `None` if it is unknown.
    pub fn backlog(&self) -> watch::Receiver<Option<QueueBacklog>> {
        self.shared.backlog.subscribe()
    }

    /// Returns true if no deliveries are wanted, so that no session reports RabbitMQ's return.
    pub fn is_resting(&self) -> bool {
        self.shared.is_resting()
    }

    /// Returns the queues' names.
    pub fn names(&self) -> &QueueNames {
        &self.shared.topology.names
    }
}

impl Broker for AmqpBroker {
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let is_letter = |it: &Publish| it.key == self.shared.topology.names.dead;
        publish_split(batch, is_letter, [&self.letters, &self.moves]).await
    }

    async fn publish_results(&self, batch: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        publish_split(
            batch,
            Publish::is_direct,
            [&self.direct_results, &self.results],
        )
        .await
    }

    async fn ack(&self, tags: Vec<Tag>) {
        self.shared.acks.ack(&tags);
    }

    async fn give_back(&self, tags: Vec<Tag>) {
        self.shared.acks.give_back(&tags);
    }

    async fn rest(&self) {
        self.shared.taking.send_replace(WantedDeliveries::Nothing);
    }

    async fn take(&self) {
        self.shared.taking.send_replace(WantedDeliveries::All);
    }

    async fn take_few(&self) {
        self.shared.taking.send_replace(WantedDeliveries::Few);
    }

    async fn take_new(&self, enabled: bool) {
        self.shared.taking_new.send_replace(enabled);
    }

    async fn stop_consuming(&self) {
        self.shared.stop.cancel();
        let stopped = self.shared.stopped.cancelled();
        if tokio::time::timeout(CLOSE_TIMEOUT, stopped).await.is_err() {
            tracing::warn!("consuming was not stopped within {CLOSE_TIMEOUT:?}");
        }
    }

    async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.closed.cancel();
        for supervisor in &self.supervisors {
            match tokio::time::timeout(CLOSE_TIMEOUT, supervisor.ended()).await {
                Ok(Ok(_)) => {}
                Ok(Err(why)) => tracing::error!(why, "a connection's task failed"),
                Err(_) => supervisor.abort(),
            }
        }
    }
}

/// Publishes messages for which `is_first` is true through the first of `publishers`, and at the
/// same time all others through the second. Returns the answers in the order of `batch`.
async fn publish_split(
    batch: Vec<impl Into<Publish>>,
    is_first: impl Fn(&Publish) -> bool,
    publishers: [&Publisher; 2],
) -> Vec<Answer> {
    let batch: Vec<Publish> = batch.into_iter().map(Into::into).collect();
    let sides: Vec<bool> = batch.iter().map(&is_first).collect();
    let (first, second) = batch.into_iter().partition(is_first);
    let [one, other] = publishers;
    let (first, second) = tokio::join!(one.publish(first), other.publish(second));
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let answers = sides.into_iter().map(|is_first| match is_first {
        true => first.next(),
        false => second.next(),
    });
    answers.flatten().collect()
}

impl BrokerState {
    fn is_resting(&self) -> bool {
        *self.taking.borrow() == WantedDeliveries::Nothing
    }

    /// Waits until the worker wants other deliveries than `these`, and returns which.
    async fn wants_other(&self, these: WantedDeliveries) -> WantedDeliveries {
        let mut taking = self.taking.subscribe();
        let other = taking.wait_for(|taking| *taking != these).await;
        // The sender lives as long as `self`.
        other.map_or(these, |other| *other)
    }
}

/// Ends the tasks and their connections, also without [`Broker::close`].
impl Drop for AmqpBroker {
    fn drop(&mut self) {
        self.shared.closed.cancel();
    }
}
