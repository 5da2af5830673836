//! Queues that Sluicegate does not declare (`amqp.declare: false`): reads their properties, and
//! refuses or reports properties that endanger jobs.
//!
//! AMQP has no request for a queue's arguments. But RabbitMQ refuses to declare an existing queue
//! with other arguments, and names the first difference. So the queue is declared repeatedly, each
//! time with the argument that the last refusal named, until RabbitMQ accepts.

use std::sync::PoisonError;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use super::BrokerState;
use super::connection::AmqpLink;
use super::inventory::QueueProbe;
use crate::topology::Queue;
use crate::{BrokerError, QueueDifference};
use rules::broker::existing_queue::{EffectOnJobs, QueueProperties};

/// The connection's name in RabbitMQ's tools.
const NAME: &str = "sluicegate start";
/// Maximum number of declarations of one queue. RabbitMQ knows about 25 arguments.
const MAX_DECLARATIONS: usize = 32;

/// Refuses queues that are unfit for jobs, and logs what endangers jobs in the others.
pub(super) async fn check(shared: &BrokerState, link: &AmqpLink) -> Result<(), BrokerError> {
    let mut queues = shared.topology.queues.iter();
    if !queues.any(|queue| queue.must_exist) {
        return Ok(());
    }
    let mut probe = QueueProbe::over(AmqpLink::open(&link.target, NAME).await?, NAME).await?;
    let found = effects(shared, &mut probe).await;
    probe.close().await;
    let (mut risks, mut lines) = (Vec::new(), Vec::new());
    for (queue, effect) in found? {
        match effect {
            EffectOnJobs::None(_) => {}
            EffectOnJobs::Risk(text) => {
                lines.push(format!("{queue}: {text}"));
                risks.push((queue, text));
            }
            EffectOnJobs::Unfit(reason) => {
                return Err(BrokerError::QueueUnusable { queue, reason });
            }
        }
    }
    let mut logged = shared.risks.lock().unwrap_or_else(PoisonError::into_inner);
    // Each session finds the same.
    if *logged != lines {
        for (queue, risk) in risks {
            tracing::warn!(%queue, %risk, "a queue that Sluicegate does not declare endangers jobs");
        }
        *logged = lines;
    }
    Ok(())
}

/// Returns the effects of the properties of each queue, with its name.
async fn effects(
    shared: &BrokerState,
    probe: &mut QueueProbe,
) -> Result<Vec<(String, EffectOnJobs)>, BrokerError> {
    let mut all = Vec::new();
    for queue in (shared.topology.queues.iter()).filter(|queue| queue.must_exist) {
        let (_, properties) = read(probe, queue).await?;
        let effects = properties.effects(shared.consumer_timeout);
        all.extend((effects.into_iter()).map(|effect| (queue.name.to_string(), effect)));
    }
    Ok(all)
}

/// Returns the number of ready messages and the properties of an existing queue. Changes nothing,
/// unless the queue is deleted in this moment.
pub(super) async fn read(
    probe: &mut QueueProbe,
    queue: &Queue,
) -> Result<(u32, QueueProperties), BrokerError> {
    let passive = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let found = probe.declare(&queue.name, passive, FieldTable::default());
    let messages = match found.await? {
        Ok(found) => found.message_count(),
        Err(error) => return Err(queue.error(&probe.target().at, &error)),
    };
    let mut properties = QueueProperties::default();
    for _ in 0..MAX_DECLARATIONS {
        let options = QueueDeclareOptions {
            durable: properties.durable,
            auto_delete: properties.auto_delete,
            ..QueueDeclareOptions::default()
        };
        let declared = probe.declare(&queue.name, options, table(&properties));
        let Err(error) = declared.await? else {
            return Ok((messages, properties));
        };
        match queue.error(&probe.target().at, &error) {
            BrokerError::QueueDiffers(QueueDifference {
                argument, found, ..
            }) => {
                if !properties.learn(&argument, &found) {
                    properties.unread = Some(format!("RabbitMQ says {argument} = {found}"));
                    break;
                }
            }
            BrokerError::Forbidden { .. } => {
                let why = "RabbitMQ shows them only to a user with configure permission";
                properties.unread = Some(why.to_owned());
                break;
            }
            error => return Err(error),
        }
    }
    Ok((messages, properties))
}

/// Returns the arguments with the types that RabbitMQ requires.
fn table(properties: &QueueProperties) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in &properties.arguments {
        let is_text = name.starts_with("x-dead-letter-");
        let value = match (name.as_str(), value.parse()) {
            ("x-single-active-consumer", _) => AMQPValue::Boolean(value == "true"),
            (_, Ok(number)) if !is_text => AMQPValue::LongLongInt(number),
            _ => AMQPValue::LongString(value.as_str().into()),
        };
        table.insert(name.as_str().into(), value);
    }
    table
}
