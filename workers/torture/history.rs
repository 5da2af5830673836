//! The events of a run, on one monotonic clock: everything that the checker knows. Each event is
//! one line of JSON.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::backlog::TenantBacklogs;
use crate::faults::FaultKind;
use crate::run_plan::TENANT;

/// A job: its tenant's number, and its own number among the tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId {
    pub tenant: u32,
    pub number: u32,
}

/// Writes the id of the job's message: `TENANT-NUMBER`.
impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.tenant, self.number)
    }
}

impl FromStr for JobId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (tenant, number) = text.split_once('-').ok_or(())?;
        let parse = |text: &str| text.parse().map_err(|_| ());
        Ok(Self {
            tenant: parse(tenant)?,
            number: parse(number)?,
        })
    }
}

impl JobId {
    pub const fn new(tenant: u32, number: u32) -> Self {
        Self { tenant, number }
    }

    /// Returns the body with which the job is published and must arrive. It is unique.
    pub fn body(self) -> String {
        format!("{{\"job\":\"{self}\"}}")
    }

    /// Returns the name of its tenant.
    pub fn tenant_name(self) -> String {
        format!("{TENANT}{}", self.tenant)
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a call ended at the downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DownstreamAnswer {
    /// 2xx.
    Done,
    /// 422: the job is meant to become a dead letter.
    Rejected,
    /// 429; the tenant is closed for [`crate::downstream::CLOSED`].
    Throttled,
    /// 5xx.
    Failed,
    /// The connection was cut instead of an answer.
    Cut,
    /// The caller left before the answer: it had waited too long, or ended.
    Gone,
}

impl DownstreamAnswer {
    /// Returns true if the job must not be called again, unless something broke.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Rejected)
    }

    /// Returns true if the call uses an attempt, or may have used one because its caller left.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Cut | Self::Gone)
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum EventKind {
    /// A publisher is about to publish the job.
    Publishing { job: JobId },
    /// The job's publisher sets its earliest start, `from`, on this clock.
    Starts { job: JobId, from: u64 },
    /// The job's publisher sets a dedupe key, which counts for `lasts` nanoseconds. `twice`: the
    /// job is published twice.
    Keyed {
        job: JobId,
        key: u32,
        lasts: u64,
        twice: bool,
    },
    /// RabbitMQ confirmed the job.
    Confirmed { job: JobId },
    /// A call arrived. `call` is unique; `worker` and `life` identify the process that made it.
    Arrived {
        call: u64,
        job: JobId,
        attempt: u32,
        worker: usize,
        life: u32,
    },
    /// A call had another body or tenant than its job was published with.
    Mangled { job: JobId },
    /// The downstream answered, or never will.
    Answered { call: u64, answer: DownstreamAnswer },
    /// A result came: its job, the end that it reports, and the status of the last call.
    Told {
        job: Option<JobId>,
        ended: String,
        status: Option<u16>,
    },
    /// An operator is about to cancel the job.
    Canceling { job: JobId },
    /// The canceling command reported the job's state, and whether all workers follow.
    Asked {
        job: JobId,
        said: String,
        all_follow: bool,
    },
    /// A dead letter, found at the end.
    Dead { job: JobId, reason: String },
    /// A window may hold `max` calls from now on.
    Limit { max: u64 },
    /// A fault begins. `fault` is unique.
    Broken {
        fault: u64,
        kind: FaultKind,
        /// The affected worker; `None` for a server or all workers.
        worker: Option<usize>,
        /// Description of the fault.
        how: String,
    },
    /// The fault waited in vain: a worker is struck at another moment, a queue is not deleted, or a
    /// changed file is not applied. Or it could not be injected.
    Missed { fault: u64 },
    /// The fault is over, and everything works again.
    Mended { fault: u64 },
    /// A worker ended by itself, or not as it should have.
    Failed { worker: usize, how: String },
    /// No more jobs are published, and no more faults begin.
    Draining,
}

/// An event and its time, in nanoseconds since the run began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryEvent {
    pub at: u64,
    #[serde(flatten)]
    pub what: EventKind,
}

/// Collects the events of all participants.
pub struct History {
    began: Instant,
    inner: Mutex<HistoryState>,
}

#[derive(Default)]
struct HistoryState {
    events: Vec<HistoryEvent>,
    backlog: TenantBacklogs,
}

impl History {
    /// Creates an empty history and starts its clock.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            inner: Mutex::default(),
        }
    }

    /// Returns the nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds an event that happens now.
    pub fn add(&self, what: EventKind) {
        self.add_at(self.now(), what);
    }

    /// Adds an event that happened at `at`.
    pub fn add_at(&self, at: u64, what: EventKind) {
        let mut inner = self.lock();
        inner.backlog.note(&what);
        inner.events.push(HistoryEvent { at, what });
    }

    /// Returns all events so far, sorted by time.
    pub fn events(&self) -> Vec<HistoryEvent> {
        let mut events = self.lock().events.clone();
        events.sort_by_key(|event| event.at);
        events
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Returns the number of confirmed jobs of `tenant` without a final answer from the downstream.
    pub fn waiting(&self, tenant: u32) -> usize {
        self.lock().backlog.of(tenant)
    }

    /// Returns the waiting job that `choice` selects.
    pub fn some_waiting(&self, choice: u32) -> Option<JobId> {
        self.lock().backlog.some(choice)
    }

    /// Returns the number of final answers so far.
    pub fn ended(&self) -> usize {
        self.lock().backlog.ended()
    }

    /// Returns the number of waiting jobs of all tenants.
    pub fn waiting_in_all(&self) -> usize {
        self.lock().backlog.in_all()
    }

    fn lock(&self) -> MutexGuard<'_, HistoryState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes `events` to `path`, one per line.
///
/// # Errors
/// Returns an error if the file can't be written.
pub fn write(path: &Path, events: &[HistoryEvent]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for event in events {
        serde_json::to_writer(&mut file, event)?;
        file.write_all(b"\n")?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_found_again_by_its_id() {
        let job = JobId::new(3, 1042);
        assert_eq!(job.to_string().parse(), Ok(job));
        for stranger in ["", "3", "3-", "-3", "a-1", "1-2-3"] {
            assert_eq!(stranger.parse::<JobId>(), Err(()), "{stranger}");
        }
    }

    #[test]
    fn an_event_is_a_flat_line() {
        let event = HistoryEvent {
            at: 7,
            what: EventKind::Answered {
                call: 2,
                answer: DownstreamAnswer::Done,
            },
        };
        let line = serde_json::to_string(&event).expect("JSON");
        assert_eq!(
            line,
            r#"{"at":7,"event":"answered","call":2,"answer":"done"}"#
        );
    }
}
