//! A test's own queue, key prefix and jobs.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use broker::amqp::Client;
use broker::{BrokerError, Message, Outgoing};
use config::Config;
use lapin::BasicProperties;
use rules::delays::DelayLevels;
use rules::headers::HeaderValue;
use tokio::time::Instant;

use crate::servers::{shared_rabbit, shared_redis, unique};

/// A deadline that ends a hanging test. No step takes this long.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Waits until `done`, which must happen. Asks at most a fifth of the time.
#[track_caller]
pub fn until(what: impl Display, mut done: impl FnMut() -> bool) -> impl Future<Output = ()> {
    until_async(what, async move || done())
}

/// Does the same with a condition that waits for a server.
#[track_caller]
pub fn until_async(
    what: impl Display,
    mut done: impl AsyncFnMut() -> bool,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        loop {
            let asked = std::time::Instant::now();
            let left = PATIENCE.saturating_sub(started.elapsed());
            match tokio::time::timeout(left, done()).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => panic!("{caller}: waited in vain for {what}"),
            }
            let took = asked.elapsed();
            tokio::time::sleep((4 * took).clamp(5 * MS, 200 * MS)).await;
        }
    }
}

/// Connects to the queues as the configuration `yaml` names them. A busy server may take longer to
/// answer than a client waits.
pub async fn client(yaml: &str) -> Client {
    let config = Config::parse("test.yaml", yaml, std::iter::empty()).expect("valid");
    let levels = DelayLevels::new(config.delay.max_delay);
    let started = Instant::now();
    loop {
        match Client::connect(&config.amqp, &levels).await {
            Ok(client) => return client,
            Err(BrokerError::Unreachable { .. }) if started.elapsed() < PATIENCE => {}
            Err(why) => panic!("the server is there: {why}"),
        }
    }
}

/// Publishes messages to `queue` and waits for the confirms.
pub async fn publish(
    client: &Client,
    queue: &Arc<str>,
    messages: impl IntoIterator<Item = Message>,
) {
    let outgoing = |message| Outgoing {
        queue: Arc::clone(queue),
        message,
    };
    let batch: Vec<_> = messages.into_iter().map(outgoing).collect();
    for answer in client.publish(&batch).await.expect("confirms") {
        answer.expect("confirmed");
    }
}

/// Waits until this many messages are ready in `queue`. Messages of a closed connection return a
/// moment later.
#[track_caller]
pub fn holds(client: &Client, queue: &str, number: u32) -> impl Future<Output = ()> {
    let what = format!("{number} messages in {queue}");
    let queue: Arc<str> = queue.into();
    until_async(what, async move || {
        client.depth(&queue).await.expect("a depth") == number
    })
}

/// Takes everything from a queue.
pub async fn drain(client: &Client, queue: &Arc<str>) -> Vec<Message> {
    let mut messages = Vec::new();
    while let Some(fetched) = client.get(queue).await.expect("a message") {
        client.ack(fetched.tag).await.expect("acked");
        messages.push(fetched.message);
    }
    messages
}

/// A queue and a key prefix, and the servers' URLs.
pub struct Bed {
    pub name: String,
    pub amqp: String,
    pub redis: String,
}

impl Bed {
    /// Creates a bed on the shared servers, which have default settings.
    pub fn shared() -> Self {
        Self::on(shared_rabbit().url(), shared_redis().url())
    }

    /// Creates a bed on the servers with these URLs, or behind proxies
    /// ([`Proxy`](crate::proxy::Proxy)) with these URLs.
    pub fn on(amqp: &str, redis: &str) -> Self {
        Self {
            name: unique("world"),
            amqp: amqp.to_owned(),
            redis: redis.to_owned(),
        }
    }

    /// Returns a worker's configuration. `limits` is the content of `rate-limiter`; `http` is added
    /// to `dispatch.http` after `url`, such as `, timeout: 1s`. Other sections can be appended.
    pub fn yaml(&self, limits: &str, api: &str, http: &str) -> String {
        let Self { name, amqp, redis } = self;
        format!(
            "amqp: {{url: '{amqp}', queue: '{name}'}}
redis: {{url: '{redis}', prefix: '{name}'}}
rate-limiter: {{{limits}}}
dispatch: {{http: {{url: '{api}'{http}}}}}
admin: {{listen: '127.0.0.1:0'}}
"
        )
    }

    /// Publishes jobs and waits for the confirms.
    pub async fn publish(&self, yaml: &str, jobs: impl IntoIterator<Item = Message>) {
        let client = client(yaml).await;
        publish(&client, &client.names().fresh, jobs).await;
        client.close().await;
    }

    /// Takes all dead letters.
    pub async fn dead(&self, yaml: &str) -> Vec<Message> {
        let client = client(yaml).await;
        let letters = drain(&client, &client.names().dead).await;
        client.close().await;
        letters
    }

    /// Takes dead letters until there are this many.
    pub async fn all_dead(&self, yaml: &str, count: usize) -> Vec<Message> {
        let mut letters = Vec::new();
        let started = Instant::now();
        while letters.len() < count {
            let in_time = started.elapsed() < PATIENCE;
            assert!(in_time, "not {count} dead letters, but {:?}", ids(&letters));
            letters.extend(self.dead(yaml).await);
            tokio::time::sleep(20 * MS).await;
        }
        letters
    }
}

/// Returns the IDs of these messages.
pub fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().filter_map(Message::id).collect()
}

/// Returns a job of `tenant`. Its publisher's properties and headers can be added.
pub fn job(tenant: &str, id: impl ToString) -> Message {
    let message = Message {
        routing_key: String::new(),
        properties: BasicProperties::default().with_message_id(id.to_string().into()),
        body: "{}".into(),
    };
    let tenant = HeaderValue::Text(tenant.to_owned());
    message.with_headers(&[("x-tenant", tenant)], &[])
}

/// Returns jobs of `tenant` with the IDs `TENANT-0`, `TENANT-1` and so on.
pub fn jobs(tenant: &str, count: usize) -> impl Iterator<Item = Message> {
    (0..count).map(move |number| job(tenant, format_args!("{tenant}-{number}")))
}
