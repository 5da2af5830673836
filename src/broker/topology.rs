//! All queues with their arguments, as data, and their declaration.
//!
//! All messages, including dead letters, go through the default exchange. A queue's name is its
//! address, so nothing can be bound wrongly, and no dead-letter exchange can be missing (the broker
//! would drop messages that it can't route there).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::BrokerError;
use crate::message::amqp_value;
use config::{Amqp, QueueType};
use rules::broker::existing_queue::DELIVERY_LIMIT;
use rules::delays::{DelayLevels, MAX_WORK_QUEUE_BYTES, QueueNames};
use rules::headers::HeaderValue;

/// Timeout for the declaration of all queues. The first time takes about a second on an idle
/// server.
const DECLARE_TIMEOUT: Duration = Duration::from_secs(60);

/// A queue: durable, not exclusive, and not deleted automatically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: Arc<str>,
    /// All of its arguments.
    pub arguments: Vec<(&'static str, HeaderValue)>,
    /// Whether it must exist, with any arguments (`amqp.declare: false`).
    pub must_exist: bool,
}

/// All queues of one work queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Their names.
    pub names: QueueNames,
    /// The queues in the order of their declaration: a queue is declared before those that route to
    /// it.
    pub queues: Vec<Queue>,
}

impl Topology {
    /// Returns the queues for the work queue `work` and the delay queues of `levels`. Delay queues
    /// are quorum queues whatever `queue_type` is, because every other type loses confirmed
    /// messages when the broker is killed.
    ///
    /// # Errors
    /// [`BrokerError::QueueName`] if `work` is empty or too long.
    pub fn new(
        work: &str,
        queue_type: QueueType,
        levels: &DelayLevels,
    ) -> Result<Self, BrokerError> {
        if work.is_empty() || work.len() > MAX_WORK_QUEUE_BYTES {
            return Err(BrokerError::QueueName(work.len()));
        }
        Ok(Self::of(QueueNames::new(work, levels), queue_type))
    }

    /// Returns the queues for `amqp` and the delay queues of `levels`.
    ///
    /// # Errors
    /// The same as [`Topology::new`], for each queue of new jobs.
    pub fn wanted(amqp: &Amqp, levels: &DelayLevels) -> Result<Self, BrokerError> {
        let all = std::iter::once(&amqp.queue).chain(amqp.queues.keys());
        let mut wrong = all.filter(|name| name.is_empty() || name.len() > MAX_WORK_QUEUE_BYTES);
        match wrong.next() {
            Some(name) => Err(BrokerError::QueueName(name.len())),
            None => {
                let mut topology = Self::of(amqp.names(levels), amqp.queue_type);
                let Self { names, queues } = &mut topology;
                let of_jobs = queues.iter_mut().filter(|queue| names.is_new(&queue.name));
                for queue in of_jobs.filter(|_| !amqp.declare) {
                    queue.must_exist = true;
                    queue.arguments.clear();
                }
                Ok(topology)
            }
        }
    }

    /// Returns the queues with these names.
    fn of(names: QueueNames, queue_type: QueueType) -> Self {
        let mut queues = vec![Queue::reliable(&names.dead, queue_type)];
        for name in [&names.fresh, &names.due, &names.recheck] {
            let mut queue = Queue::reliable(name, queue_type);
            queue
                .arguments
                .extend(dead_letters_to(&names.dead, queue_type));
            queues.push(queue);
        }
        for name in names.delays() {
            let mut delay_queue = Queue::reliable(name, QueueType::Quorum);
            // A delay queue itself drops and dead-letters nothing. Jobs that a policy makes it drop
            // go to a queue that workers consume.
            (delay_queue.arguments).extend(dead_letters_to(&names.due, QueueType::Quorum));
            // By default, the node that declares the queues would lead all of them.
            (delay_queue.arguments).push(("x-queue-leader-locator", text("balanced")));
            queues.push(delay_queue);
        }
        // Nothing is routed to these except direct publishes.
        for name in names.more() {
            let mut queue = Queue::reliable(name, queue_type);
            (queue.arguments).extend(dead_letters_to(&names.dead, queue_type));
            queues.push(queue);
        }
        Self { names, queues }
    }

    /// Declares all queues on `channel`, pipelined, except those that must exist. On an error the
    /// channel is closed.
    ///
    /// # Errors
    /// [`BrokerError`] if a queue exists with other arguments, or does not exist although it must,
    /// if the user may not declare, or if the connection failed. The error names `at`, the redacted
    /// URL.
    pub(crate) async fn declare(&self, channel: &Channel, at: &str) -> Result<(), BrokerError> {
        // `join_all` polls the futures in order, and the first poll sends the frame.
        let declared = join_all(self.queues.iter().map(|queue| queue.declare(channel)));
        let results = tokio::time::timeout(DECLARE_TIMEOUT, declared)
            .await
            .map_err(|_| BrokerError::Failed {
                at: at.to_owned(),
                reason: format!("the queues were not declared within {DECLARE_TIMEOUT:?}"),
            })?;
        // RabbitMQ refuses the first queue that is wrong, and with it all later ones.
        let mut refused = self.queues.iter().zip(results);
        let refused = refused.find_map(|(queue, result)| Some((queue, result.err()?)));
        refused.map_or(Ok(()), |(queue, error)| Err(queue.error(at, &error)))
    }
}

impl Queue {
    /// Returns a queue that keeps its messages however often they are delivered.
    pub(crate) fn reliable(name: &Arc<str>, queue_type: QueueType) -> Self {
        let arguments = match queue_type {
            QueueType::Quorum => vec![
                ("x-queue-type", text("quorum")),
                ("x-delivery-limit", HeaderValue::Int(DELIVERY_LIMIT)),
            ],
            // Classic queues have no delivery limit.
            QueueType::Classic => vec![("x-queue-type", text("classic"))],
        };
        Self {
            name: name.clone(),
            arguments,
            must_exist: false,
        }
    }

    /// Declares the queue: creates it, or compares the arguments of the existing one. If it must
    /// exist, only checks that it does.
    pub(crate) async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        let arguments: BTreeMap<ShortString, AMQPValue> = self
            .arguments
            .iter()
            .map(|(name, value)| ((*name).into(), amqp_value(value.clone())))
            .collect();
        let options = QueueDeclareOptions {
            durable: true,
            passive: self.must_exist,
            ..QueueDeclareOptions::default()
        };
        // The name fits: `Topology::new` has checked the longest one.
        let name = ShortString::from(&*self.name);
        channel
            .queue_declare(name, options, FieldTable::from(arguments))
            .await?;
        Ok(())
    }

    /// Converts an error of the server at `at` (a redacted URL) about this queue.
    pub(crate) fn error(&self, at: &str, error: &lapin::Error) -> BrokerError {
        let (at, queue) = (at.to_owned(), self.name.to_string());
        match BrokerError::reply_code(error) {
            Some(404) if self.must_exist => BrokerError::QueueMissing { at, queue },
            Some(405) if self.must_exist => BrokerError::QueueUnusable {
                queue,
                reason: "it is exclusive to another connection, which deletes it at its end"
                    .to_owned(),
            },
            _ => BrokerError::from_lapin(&at, error),
        }
    }
}

/// Returns the arguments that dead-letter to `target`. A quorum queue keeps dead letters until the
/// target has confirmed them. This needs `reject-publish`; without it the broker silently falls
/// back to losing them in a crash.
fn dead_letters_to(target: &str, from: QueueType) -> Vec<(&'static str, HeaderValue)> {
    let mut arguments = vec![
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(target)),
    ];
    if from == QueueType::Quorum {
        arguments.push(("x-dead-letter-strategy", text("at-least-once")));
        arguments.push(("x-overflow", text("reject-publish")));
    }
    arguments
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::Text(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(queue_type: QueueType) -> Topology {
        Topology::new(
            "jobs",
            queue_type,
            &DelayLevels::new(Duration::from_secs(300)),
        )
        .expect("the name is fine")
    }

    fn arguments(topology: &Topology, name: &str) -> Vec<String> {
        let queue = topology.queues.iter().find(|queue| &*queue.name == name);
        let mut lines: Vec<String> = queue
            .unwrap_or_else(|| panic!("{name} is not declared"))
            .arguments
            .iter()
            .map(|(name, value)| match value {
                HeaderValue::Text(text) => format!("{name}={text}"),
                HeaderValue::Int(n) => format!("{name}={n}"),
            })
            .collect();
        lines.sort();
        lines
    }

    #[test]
    fn quorum_queues_lose_nothing() {
        let topology = topology(QueueType::Quorum);
        assert_eq!(topology.queues.len(), 4 + 35);
        for name in ["jobs", "jobs.due", "jobs.recheck"] {
            assert_eq!(
                arguments(&topology, name),
                [
                    "x-dead-letter-exchange=",
                    "x-dead-letter-routing-key=jobs.dead",
                    "x-dead-letter-strategy=at-least-once",
                    "x-delivery-limit=1000000",
                    "x-overflow=reject-publish",
                    "x-queue-type=quorum"
                ]
            );
        }
        assert_eq!(
            arguments(&topology, "jobs.dead"),
            ["x-delivery-limit=1000000", "x-queue-type=quorum"]
        );
    }

    #[test]
    fn delay_queues_are_quorum_queues_beside_classic_work_queues() {
        let topology = topology(QueueType::Classic);
        assert_eq!(
            arguments(&topology, "jobs.due"),
            [
                "x-dead-letter-exchange=",
                "x-dead-letter-routing-key=jobs.dead",
                "x-queue-type=classic"
            ]
        );
        for delay_queue in ["jobs.delay.from-0", "jobs.delay.from-512000"] {
            assert_eq!(
                arguments(&topology, delay_queue),
                [
                    "x-dead-letter-exchange=",
                    "x-dead-letter-routing-key=jobs.due",
                    "x-dead-letter-strategy=at-least-once",
                    "x-delivery-limit=1000000",
                    "x-overflow=reject-publish",
                    "x-queue-leader-locator=balanced",
                    "x-queue-type=quorum",
                ]
            );
        }
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let levels = DelayLevels::new(Duration::from_secs(300));
        for name in ["", &"q".repeat(MAX_WORK_QUEUE_BYTES + 1)] {
            let made = Topology::new(name, QueueType::Quorum, &levels);
            assert_eq!(made, Err(BrokerError::QueueName(name.len())));
        }
    }
}
