//! The publishing connection: its callers, its batches, and a task for each of its channels.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::confirm::{Answer, ConfirmChannel, Publishing, down};
use super::connection::Link;
use super::nodes::Turns;
use super::supervise::Attempts;
use super::{Shared, backlog};
use crate::broker::{BrokerError, Outgoing, PublishError, Reply};

/// Channels that publish, each with its own task.
pub(super) const CHANNELS: usize = 2;
/// Messages in one batch.
pub(super) const BATCH: usize = 256;
/// Bytes of bodies in one batch, give or take one message.
const BATCH_BYTES: usize = 4 << 20;
/// Messages that wait for a batch; more wait with their callers.
const WAITING: usize = 1024;
/// For all confirms of a batch.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);
/// For a caller: its message waits for a batch and for the confirms; see [`Patience`].
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(15);
/// Between a channel's error and the next one.
const CHANNEL_PAUSE: Duration = Duration::from_millis(200);
/// A channel whose messages are refused is renewed at most once in this time.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
/// The connection's name in logs and in the broker's tools.
const NAME: &str = "sluicegate publish";

/// The broker closed the channel because there is no such exchange.
fn is_not_found(error: &lapin::Error) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(refusal) if refusal.get_id() == 404)
}

/// A message that waits for its batch. A dropped `reply` reads as a lost connection.
#[derive(Debug)]
struct Request<M> {
    outgoing: M,
    reply: oneshot::Sender<Answer>,
}

/// The requests' end, kept over all sessions.
pub(super) struct Requests<M> {
    waiting: Mutex<mpsc::Receiver<Request<M>>>,
    /// The broker takes no publishes (a memory or disk alarm).
    blocked: watch::Sender<bool>,
}

/// Hands messages to the publishing tasks.
#[derive(Debug)]
pub(super) struct Publisher<M> {
    requests: mpsc::Sender<Request<M>>,
    blocked: watch::Receiver<bool>,
}

/// How long a caller waits. The time does not run while the broker blocks publishers: what was sent is with it, or will be, so
/// that a caller who gave up and tried again would publish it twice.
struct Patience {
    until: Instant,
    blocked: watch::Receiver<bool>,
}

impl Patience {
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

impl<M: Publishing> Publisher<M> {
    pub fn new() -> (Self, Arc<Requests<M>>) {
        let (requests, receiver) = mpsc::channel(WAITING);
        let (block, blocked) = watch::channel(false);
        let kept = Requests {
            waiting: Mutex::new(receiver),
            blocked: block,
        };
        (Self { requests, blocked }, Arc::new(kept))
    }

    pub async fn publish(&self, batch: Vec<M>) -> Vec<Answer> {
        let mut patience = Patience {
            until: Instant::now() + PUBLISH_TIMEOUT,
            blocked: self.blocked.clone(),
        };
        let mut replies = Vec::with_capacity(batch.len());
        for outgoing in batch {
            let (reply, answer) = oneshot::channel();
            // In both failures the request is dropped, and with it the reply: that is the answer.
            let sending = self.requests.send(Request { outgoing, reply });
            let _ = patience.wait(sending).await;
            replies.push(answer);
        }
        let mut answers = Vec::with_capacity(replies.len());
        for reply in replies {
            answers.push(match patience.wait(reply).await {
                Some(Ok(answer)) => answer,
                Some(Err(_)) => Err(down("it was lost or closed before the confirm")),
                None => Err(down("no confirm in time")),
            });
        }
        answers
    }
}

/// Keeps a session up until the broker is closed.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    requests: (Arc<Requests<Outgoing>>, Arc<Requests<Reply>>),
) {
    let (mut attempts, mut turns) = (Attempts::new(NAME), shared.nodes.turns());
    loop {
        let mut up = None;
        let ended = run(&shared, &mut turns, &mut up, &requests).await;
        requests.0.fail_waiting().await;
        requests.1.fail_waiting().await;
        let Err(error) = ended else { break };
        attempts.ended(up);
        // Else the consuming connection tells it.
        if shared.acks.is_up() {
            attempts.tell(&error);
        }
        if !attempts.pause(&shared.closed).await {
            break;
        }
    }
    requests.0.close().await;
    requests.1.close().await;
}

/// One session, `up` since then. `Ok`: it was closed as asked.
async fn run(
    shared: &Arc<Shared>,
    turns: &mut Turns<'_>,
    up: &mut Option<Instant>,
    (requests, results): &(Arc<Requests<Outgoing>>, Arc<Requests<Reply>>),
) -> Result<(), BrokerError> {
    let open = async {
        let link = Arc::new(turns.open(NAME).await?);
        let mut tasks = JoinSet::new();
        for _ in 0..CHANNELS {
            let channel = ConfirmChannel::open(&link).await?;
            tasks.spawn(publish(
                channel,
                link.clone(),
                Some(shared.clone()),
                requests.clone(),
            ));
        }
        // A result whose exchange does not exist closes its channel, which no job's move should share.
        let channel = ConfirmChannel::open(&link).await?;
        tasks.spawn(publish(channel, link.clone(), None, results.clone()));
        tasks.spawn(backlog::watch(shared.clone(), link.clone()));
        Ok::<_, BrokerError>((link, tasks))
    };
    let (link, mut tasks) = tokio::select! {
        () = shared.closed.cancelled() => return Ok(()),
        opened = open => opened?,
    };
    *up = Some(Instant::now());
    let result = tokio::select! {
        () = shared.closed.cancelled() => Ok(()),
        error = link.failure(NAME, |blocked| {
            requests.block(blocked);
            results.block(blocked);
        }) => Err(error),
        ended = tasks.join_next() => match ended {
            Some(Ok(error)) => Err(error),
            Some(Err(error)) => Err(link.target.failed(format!("a publishing task failed: {error}"))),
            None => Ok(()),
        },
    };
    requests.block(false);
    results.block(false);
    shared.backlog.send_replace(None);
    // In this order: the tasks own the channels.
    link.close().await;
    tasks.shutdown().await;
    result
}

/// Publishes batch after batch on one channel; ends with the connection. `shared` hears of queues of ours that are missing.
pub(super) async fn publish<M: Publishing>(
    mut channel: ConfirmChannel,
    link: Arc<Link>,
    shared: Option<Arc<Shared>>,
    requests: Arc<Requests<M>>,
) -> BrokerError {
    let mut renewed = Instant::now();
    while let Some(batch) = requests.next_batch().await {
        let (batch, replies): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|r| (r.outgoing, r.reply)).unzip();
        let mut replies = Some(replies);
        let mut answer = |answers: Vec<Answer>| {
            for (reply, answer) in replies.take().into_iter().flatten().zip(answers) {
                // The caller may have given up.
                let _ = reply.send(answer);
            }
        };
        let result = {
            let mut confirming = pin!(channel.publish(&batch));
            let mut blocked = false;
            loop {
                match timeout(CONFIRM_TIMEOUT, &mut confirming).await {
                    Ok(result) => break result,
                    // The batch stays in flight until the alarm ends: a new connection would be blocked, too.
                    Err(_) if link.blocked() => blocked = true,
                    // It has just ended.
                    Err(_) if std::mem::take(&mut blocked) => {}
                    Err(_) => {
                        let late = format!("no confirms within {CONFIRM_TIMEOUT:?}");
                        answer(vec![Err(down(&late)); batch.len()]);
                        return link.target.failed(late);
                    }
                }
            }
        };
        match result {
            Ok(answers) => {
                if let Some(shared) = shared.as_ref().filter(|_| M::TO_OUR_QUEUES)
                    && answers.contains(&Err(PublishError::Returned))
                {
                    shared.heal.notify_one();
                }
                let nacked = answers.contains(&Err(PublishError::Nacked));
                answer(answers);
                if nacked && renewed.elapsed() >= RENEW_PAUSE {
                    channel = match channel.renew(&link).await {
                        Ok(channel) => channel,
                        Err(error) => return error,
                    };
                    renewed = Instant::now();
                }
            }
            Err(error) => {
                let no_exchange = !M::TO_OUR_QUEUES && is_not_found(&error);
                let error = link.target.error(&error);
                let all = match no_exchange {
                    // All of a worker's results go to one exchange.
                    true => PublishError::Returned,
                    false => down(&error.to_string()),
                };
                answer(vec![Err(all); batch.len()]);
                tokio::time::sleep(CHANNEL_PAUSE).await;
                // A message that the broker refuses by closing the channel costs its batch, not the
                // connection.
                if !link.connected() {
                    return error;
                }
                if !no_exchange {
                    tracing::warn!(%error, "a publishing channel was closed; opening another");
                }
                channel = match ConfirmChannel::open(&link).await {
                    Ok(channel) => channel,
                    Err(error) => return error,
                };
            }
        }
    }
    link.target.failed("closed")
}

impl<M: Publishing> Requests<M> {
    /// What waits, at most a batch, at least one; `None`: closed. The tasks take turns.
    async fn next_batch(&self) -> Option<Vec<Request<M>>> {
        let mut receiver = self.waiting.lock().await;
        loop {
            let mut next = Some(receiver.recv().await?);
            let (mut batch, mut bytes) = (Vec::new(), 0);
            while let Some(request) = next {
                // A caller that gave up will publish again; its copy would only be a duplicate.
                if !request.reply.is_closed() {
                    bytes += request.outgoing.message().body.len();
                    batch.push(request);
                }
                let more = batch.len() < BATCH && bytes < BATCH_BYTES;
                next = more.then(|| receiver.try_recv().ok()).flatten();
            }
            if !batch.is_empty() {
                return Some(batch);
            }
        }
    }

    /// The broker takes no publishes, or takes them again.
    pub(super) fn block(&self, blocked: bool) {
        self.blocked.send_replace(blocked);
    }

    /// What waited when the session ended is answered by being dropped.
    pub(super) async fn fail_waiting(&self) {
        let mut receiver = self.waiting.lock().await;
        // At most what was there: callers may add more meanwhile, for the next session.
        for _ in 0..receiver.len() {
            drop(receiver.try_recv());
        }
    }

    pub(super) async fn close(&self) {
        let mut receiver = self.waiting.lock().await;
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}
