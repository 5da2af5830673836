//! `run --record`: records new jobs to a file for `sluicegate simulate --jobs`. The file has their
//! times, costs, priorities and labels, but no IDs and no bodies. Tenants and labels are pseudonyms
//! unless their names are requested.
//!
//! Recording never slows the worker: jobs that the writer has no time for are left out and counted.
//! The file has a maximum size, at which the recording ends.

mod file;

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::{info, warn};

use admin::InForce;
use broker::{BrokerEvent, Delivery, DeliverySource, Message};
use config::Config;
use rules::headers;
use rules::job::start::DELAY;
use rules::job::{self, Field, InBody};
use rules::scope::Scope;

/// Maximum number of jobs queued for the writer. Further jobs are left out.
const QUEUE_CAPACITY: usize = 4_096;
/// Maximum body, in bytes, of a job whose fields are read from its body. Jobs with longer bodies
/// are left out.
const MAX_BODY_BYTES: usize = 16 * 1024;
/// Maximum length of a text in bytes. A simulation refuses longer ones.
const MAX_TEXT_BYTES: usize = 255;
/// Headers that are no labels: a simulation sets the first two itself, and refuses them in a
/// recording. The third is recorded as it is.
const OTHER_HEADERS: [&str; 3] = [headers::COST, "x-tenant", DELAY];
/// Time after its first job at which a recording ends. A simulation refuses longer ones.
const MAX_DURATION: Duration = Duration::from_secs(30 * 86_400);
/// Interval at which the file is flushed.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// How long a stopping worker waits for its recording.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of a recording.
#[derive(Debug, Clone, Copy)]
pub struct RecordingOptions {
    /// Size in bytes at which the recording ends.
    pub max_bytes: u64,
    /// Whether to write the names of tenants and labels instead of pseudonyms.
    pub with_names: bool,
}

/// A job that was delivered, and when.
struct DeliveredJob {
    at: Instant,
    message: Message,
    /// The configuration at that time.
    config: Arc<Config>,
}

/// A message to the writer.
enum WriterMessage {
    Job(Box<DeliveredJob>),
    Flush(oneshot::Sender<()>),
}

/// A recording. Clones write to the same file.
#[derive(Clone)]
pub struct Recording {
    path: Arc<Path>,
    sender: SyncSender<WriterMessage>,
    left_out: Arc<AtomicU64>,
}

impl Recording {
    /// Begins a recording in a new file at `path`, or at `path.1` and so on if that exists. Logs
    /// the path and the recorded fields. Returns `None` and logs a warning if no file can be made;
    /// the worker goes on, because its jobs matter more.
    pub fn begin(path: &Path, recorded: RecordingOptions) -> Option<Self> {
        let started = Self::started(path, recorded);
        started
            .inspect_err(|why| {
                warn!(
                    file = %path.display(),
                    reason = %why,
                    "nothing is recorded: the file can't be created"
                );
            })
            .ok()
    }

    fn started(path: &Path, recorded: RecordingOptions) -> io::Result<Self> {
        let (file, path) = file::create(path)?;
        let (sender, came) = sync_channel(QUEUE_CAPACITY);
        let recording = Self {
            path: Arc::from(path.as_path()),
            sender,
            left_out: Arc::default(),
        };
        let writer = Writer {
            file: BufWriter::new(file),
            bytes: 0,
            jobs: 0,
            began: None,
            recorded,
            key: RandomState::new(),
        };
        let left_out = Arc::clone(&recording.left_out);
        thread::Builder::new()
            .name("recording".to_owned())
            .spawn(move || writer.run(&came, &left_out))?;
        info!(
            file = %path.display(),
            max_bytes = recorded.max_bytes,
            names = if recorded.with_names { "unchanged" } else { "pseudonyms" },
            "recording new jobs: times, costs, levels, plans, tenants and labels; no ids and no \
            bodies"
        );
        Ok(recording)
    }

    /// Forwards all events, and records the new jobs among them under the configuration in force.
    pub(super) fn tap(
        &self,
        mut from: mpsc::Receiver<BrokerEvent>,
        in_force: Arc<InForce>,
    ) -> mpsc::Receiver<BrokerEvent> {
        let (to, events) = mpsc::channel(1);
        let recording = self.clone();
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    biased;
                    () = to.closed() => return,
                    event = from.recv() => event,
                };
                let Some(event) = event else { return };
                if let BrokerEvent::Deliveries(deliveries) = &event
                    && let Some(config) = in_force.get()
                {
                    for delivery in deliveries {
                        recording.record_delivery(delivery, &config);
                    }
                }
                if to.send(event).await.is_err() {
                    return;
                }
            }
        });
        events
    }

    fn record_delivery(&self, delivery: &Delivery, config: &Arc<Config>) {
        if delivery.source != DeliverySource::Fresh || delivery.redelivered {
            return;
        }
        let mut message = Message::clone(&delivery.message);
        let is_read = InBody::is_needed(&config.job);
        let is_long = message.body.len() > MAX_BODY_BYTES;
        if !is_read {
            message.body = Bytes::new();
        }
        let came = DeliveredJob {
            at: Instant::now(),
            message,
            config: Arc::clone(config),
        };
        if (is_read && is_long)
            || self
                .sender
                .try_send(WriterMessage::Job(Box::new(came)))
                .is_err()
        {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the recording and removes its file if it is empty. If a worker can't start, a
    /// supervisor may restart it many times, and empty files would use up the few file names.
    pub fn end(&self) {
        let is_empty = fs::metadata(&self.path).is_ok_and(|file| file.len() == 0);
        if is_empty && let Err(why) = fs::remove_file(&self.path) {
            warn!(file = %self.path.display(), reason = %why, "the recording is empty; its file \
                is kept");
        }
    }

    /// Flushes the recording to its file. Returns when that is done, after 2 s, or at once if the
    /// writer's queue is full.
    pub(super) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.sender.try_send(WriterMessage::Flush(done)).is_ok() {
            // Lines that are not written in time are left out.
            let _ = timeout(FLUSH_TIMEOUT, flushed).await;
        }
    }
}

struct Writer {
    file: BufWriter<File>,
    bytes: u64,
    jobs: u64,
    /// When the first job came, or `None` before that.
    began: Option<Instant>,
    recorded: RecordingOptions,
    /// Key of the hash that makes pseudonyms, random for each recording.
    key: RandomState,
}

impl Writer {
    fn run(mut self, messages: &Receiver<WriterMessage>, left_out: &AtomicU64) {
        let written = self.write_all(messages, left_out);
        if let Err(why) = written.and_then(|()| self.file.flush()) {
            warn!(reason = %why, "recording stopped: its file can't be written");
        }
    }

    fn write_all(
        &mut self,
        messages: &Receiver<WriterMessage>,
        left_out: &AtomicU64,
    ) -> io::Result<()> {
        loop {
            let came = match messages.recv_timeout(FLUSH_INTERVAL) {
                Ok(WriterMessage::Job(came)) => came,
                Ok(WriterMessage::Flush(done)) => {
                    self.file.flush()?;
                    info!(
                        jobs = self.jobs,
                        bytes = self.bytes,
                        left_out = left_out.load(Ordering::Relaxed),
                        "recorded"
                    );
                    // The receiver may have stopped waiting.
                    let _ = done.send(());
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.file.flush()?;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            if self
                .began
                .is_some_and(|began| came.at > began + MAX_DURATION)
            {
                info!(
                    duration = ?MAX_DURATION,
                    jobs = self.jobs,
                    "recording stopped: a simulation takes no later jobs"
                );
                return Ok(());
            }
            let Some(mut line) = self.line(&came) else {
                left_out.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            line.push('\n');
            if self.bytes + line.len() as u64 > self.recorded.max_bytes {
                info!(
                    max_bytes = self.recorded.max_bytes,
                    jobs = self.jobs,
                    "recording stopped: its file has reached its maximum size"
                );
                return Ok(());
            }
            self.file.write_all(line.as_bytes())?;
            self.bytes += line.len() as u64;
            self.jobs += 1;
        }
    }

    /// Returns the job as a line for `simulate --jobs`, or `None` if the message is invalid.
    fn line(&mut self, job: &DeliveredJob) -> Option<String> {
        let DeliveredJob {
            at,
            message,
            config,
        } = job;
        let policy = &config.rate_limiter.policy;
        let claims = job::read(message, false, &config.job, policy).ok()?;
        let began = *self.began.get_or_insert(*at);
        let at = at.saturating_duration_since(began);
        let mut line = Map::new();
        line.insert("at".to_owned(), json!(at.as_millis() as f64 / 1e3));
        let tenant = self.named("tenant", claims.tenant.as_str());
        line.insert("tenant".to_owned(), Value::String(tenant));
        if claims.cost != 1 {
            line.insert("cost".to_owned(), claims.cost.into());
        }
        if let Some(priority) = value(message.header(headers::LEVEL)) {
            line.insert("priority".to_owned(), priority);
        }
        let limits = policy.limits(&claims.tenant, claims.plan.as_deref());
        let mut header = Map::new();
        for (scope, label) in job::labels(message, limits.all()).all() {
            match scope {
                Scope::Header(name) if OTHER_HEADERS.contains(&name.as_str()) => {}
                Scope::Header(name) => {
                    header.insert(name.clone(), Value::String(self.named("label", label)));
                }
                Scope::RoutingKey => {
                    let key = Value::String(self.named("label", label));
                    line.insert("routing_key".to_owned(), key);
                }
                Scope::Tenant | Scope::Global => {}
            }
        }
        if let Some(plan) = claims.plan {
            line.insert("plan".to_owned(), Value::String(plan));
        }
        if let Some(delay) = value(message.header(DELAY)) {
            header.insert(DELAY.to_owned(), delay);
        }
        if !header.is_empty() {
            line.insert("header".to_owned(), Value::Object(header));
        }
        Some(Value::Object(line).to_string())
    }

    /// Returns `name`, or its pseudonym in this recording.
    fn named(&self, kind: &str, name: &str) -> String {
        match self.recorded.with_names {
            true => name.to_owned(),
            false => format!("{kind}-{:016x}", self.key.hash_one(name)),
        }
    }
}

/// Returns the value of a header, or `None` if a simulation would refuse it.
fn value(field: Field<'_>) -> Option<Value> {
    match field {
        Field::Text(text) if text.len() > MAX_TEXT_BYTES => None,
        Field::Text(text) => Some(Value::String(text.to_owned())),
        Field::Int(number) => Some(number.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};

    use super::*;
    use broker::Tag;
    use rules::headers::HeaderValue;

    fn delivery(number: u64, tenant: &str, source: DeliverySource) -> Delivery {
        let mut table = FieldTable::default();
        table.insert("x-tenant".into(), AMQPValue::LongString(tenant.into()));
        table.insert("x-cost".into(), AMQPValue::LongUInt(3));
        Delivery {
            tag: Tag {
                session: 1,
                source,
                tag: number,
            },
            message: Message {
                routing_key: "jobs".to_owned(),
                properties: BasicProperties::default()
                    .with_message_id("secret-id".into())
                    .with_headers(table),
                body: Bytes::from_static(b"secret body"),
            }
            .into(),
            source,
            redelivered: false,
        }
    }

    async fn recorded(recorded: RecordingOptions, jobs: u64) -> (String, u32) {
        let folder = std::env::temp_dir().join(format!("sluicegate-record-{}", ulid::Ulid::new()));
        std::fs::create_dir(&folder).expect("a folder");
        let path = folder.join("jobs.jsonl");
        let recording = Recording::begin(&path, recorded).expect("begun");
        let (sender, receiver) = mpsc::channel(1);
        let in_force = Arc::<InForce>::default();
        in_force.set(&Config::default());
        let mut events = recording.tap(receiver, in_force);
        for number in 0..jobs {
            let tenant = if number % 2 == 0 { "acme" } else { "b" };
            let deliveries = [DeliverySource::Fresh, DeliverySource::Due]
                .map(|from| delivery(number, tenant, from));
            let event = BrokerEvent::Deliveries(deliveries.into());
            sender.send(event).await.expect("taken");
            assert!(
                matches!(events.recv().await, Some(BrokerEvent::Deliveries(two)) if two.len() == 2)
            );
        }
        drop(sender);
        assert!(events.recv().await.is_none());
        recording.flush().await;
        recording.end();
        let mode = std::fs::metadata(&path).expect("it is there").permissions();
        let text = std::fs::read_to_string(&path).expect("it can be read");
        std::fs::remove_dir_all(&folder).expect("removed");
        (text, mode.mode() & 0o777)
    }

    #[tokio::test]
    async fn new_jobs_are_recorded_without_ids_bodies_and_names() {
        let options = RecordingOptions {
            max_bytes: 1 << 20,
            with_names: false,
        };
        let (text, mode) = recorded(options, 4).await;
        assert_eq!(mode, 0o600);
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 4, "those that come back are not new");
        assert!(!text.contains("secret") && !text.contains("acme"), "{text}");
        assert_eq!(lines[0]["cost"], 3);
        assert_eq!(lines[0]["tenant"], lines[2]["tenant"]);
        assert_ne!(lines[0]["tenant"], lines[1]["tenant"]);
    }

    /// Returns the jobs that `record` records under the configuration `yaml`, with real names.
    async fn recorded_under(
        yaml: &str,
        record: impl FnOnce(&Recording, &Arc<Config>),
    ) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.jsonl");
        let options = RecordingOptions {
            max_bytes: 1 << 20,
            with_names: true,
        };
        let config = Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid");
        let recording = Recording::begin(&path, options).expect("begun");
        record(&recording, &Arc::new(config));
        recording.flush().await;
        let text = fs::read_to_string(&path).expect("it can be read");
        let json = |line| serde_json::from_str(line).expect("JSON");
        text.lines().map(json).collect()
    }

    /// Returns a new job with this header.
    fn job_with(name: &str, value: &str) -> Delivery {
        let mut job = delivery(1, "acme", DeliverySource::Fresh);
        let header = (name, HeaderValue::Text(value.to_owned()));
        job.message = (Message::clone(&job.message).with_headers(&[header], &[])).into();
        job
    }

    #[tokio::test]
    async fn labels_that_only_a_shadow_limit_distinguishes_are_recorded() {
        let yaml = "rate-limiter: {limits: [{name: all, max-requests: 5}, \
            {name: users, max-requests: 5, scope: 'header:x-user', shadow: true}]}";
        let job = job_with("x-user", "7");
        let lines = recorded_under(yaml, |to, config| to.record_delivery(&job, config)).await;
        assert_eq!(lines[0]["header"]["x-user"], "7");
    }

    #[tokio::test]
    async fn headers_that_a_simulation_sets_itself_are_left_out() {
        let yaml = "rate-limiter: {limits: [{name: cost, max-requests: 5, scope: 'header:x-cost'}, \
            {name: tenant, max-requests: 5, scope: 'header:x-tenant'}]}";
        let job = job_with("x-user", "7");
        let lines = recorded_under(yaml, |to, config| to.record_delivery(&job, config)).await;
        assert_eq!(
            (&lines[0]["cost"], &lines[0]["header"]),
            (&json!(3), &Value::Null)
        );
    }

    #[tokio::test]
    async fn jobs_whose_calls_have_values_of_their_bodies_are_recorded() {
        let yaml = "dispatch: {http: {url: 'http://api/{json:/id}'}}";
        let mut job = job_with("x-user", "7");
        Arc::make_mut(&mut job.message).body = Bytes::from_static(br#"{"id": 7}"#);
        let lines = recorded_under(yaml, |to, config| to.record_delivery(&job, config)).await;
        assert_eq!(lines.len(), 1);
    }

    #[tokio::test]
    async fn a_text_that_a_simulation_refuses_is_left_out() {
        let long = "x".repeat(256);
        let yaml = "job: {max-delayed-start: 0}";
        let record = |recording: &Recording, config: &Arc<Config>| {
            for name in ["x-priority", "x-delay"] {
                recording.record_delivery(&job_with(name, &long), config);
            }
        };
        let lines = recorded_under(yaml, record).await;
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert!(!line.to_string().contains(&long), "{line}");
        }
    }

    #[tokio::test]
    async fn a_recording_ends_before_it_is_too_long_to_be_simulated() {
        let day = Duration::from_secs(86_400);
        let record = |recording: &Recording, config: &Arc<Config>| {
            for days in [0, 29, 31] {
                let job = WriterMessage::Job(Box::new(DeliveredJob {
                    at: Instant::now() + day * days,
                    message: Arc::unwrap_or_clone(job_with("x-user", "7").message),
                    config: Arc::clone(config),
                }));
                recording.sender.send(job).expect("the writer runs");
            }
        };
        let lines = recorded_under("", record).await;
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    #[test]
    fn a_recording_without_jobs_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.jsonl");
        let options = RecordingOptions {
            max_bytes: 100,
            with_names: true,
        };
        for _ in 0..20 {
            let recording = Recording::begin(&path, options).expect("begun");
            assert!(path.exists());
            recording.end();
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn a_recording_has_names_on_request_and_is_bounded() {
        let options = RecordingOptions {
            max_bytes: 100,
            with_names: true,
        };
        let (text, _) = recorded(options, 50).await;
        assert!(text.contains("\"acme\"") && text.len() <= 100, "{text}");
        assert!(text.ends_with("}\n"), "{text}");
    }
}
