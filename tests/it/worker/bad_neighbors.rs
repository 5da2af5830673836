//! Publishers and queues that misbehave. Whatever they name or refuse, the jobs of other tenants
//! continue, and each of their own jobs ends.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use broker::Message;
use broker::amqp::REPLY_TO;
use kit::api::{Api, Reply};
use kit::process::Process;
use kit::servers::{Rabbit, shared_rabbit, shared_redis};
use kit::{Bed, counts, job, jobs, until};
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use rules::job::Field;

use crate::PROGRAM;

const MANY: &str = "max-requests: 1000, window-size: 1s";

fn bed(rabbit: &Rabbit) -> Bed {
    Bed::on(rabbit.url(), shared_redis().url())
}

/// Returns a configuration with results on request.
fn yaml(bed: &Bed, limits: &str, api: &Api) -> String {
    let http = format!("http: {{url: '{}'}}", api.url());
    let yaml = bed.yaml(limits, &api.url(), "");
    yaml.replace(&http, &format!("{http}, results: {{to: reply-to}}"))
}

fn asking(tenant: &str, count: usize, reply_to: &[&str]) -> Vec<Message> {
    let with = |(mut message, reply_to): (Message, &&str)| {
        message.properties = message.properties.with_reply_to((**reply_to).into());
        message
    };
    let targets = reply_to.iter().cycle();
    jobs(tenant, count).zip(targets).map(with).collect()
}

fn counted(worker: &Process, series: &str) -> usize {
    worker.metric(series).unwrap_or_default() as usize
}

fn results(worker: &Process) -> usize {
    let of = |outcome: &str| format!("sluicegate_results_total{{outcome=\"{outcome}\"}}");
    let all = ["published", "unroutable", "refused"].map(of);
    all.iter().map(|series| counted(worker, series)).sum()
}

/// Returns the number of calls of each job.
fn calls(api: &Api) -> BTreeMap<String, usize> {
    counts::by_job(&api.calls())
}

fn called(api: &Api, tenant: &str) -> usize {
    api.calls().iter().filter(|it| it.tenant == tenant).count()
}

/// Declares a queue that takes messages but confirms none, like one without its majority: it stands
/// still.
async fn silent_queue(rabbit: &Rabbit, name: &str) {
    let connection = Connection::connect(rabbit.url(), ConnectionProperties::default());
    let connection = connection.await.expect("RabbitMQ answers");
    let channel = connection.create_channel().await.expect("a channel");
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("quorum".into()),
    );
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.into(), options, arguments).await;
    declared.expect("a queue");
    stand_still(rabbit, name, true);
}

fn stand_still(rabbit: &Rabbit, queue: &str, still: bool) {
    let what = if still { "suspend" } else { "resume" };
    tokio::task::block_in_place(|| {
        rabbit.ctl(&[
            "eval",
            &format!(
                "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), sys:{what}(amqqueue:get_pid(Q))."
            ),
        ])
    });
}

/// RabbitMQ 3.10 closes the connection because of some of these names.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_to_that_closes_the_connection_loses_only_its_own_result() {
    let (api, bed) = (Api::start().await, bed(shared_rabbit()));
    let yaml = yaml(&bed, "max-requests: 10, window-size: 1s", &api) + "log: {level: debug}\n";
    let worker = PROGRAM.start(&yaml);
    let names = [
        "amq.rabbitmq.reply-to.g2dkAA.x",
        "amq.rabbitmq.reply-to.garbage",
        "amq.rabbitmq.reply-to.",
    ];
    bed.publish(&yaml, asking("evil", 20, &names)).await;
    bed.publish(&yaml, jobs("good", 60)).await;
    until("all are called", || called(&api, "good") >= 60).await;
    until("all of them end", || results(&worker) >= 20).await;
    let failed = |kind: &str| format!("sluicegate_publish_failures_total{{kind=\"{kind}\"}}");
    assert_eq!(counted(&worker, &failed("down")), 0);
    // Each name closes the connection alone once, and perhaps once together with others.
    let closed = worker.count(&["closed a channel or a connection because of a message"]);
    assert!(closed <= names.len(), "{closed}");
    until("nothing is held", || {
        counted(&worker, "sluicegate_in_memory") == 0
    })
    .await;
    worker.stop();
    let calls = calls(&api);
    assert_eq!(calls.len(), 80);
    assert!(calls.values().all(|calls| *calls == 1), "{calls:?}");
    // None of them is delivered again.
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, [job("good", "last")]).await;
    until("the last is called", || called(&api, "good") >= 61).await;
    worker.stop();
    assert_eq!(api.count(), 81);
}

/// Each name is new, so none is refused before RabbitMQ has closed the connection over it.
#[tokio::test(flavor = "multi_thread")]
async fn many_reply_tos_that_close_the_connection_stop_no_other_tenant_and_no_other_result() {
    const EVIL: usize = 1_500;
    const GOOD: usize = 40;
    let (api, bed) = (Api::start().await, bed(shared_rabbit()));
    let yaml = yaml(&bed, MANY, &api) + "log: {level: debug}\n";
    let names: Vec<String> = (0..EVIL)
        .map(|n| format!("amq.rabbitmq.reply-to.g2dkAA.{n}"))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    bed.publish(&yaml, asking("evil", EVIL, &names)).await;
    let client = kit::client(&yaml).await;
    let mut replies = client.replies().await.expect("replies");
    let asked = asking("asker", GOOD, &[REPLY_TO]);
    kit::publish(&client, &client.names().fresh, asked).await;
    bed.publish(&yaml, jobs("good", GOOD)).await;
    let worker = PROGRAM.start(&yaml);
    until("all are called", || called(&api, "good") == GOOD).await;
    // Neither they nor the other results waited until RabbitMQ had refused each result.
    let closed = || worker.count(&["closed a channel or a connection because of a message"]);
    let at_call = closed();
    assert!(at_call < EVIL / 2, "{at_call}");
    for n in 0..GOOD {
        let reply = tokio::time::timeout(kit::PATIENCE, replies.next()).await;
        assert!(matches!(reply, Ok(Some(_))), "{n}: {reply:?}");
    }
    client.close().await;
    until("all of them end", || results(&worker) == EVIL + GOOD).await;
    let at_end = closed();
    assert!(at_end < EVIL / 2, "{at_end}");
    until("nothing is held", || {
        counted(&worker, "sluicegate_in_memory") == 0
    })
    .await;
    worker.stop();
    let calls = calls(&api);
    assert_eq!(calls.len(), EVIL + 2 * GOOD);
    assert!(calls.values().all(|calls| *calls == 1), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_queue_that_confirms_nothing_stops_no_other_tenant_and_its_jobs_end() {
    const EVIL: usize = 150;
    let rabbit = Rabbit::start();
    let (api, bed) = (Api::start().await, bed(&rabbit));
    let yaml = yaml(&bed, MANY, &api);
    silent_queue(&rabbit, "silent").await;
    let worker = PROGRAM.start(&yaml);
    bed.publish(&yaml, asking("evil", EVIL, &["silent"])).await;
    until("they are called", || called(&api, "evil") == EVIL).await;
    // Its results delay no others, whether the queue is known to be silent or not.
    for round in 0..3 {
        let jobs = (0..50).map(|n| job("good", format!("{round}-{n}")));
        bed.publish(&yaml, jobs).await;
        until("the others are called", || {
            called(&api, "good") == 50 * (round + 1)
        })
        .await;
        assert!(round > 0 || results(&worker) == 0);
        if round == 0 {
            worker
                .logs(&["stuck: RabbitMQ does not accept", "kind=\"result\""])
                .await;
            let stuck = counted(&worker, "sluicegate_stuck_messages{kind=\"result\"}");
            assert!(stuck > 0);
            let ready = worker.get("/readyz").unwrap_or_default();
            assert!(ready.contains("stuck"), "{ready}");
        }
    }
    until("all of them end", || results(&worker) == EVIL).await;
    until("nothing is held", || {
        counted(&worker, "sluicegate_in_memory") == 0
    })
    .await;
    // Results of other tenants need this connection.
    assert_eq!(worker.count(&["no session"]), 0);
    worker.stop();
    assert!(calls(&api).values().all(|calls| *calls == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_dead_letters_stop_no_good_job_and_are_not_lost() {
    const BAD: usize = 700;
    let (rabbit, api) = (shared_rabbit(), Api::start().await);
    api.answers(|call| match call.tenant.as_str() {
        "rejected" => Reply::status(422),
        _ => Reply::ok(),
    });
    let bed = bed(rabbit);
    let yaml = bed.yaml(MANY, &api.url(), "");
    let (policy, dead) = (bed.name.clone(), format!("^{}.dead$", bed.name));
    let definition = r#"{"max-length": 100, "overflow": "reject-publish"}"#;
    let set = [
        "set_policy",
        "--apply-to",
        "queues",
        &policy,
        &dead,
        definition,
    ];
    tokio::task::block_in_place(|| rabbit.ctl(&set));
    let worker = PROGRAM.start(&yaml);
    let invalid = (0..BAD).map(|n| job("x", format!("bad-{n}")).with_headers(&[], &["x-tenant"]));
    bed.publish(&yaml, invalid).await;
    bed.publish(&yaml, jobs("rejected", 100)).await;
    bed.publish(&yaml, jobs("good", 200)).await;
    until("good jobs run", || called(&api, "good") == 200).await;
    worker
        .logs(&["stuck: RabbitMQ does not accept", "kind=\"dead-letter\""])
        .await;
    assert!(counted(&worker, "sluicegate_stuck_messages{kind=\"dead-letter\"}") > 0);
    let ready = worker.get("/readyz").unwrap_or_default();
    assert!(ready.contains("stuck"), "{ready}");
    tokio::task::block_in_place(|| rabbit.ctl(&["clear_policy", &policy]));
    // Each ends as a dead letter with its reason, and none was called again because of it.
    let mut letters = BTreeMap::new();
    let started = tokio::time::Instant::now();
    while letters.len() < BAD + 100 {
        assert!(
            started.elapsed() < kit::PATIENCE,
            "{} letters",
            letters.len()
        );
        for letter in bed.dead(&yaml).await {
            let reason = format!("{:?}", letter.header("x-sluicegate-reason"));
            assert!(
                reason.contains("x-tenant") || reason.contains("422"),
                "{reason}"
            );
            for gone in ["x-sluicegate-parked", "x-sluicegate-trip"] {
                let header = format!("{:?}", letter.header(gone));
                assert_eq!(header, "Missing", "{gone}");
            }
            letters.insert(letter.id().expect("an id").to_owned(), ());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    worker.stop();
    let calls = calls(&api);
    assert!(calls.values().all(|calls| *calls == 1), "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gets_invalid_messages_only_knows_when_they_died() {
    let bed = bed(shared_rabbit());
    let yaml = bed.yaml(MANY, "http://127.0.0.1:9/", "");
    let invalid = job("x", "bad").with_headers(&[], &["x-tenant"]);
    bed.publish(&yaml, [invalid]).await;
    let begun = SystemTime::now() - Duration::from_secs(60);
    let worker = PROGRAM.start(&yaml);
    let died = "sluicegate_dead_letters_total{reason=\"bad-message\"}";
    until("it is a dead letter", || counted(&worker, died) == 1).await;
    worker.stop();
    let letters = bed.dead(&yaml).await;
    let Field::Int(died) = letters[0].header("x-sluicegate-died") else {
        panic!("{letters:?}");
    };
    let begun = begun.duration_since(UNIX_EPOCH).expect("later");
    assert!(died as u128 > begun.as_millis(), "{died}");
}

/// A dead-letter queue without its majority confirms nothing. Jobs still wait in delay queues, and
/// each is called once, even if a connection can have few channels.
#[tokio::test(flavor = "multi_thread")]
async fn unconfirmed_dead_letters_stop_no_waiting_job() {
    let rabbit = Rabbit::start_with(&["channel_max = 16"]);
    let (api, bed) = (Api::start().await, bed(&rabbit));
    let yaml = bed.yaml("max-requests: 10, window-size: 1s", &api.url(), "");
    kit::client(&yaml).await.close().await;
    let dead = format!("{}.dead", bed.name);
    stand_still(&rabbit, &dead, true);
    let worker = PROGRAM.start(&yaml);
    let invalid = (0..100).map(|n| job("x", format!("bad-{n}")).with_headers(&[], &["x-tenant"]));
    bed.publish(&yaml, invalid).await;
    bed.publish(&yaml, jobs("good", 150)).await;
    until("good jobs run", || called(&api, "good") >= 150).await;
    worker
        .logs(&["stuck: RabbitMQ does not accept", "kind=\"dead-letter\""])
        .await;
    stand_still(&rabbit, &dead, false);
    worker.stop();
    let calls = calls(&api);
    assert!(calls.values().all(|calls| *calls == 1), "{calls:?}");
}

/// Sets RabbitMQ's `max_message_size`, in bytes. It applies to new channels.
fn max_message_size(rabbit: &Rabbit, bytes: u32) {
    let set = format!("application:set_env(rabbit, max_message_size, {bytes}).");
    tokio::task::block_in_place(|| rabbit.ctl(&["eval", &set]));
}

/// RabbitMQ closes the channel over messages above `max_message_size`, which was larger when these
/// jobs were published, as before an upgrade to RabbitMQ 4.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_which_rabbitmq_stores_no_copy_end_no_session_and_are_not_lost() {
    let tick = "advanced {rabbit, [{channel_tick_interval, 2000}]}";
    let rabbit = Rabbit::start_with(&["consumer_timeout = 60000", tick]);
    let (api, bed) = (Api::start().await, bed(&rabbit));
    api.answers(|call| match call.tenant.as_str() {
        "rejected" => Reply::status(422),
        _ => Reply::ok(),
    });
    let limits = format!("{MANY}, tenants: {{late: {{max-requests: 1, window-size: 1h}}}}");
    let yaml = bed.yaml(&limits, &api.url(), ", timeout: 1s");
    let yaml = yaml.replace("amqp: {", "amqp: {consumer-timeout: 30s, ");
    let large = |(tenant, id)| Message {
        body: vec![b'x'; 10_000].into(),
        ..job(tenant, id)
    };
    let all = [("rejected", "r"), ("late", "l-0"), ("late", "l-1")];
    bed.publish(&yaml, all.map(large)).await;
    max_message_size(&rabbit, 1_000);
    let worker = PROGRAM.start(&yaml);
    for round in 0..2 {
        let jobs = (0..50).map(|n| job("good", format!("{round}-{n}")));
        bed.publish(&yaml, jobs).await;
        until("the others are called", || {
            called(&api, "good") == 50 * (round + 1)
        })
        .await;
        until("they are returned", || {
            counted(&worker, "sluicegate_moves_given_back_total") >= 2 * (round + 1)
        })
        .await;
    }
    worker.logs(&["RabbitMQ stores no copy of a job"]).await;
    assert_eq!(worker.count(&["session lost"]), 0);
    max_message_size(&rabbit, 128 << 20);
    assert_eq!(kit::ids(&bed.all_dead(&yaml, 1).await), ["r"]);
    worker.stop();
    let calls = calls(&api);
    assert_eq!((calls.len(), called(&api, "late")), (102, 1));
    assert!(calls["r"] <= 4, "it was called {} times", calls["r"]);
}
