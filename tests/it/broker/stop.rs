//! The worker as a process: unreadable messages during a graceful end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use kit::PATIENCE;
use kit::servers::{shared_rabbit, shared_redis, unique};
use rules::headers::REASON;
use rules::job::Field;
use rustix::process::{Pid, Signal, kill_process};

use crate::PROGRAM;
use crate::broker::raw::{Raw, short};

/// A worker. Dropping it kills the process.
struct Worker(Child);

impl Worker {
    fn start(yaml: &str) -> (tempfile::TempDir, Self) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("sluicegate.yaml");
        std::fs::write(&file, yaml).expect("written");
        let child = Command::new(PROGRAM.0)
            .args(["run".as_ref(), "--config".as_ref(), file.as_os_str()])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        (folder, Self(child))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended already if the test passed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_messages_become_dead_letters_and_the_worker_stops_cleanly() {
    let name = unique("stop");
    let yaml = format!(
        "
amqp: {{url: '{}', queue: '{name}'}}
redis: {{url: '{}', prefix: '{name}'}}
rate-limiter: {{max-requests: 5, window-size: 1h}}
delay: {{max-delay: 1s}}
admin: {{listen: 127.0.0.1:0}}
log: {{level: debug}}
job: {{tenant: 'json:/tenant'}}
dispatch: {{http: {{url: 'http://127.0.0.1:9/'}}}}
",
        shared_rabbit().url(),
        shared_redis().url()
    );
    let client = kit::client(&yaml).await;
    let (_folder, mut worker) = Worker::start(&yaml);
    let pipe = worker.0.stderr.take().expect("piped");
    let log =
        std::thread::spawn(move || BufReader::new(pipe).lines().collect::<Result<Vec<_>, _>>());

    // The body names a tenant, so only the properties are invalid.
    let body = br#"{"tenant": "acme"}"#;
    let fresh = client.names().fresh.clone();
    let mut raw = Raw::connect(shared_rabbit().url());
    let bad_id = [&[0, 0x80][..], &short(b"\xff")].concat();
    raw.publish("", fresh.as_bytes(), &bad_id, body);
    // This dead letter shows that the publishing connection is up.
    let dead = client.names().dead.clone();
    kit::holds(&client, &dead, 1).await;

    let pid = Pid::from_child(&worker.0);
    kill_process(pid, Signal::TERM).expect("it runs");
    let status =
        tokio::task::spawn_blocking(move || worker.0.wait().map(|status| (status, worker)));
    let (status, worker) = tokio::time::timeout(PATIENCE, status)
        .await
        .expect("it ends in time")
        .expect("no panic")
        .expect("it is our child");
    assert!(status.success(), "{status}");
    drop(worker);
    let log = log.join().expect("no panic").expect("UTF-8");
    assert!(log.iter().any(|line| line.contains("stopped")), "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("ERROR")), "{log:#?}");
    let broken_off = (log.iter()).find(|line| line.contains("closing the connection failed"));
    assert_eq!(broken_off, None, "RabbitMQ's log would warn of it");

    let letter = client.get(&dead).await.expect("a letter").expect("one");
    let Field::Text(reason) = letter.message.header(REASON) else {
        panic!("no reason: {letter:?}");
    };
    assert!(reason.contains("message-id is not UTF-8"), "{reason}");
    assert_eq!(letter.message.body, body.as_slice());
}
