//! A worker's connection to the broker: delayed, cut, and losing confirms.

use std::sync::Arc;
use std::time::Duration;

use broker::memory::{MemoryBroker, PublishFault};
use broker::{
    Broker, BrokerEvent, Delivery, DeliverySource, ExternalMessage, Outgoing, PublishError, Tag,
};
use rules::headers;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::world::{Life, World};
use super::{mixed, results, scopes, starts};

/// Time to wait for a confirm, as in the real client. A later confirm counts as lost.
const CONFIRM: Duration = Duration::from_secs(10);

pub struct SimBroker(pub Arc<Life>);

impl SimBroker {
    fn slow(&self, what: &str) -> Duration {
        let Self(life) = self;
        let max = if life.world.below(4) == 0 {
            15_000
        } else {
            100
        };
        let duration = life.world.up_to(max);
        life.world
            .fault(format_args!("{}: {what} takes {duration:?}", life.name));
        duration
    }
}

impl SimBroker {
    /// Sends a request with a delay in each direction, which may exceed the client's patience.
    async fn send<M, F>(
        &self,
        batch: Vec<M>,
        what: &str,
        send: impl FnOnce(MemoryBroker, Vec<M>) -> F + Send + 'static,
    ) -> Vec<Result<(), PublishError>>
    where
        M: Send + 'static,
        F: Future<Output = Vec<Result<(), PublishError>>> + Send,
    {
        let Self(life) = self;
        let world = Arc::clone(&life.world);
        let count = batch.len();
        life.point(&format!("{what}, before")).await;
        let slow = |rate| {
            if rate {
                self.slow("a publish")
            } else {
                Duration::ZERO
            }
        };
        let (way, back) = (
            slow(world.dice(|t| t.publish_slow)),
            slow(world.dice(|t| t.publish_slow)),
        );
        let (sender, confirms) = oneshot::channel();
        let broker = life.broker.clone();
        world.history().sent += 1;
        tokio::spawn(async move {
            sleep(way).await;
            let results = send(broker, batch).await;
            world.history().sent -= 1;
            sleep(back).await;
            // The receiver may be gone.
            let _ = sender.send(results);
        });
        let results = timeout(CONFIRM, confirms).await;
        life.point(&format!("{what}, after")).await;
        match results {
            Ok(Ok(results)) => results,
            _ => vec![Err(PublishError::Down("no confirm in time".to_owned())); count],
        }
    }
}

impl Broker for SimBroker {
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Result<(), PublishError>> {
        let Self(life) = self;
        let world = Arc::clone(&life.world);
        let name = life.name.clone();
        for outgoing in &batch {
            look_at(&world, outgoing);
        }
        self.send(
            batch,
            "publish",
            move |broker, batch: Vec<Outgoing>| async move {
                let results = broker.publish(batch.clone()).await;
                for (outgoing, result) in batch.iter().zip(&results) {
                    let (id, queue) = (outgoing.message.id().unwrap_or_default(), &outgoing.queue);
                    world.note(format_args!("{name} sends {id} to {queue}: {result:?}"));
                }
                results
            },
        )
        .await
    }

    async fn publish_results(&self, batch: Vec<ExternalMessage>) -> Vec<Result<(), PublishError>> {
        let Self(life) = self;
        let world = Arc::clone(&life.world);
        let name = life.name.clone();
        for result in &batch {
            results::look_at(&world, result);
        }
        self.send(
            batch,
            "publish_results",
            move |broker, batch: Vec<ExternalMessage>| async move {
                let answers = broker.publish_results(batch.clone()).await;
                for (result, answer) in batch.iter().zip(&answers) {
                    let id = result.message.id().unwrap_or_default();
                    world.note(format_args!("{name} tells of {id}: {answer:?}"));
                }
                answers
            },
        )
        .await
    }

    async fn ack(&self, tags: Vec<Tag>) {
        let Self(life) = self;
        life.point("ack, before").await;
        let (broker, world) = (life.broker.clone(), Arc::clone(&life.world));
        let name = life.name.clone();
        if world.dice(|t| t.ack_slow) {
            let way = self.slow("an ack");
            tokio::spawn(async move {
                sleep(way).await;
                world.note(format_args!("{name} acks {tags:?}, late"));
                broker.ack(tags).await;
            });
        } else if world.dice(|t| t.later.ack_half) {
            let arrive = world.below(tags.len() + 1);
            world.fault(format_args!("{name} acks {arrive} of {tags:?}"));
            broker.ack(tags[..arrive].to_vec()).await;
            life.cut("ack, between");
        } else {
            world.note(format_args!("{name} acks {tags:?}"));
            broker.ack(tags).await;
        }
        life.point("ack, after").await;
    }

    async fn give_back(&self, tags: Vec<Tag>) {
        let Self(life) = self;
        life.world
            .note(format_args!("{} gives back {tags:?}", life.name));
        life.broker.give_back(tags).await;
    }

    async fn rest(&self) {
        let Self(life) = self;
        life.broker.rest().await;
    }

    async fn take(&self) {
        let Self(life) = self;
        life.broker.take().await;
    }

    async fn take_few(&self) {
        let Self(life) = self;
        life.broker.take_few().await;
    }

    async fn take_new(&self, enabled: bool) {
        let Self(life) = self;
        life.broker.take_new(enabled).await;
    }

    async fn stop_consuming(&self) {
        let Self(life) = self;
        life.point("cancel, before").await;
        life.broker.stop_consuming().await;
        life.point("cancel, after").await;
    }

    async fn close(&self) {
        let Self(life) = self;
        life.point("close, before").await;
        life.world.note(format_args!("{} closes", life.name));
        life.broker.close().await;
        life.point("close, after").await;
    }
}

/// P6: a job keeps its own headers and has each of ours exactly once, after any fault.
fn look_at(world: &World, outgoing: &Outgoing) {
    let Some(table) = outgoing.message.properties.headers() else {
        return;
    };
    let own = ["x-tenant", headers::COST, scopes::HEADER, mixed::HEADER];
    let own = [&own[..], &starts::HEADERS].concat();
    let foreign = |name: &str| !own.contains(&name) && !headers::OURS.contains(&name);
    let names = || table.inner().keys().map(|name| name.as_str());
    if names().count() > own.len() + headers::OURS.len() || names().any(foreign) {
        let (id, all) = (outgoing.message.id(), names().collect::<Vec<_>>());
        world
            .history()
            .wrong(format_args!("{id:?} carries {all:?}"));
    }
}

/// Forwards the broker's events, some of them late.
pub async fn forward(
    life: Arc<Life>,
    mut from: mpsc::Receiver<BrokerEvent>,
    to: mpsc::Sender<BrokerEvent>,
) {
    while let Some(event) = from.recv().await {
        if life.world.dice(|t| t.event_slow) {
            sleep(life.world.up_to(500)).await;
        }
        life.point("event").await;
        let mut event = event;
        match &mut event {
            BrokerEvent::Deliveries(deliveries) => {
                for delivery in deliveries {
                    exchange(&life.world, delivery);
                    let (id, tag) = (delivery.message.id().unwrap_or_default(), delivery.tag);
                    life.world
                        .note(format_args!("{} gets {id} as {tag:?}", life.name));
                }
            }
            other => life.world.note(format_args!("{}: {other:?}", life.name)),
        }
        if to.send(event).await.is_err() {
            // The process is gone, but its connection may still be open: messages sent there stay
            // unacked.
            std::future::pending::<()>().await;
        }
    }
}

/// Sets the routing key of a fresh job to the one it was published with. The broker in memory has
/// no exchanges.
fn exchange(world: &World, delivery: &mut Delivery) {
    if delivery.source == DeliverySource::Fresh {
        let id = delivery.message.id().unwrap_or_default();
        let key = world.plan.job(id).routing_key;
        key.clone_into(&mut Arc::make_mut(&mut delivery.message).routing_key);
    }
}

/// Returns the fault for a publish, of any publisher.
pub fn faults(world: &World) -> Option<PublishFault> {
    type Rate = fn(&super::plan::Trouble) -> f64;
    let kinds: [(Rate, PublishFault); 5] = [
        (|t| t.nack, PublishFault::Nack),
        (|t| t.return_, PublishFault::Return),
        (|t| t.lose_confirm, PublishFault::LoseConfirm),
        (|t| t.lose_publish, PublishFault::LosePublish),
        (|t| t.disconnect, PublishFault::Disconnect),
    ];
    let (_, fault) = kinds.into_iter().find(|(rate, _)| world.dice(rate))?;
    Some(fault)
}

/// Makes the broker unavailable to every client for a while.
pub fn outage(world: &World) {
    let duration = world.up_to(20_000);
    world.fault(format_args!("the broker is away for {duration:?}"));
    world.server.kill_session_for(duration);
    let lives = world.lives.lock().expect("no panic").clone();
    for life in lives.into_iter().flatten() {
        life.broker.kill_session_for(duration);
    }
}
