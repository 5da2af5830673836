//! Commands that act on all pipelines unless one is named: `pause --all`, `resume --all`, `drain`.
//! One worker, real servers.

use kit::api::Api;
use kit::process::Process;
use kit::{job, until};
use serde_json::{Value, json};

use crate::cli::{CommandResult, sluicegate};
use crate::pipelines::{File, consume, done, to};

const MANY: &str = "max-requests: 1000, window-size: 1s";

/// Runs `sluicegate args` while the APIs continue.
fn runs(yaml: &str, args: &[&str]) -> CommandResult {
    tokio::task::block_in_place(|| sluicegate(yaml, args))
}

/// A worker with two pipelines. `orders` has two queues.
struct TwoPipelines {
    file: File,
    yaml: String,
    worker: Process,
    orders: Api,
    mail: Api,
}

impl TwoPipelines {
    async fn start(limits_of_mail: &str) -> Self {
        let (orders, mail) = (Api::start().await, Api::start().await);
        let file = File::new();
        let queue = file.queue("orders");
        let own = to(&orders.url(), MANY);
        let lines = [
            format!(
                "  orders: {{amqp: {{queue: '{queue}', queues: ['{queue}', '{queue}-bulk']}}, {own}}}\n"
            ),
            file.pipeline("mail", &to(&mail.url(), limits_of_mail)),
        ];
        let yaml = file.yaml(&lines);
        let worker = file.start(&lines);
        consume(&worker, &["orders", "mail"]).await;
        let two = Self {
            file,
            yaml,
            worker,
            orders,
            mail,
        };
        // The worker has reported for both pipelines.
        until("the worker to be known", || {
            let resumed = two.json(&["resume", "--all"]);
            ["orders", "mail"].map(|name| &resumed["pipelines"][name]["workers"])
                == [&json!(1), &json!(1)]
        })
        .await;
        two
    }

    fn runs(&self, args: &[&str]) -> CommandResult {
        runs(&self.yaml, args)
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = [args, &["--json"]].concat();
        self.runs(&args).exited(0).json()
    }

    /// Publishes a job to the second queue of `orders`.
    async fn publish_bulk(&self, id: &str) {
        let queue = self.file.queue("orders");
        let yaml = format!(
            "amqp: {{url: '{}', queue: '{queue}', queues: ['{queue}', '{queue}-bulk']}}",
            self.file.bed.amqp
        );
        let client = kit::client(&yaml).await;
        kit::publish(&client, &client.names().more()[0], [job("acme", id)]).await;
        client.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_of_each_pipeline_is_shown_under_its_name() {
    let two = TwoPipelines::start(MANY).await;
    until("a report of each", || {
        let shown = two.json(&["workers"]);
        ["orders", "mail"].iter().all(|name| {
            let worker = &shown["pipelines"][name]["workers"][0];
            worker["pipeline"] == *name && worker["ready"] == true
        })
    })
    .await;
    let one = two.json(&["tenants", "--pipeline", "mail"]);
    assert_eq!((&one["workers"], &one["tenants"]), (&json!(1), &json!([])));
    let text = two.runs(&["tenants"]).exited(0).out;
    let expected = "pipeline mail\nno tenant has jobs at 1 worker\n\
         pipeline orders\nno tenant has jobs at 1 worker\n";
    assert_eq!(text, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pipelines_are_paused_drained_and_resumed_unless_one_is_named() {
    let two = TwoPipelines::start(MANY).await;
    let paused = two.json(&["pause", "--all"]);
    for name in ["orders", "mail"] {
        let one = &paused["pipelines"][name];
        assert_eq!(one["all"], "paused", "{paused}");
        assert_eq!(one["workers_following"], 1, "{paused}");
        let series = format!("sluicegate_paused{{pipeline=\"{name}\"}}");
        assert_eq!(two.worker.metric(&series), Some(1.0));
    }
    // A named pipeline is resumed alone, with the same output as a single one.
    let resumed = two.json(&["resume", "--all", "--pipeline", "mail"]);
    assert_eq!(
        (&resumed["was"], &resumed["workers_following"]),
        (&json!("pause"), &json!(1))
    );
    two.file.publish("orders", "acme", 2).await;
    two.publish_bulk("bulk").await;
    two.file.publish("mail", "acme", 1).await;
    until("the job of mail", || {
        two.worker.metric(&done("mail")) == Some(1.0)
    })
    .await;
    assert_eq!(two.orders.count(), 0);
    let text = two.runs(&["resume", "--all"]).exited(0).out;
    let expected = "pipeline mail\nnothing was paused or drained: 1 worker follows\n\
         pipeline orders\nresumed all workers: 1 worker follows\n";
    assert_eq!(text, expected);
    until("the jobs of orders", || {
        two.worker.metric(&done("orders")) == Some(3.0)
    })
    .await;

    let drained = two.json(&["drain", "--wait", "100s"]);
    for name in ["orders", "mail"] {
        assert_eq!(drained["pipelines"][name]["empty"], true, "{drained}");
    }
    // Jobs published in the meantime stay, in either queue of the pipeline.
    two.file.publish("orders", "acme", 2).await;
    two.publish_bulk("more-bulk").await;
    two.file.publish("mail", "acme", 1).await;
    // A job in flight to a worker that stopped consuming returns a moment later.
    until("all new jobs in the queues", || {
        let drained = two.json(&["drain"]);
        let stay = |name: &str| drained["pipelines"][name]["jobs_in_work_queue"].as_u64();
        (stay("orders"), stay("mail")) == (Some(3), Some(1))
    })
    .await;
    let text = two.runs(&["drain", "--wait", "100s"]).exited(0).out;
    for part in [
        "pipeline orders\nno new jobs are taken until ",
        "pipeline mail\nno new jobs are taken until ",
        "pipeline orders\ndrained: no job is left to finish; the work queue has 3 jobs, ",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((two.orders.count(), two.mail.count()), (3, 1));
    two.json(&["resume", "--all"]);
    until("the other jobs", || {
        [done("orders"), done("mail")].map(|series| two.worker.metric(&series))
            == [Some(6.0), Some(2.0)]
    })
    .await;
    two.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_all_pipelines_and_names_busy_ones() {
    // The second job waits for an hour.
    let two = TwoPipelines::start("max-requests: 1, window-size: 1h").await;
    two.file.publish("mail", "acme", 2).await;
    until("its first job", || {
        two.worker.metric(&done("mail")) == Some(1.0)
    })
    .await;
    // Long enough for the next reports on a slow machine.
    let drained = two.runs(&["drain", "--wait", "20s"]).exited(1);
    let says = "error: mail: not drained within 20s: 0 calls in flight, ";
    assert!(drained.err.contains(says), "{drained:?}");
    assert!(
        !drained.err.contains("orders: not empty"),
        "it waited for both: {drained:?}"
    );
    let says = "pipeline orders\ndrained: no job is left";
    assert!(drained.out.contains(says), "{drained:?}");
    let drained = two.runs(&["drain", "--wait", "0s", "--json"]).exited(1);
    assert_eq!(drained.err, "", "the JSON says it");
    assert_eq!(drained.json()["pipelines"]["mail"]["empty"], false);
    two.worker.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_pipeline_does_not_prevent_pausing_the_others() {
    let file = File::new();
    // It keeps its port, so that no other server answers there.
    let nobody = Api::start().await;
    nobody.door.refuse().await;
    let address = nobody.door.address;
    let sections = to("http://127.0.0.1:9/", MANY);
    let lines = [
        format!("  away: {{redis: {{url: 'redis://{address}'}}, {sections}}}\n"),
        file.pipeline("there", &sections),
    ];
    let yaml = file.yaml(&lines);
    let paused = runs(&yaml, &["pause", "--all", "--json"]).exited(1);
    let all = &paused.json()["pipelines"];
    assert_eq!(all["there"]["all"], "paused", "{paused:?}");
    let error = all["away"]["error"].as_str().expect("an error");
    assert_eq!(paused.err, format!("error: away: {error}\n"));
    // The instruction was posted there.
    let there = ["resume", "--all", "--json", "--pipeline", "there"];
    assert_eq!(runs(&yaml, &there).exited(0).json()["was"], "pause");
    let text = runs(&yaml, &["pause", "--all"]).exited(1);
    assert!(text.out.starts_with("pipeline there\npaused"), "{text:?}");
    let alone = ["pause", "--all", "--json", "--pipeline", "away"];
    let alone = runs(&yaml, &alone).exited(1);
    assert_eq!((&*alone.out, alone.err), ("", format!("error: {error}\n")));
    // If a name is unknown, no pipeline is asked.
    let other = runs(&yaml, &["drain", "--pipeline", "ther"]).exited(2);
    assert!(other.err.contains("did you mean there?"), "{other:?}");
}
