//! The publishing connection: batches with a barrier, confirms, and what came back.
//!
//! `lapin` 4.12.3 attributes returned messages to the wrong publish when confirms come in bulk, and swaps
//! confirms when several tasks publish on one channel. So each channel has one task, a batch waits for
//! all of its confirms, and a returned message is recognised by its queue and its id, not by the
//! confirm that it came with.

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Confirmation, PublisherConfirm};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::client::REPLY_TO;
use super::connection::Link;
use super::nodes::Turns;
use super::supervise::Attempts;
use crate::broker::{BrokerError, Message, Outgoing, PublishError, Reply};

/// Channels that publish, each with its own task.
const CHANNELS: usize = 2;
/// Messages in one batch.
const BATCH: usize = 256;
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

pub(super) type Answer = Result<(), PublishError>;

/// What is published.
pub(super) trait Publishing: core::marker::Send + Sync + 'static {
    /// What is returned shows that a queue of ours is missing.
    const TO_OUR_QUEUES: bool;

    fn exchange(&self) -> &str;
    fn key(&self) -> &str;
    fn message(&self) -> &Message;
    fn is_mandatory(&self) -> bool;
}

impl Publishing for Outgoing {
    const TO_OUR_QUEUES: bool = true;

    fn exchange(&self) -> &str {
        ""
    }
    fn key(&self) -> &str {
        &self.queue
    }
    fn message(&self) -> &Message {
        &self.message
    }
    fn is_mandatory(&self) -> bool {
        true
    }
}

impl Publishing for Reply {
    const TO_OUR_QUEUES: bool = false;

    fn exchange(&self) -> &str {
        &self.exchange
    }
    fn key(&self) -> &str {
        &self.routing_key
    }
    fn message(&self) -> &Message {
        &self.message
    }
    fn is_mandatory(&self) -> bool {
        self.is_mandatory()
    }
}

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

fn down(reason: &str) -> PublishError {
    PublishError::Down(reason.to_owned())
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
                shared.clone(),
                requests.clone(),
            ));
        }
        // A result whose exchange does not exist closes its channel, which no job's move should share.
        let channel = ConfirmChannel::open(&link).await?;
        tasks.spawn(publish(
            channel,
            link.clone(),
            shared.clone(),
            results.clone(),
        ));
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
            requests.blocked.send_replace(blocked);
            results.blocked.send_replace(blocked);
        }) => Err(error),
        ended = tasks.join_next() => match ended {
            Some(Ok(error)) => Err(error),
            Some(Err(error)) => Err(link.target.failed(format!("a publishing task failed: {error}"))),
            None => Ok(()),
        },
    };
    requests.blocked.send_replace(false);
    results.blocked.send_replace(false);
    // In this order: the tasks own the channels.
    link.close().await;
    tasks.shutdown().await;
    result
}

/// Publishes batch after batch on one channel; ends with the connection.
async fn publish<M: Publishing>(
    mut channel: ConfirmChannel,
    link: Arc<Link>,
    shared: Arc<Shared>,
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
                if M::TO_OUR_QUEUES && answers.contains(&Err(PublishError::Returned)) {
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

    /// What waited when the session ended is answered by being dropped.
    async fn fail_waiting(&self) {
        let mut receiver = self.waiting.lock().await;
        // At most what was there: callers may add more meanwhile, for the next session.
        for _ in 0..receiver.len() {
            drop(receiver.try_recv());
        }
    }

    async fn close(&self) {
        let mut receiver = self.waiting.lock().await;
        receiver.close();
        while receiver.try_recv().is_ok() {}
    }
}

/// A channel in confirm mode. `&mut` keeps it to one batch at a time.
pub(super) struct ConfirmChannel(Channel);

impl ConfirmChannel {
    pub async fn open(link: &Link) -> Result<Self, BrokerError> {
        let channel = link.channel().await?;
        let selecting = channel.confirm_select(ConfirmSelectOptions::default());
        link.target.rpc("confirm.select", selecting).await?;
        Ok(Self(channel))
    }

    /// What is sent back to this channel's direct reply-to.
    pub async fn replies(&self) -> lapin::Result<lapin::Consumer> {
        let options = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let (queue, tag) = (REPLY_TO.into(), "replies".into());
        let arguments = FieldTable::default();
        self.0.basic_consume(queue, tag, options, arguments).await
    }

    /// Another channel in its place, since it is with the channel that RabbitMQ remembers where a queue's leader is: one
    /// that first published to a quorum queue whose leader had just died gets a nack for each message until that node
    /// is back, though the queue has another leader (seen on 3.10.8; rabbitmq-server#9241).
    async fn renew(self, link: &Link) -> Result<Self, BrokerError> {
        let closing = self.0.close(200, "renewed".into());
        link.target.rpc("channel.close", closing).await?;
        Self::open(link).await
    }

    /// Publishes `batch` and waits for all of its confirms; the caller bounds the time. On an error the
    /// channel is gone, and nothing is known of any message of the batch.
    pub async fn publish<M: Publishing>(&mut self, batch: &[M]) -> lapin::Result<Vec<Answer>> {
        let sends: Vec<_> = batch.iter().map(|outgoing| self.send(outgoing)).collect();
        let mut answers = Vec::with_capacity(batch.len());
        let mut confirms = Vec::with_capacity(batch.len());
        for send in sends {
            match send {
                Some(send) => confirms.push(Some(send.written().await?)),
                None => confirms.push(None),
            }
        }
        let mut returned = HashSet::new();
        for confirm in confirms {
            let Some(confirm) = confirm else {
                answers.push(Err(PublishError::Returned));
                continue;
            };
            let confirm = confirm.await?;
            answers.push(match &confirm {
                Confirmation::Ack(_) => Ok(()),
                Confirmation::Nack(_) => Err(PublishError::Nacked),
                // The channel is in confirm mode, so this is no confirm.
                Confirmation::NotRequested => Err(down("the channel does not confirm")),
            });
            if let Some(message) = confirm.take_message() {
                let id = message.properties.message_id().clone();
                returned.insert((message.delivery.routing_key, id));
            }
        }
        if !returned.is_empty() {
            for (outgoing, answer) in batch.iter().zip(&mut answers) {
                let id = outgoing.message().properties.message_id().clone();
                if short(outgoing.key()).is_some_and(|key| returned.contains(&(key, id))) {
                    *answer = Err(PublishError::Returned);
                }
            }
        }
        Ok(answers)
    }

    /// Hands a message to the connection at once, so that messages go out in the order of the calls.
    /// `None`: no queue and no exchange can have this name.
    fn send<'a, M: Publishing>(&'a self, outgoing: &'a M) -> Option<Send<'a>> {
        let (exchange, key) = (short(outgoing.exchange())?, short(outgoing.key())?);
        let options = BasicPublishOptions {
            mandatory: outgoing.is_mandatory(),
            immediate: false,
        };
        let message = outgoing.message();
        let properties = message.properties.clone().with_delivery_mode(2);
        let mut sending =
            Box::pin(
                self.0
                    .basic_publish(exchange, key, options, &message.body, properties),
            );
        // The first poll queues the frames; who waits for them to be written polls again.
        Some(
            match sending
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
            {
                Poll::Ready(result) => Send::Written(result),
                Poll::Pending => Send::Queued(sending),
            },
        )
    }
}

/// A message on its way to the socket.
enum Send<'a> {
    Queued(
        Pin<Box<dyn Future<Output = lapin::Result<PublisherConfirm>> + core::marker::Send + 'a>>,
    ),
    Written(lapin::Result<PublisherConfirm>),
}

impl Send<'_> {
    async fn written(self) -> lapin::Result<PublisherConfirm> {
        match self {
            Self::Queued(sending) => sending.await,
            Self::Written(result) => result,
        }
    }
}

fn short(name: &str) -> Option<ShortString> {
    ShortString::try_new(name).ok()
}
