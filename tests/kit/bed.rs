//! A queue and a prefix of a test's own, and its jobs.

use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use sluicegate::broker::amqp::Client;
use sluicegate::broker::{Message, Outgoing};
use sluicegate::config::Config;
use sluicegate::rules::delays::DelayLevels;
use sluicegate::rules::headers::HeaderValue;
use tokio::time::Instant;

use crate::servers::unique;

/// Nothing takes this long; it only ends a test that hangs.
pub const PATIENCE: Duration = Duration::from_secs(180);
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Waits for what must happen.
#[track_caller]
pub fn until(what: &str, done: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let begun = Instant::now();
        while !done() {
            let waited = begun.elapsed();
            assert!(waited < PATIENCE, "{caller}: waited in vain for {what}");
            tokio::time::sleep(5 * MS).await;
        }
    }
}

/// A queue and a prefix of its own, and where the servers are.
pub struct Bed {
    pub name: String,
    pub amqp: String,
    pub redis: String,
}

impl Bed {
    /// On servers with these URLs: `servers::shared_rabbit` and `shared_redis`, which have no setting of ours, or others, or a
    /// [`Proxy`](crate::proxy::Proxy) before them.
    pub fn on(amqp: &str, redis: &str) -> Self {
        Self {
            name: unique("world"),
            amqp: amqp.to_owned(),
            redis: redis.to_owned(),
        }
    }

    /// A worker's configuration: `limits` is what `rate-limiter` has, `http` what `dispatch.http` has beside `url`, such as
    /// `, timeout: 1s`; any other sections are written behind it.
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

    /// The queues, as `yaml` has them, on the way that `yaml` names.
    pub async fn client(&self, yaml: &str) -> Client {
        let config = Config::parse("world.yaml", yaml, std::iter::empty()).expect("valid");
        let levels = DelayLevels::new(config.delay.max_delay);
        (Client::connect(&config.amqp, &levels).await).expect("the server is there")
    }

    /// Publishes jobs, and waits until they are confirmed.
    pub async fn publish(&self, yaml: &str, jobs: impl IntoIterator<Item = Message>) {
        let client = self.client(yaml).await;
        let queue = Arc::clone(&client.names().fresh);
        let outgoing = |message| Outgoing {
            queue: Arc::clone(&queue),
            message,
        };
        let batch: Vec<_> = jobs.into_iter().map(outgoing).collect();
        for answer in client.publish(&batch).await.expect("confirms") {
            answer.expect("confirmed");
        }
        client.close().await;
    }

    /// Takes all dead letters.
    pub async fn dead(&self, yaml: &str) -> Vec<Message> {
        let client = self.client(yaml).await;
        let queue = Arc::clone(&client.names().dead);
        let mut letters = Vec::new();
        while let Some(fetched) = client.get(&queue).await.expect("a message") {
            client.ack(fetched.tag).await.expect("acked");
            letters.push(fetched.message);
        }
        client.close().await;
        letters
    }
}

/// A job of `tenant`. Give it what else it needs: its `properties` and headers are its publisher's.
pub fn job(tenant: &str, id: impl ToString) -> Message {
    let message = Message {
        routing_key: String::new(),
        properties: BasicProperties::default().with_message_id(id.to_string().into()),
        body: "{}".into(),
    };
    let tenant = HeaderValue::Text(tenant.to_owned());
    message.with_headers(&[("x-tenant", tenant)], &[])
}

/// Jobs of `tenant` with the ids `TENANT-0` and so on.
pub fn jobs(tenant: &str, count: usize) -> impl Iterator<Item = Message> {
    (0..count).map(move |number| job(tenant, format_args!("{tenant}-{number}")))
}
