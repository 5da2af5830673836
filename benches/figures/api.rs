//! The API that jobs call. It runs in a process of its own, so that its work does not count in
//! other figures. It answers 200 at once and records each call.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request};
use kit::process::Process;
use trial::api::{ApiServer, Cut, Reply, header};

use crate::bare::now_ns;

/// The argument that makes this program the API.
pub const ROLE: &str = "--as-api";
/// The text that it prints before its address.
const AT: &str = "api at ";
/// Interval at which its count of calls is read. Figures use the API's own clock, so polling delays
/// nothing.
const POLL: Duration = Duration::from_millis(50);
/// How long without a call until no more are expected.
const SILENCE: Duration = Duration::from_secs(60);

/// A recorded call.
#[derive(Debug, Clone)]
pub struct Call {
    pub job: String,
    pub tenant: String,
    /// When its head had been read, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// When the job was published, according to its body.
    pub sent_ns: u64,
}

/// The running process. Dropping it kills the process.
pub struct Api {
    // Kept for its drop.
    _process: Process,
    address: String,
}

impl Api {
    pub async fn start() -> Self {
        let process = role(&[ROLE]);
        process.logs(&[AT]).await;
        let log = process.log();
        let address = log.iter().find_map(|line| line.strip_prefix(AT));
        let address = address.expect("it has said so").to_owned();
        Self {
            _process: process,
            address,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Waits until `count` calls have arrived, or no more are expected. Returns their number.
    pub async fn until_called(&self, count: usize) -> usize {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let calls = self.get("/count").await.parse().expect("a number");
            if calls >= count || since.elapsed() > SILENCE {
                return calls;
            }
            if calls > last {
                (last, since) = (calls, Instant::now());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns all calls so far, in order.
    pub async fn calls(&self) -> Vec<Call> {
        let text = self.get("/calls").await;
        text.lines().map(read).collect()
    }

    /// Retries, since a machine that pauses for seconds is not an error.
    async fn get(&self, path: &str) -> String {
        let address = self.address.parse().expect("an address");
        let started = Instant::now();
        loop {
            match trial::fetch::get(address, path).await {
                Ok(text) => return text,
                Err(why) => assert!(started.elapsed() < SILENCE, "the API: {why}"),
            }
        }
    }
}

/// Starts this program in another role. It ends with this process, which closes its standard input.
pub fn role(args: &[&str]) -> Process {
    let own = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(own);
    command.args(args).stdin(Stdio::piped());
    Process::start(command)
}

/// Waits until the process that started this role has ended.
pub fn until_released() {
    // An error is an end as well.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn read(line: &str) -> Call {
    let mut fields = line.split('\t');
    let mut next = || fields.next().expect("four fields");
    Call {
        job: next().to_owned(),
        tenant: next().to_owned(),
        at_ns: next().parse().expect("a time"),
        sent_ns: next().parse().expect("a time"),
    }
}

/// The recorded calls, one per line.
#[derive(Default)]
struct RecordedCalls {
    count: usize,
    lines: String,
}

/// Runs the role: serves until it is released.
pub fn serve() {
    let recorded = Arc::<Mutex<RecordedCalls>>::default();
    let server = ApiServer::start_apart(move |request| answer(Arc::clone(&recorded), request));
    let server = server.expect("a free port");
    println!("{AT}{}", server.door.address);
    until_released();
}

async fn answer(recorded: Arc<Mutex<RecordedCalls>>, request: Request<Incoming>) -> Reply {
    let at_ns = now_ns();
    if request.method() == Method::GET {
        let recorded = recorded.lock().expect("no panic");
        return Reply::ok().body(match request.uri().path() {
            "/count" => recorded.count.to_string(),
            _ => recorded.lines.clone(),
        });
    }
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Reply::cut(Cut::Closed);
    };
    let sent_ns = <[u8; 16]>::try_from(&body.to_bytes()[..]).map_or(0, u128::from_be_bytes);
    let text = |name: &str| header(&head.headers, name).unwrap_or("?");
    let (job, tenant) = (text("x-job-id"), text("x-tenant"));
    let line = format!("{job}\t{tenant}\t{at_ns}\t{sent_ns}\n");
    let mut recorded = recorded.lock().expect("no panic");
    recorded.count += 1;
    recorded.lines.push_str(&line);
    Reply::ok()
}
