//! A complete worker, and the commands, with exactly the documented permissions and ACL rule.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use broker::BrokerError;
use broker::amqp::Client;
use config::QueueType;
use kit::servers::{shared_rabbit, shared_redis, unique};
use kit::sources::documented_rule;
use kit::{PATIENCE, until};
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use rustix::process::Signal;

use crate::PROGRAM;
use crate::broker::bed::{amqp, levels};
use crate::cli::{json_of, sluicegate};
use crate::http::downstream::{AfterAnswer, Downstream};
use crate::worker::forward::disappears;

const PASSWORD: &str = "sesame-4711";

/// Returns the documented permissions of `user` (configure, write and read) for the queue `queue`.
fn documented(user: &str, queue: &str) -> [String; 3] {
    let document = kit::sources::page("docs/DEPLOYMENT.md");
    let begin = format!("rabbitmqctl set_permissions -p / {user} ");
    let mut lines = document
        .lines()
        .filter_map(|line| line.strip_prefix(&begin));
    let line = lines.next().expect("the permissions of that user");
    let all: Vec<String> = line
        .split('\'')
        .skip(1)
        .step_by(2)
        .map(|pattern| pattern.replace("jobs", queue))
        .collect();
    all.try_into().expect("three patterns")
}

/// A user of the shared RabbitMQ with these permissions. Dropping it removes the user.
struct User(String);

impl User {
    fn new(name: &str, permissions: &[String; 3]) -> Self {
        shared_rabbit().ctl(&["add_user", name, PASSWORD]);
        let user = Self(name.to_owned());
        user.may(permissions);
        user
    }

    fn may(&self, [configure, write, read]: &[String; 3]) {
        shared_rabbit().ctl(&["set_permissions", &self.0, configure, write, read]);
    }

    fn url(&self) -> String {
        let login = format!("//{}:{PASSWORD}@", self.0);
        shared_rabbit().url().replace("//guest:guest@", &login)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        shared_rabbit().ctl(&["delete_user", &self.0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_suffice_for_a_whole_worker_and_every_command() {
    let name = unique("least");
    let user = User::new(&name, &documented("worker", &name));
    let (rule, keys) = (documented_rule(), format!("~{name}:*"));
    let password = format!(">{PASSWORD}");
    let mut words = vec![
        "acl",
        "setuser",
        &name,
        "reset",
        "on",
        &password,
        "resetkeys",
        &keys,
    ];
    words.extend(&rule[2..]);
    assert_eq!(shared_redis().ctl(&words), "OK");

    // Jobs that wait, fail once, or are refused.
    let downstream = Downstream::start(|request| {
        let (id, attempt) = (request.header("x-job-id"), request.header("x-attempt"));
        let status = match (id.unwrap_or_default(), attempt.unwrap_or_default()) {
            (b"bad", _) => "400 Bad Request",
            (b"again", b"1") => "500 Internal Server Error",
            _ => "200 OK",
        };
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        (answer.into_bytes(), AfterAnswer::Keep)
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let file: PathBuf = folder.path().join("worker.yaml");
    let yaml = format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{max-requests: 2, window-size: 1s}}
dispatch: {{http: {{url: 'http://{}/'}}}}
delay: {{max-in-memory: 10ms, max-delay: 1s}}
retry: {{initial-interval: 100ms}}
admin: {{listen: '127.0.0.1:0'}}
",
        user.url(),
        shared_redis()
            .url()
            .replace("//", &format!("//{name}:{PASSWORD}@")),
        downstream.addr,
    );
    std::fs::write(&file, &yaml).expect("written");

    // The server has none of the queues yet, so the worker creates them.
    let mut worker = PROGRAM.start_with(&file);
    worker.logs(&["RabbitMQ: consuming"]).await;
    let jobs = ["1", "2", "3", "again", "bad", "6"];
    for id in jobs {
        sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", id]).exited(0);
    }
    // Each job once, and one of them twice.
    until("all calls", || {
        downstream.requests().len() == jobs.len() + 1
    })
    .await;
    until("a dead letter", || {
        sluicegate(&yaml, &["dead", "list"])
            .exited(0)
            .out
            .contains("bad")
    })
    .await;
    for args in [
        &["check"][..],
        &["inspect", "acme"],
        &["dead", "show", "bad"],
        &["tenant", "pause", "acme"],
        &["tenant", "resume", "acme"],
        &["tenant", "limit", "acme", "5"],
        &["tenant", "reset", "acme"],
        &["dead", "replay", "--id", "bad"],
    ] {
        sluicegate(&yaml, args).exited(0);
    }
    // The user may create the queue that measures confirms.
    let json = json_of(&yaml, &["check"]);
    assert_eq!(
        json["measured"]["rabbitmq_confirm"]["samples"], 10,
        "{json}"
    );
    until("the replay", || {
        downstream.requests().len() == jobs.len() + 2
    })
    .await;
    until("a dead letter", || {
        sluicegate(&yaml, &["dead", "drop", "--all"])
            .exited(0)
            .out
            .contains('1')
    })
    .await;
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    for refusal in [
        "denied permission",
        "NOPERM",
        "lacks a permission",
        "ACCESS_REFUSED",
    ] {
        assert_eq!(worker.count(&[refusal]), 0, "{refusal}");
    }
    shared_redis().ctl(&["acl", "deluser", &name]);
}

/// Declares an exchange with a queue of the same name for any routing key.
async fn exchange_with_queue(channel: &Channel, name: &str) {
    let (none, options) = (FieldTable::default(), ExchangeDeclareOptions::default());
    let kind = ExchangeKind::Fanout;
    let declaring = channel.exchange_declare(name.into(), kind, options, none.clone());
    declaring.await.expect("an exchange");
    let declaring =
        channel.queue_declare(name.into(), QueueDeclareOptions::default(), none.clone());
    declaring.await.expect("a queue");
    let options = QueueBindOptions::default();
    let binding = channel.queue_bind(name.into(), name.into(), "".into(), options, none);
    binding.await.expect("a binding");
}

/// Returns the next message of `queue`.
async fn next(channel: &Channel, queue: &str) -> BasicGetMessage {
    let started = Instant::now();
    loop {
        let options = BasicGetOptions { no_ack: true };
        let got = channel.basic_get(queue.into(), options).await;
        if let Some(got) = got.expect("an answer") {
            return got;
        }
        assert!(started.elapsed() < PATIENCE, "nothing comes to {queue}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_suffice_for_forwarding_and_results() {
    let name = unique("least");
    let [work, results] = ["work", "results"].map(|what| format!("{name}.{what}"));
    let permissions = documented("forwarder", &name).map(|pattern| {
        let both = format!("{name}\\.work|{name}\\.results");
        pattern.replace("work|results", &both)
    });
    let user = User::new(&name, &permissions);
    let guest = Connection::connect(shared_rabbit().url(), ConnectionProperties::default()).await;
    let guest = guest.expect("RabbitMQ answers");
    let channel = guest.create_channel().await.expect("a channel");
    for exchange in [&work, &results] {
        exchange_with_queue(&channel, exchange).await;
    }
    let yaml = format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{limits: [{{name: running, max-concurrent: 1}}]}}
dispatch: {{forward: {{exchange: '{work}', done: true}}, results: {{to: exchange, exchange: '{results}'}}}}
admin: {{listen: '127.0.0.1:0'}}
",
        user.url(),
        shared_redis().url(),
    );
    let mut worker = PROGRAM.start_consuming(&yaml).await;
    sluicegate(&yaml, &["check"]).exited(0);
    sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", "7"]).exited(0);
    let job = next(&channel, &work).await;
    let headers = job.properties.headers().clone().expect("headers");
    let text = |name: &str| match headers.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    let properties =
        BasicProperties::default().with_correlation_id(text("x-sluicegate-done-token").into());
    let queue = text("x-sluicegate-done");
    let options = BasicPublishOptions::default();
    let saying = channel.basic_publish("".into(), queue.as_str().into(), options, b"", properties);
    saying.await.expect("it is sent");
    let result = next(&channel, &results).await;
    let id = result.properties.correlation_id().clone();
    assert_eq!(id, Some("7".into()));
    worker.signal(Signal::TERM);
    assert!(worker.ended().success());
    for refusal in ["denied permission", "lacks a permission", "ACCESS_REFUSED"] {
        assert_eq!(worker.count(&[refusal]), 0, "{refusal}");
    }
    // The done queue ends with its worker.
    disappears(&channel, &queue).await;

    // Without permission for the done queue, the log names it, and nothing is forwarded.
    user.may(&documented("worker", &name));
    let worker = PROGRAM.start(&yaml);
    worker
        .logs(&[&format!("{name}.done."), "docs/DEPLOYMENT.md"])
        .await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_retried_while_its_worker_may_not_write_to_the_target() {
    let name = unique("least");
    let work = format!("{name}.work");
    let permissions = |target: &str| {
        documented("forwarder", &name).map(|pattern| pattern.replace("work|results", target))
    };
    let user = User::new(&name, &permissions("nothing"));
    let guest = Connection::connect(shared_rabbit().url(), ConnectionProperties::default()).await;
    let guest = guest.expect("RabbitMQ answers");
    let channel = guest.create_channel().await.expect("a channel");
    exchange_with_queue(&channel, &work).await;
    let yaml = format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{max-requests: 100, window-size: 1s}}
dispatch: {{forward: {{exchange: '{work}'}}}}
retry: {{max-attempts: 100, initial-interval: 100ms, max-interval: 100ms}}
admin: {{listen: '127.0.0.1:0'}}
",
        user.url(),
        shared_redis().url(),
    );
    let worker = PROGRAM.start_consuming(&yaml).await;
    sluicegate(&yaml, &["publish", "--tenant", "acme", "--id", "7"]).exited(0);
    let ends = |outcome| {
        let name = format!("sluicegate_dispatches_total{{outcome=\"{outcome}\"}}");
        worker.metric(&name).unwrap_or_default()
    };
    until("it is tried", || ends("retry") + ends("reject") > 0.0).await;
    assert!(ends("reject") < 1.0);
    user.may(&permissions(&work.replace('.', "\\.")));
    next(&channel, &work).await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_missing_permission_is_named() {
    let user = User::new(&unique("user"), &documented("worker", "nothing"));
    // The index of the permission, the missing part (empty for all of it), and the text in the
    // error.
    for (which, lacks, named) in [
        (0, "", ".dead'"),
        (0, "due", ".due'"),
        (0, "delay", ".delay."),
        (1, "", "exchange 'amq.default'"),
        (2, "", "queue '"),
        (2, "recheck", ".recheck'"),
        (2, "delay", ".delay."),
    ] {
        // A separate queue, since a user needs fewer permissions for an existing one.
        let name = unique("least");
        let mut permissions = documented("worker", &name);
        permissions[which] = match lacks {
            "" => "^$".to_owned(),
            family => permissions[which].replace(family, "nothing"),
        };
        user.may(&permissions);
        let amqp = amqp(&user.url(), &name, QueueType::Quorum);
        let Err(error) = Client::connect(&amqp, &levels()).await else {
            panic!("{permissions:?} suffice");
        };
        assert!(
            matches!(error, BrokerError::Forbidden { .. }),
            "{permissions:?}: {error:?}"
        );
        let error = error.to_string();
        for part in [named, "docs/DEPLOYMENT.md"] {
            assert!(error.contains(part), "{permissions:?}: {error}");
        }
        assert!(!error.contains(PASSWORD), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn check_fails_without_permission_to_publish_or_to_make_a_delay_queue() {
    let name = unique("least");
    let permissions = documented("worker", &name);
    let user = User::new(&name, &permissions);
    let client = Client::connect(&amqp(&user.url(), &name, QueueType::Quorum), &levels()).await;
    client.expect("it makes the queues").close().await;
    let [configure, write, read] = permissions;
    let yaml = format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{max-requests: 5, window-size: 1s}}
",
        user.url(),
        shared_redis().url(),
    );
    let fewer = configure.replace(r"delay\..+", r"delay\.[^c].*");
    for (configure, write, denied) in [
        (configure, "^$".to_owned(), "exchange 'amq.default'"),
        (fewer, write, ".delay.check-"),
    ] {
        user.may(&[configure, write, read.clone()]);
        let out = sluicegate(&yaml, &["check"]).exited(1).out;
        let mut errors = out
            .lines()
            .filter(|line| line.starts_with("error rabbitmq"));
        let error = errors.next().unwrap_or_else(|| panic!("{out}"));
        for part in [denied, "docs/DEPLOYMENT.md"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_reaches_the_work_queue_and_no_other() {
    let name = unique("least");
    let all = documented("worker", &name);
    let worker = User::new(&unique("user"), &all);
    let client = Client::connect(&amqp(&worker.url(), &name, QueueType::Quorum), &levels()).await;
    let client = client.expect("it makes the queues");
    let guest = Connection::connect(shared_rabbit().url(), ConnectionProperties::default()).await;
    let guest = guest.expect("RabbitMQ answers");
    let channel = guest.create_channel().await.expect("a channel");
    let (exchange, none) = (format!("{name}.in"), FieldTable::default());
    let options = ExchangeDeclareOptions::default();
    let declaring = channel.exchange_declare(
        exchange.as_str().into(),
        ExchangeKind::Fanout,
        options,
        none.clone(),
    );
    declaring.await.expect("an exchange");
    let options = QueueBindOptions::default();
    let binding = channel.queue_bind(
        name.as_str().into(),
        exchange.as_str().into(),
        "".into(),
        options,
        none,
    );
    binding.await.expect("a binding");

    let publisher = User::new(&unique("user"), &documented("publisher", &name));
    let publish = async |exchange: &str, key: &str| {
        let properties = ConnectionProperties::default();
        let link = Connection::connect(&publisher.url(), properties).await;
        let channel = link.expect("a login").create_channel().await;
        let channel = channel.expect("a channel");
        let confirms = channel.confirm_select(Default::default()).await;
        confirms.expect("confirms");
        let options = BasicPublishOptions::default();
        let properties = BasicProperties::default();
        let sent = channel.basic_publish(exchange.into(), key.into(), options, b"{}", properties);
        match sent.await {
            Ok(confirm) => confirm.await.map(|_| ()),
            Err(error) => Err(error),
        }
    };
    publish(&exchange, &name).await.expect("allowed");
    let refused = publish("", &format!("{name}.due")).await;
    let refused = refused.expect_err("our own queue").to_string();
    assert!(
        refused.contains("ACCESS_REFUSED") || refused.contains("403"),
        "{refused}"
    );
    let names = client.names();
    assert_eq!(client.depth(&names.fresh).await, Ok(1));
    assert_eq!(client.depth(&names.due).await, Ok(0));
    client.close().await;
}
