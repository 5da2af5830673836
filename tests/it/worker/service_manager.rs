//! A worker as a systemd unit with `Type=notify` and a watchdog, without systemd: the test listens
//! instead.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::Bed;
use kit::process::Process;
use kit::servers::{Rabbit, Redis};
use rustix::process::Signal;

use crate::PROGRAM;

/// The worker's messages, received instead of systemd.
struct Manager {
    socket: UnixDatagram,
    received: Vec<String>,
}

impl Manager {
    /// Listens until `words` have arrived `times` more times.
    async fn receives(&mut self, words: &str, times: usize) {
        let count = |lines: &[String]| lines.iter().filter(|line| *line == words).count();
        let enough = count(&self.received) + times;
        let began = Instant::now();
        while count(&self.received) < enough {
            assert!(
                began.elapsed() < Duration::from_secs(90),
                "no {words} in {:?}",
                self.received
            );
            let mut buffer = [0; 4096];
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&buffer[..length]);
                    self.received.extend(text.lines().map(str::to_owned));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn has_received(&self, words: &str) -> bool {
        self.received.iter().any(|line| line == words)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reports_readiness_and_survives_unresponsive_servers() {
    let (rabbit, redis) = (Rabbit::start(), Redis::start());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    socket.set_nonblocking(true).expect("set");
    let mut manager = Manager {
        socket,
        received: Vec::new(),
    };
    let bed = Bed::on(rabbit.url(), redis.url());
    let yaml = bed.yaml(
        "max-requests: 5, window-size: 1s",
        "http://127.0.0.1:9/",
        "",
    );
    let mut file = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    file.write_all(yaml.as_bytes()).expect("written");

    redis.pause();
    let mut command = Command::new(PROGRAM.0);
    command.args(["run", "--config"]).arg(file.path());
    command.env("NOTIFY_SOCKET", &path);
    command.env("WATCHDOG_USEC", "2000000");
    let mut worker = Process::start(command);
    manager
        .receives(
            "STATUS=RabbitMQ does not answer; Redis does not answer; no jobs are being taken",
            1,
        )
        .await;
    assert!(!manager.has_received("READY=1"), "{:?}", manager.received);
    redis.resume();
    manager.receives("READY=1", 1).await;
    // An idle worker whose servers don't answer must not be restarted.
    manager.receives("WATCHDOG=1", 3).await;
    redis.pause();
    rabbit.pause();
    manager.receives("WATCHDOG=1", 8).await;
    redis.resume();
    rabbit.resume();
    manager.receives("WATCHDOG=1", 2).await;
    assert!(
        !manager.has_received("STOPPING=1"),
        "{:?}",
        manager.received
    );

    worker.signal(Signal::TERM);
    manager.receives("STOPPING=1", 1).await;
    assert!(worker.ended().success(), "{:?}", worker.log());
    let ready = manager.received.iter().filter(|line| *line == "READY=1");
    assert_eq!(ready.count(), 1, "{:?}", manager.received);
}
