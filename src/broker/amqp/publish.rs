//! Publishes messages: takes them from callers, queues them, and keeps the connection over which
//! messages to the worker's own queues are published.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::attempts::Attempts;
use super::confirm_channel::{Answer, Publish, down};
use super::lane::{Lane, LaneEnd};
use super::nodes::NodeRotation;
use super::refused_targets::RefusedTargets;
use super::{BrokerState, backlog};
use crate::{BrokerError, PublishError};

/// Number of lanes to delay queues, each with its own channel. Dead letters have a lane of their
/// own, so that jobs can still move to delay queues if the dead-letter queue stops confirming.
pub(super) const CHANNELS: usize = 2;
/// Maximum number of messages in one batch.
pub(super) const MAX_BATCH: usize = 256;
/// Number of body bytes at which a batch is full. The last message may exceed it.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Maximum number of queued messages. Further messages wait with their callers.
const QUEUE_CAPACITY: usize = 1024;
/// How long a caller waits for its message to join a batch and be confirmed; see
/// [`CallerDeadline`].
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(15);
/// The connection's name in logs and in RabbitMQ's tools.
const NAME: &str = "sluicegate publish";

/// A queued message. If `answer` is dropped, the caller learns that the connection was lost.
#[derive(Debug)]
struct PublishRequest {
    outgoing: Publish,
    answer: oneshot::Sender<Answer>,
}

/// The receiving end of the queue of requests. It outlives sessions.
pub(super) struct PublishRequests {
    waiting: Mutex<mpsc::Receiver<PublishRequest>>,
    /// Requests of a batch over which RabbitMQ closed the channel, and those with an isolated
    /// message. Each is published alone.
    alone: std::sync::Mutex<VecDeque<PublishRequest>>,
    /// Notified when `alone` has more requests: another lane may hold `waiting` until a message
    /// comes.
    alone_added: Notify,
    refused: std::sync::Mutex<RefusedTargets>,
    /// The size of the smallest body over which RabbitMQ closed a channel. Such bodies are published
    /// alone: RabbitMQ may store the other messages of a batch and close the channel before it
    /// confirms them.
    refused_bytes: AtomicUsize,
    /// Notified when there may be something to publish.
    wanted: Arc<Notify>,
    /// Whether the broker accepts no publishes (a memory or disk alarm).
    blocked: watch::Sender<bool>,
}

/// Messages published together, each with its caller until the caller is answered.
pub(super) struct Batch {
    pub messages: Vec<Publish>,
    callers: Vec<Option<oneshot::Sender<Answer>>>,
}

impl Batch {
    fn of(requests: impl IntoIterator<Item = PublishRequest>) -> Self {
        let (messages, callers) = (requests.into_iter())
            .map(|request| (request.outgoing, Some(request.answer)))
            .unzip();
        Self { messages, callers }
    }

    /// Sends each answer to its caller, unless it was answered before. A caller whose answer is
    /// `None` keeps waiting.
    pub fn answer(&mut self, answers: Vec<Option<Answer>>) {
        for (caller, answer) in self.callers.iter_mut().zip(answers) {
            if let Some(answer) = answer
                && let Some(caller) = caller.take()
            {
                // The caller may have given up.
                let _ = caller.send(answer);
            }
        }
    }

    /// Sends `answer` to all callers that are not answered yet.
    pub fn answer_rest(&mut self, answer: &Answer) {
        let answers = vec![Some(answer.clone()); self.callers.len()];
        self.answer(answers);
    }
}

/// Hands messages to the publishing tasks.
#[derive(Debug)]
pub(super) struct Publisher {
    requests: mpsc::Sender<PublishRequest>,
    wanted: Arc<Notify>,
    blocked: watch::Receiver<bool>,
}

/// The deadline of a caller. Time in which RabbitMQ blocks publishers does not count: the messages
/// will still arrive, so a caller that gave up and tried again would publish them twice.
struct CallerDeadline {
    until: Instant,
    blocked: watch::Receiver<bool>,
}

impl CallerDeadline {
    async fn wait<T>(&mut self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = pin!(answer);
        loop {
            let blocked = *self.blocked.borrow_and_update();
            if blocked {
                self.until = Instant::now() + PUBLISH_TIMEOUT;
            }
            tokio::select! {
                biased;
                answer = &mut answer => return Some(answer),
                changed = self.blocked.changed() => if changed.is_err() { return None },
                () = sleep_until(self.until), if !blocked => return None,
            }
            if blocked {
                self.until = Instant::now() + PUBLISH_TIMEOUT;
            }
        }
    }
}

impl Publisher {
    pub fn new() -> (Self, Arc<PublishRequests>) {
        let (requests, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let (block, blocked) = watch::channel(false);
        let wanted = Arc::new(Notify::new());
        let queue = PublishRequests {
            waiting: Mutex::new(receiver),
            alone: std::sync::Mutex::default(),
            alone_added: Notify::new(),
            refused: std::sync::Mutex::default(),
            refused_bytes: AtomicUsize::new(usize::MAX),
            wanted: wanted.clone(),
            blocked: block,
        };
        let publisher = Self {
            requests,
            wanted,
            blocked,
        };
        (publisher, Arc::new(queue))
    }

    pub async fn publish(&self, batch: Vec<Publish>) -> Vec<Answer> {
        let mut deadline = CallerDeadline {
            until: Instant::now() + PUBLISH_TIMEOUT,
            blocked: self.blocked.clone(),
        };
        let mut receivers = Vec::with_capacity(batch.len());
        for outgoing in batch {
            let (answer, receiver) = oneshot::channel();
            // A send that fails or times out drops the request and its `answer`, so `receiver`
            // returns an error below.
            let sending = self.requests.send(PublishRequest { outgoing, answer });
            let _ = deadline.wait(sending).await;
            self.wanted.notify_one();
            receivers.push(receiver);
        }
        let mut answers = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            answers.push(match deadline.wait(receiver).await {
                Some(Ok(answer)) => answer,
                Some(Err(_)) => Err(down("it was lost or closed before the confirm")),
                None => Err(down("no confirm in time")),
            });
        }
        answers
    }
}

/// Keeps a session up until the broker is closed. `requests` are those for delay queues and other
/// queues of jobs, and those for dead letters.
pub(super) async fn supervise(shared: Arc<BrokerState>, requests: [Arc<PublishRequests>; 2]) {
    let (mut attempts, mut turns) = (Attempts::new(NAME), shared.nodes.turns());
    loop {
        let mut up = None;
        let ended = run(&shared, &mut turns, &mut up, &requests).await;
        for requests in &requests {
            requests.fail_waiting().await;
        }
        let Err(error) = ended else { break };
        attempts.ended(up);
        // If the consuming connection is down, too, it logs the error. A resting worker has none.
        if shared.acks.is_up() || shared.is_resting() {
            attempts.log(&error);
        }
        if !attempts.pause(&shared.closed).await {
            break;
        }
    }
    for requests in &requests {
        requests.close().await;
    }
}

/// Runs one session, and sets `up` once it is connected. Returns `Ok` if it was closed as
/// requested.
async fn run(
    shared: &Arc<BrokerState>,
    turns: &mut NodeRotation<'_>,
    up: &mut Option<Instant>,
    [moves, letters]: &[Arc<PublishRequests>; 2],
) -> Result<(), BrokerError> {
    let link = tokio::select! {
        () = shared.closed.cancelled() => return Ok(()),
        link = turns.open(NAME) => Arc::new(link?),
    };
    *up = Some(Instant::now());
    let mut tasks = JoinSet::new();
    let lanes = std::iter::repeat_n(moves, CHANNELS).chain([letters]);
    for requests in lanes {
        let lane = Lane {
            link: link.clone(),
            requests: requests.clone(),
            shared: Some(shared.clone()),
            is_alone: false,
        };
        tasks.spawn(lane.run());
    }
    let watching = backlog::watch(shared.clone(), link.clone());
    tasks.spawn(async { LaneEnd::Lost(watching.await) });
    let result = tokio::select! {
        () = shared.closed.cancelled() => Ok(()),
        error = link.failure(NAME, |blocked| {
            moves.block(blocked);
            letters.block(blocked);
        }) => Err(error),
        ended = tasks.join_next() => match ended {
            Some(Ok(LaneEnd::Lost(error) | LaneEnd::Blamed(error))) => Err(error),
            Some(Err(error)) => Err(link.target.failed(format!("a publishing task failed: {error}"))),
            None => Ok(()),
        },
    };
    moves.block(false);
    letters.block(false);
    shared.backlog.send_replace(None);
    // The link is closed first, because the tasks own the channels.
    link.close().await;
    tasks.shutdown().await;
    result
}

impl PublishRequests {
    fn alone(&self) -> MutexGuard<'_, VecDeque<PublishRequest>> {
        // A panic can't leave the collection half changed, because each change is one call.
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, RefusedTargets> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses messages to the target of `message` for a while, because RabbitMQ closed the
    /// connection over it for `reason`.
    pub(super) fn refuse(&self, message: &Publish, reason: &str) {
        self.refused().refuse(Instant::now(), &message.key, reason);
    }

    /// Publishes bodies of the size of `message`, and larger ones, alone from now on, because
    /// RabbitMQ closed a channel over it.
    pub(super) fn isolate(&self, message: &Publish) {
        self.refused_bytes
            .fetch_min(message.bytes(), Ordering::Relaxed);
    }

    fn is_isolated(&self, message: &Publish) -> bool {
        message.bytes() >= self.refused_bytes.load(Ordering::Relaxed)
    }

    /// Records that RabbitMQ closed no channel over `batch`: if it has an isolated message, its size
    /// is no longer at fault.
    pub(super) fn accepted(&self, batch: &Batch) {
        if batch.messages.iter().any(|it| self.is_isolated(it)) {
            self.refused_bytes.store(usize::MAX, Ordering::Relaxed);
        }
    }

    /// Returns `request` if it is to be published: its caller waits, and its target is not refused.
    /// A caller that gave up publishes again, so the old message would be a duplicate.
    fn wanted_request(&self, request: PublishRequest) -> Option<PublishRequest> {
        let key = Some(&*request.outgoing.key).filter(|_| request.outgoing.is_direct());
        let reason = key.and_then(|key| {
            let refused = self.refused();
            refused.reason(Instant::now(), key).map(str::to_owned)
        });
        match reason {
            Some(reason) => {
                // The caller may have given up.
                let _ = request.answer.send(Err(PublishError::Refused(reason)));
                None
            }
            None => (!request.answer.is_closed()).then_some(request),
        }
    }

    /// Queues each unanswered message of `batch` to be published alone.
    pub(super) fn publish_alone(&self, batch: Batch) {
        let all = batch.messages.into_iter().zip(batch.callers);
        let left = all.filter_map(|(outgoing, caller)| {
            Some(PublishRequest {
                outgoing,
                answer: caller?,
            })
        });
        self.alone().extend(left);
        self.alone_added.notify_one();
    }

    /// Waits until there is something to publish.
    pub(super) async fn wanted(&self) {
        while self.alone().is_empty() && self.waiting.lock().await.is_empty() {
            self.wanted.notified().await;
        }
    }

    /// Returns the next batch, which has at least one message, or `None` if the requests are
    /// closed. The publishing tasks take turns.
    pub(super) async fn next_batch(&self) -> Option<Batch> {
        let mut receiver = self.waiting.lock().await;
        loop {
            while let Some(request) = { self.alone().pop_front() } {
                if let Some(request) = self.wanted_request(request) {
                    return Some(Batch::of([request]));
                }
            }
            let mut next = tokio::select! {
                biased;
                () = self.alone_added.notified() => continue,
                request = receiver.recv() => Some(request?),
            };
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while let Some(request) = next {
                if let Some(request) = self.wanted_request(request) {
                    if self.is_isolated(&request.outgoing) {
                        self.alone().push_back(request);
                        break;
                    }
                    bytes += request.outgoing.bytes();
                    batch.push(request);
                }
                let more = batch.len() < MAX_BATCH && bytes < MAX_BATCH_BYTES;
                next = more.then(|| receiver.try_recv().ok()).flatten();
            }
            if !batch.is_empty() {
                return Some(Batch::of(batch));
            }
        }
    }

    /// Sets whether the broker blocks publishers.
    pub(super) fn block(&self, blocked: bool) {
        self.blocked.send_replace(blocked);
    }

    /// Drops the queued requests after a session has ended, so that their callers get an error.
    pub(super) async fn fail_waiting(&self) {
        self.alone().clear();
        let mut receiver = self.waiting.lock().await;
        // Only as many as were queued at the start: callers may add more for the next session.
        for _ in 0..receiver.len() {
            drop(receiver.try_recv());
        }
    }

    pub(super) async fn close(&self) {
        self.alone().clear();
        let mut receiver = self.waiting.lock().await;
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Outgoing};

    fn outgoing(body: &'static str) -> Publish {
        let message = Message {
            body: body.into(),
            ..Message::default()
        };
        let queue = "jobs.delay".into();
        Outgoing { queue, message }.into()
    }

    /// RabbitMQ closed the channel of one lane while the other waited for a message.
    #[tokio::test(start_paused = true)]
    async fn requests_that_are_published_alone_wait_for_no_other_message() {
        let (publisher, requests) = Publisher::new();
        let caller = tokio::spawn(async move { publisher.publish(vec![outgoing(""); 2]).await });
        tokio::task::yield_now().await;
        let batch = requests.next_batch().await.expect("a batch");
        assert_eq!(batch.messages.len(), 2);
        let publishing = {
            let requests = Arc::clone(&requests);
            tokio::spawn(async move {
                while let Some(mut batch) = requests.next_batch().await {
                    batch.answer_rest(&Ok(()));
                }
            })
        };
        tokio::task::yield_now().await;
        requests.publish_alone(batch);
        let answers = caller.await.expect("no panic");
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        publishing.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_a_refused_size_is_published_alone_until_one_is_accepted() {
        let (publisher, requests) = Publisher::new();
        let all = ["a", "b", "long", "longer", "c"].map(outgoing);
        for (refused, batches) in [(true, vec![2, 1, 2]), (false, vec![5])] {
            if refused {
                requests.isolate(&outgoing("long"));
            }
            let publishing = publisher.publish(all.to_vec());
            let taking = async {
                let mut sizes = Vec::new();
                while sizes.iter().sum::<usize>() < all.len() {
                    let mut batch = requests.next_batch().await.expect("a batch");
                    sizes.push(batch.messages.len());
                    batch.answer_rest(&Ok(()));
                    requests.accepted(&batch);
                }
                sizes
            };
            let (_, sizes) = tokio::join!(publishing, taking);
            assert_eq!(sizes, batches);
        }
    }
}
