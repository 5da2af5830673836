//! Jobs for real workers of other kinds: Celery, and Node with amqplib. `scripts/test` installs
//! Python and Node; Celery and amqplib come from PyPI and npm.

use std::path::Path;
use std::process::{Command, Output};

use kit::process::Process;
use kit::servers::shared_rabbit;
use kit::sources::page;
use kit::{Bed, jobs, until};
use lapin::options::QueueDeleteOptions;
use tempfile::TempDir;

use super::{queue, yaml};
use crate::PROGRAM;
use crate::broker::bed::channel;

fn run(what: &str, command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|why| panic!("{command:?}: {why}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {errors}");
    output
}

/// Returns the maximum number of concurrent jobs in `log`, and the number of ended ones. The log
/// has a line for each begin and each end.
fn max_concurrent(log: &Path) -> (usize, usize) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let (mut now, mut max, mut ended) = (0, 0, 0);
    for line in text.lines() {
        match line {
            "begin" => now += 1,
            _ => {
                now -= 1;
                ended += 1;
            }
        }
        max = max.max(now);
    }
    (max, ended)
}

/// The forwarding worker and its queue, for workers with the code of `file` after replacing each
/// `from` by `to`.
struct ForwardingWorker {
    bed: Bed,
    queue: String,
    yaml: String,
    folder: TempDir,
}

impl ForwardingWorker {
    fn new(file: &str, [from, to]: [&str; 2]) -> Self {
        let bed = Bed::shared();
        let queue = format!("{}-orders", bed.name);
        let limits = "limits: [{name: running, max-concurrent: 2}]";
        let yaml = yaml(&bed, limits, &format!("routing-key: {queue}, done: true"));
        let folder = tempfile::tempdir().expect("a folder");
        let code = page(&format!("docs/workers/{file}"));
        assert!(code.contains(from), "{file} has no {from}");
        std::fs::write(folder.path().join(file), code.replace(from, to)).expect("written");
        Self {
            bed,
            queue,
            yaml,
            folder,
        }
    }

    fn start(&self, mut command: Command) -> Process {
        command
            .current_dir(self.folder.path())
            .env("AMQP_URL", shared_rabbit().url())
            .env("QUEUE", &self.queue)
            .env("LOG", self.folder.path().join("log"));
        Process::start(command)
    }

    /// Checks that workers that would run many jobs at once do twelve jobs, and always two at once:
    /// each other job ends only after another one has begun. `dead` is the reason of the jobs
    /// that become dead letters.
    async fn always_two_at_once(&self, sluice: Process, dead: Option<&str>) {
        let log = self.folder.path().join("log");
        until("all are done", || max_concurrent(&log).1 >= 12).await;
        assert_eq!(max_concurrent(&log), (2, 12));
        until("it knows", || {
            sluice.metric("sluicegate_calls_in_flight").unwrap_or(1.0) == 0.0
        })
        .await;
        if let Some(reason) = dead {
            let series = "sluicegate_dead_letters_total{reason=\"attempts\"}";
            until("one is dead", || sluice.metric(series) == Some(1.0)).await;
            let letters = self.bed.dead(&self.yaml).await;
            let why = format!("{:?}", letters[0].header("x-sluicegate-reason"));
            assert!(letters.len() == 1 && why.contains(reason), "{letters:?}");
        }
        sluice.stop();
        assert_eq!(self.bed.dead(&self.yaml).await, []);
        let channel = channel().await;
        let options = QueueDeleteOptions::default();
        let left = channel
            .queue_delete(self.queue.as_str().into(), options)
            .await;
        assert_eq!(left.expect("it is there"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_celery_worker_never_has_more_than_max_concurrent() {
    let slow = "import time
    if order == 13: raise ValueError('no such order')
    log = open(os.environ['LOG'], 'a+', buffering=1)
    log.write('begin\\n')
    def begun():
        log.seek(0)
        return log.read().count('begin')
    own = begun()
    while own % 2 and begun() == own: time.sleep(0.02)
    time.sleep(0.2)
    log.write('end\\n')";
    let theirs = ForwardingWorker::new(
        "celery_tasks.py",
        [r#"print(f"made {order}", flush=True)"#, slow],
    );
    let venv = theirs.folder.path().join("venv");
    run(
        "venv",
        Command::new("python3").args(["-m", "venv"]).arg(&venv),
    );
    let mut pip = Command::new(venv.join("bin/pip"));
    run("Celery", pip.args(["install", "--quiet", "celery"]));
    let channel = channel().await;
    queue(&channel, &theirs.queue).await;
    let mut celery = Command::new(venv.join("bin/celery"));
    celery.args([
        "-A",
        "celery_tasks",
        "worker",
        "--concurrency",
        "6",
        "--loglevel",
        "INFO",
    ]);
    let worker = theirs.start(celery);
    worker.logs(&["ready"]).await;
    let sluice = PROGRAM.start(&theirs.yaml);
    // Its queues exist.
    kit::client(&theirs.yaml).await.close().await;
    std::fs::write(theirs.folder.path().join("publish.py"), publisher()).expect("written");
    let mut publish = Command::new(venv.join("bin/python"));
    publish
        .arg("publish.py")
        .current_dir(theirs.folder.path())
        .env("AMQP_URL", shared_rabbit().url())
        .env("WORK", &theirs.bed.name);
    run("publishing", &mut publish);
    // An exception in a task is a failure: it is retried, and then becomes a dead letter with that
    // reason.
    (theirs.always_two_at_once(sluice, Some("ValueError('no such order')"))).await;
    assert!(worker.count(&["succeeded"]) >= 12, "{:#?}", worker.log());
    worker.signal(rustix::process::Signal::TERM);
}

/// Returns the page's code that publishes tasks, for twelve tasks and one that fails.
fn publisher() -> String {
    let page = page("docs/HANDLERS.md");
    let code = page
        .split_once("```python publish\n")
        .and_then(|(_, rest)| rest.split_once("```\n"));
    let (code, _) = code.expect("the page shows it");
    let one = "make.apply_async([7], queue=jobs, headers={\"x-tenant\": \"acme\"})";
    assert!(code.contains(one));
    let fails = one.replace('7', "13");
    code.replace(one, &format!("for _ in range(12):\n    {one}\n{fails}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_worker_never_has_more_than_max_concurrent() {
    let slow = "const work = async () => {
  const fs = require('fs'), path = process.env.LOG;
  const log = (word) => fs.appendFileSync(path, word + '\\n');
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const begun = () => fs.readFileSync(path, 'utf8').split('begin').length - 1;
  log('begin');
  const own = begun();
  while (own % 2 && begun() === own) await pause(20);
  await pause(200);
  log('end');
};";
    let plain = "const work = async (message) => console.log(`made ${message.content}`);";
    let theirs = ForwardingWorker::new("amqplib_worker.js", [plain, slow]);
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "amqplib"]);
    run("npm", npm.current_dir(theirs.folder.path()));
    let channel = channel().await;
    queue(&channel, &theirs.queue).await;
    // Three workers with prefetch 1 would run three at once.
    let mut workers = Vec::new();
    for _ in 0..3 {
        let mut node = Command::new("node");
        node.arg("amqplib_worker.js");
        let worker = theirs.start(node);
        worker.logs(&["ready"]).await;
        workers.push(worker);
    }
    let sluice = PROGRAM.start(&theirs.yaml);
    theirs.bed.publish(&theirs.yaml, jobs("acme", 12)).await;
    theirs.always_two_at_once(sluice, None).await;
}
