//! Several pipelines in one worker: events in one don't affect the others. A worker as users start
//! it, on real servers.

use std::path::PathBuf;
use std::time::Duration;

use kit::api::{Api, Call, Reply};
use kit::process::{DONE, Process};
use kit::servers::free_port;
use kit::{Bed, MS, SECOND, Says, counts, ids, job, jobs, until};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::PROGRAM;
use crate::cli::{json_of, sluicegate};

/// A file whose pipelines have this test's own queues and keys.
pub struct File {
    folder: TempDir,
    pub bed: Bed,
}

impl File {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            bed: Bed::shared(),
        }
    }

    pub fn queue(&self, pipeline: &str) -> String {
        format!("{}-{pipeline}", self.bed.name)
    }

    /// Returns the line of a pipeline with its own queue and these other `sections`.
    pub fn pipeline(&self, name: &str, sections: &str) -> String {
        let queue = self.queue(name);
        format!("  {name}: {{amqp: {{queue: '{queue}'}}, {sections}}}\n")
    }

    pub fn yaml(&self, pipelines: &[String]) -> String {
        let Bed { name, amqp, redis } = &self.bed;
        format!(
            "amqp: {{url: '{amqp}'}}
redis: {{url: '{redis}', prefix: '{name}'}}
retry: {{initial-interval: 100ms, max-interval: 1s}}
dispatch: {{shutdown-timeout: 20s}}
admin: {{listen: '127.0.0.1:0'}}
pipelines:
{}",
            pipelines.concat()
        )
    }

    /// Replaces the file by a rename, as editors and deployments do.
    pub fn write(&self, yaml: &str) -> PathBuf {
        let [new, path] = ["new", "sluicegate.yaml"].map(|name| self.folder.path().join(name));
        std::fs::write(&new, yaml).expect("written");
        std::fs::rename(&new, &path).expect("renamed");
        path
    }

    pub fn start(&self, pipelines: &[String]) -> Process {
        PROGRAM.start_with(&self.write(&self.yaml(pipelines)))
    }

    /// Publishes to the queue of `pipeline`.
    pub async fn publish(&self, pipeline: &str, tenant: &str, number: usize) {
        let (url, queue) = (&self.bed.amqp, self.queue(pipeline));
        let yaml = format!("amqp: {{url: '{url}', queue: '{queue}'}}");
        self.bed.publish(&yaml, jobs(tenant, number)).await;
    }
}

pub fn to(api: &str, limits: &str) -> String {
    format!("rate-limiter: {{{limits}}}, dispatch: {{http: {{url: '{api}', timeout: 15s}}}}")
}

pub fn done(pipeline: &str) -> String {
    format!("sluicegate_dispatches_total{{pipeline=\"{pipeline}\",outcome=\"done\"}}")
}

/// Waits until `pipelines` consume.
pub async fn consume(worker: &Process, pipelines: &[&str]) {
    for name in pipelines {
        let of = format!("of{{pipeline={name}}}");
        worker.logs(&[&of, "RabbitMQ: consuming"]).await;
    }
}

const FEW: &str = "max-requests: 5, window-size: 1s, guard: strict";

#[tokio::test(flavor = "multi_thread")]
async fn neither_an_api_that_is_down_nor_a_flood_disturbs_another_pipeline() {
    let (flooded, calm) = (Api::start().await, Api::start().await);
    let down = Api::start().await;
    down.door.refuse().await;
    let file = File::new();
    let lines = [
        file.pipeline("flooded", &to(&flooded.url(), FEW)),
        file.pipeline("calm", &to(&calm.url(), FEW)),
        file.pipeline("down", &to(&down.url(), FEW)),
    ];
    let worker = file.start(&lines);
    consume(&worker, &["flooded", "calm", "down"]).await;
    // The flood fills the prefetch and the windows of delay queues, and all calls of the other
    // pipeline fail.
    for tenant in 0..10 {
        file.publish("flooded", &format!("flood-{tenant}"), 300)
            .await;
    }
    file.publish("down", "acme", 20).await;
    let failed = "sluicegate_dispatches_total{pipeline=\"down\",outcome=\"retry\"}";
    until("failed calls", || worker.metric(failed) >= Some(1.0)).await;
    file.publish("calm", "acme", 20).await;
    until("all jobs of it", || {
        worker.metric(&done("calm")) == Some(20.0)
    })
    .await;
    // The others were active all the time.
    assert!(worker.metric(&done("flooded")) < Some(3_000.0));
    assert_eq!(worker.metric(&done("down")), Some(0.0));
    let calls = calm.calls();
    assert_eq!((calls.len(), counts::repeated(&calls)), (20, 0));
    assert!(calls.iter().all(|call| call.attempt == 1));
    // The same tenant has a separate limit in each pipeline, and each is kept.
    let (fullest, early) = counts::windows(&counts::times(&calls, "acme"), 5, SECOND);
    assert_eq!(early, 0, "the fullest window had {fullest}");
    for tenant in 0..10 {
        let times = counts::times(&flooded.calls(), &format!("flood-{tenant}"));
        assert_eq!(counts::windows(&times, 5, SECOND).1, 0);
    }
    for pipeline in ["flooded", "calm", "down"] {
        let up = format!("sluicegate_up{{pipeline=\"{pipeline}\",server=\"rabbitmq\"}}");
        assert_eq!(worker.metric(&up), Some(1.0));
        let restarts = format!("sluicegate_pipeline_restarts_total{{pipeline=\"{pipeline}\"}}");
        assert_eq!(worker.metric(&restarts), Some(0.0));
    }
    // One header per metric family, though three pipelines have it.
    let metrics = worker.get("/metrics").expect("it answers");
    let head = "# TYPE sluicegate_dispatches counter";
    assert_eq!(metrics.matches(head).count(), 1);

    // The API is back: no job was lost or given up.
    down.door.take().expect("its port");
    until("its first calls", || down.count() > 0).await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_with_an_unreachable_rabbitmq_is_named_and_the_others_work() {
    let api = Api::start().await;
    let file = File::new();
    let away = |port: u16| {
        let sections = to(&api.url(), FEW);
        format!("  away: {{amqp: {{url: 'amqp://127.0.0.1:{port}'}}, {sections}}}\n")
    };
    let lines = [
        file.pipeline("there", &to(&api.url(), FEW)),
        away(free_port()),
    ];
    let worker = file.start(&lines);
    consume(&worker, &["there"]).await;
    file.publish("there", "acme", 3).await;
    until("its jobs", || worker.metric(&done("there")) == Some(3.0)).await;
    worker.logs(&["of{pipeline=away}", "RabbitMQ"]).await;
    assert_eq!(worker.get("/livez").as_deref(), Some("ok\n"));
    let names_the_cause = || {
        let ready = worker.get("/readyz").expect("it answers");
        ready.starts_with("ready\naway: RabbitMQ at ") && ready.contains("Connection refused")
    };
    until("the cause in /readyz", names_the_cause).await;
    let own = |name: &str| worker.get(&format!("/readyz/{name}"));
    assert_eq!(own("there").as_deref(), Some("ready\n"));
    assert!(own("away").is_some_and(|body| body.starts_with("not ready\n")));
    assert_eq!(own("other").as_deref(), Some("there is no such pipeline\n"));

    // The file now names another server, and only that pipeline is restarted.
    let lines = [
        lines[0].clone(),
        file.pipeline("away", &to(&api.url(), FEW)),
    ];
    file.write(&file.yaml(&lines));
    consume(&worker, &["away"]).await;
    file.publish("away", "acme", 2).await;
    until("its jobs", || worker.metric(&done("away")) == Some(2.0)).await;
    assert_eq!(worker.count(&["of{pipeline=there}", "starting"]), 1);
    assert_eq!(worker.metric(&done("there")), Some(3.0));
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_adds_changes_and_removes_pipelines() {
    let (first, second) = (Api::start().await, Api::start().await);
    // The call is in flight when its pipeline is removed.
    second.answers(|_| Reply::ok().after(4 * SECOND));
    let file = File::new();
    let one = |limits: &str| file.pipeline("one", &to(&first.url(), limits));
    let two = file.pipeline("two", &to(&second.url(), FEW));
    let worker = file.start(&[one(FEW), two.clone()]);
    consume(&worker, &["one", "two"]).await;

    // An invalid file is refused as a whole: nothing is added or changed.
    let wrong = file.pipeline("three", "delay: {max-delay: never}");
    file.write(&file.yaml(&[one("max-requests: 9"), wrong]));
    worker
        .logs(&["configuration refused", "pipelines.three.delay.max-delay"])
        .await;
    let refused =
        |name| format!("sluicegate_config_reloads_total{{pipeline=\"{name}\",result=\"refused\"}}");
    let is_refused = |name| format!("sluicegate_config_refused{{pipeline=\"{name}\"}}");
    for name in ["one", "two"] {
        assert_eq!(worker.metric(&refused(name)), Some(1.0));
        assert_eq!(worker.metric(&is_refused(name)), Some(1.0));
    }

    // One pipeline is changed while it runs, one is removed during a call, and one is added.
    file.publish("two", "acme", 1).await;
    until("the call", || second.count() == 1).await;
    let three = file.pipeline("three", &to(&first.url(), FEW));
    file.write(&file.yaml(&[one("max-requests: 50"), three.clone()]));
    worker.signal(Signal::HUP);
    worker
        .logs(&["of{pipeline=one}", "configuration applied: new limits"])
        .await;
    consume(&worker, &["three"]).await;
    for name in ["one", "three"] {
        assert_eq!(worker.metric(&is_refused(name)), Some(0.0));
    }
    file.publish("three", "acme", 2).await;
    until("its jobs", || worker.metric(&done("three")) == Some(2.0)).await;
    worker.logs(&["pipeline stopped", "two"]).await;
    let calls = second.calls();
    assert_eq!(calls.len(), 1);
    let took = calls[0]
        .ended
        .map(|ended| ended.duration_since(calls[0].at));
    assert!(
        took >= Some(4 * SECOND - 100 * MS),
        "it was not cut off: {took:?}"
    );
    assert_eq!(worker.metric(&done("two")), None, "its series are gone");
    let ready = || worker.get("/readyz").as_deref() == Some("ready\n");
    until("it is ready", ready).await;

    // The change requires a restart, which happens by itself.
    let other = "dispatch: {shutdown-timeout: 7s, http: {url: 'http://127.0.0.1:9/'}}";
    file.write(&file.yaml(&[file.pipeline("one", other), three]));
    worker
        .logs(&["pipeline is restarted", "pipeline=one"])
        .await;
    until("its start", || {
        worker.count(&["of{pipeline=one}", "starting"]) == 2
    })
    .await;
    assert_eq!(worker.count(&["of{pipeline=three}", "starting"]), 1);
    assert_eq!(
        worker.metric("sluicegate_pipeline_restarts_total{pipeline=\"one\"}"),
        Some(0.0)
    );
    // The removed pipeline's queue and jobs remain.
    file.publish("two", "acme", 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(second.count(), 1);

    // Without `pipelines` it would be another kind of process.
    file.write("dispatch: {http: {url: 'http://127.0.0.1:9/'}}\n");
    worker
        .logs(&[
            "configuration refused",
            "the file no longer has `pipelines`",
        ])
        .await;
    worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_for_the_pipeline_that_is_named() {
    let api = Api::start().await;
    let file = File::new();
    let lines = ["mail", "orders"].map(|name| file.pipeline(name, &to(&api.url(), FEW)));
    let yaml = file.yaml(&lines);
    let publish = ["publish", "--tenant", "acme", "{}"];
    let orders = ["--pipeline", "orders"];
    let none = sluicegate(&yaml, &publish).exited(2).err;
    let words = "error: there are 2 pipelines: mail, orders; select one with --pipeline NAME\n";
    assert_eq!(none, words);
    let other = sluicegate(&yaml, &["dead", "list", "--pipeline", "order"])
        .exited(2)
        .err;
    other.ends("there are: mail, orders; did you mean orders?\n");
    sluicegate(&yaml, &[&publish[..], &orders].concat()).exited(0);

    // One of them alone, still with its name.
    let path = file.write(&yaml);
    let mut command = std::process::Command::new(PROGRAM.0);
    command
        .args(["run", "--pipeline", "orders", "--config"])
        .arg(path);
    let worker = Process::start(command);
    until("the job", || worker.metric(&done("orders")) == Some(1.0)).await;
    assert_eq!(worker.metric(&done("mail")), None);
    assert_eq!(worker.count(&["pipeline=mail"]), 0);
    worker.stop();

    let inspected = sluicegate(
        &yaml,
        &[&["inspect", "acme", "--json"], &orders[..]].concat(),
    );
    let inspected = inspected.exited(0).json();
    assert_eq!(inspected["tenant"], "acme", "{inspected}");

    // Without a name, all pipelines are checked.
    let checked = json_of(&yaml, &["check"]);
    for name in ["mail", "orders"] {
        let checks = &checked["pipelines"][name]["checks"];
        let text = checks.to_string();
        assert!(
            text.contains("redis") && text.contains(&file.queue(name)),
            "{text}"
        );
    }
    let text = sluicegate(&yaml, &["check", "--offline"]).exited(0).out;
    for part in [
        "\npipeline mail\n",
        "\npipeline orders\n",
        "  \"orders\":\n",
        "is valid: 2 pipelines, at most 128 calls in flight in total\n",
    ] {
        text.says(part);
    }
    let text = sluicegate(&yaml, &["check", "--offline", "--pipeline", "mail"])
        .exited(0)
        .out;
    assert!(
        text.contains("\npipeline mail\n") && !text.contains("orders"),
        "{text}"
    );
    let flat = sluicegate("", &["check", "--offline", "--pipeline", "default"])
        .exited(0)
        .out;
    assert!(!flat.contains("pipeline"), "{flat}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_queues_feed_a_pipeline_by_their_weights() {
    const EACH: usize = 400;
    let api = Api::start().await;
    api.answers(|call| match (call.job.as_str(), call.attempt) {
        ("bulk-7", 1) => Reply::status(503),
        ("bulk-9", _) => Reply::status(422),
        _ => Reply::ok().after(20 * MS),
    });
    let bed = Bed::shared();
    let Bed { name, amqp, redis } = &bed;
    let yaml = format!(
        "amqp: {{url: '{amqp}', queue: '{name}', queues: {{'{name}': 3, '{name}-bulk': 1}}, prefetch: 40}}
redis: {{url: '{redis}', prefix: '{name}'}}
rate-limiter: {{max-requests: 100000}}
retry: {{initial-interval: 100ms}}
dispatch: {{concurrency: 4, http: {{url: '{}'}}}}
admin: {{listen: '127.0.0.1:0'}}
",
        api.url()
    );
    // Both have a backlog before a worker starts.
    let client = kit::client(&yaml).await;
    let more = &client.names().more()[0];
    for (queue, kind) in [(&client.names().fresh, "jobs"), (more, "bulk")] {
        let jobs = (0..EACH).map(|number| job("acme", format_args!("{kind}-{number}")));
        kit::publish(&client, queue, jobs).await;
    }
    client.close().await;
    let worker = PROGRAM.start(&yaml);
    let all = (2 * EACH - 1) as f64;
    until("all jobs", || worker.metric(DONE) == Some(all)).await;
    let calls = api.calls();
    // Three of four calls are of the heavier queue while both have jobs. The order of acks is
    // random.
    let is_heavy = |call: &Call| call.job.starts_with("jobs-");
    // The worker may have been given one queue's jobs earlier than the other's.
    let both = [true, false].map(|of| calls.iter().position(|call| is_heavy(call) == of));
    let both = both.into_iter().max().flatten().expect("calls of both");
    let heavy = calls[both..both + EACH].iter();
    let heavy = heavy.filter(|call| is_heavy(call)).count();
    assert!((240..=360).contains(&heavy), "{heavy} of {EACH}");
    let again: Vec<_> = calls.iter().filter(|call| call.attempt > 1).collect();
    assert_eq!(again.len(), 1);
    assert_eq!((&*again[0].job, counts::repeated(&calls)), ("bulk-7", 1));
    worker.stop();
    assert_eq!(ids(&bed.dead(&yaml).await), ["bulk-9"]);

    // A single queue gets everything it needs, and a job that a worker held returns to another
    // worker.
    let worker = PROGRAM.start_consuming(&yaml).await;
    let before = api.count();
    api.answers(|_| Reply::ok().after(60 * SECOND));
    let client = kit::client(&yaml).await;
    let others = (0..4).map(|number| job("other", number));
    kit::publish(&client, &client.names().more()[0], others).await;
    client.close().await;
    until("all worker slots to be used", || api.count() == before + 4).await;
    drop(worker);
    api.answers(|_| Reply::ok());
    let worker = PROGRAM.start(&yaml);
    until("the jobs", || worker.metric(DONE) == Some(4.0)).await;
    worker.stop();
    let checked = sluicegate(&yaml, &["check", "--json"]).exited(0).out;
    checked.says(&format!("queue {name}-bulk: 0 messages ready"));
}
