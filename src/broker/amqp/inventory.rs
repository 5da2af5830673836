//! Reports what a server has and lacks, for `check` and for a starting worker. Creates nothing
//! permanent.

use std::time::Duration;

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use lapin::options::QueueDeclareOptions;
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, ErrorKind};
use ulid::Ulid;

use super::connection::{AmqpLink, NodeTarget};
use super::existing;
use super::nodes::Nodes;
use crate::topology::{Queue, Topology};
use crate::{BrokerError, QueueDifference};
use rules::broker::existing_queue::QueueProperties;
use rules::delays::{DelayLevels, QueueNames};

/// The connection's name in RabbitMQ's tools.
const NAME: &str = "sluicegate check";
/// The connection's name in RabbitMQ's tools while a worker starts.
const START_CHECK_NAME: &str = "sluicegate start";
/// Pause between two checks of queues that another process may be declaring. In this time, a
/// publisher or worker declares at least one more.
const DECLARING: Duration = Duration::from_secs(1);
/// Timeout for the server's greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(3);

/// The result of [`inventory`], from a server that accepted the connection.
#[derive(Debug)]
pub struct Inventory {
    /// The URL of the server that answered, without its password.
    pub at: String,
    /// Errors of other nodes of the cluster.
    pub silent: Vec<BrokerError>,
    /// The server's version, such as `3.10.8`, or `None` if it did not report one.
    pub version: Option<String>,
    /// The queues' names.
    pub names: QueueNames,
    /// Every queue that the configuration wants, in the order of their declaration.
    pub queues: Vec<(String, QueueState)>,
    /// The server limit that keeps a worker from running, if any.
    pub limit: Option<BrokerError>,
}

/// The state of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueState {
    /// It exists with the right arguments.
    Ready {
        /// Number of ready messages.
        messages: u32,
    },
    /// It does not exist. `run` and `publish` create it.
    Missing,
    /// It exists with other arguments, so `run` can't use it.
    Differs(QueueDifference),
    /// It exists, and Sluicegate does not declare it (`amqp.declare: false`).
    Existing {
        /// Number of ready messages.
        messages: u32,
        /// Its properties, as far as RabbitMQ reports them.
        properties: QueueProperties,
    },
    /// Sluicegate does not declare it, and it does not exist or can't be used.
    Unusable(BrokerError),
}

/// Connects once and looks at every queue of `amqp.queue` and `levels`.
///
/// # Errors
/// [`BrokerError`] names the problem, the place and the remedy.
pub async fn inventory(
    amqp: &config::Amqp,
    levels: &DelayLevels,
) -> Result<Inventory, BrokerError> {
    let topology = Topology::wanted(amqp, levels)?;
    let (link, silent) = Nodes::new(amqp)?.survey(NAME).await?;
    let target = link.target.clone();
    let mut looks = QueueProbe::over(link, NAME).await?;
    let mut queues = Vec::with_capacity(topology.queues.len());
    for queue in &topology.queues {
        queues.push((
            queue.name.to_string(),
            probe_queue(&mut looks, queue).await?,
        ));
    }
    let missing = queues
        .iter()
        .filter(|(_, state)| *state == QueueState::Missing);
    let limit = looks.limit(&amqp.queue, missing.count()).await;
    looks.close().await;
    let greeting = tokio::time::timeout(GREETING_TIMEOUT, greeting(&target)).await;
    Ok(Inventory {
        at: target.at,
        silent,
        version: greeting.ok().flatten(),
        names: topology.names,
        queues,
        limit,
    })
}

/// Returns true if the queues are in use, so that jobs may have started lately. That is the case if
/// jobs wait in a delay queue or where delay queues dead-letter to, or if a worker consumes there.
/// It is also the case if delay queues are missing, because jobs may wait in the delay queues of a
/// different `max-delay`. Waits for delay queues that are being declared right now, in order.
///
/// # Errors
/// [`BrokerError`] if this can't be determined.
pub async fn in_use(amqp: &config::Amqp, levels: &DelayLevels) -> Result<bool, BrokerError> {
    let topology = Topology::wanted(amqp, levels)?;
    let link = Nodes::new(amqp)?.turns().open(START_CHECK_NAME).await?;
    let mut missing = None;
    let used = loop {
        match use_of(&link, &topology).await? {
            UseState::Idle => break false,
            UseState::Busy => break true,
            // Each look finds at least one more queue, so there are at most as many looks as delay
            // queues.
            UseState::Missing(at) if missing < Some(at) => missing = Some(at),
            UseState::Missing(_) => break true,
        }
        tokio::time::sleep(DECLARING).await;
    };
    link.close().await;
    Ok(used)
}

/// The result of one look at the queues.
enum UseState {
    Idle,
    Busy,
    /// Index of the first queue that does not exist.
    Missing(usize),
}

async fn use_of(link: &AmqpLink, topology: &Topology) -> Result<UseState, BrokerError> {
    let Topology { names, queues } = topology;
    let channel = link.channel().await?;
    for (at, queue) in queues.iter().enumerate() {
        // Messages in these queues were not started, or have ended.
        if queue.name == names.dead || names.is_new(&queue.name) {
            continue;
        }
        match depth(&link.target, &channel, &queue.name).await? {
            Some((messages, consumers)) => {
                if messages > 0 || (consumers > 0 && queue.name == names.due) {
                    return Ok(UseState::Busy);
                }
            }
            // This queue is checked first. It is declared before all delay queues, which
            // dead-letter to it, so without it no job has waited yet. Any other missing queue
            // leaves open where jobs wait. The channel is closed.
            None if queue.name == names.due => return Ok(UseState::Idle),
            None => return Ok(UseState::Missing(at)),
        }
    }
    Ok(UseState::Idle)
}

/// Checks many queues. A refusal closes the channel for good, so the connection is replaced before
/// its channels run out.
pub(super) struct QueueProbe {
    link: AmqpLink,
    name: &'static str,
    channel: Channel,
    closed: u16,
}

impl QueueProbe {
    /// Starts on `link`, a connection called `name`.
    pub(super) async fn over(link: AmqpLink, name: &'static str) -> Result<Self, BrokerError> {
        Ok(Self {
            channel: link.channel().await?,
            link,
            name,
            closed: 0,
        })
    }

    /// Returns the result of [`depth`], and opens a new channel if the check closed it.
    pub(super) async fn depth(&mut self, queue: &str) -> Result<Option<(u32, u32)>, BrokerError> {
        let found = depth(&self.link.target, &self.channel, queue).await?;
        if found.is_none() {
            self.was_refused().await?;
        }
        Ok(found)
    }

    /// Declares a queue, and opens a new channel if a refusal closed it.
    pub(super) async fn declare(
        &mut self,
        queue: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) -> Result<lapin::Result<lapin::Queue>, BrokerError> {
        let declaring = (self.channel).queue_declare(queue.into(), options, arguments);
        let answer = async { Ok(declaring.await) };
        let declared = self.link.target.rpc("queue.declare", answer).await?;
        if let Err(error) = &declared
            && BrokerError::reply_code(error).is_some()
        {
            self.was_refused().await?;
        }
        Ok(declared)
    }

    /// Returns the node, for errors.
    pub(super) fn target(&self) -> &NodeTarget {
        &self.link.target
    }

    async fn was_refused(&mut self) -> Result<(), BrokerError> {
        self.closed += 1;
        if self.closed >= self.link.channels() / 2 {
            self.link.close().await;
            self.link = AmqpLink::open(&self.link.target, self.name).await?;
            self.closed = 0;
        }
        self.channel = self.link.channel().await?;
        Ok(())
    }

    /// Returns the server limit that keeps a worker from having `missing` more queues, or `None`
    /// without such a limit. Finds out by declaring exclusive queues, which end with this
    /// connection. Also returns `None` if the user may not declare queues.
    async fn limit(&self, work: &str, missing: usize) -> Option<BrokerError> {
        let target = &self.link.target;
        let exclusive = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        // A user that may declare delay queues may declare these queues, too.
        let id = Ulid::new();
        for number in 0..missing {
            let name = ShortString::from(format!("{work}.delay.check-{id}-{number}"));
            let declaring = (self.channel).queue_declare(name, exclusive, FieldTable::default());
            match target.rpc("queue.declare", declaring).await {
                Ok(_) => {}
                Err(why @ BrokerError::Limit { .. }) => return Some(why),
                Err(_) => return None,
            }
        }
        None
    }

    /// Closes the connection.
    pub(super) async fn close(self) {
        self.link.close().await;
    }
}

/// Returns the number of messages and of consumers of a queue, or `None` if it does not exist. In
/// that case the channel is closed.
pub(super) async fn depth(
    target: &NodeTarget,
    channel: &Channel,
    queue: &str,
) -> Result<Option<(u32, u32)>, BrokerError> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    // The name fits: `Topology::new` has checked the longest one.
    let name = ShortString::from(queue);
    let asking = channel.queue_declare(name, passive, FieldTable::default());
    let found = target.rpc("queue.declare", not_found(asking)).await?;
    Ok(found.map(|found| (found.message_count(), found.consumer_count())))
}

async fn probe_queue(looks: &mut QueueProbe, queue: &Queue) -> Result<QueueState, BrokerError> {
    if queue.must_exist {
        return match existing::read(looks, queue).await {
            Ok((messages, properties)) => Ok(QueueState::Existing {
                messages,
                properties,
            }),
            Err(error) if error.is_misconfiguration() => Ok(QueueState::Unusable(error)),
            Err(error) => Err(error),
        };
    }
    let Some((messages, _)) = looks.depth(&queue.name).await? else {
        return Ok(QueueState::Missing);
    };
    // It exists, so declaring it compares the arguments and creates nothing.
    let declaring = queue.declare(&looks.channel);
    match looks.link.target.rpc("queue.declare", declaring).await {
        Ok(()) => Ok(QueueState::Ready { messages }),
        Err(BrokerError::QueueDiffers(differs)) => {
            looks.was_refused().await?;
            Ok(QueueState::Differs(differs))
        }
        Err(error) => Err(error),
    }
}

/// Returns the answer, or `None` for a 404.
pub(super) async fn not_found<T>(
    asking: impl Future<Output = lapin::Result<T>>,
) -> lapin::Result<Option<T>> {
    match asking.await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) => match error.kind() {
            ErrorKind::ProtocolError(refusal) if refusal.get_id() == 404 => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the version in the server's greeting, which `lapin` does not expose, or `None` if there
/// is none. The first frame of a connection is `connection.start` with a table of server
/// properties.
async fn greeting(target: &NodeTarget) -> Option<String> {
    const MAX_FRAME_BYTES: u32 = 16 << 10;
    let mut socket = target.stream().await.ok()?;
    socket.write_all(b"AMQP\x00\x00\x09\x01").await.ok()?;
    socket.flush().await.ok()?;
    // A frame's head: its type, its channel (2 bytes), its length (4 bytes).
    let mut head = [0; 7];
    socket.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]).min(MAX_FRAME_BYTES);
    let mut frame = vec![0; usize::try_from(length).ok()?];
    socket.read_exact(&mut frame).await.ok()?;
    version(&frame)
}

/// Returns the long string (`S`) at the key `version` of the table in `frame`.
fn version(frame: &[u8]) -> Option<String> {
    // A key is a length byte and a name.
    const KEY: &[u8] = b"\x07versionS";
    let at = frame.windows(KEY.len()).position(|bytes| bytes == KEY)?;
    let value = frame.get(at + KEY.len()..)?;
    let (length, value) = value.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let text = std::str::from_utf8(value.get(..length)?).ok()?;
    (text.len() <= 64 && !text.contains(char::is_control)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_greeting() {
        let table = b"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8";
        assert_eq!(version(table).as_deref(), Some("3.10.8"));
        for cut in 0..table.len() {
            assert_eq!(version(&table[..cut]), None, "{cut}");
        }
        assert_eq!(version(b"\x07versionS\xff\xff\xff\xff3"), None);
    }
}
