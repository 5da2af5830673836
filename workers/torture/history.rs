//! What happened, on one monotonic clock: everything that the checker knows. One event is one line of JSON.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::backlog::Backlog;
use crate::faults::Kind;
use crate::plan::TENANT;

/// A job: its tenant's number, and its own among the tenant's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Job {
    pub tenant: u32,
    pub number: u32,
}

/// The id that it has as a message: `TENANT-NUMBER`.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.tenant, self.number)
    }
}

impl FromStr for Job {
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

impl Job {
    /// What it is published with, and arrives with: no other job has the same.
    pub fn body(self) -> String {
        format!("{{\"job\":\"{self}\"}}")
    }

    /// The name of its tenant.
    pub fn tenant_name(self) -> String {
        format!("{TENANT}{}", self.tenant)
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How a call ended at the downstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// 2xx.
    Done,
    /// 422: the job is made to become a dead letter.
    Rejected,
    /// 429, and closed for a second.
    Throttled,
    /// 5xx.
    Failed,
    /// The connection was cut instead of an answer.
    Cut,
    /// The caller went away before the answer: it waited too long, or ended.
    Gone,
}

impl Answer {
    /// The job must not be called again after it, unless something broke.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Rejected)
    }

    /// It uses up an attempt; of a caller that went away, it may have.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed | Self::Cut | Self::Gone)
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What {
    /// A publisher is about to publish it.
    Publishing { job: Job },
    /// Its publisher says that it starts at `from` at the earliest, on this clock.
    Starts { job: Job, from: u64 },
    /// Its publisher gives it a dedupe key, which counts for so many nanoseconds. `twice`: it is published twice.
    Keyed {
        job: Job,
        key: u32,
        lasts: u64,
        twice: bool,
    },
    /// RabbitMQ confirmed it.
    Confirmed { job: Job },
    /// A call arrived. Its number is its own; `worker` and `life` say which process made it.
    Arrived {
        call: u64,
        job: Job,
        attempt: u32,
        worker: usize,
        life: u32,
    },
    /// A call had not the body, or not the tenant, that its job was published with.
    Mangled { job: Job },
    /// The downstream answered, or will not.
    Answered { call: u64, answer: Answer },
    /// A result came: of which job, how it says that it ended, and with which status of its last call.
    Told {
        job: Option<Job>,
        ended: String,
        status: Option<u16>,
    },
    /// An operator is about to ask that it is called no more.
    Cancelling { job: Job },
    /// How the operator's command said that it stands, and whether it said that all workers follow.
    Asked {
        job: Job,
        said: String,
        all_follow: bool,
    },
    /// A dead letter, found at the end.
    Dead { job: Job, reason: String },
    /// From now on a window may hold as many.
    Limit { max: u64 },
    /// A fault begins. Its number is its own.
    Broken {
        fault: u64,
        kind: Kind,
        /// The worker that it is done to; none: a server, or all.
        worker: Option<usize>,
        /// What exactly, in words.
        how: String,
    },
    /// What it waited for did not come: a worker is struck at another moment, a queue is not deleted.
    Missed { fault: u64 },
    /// It is over: what was broken is whole again.
    Mended { fault: u64 },
    /// A worker ended by itself, or not as it should have.
    Failed { worker: usize, how: String },
    /// No more jobs are published, and no more faults begin.
    Draining,
}

/// What happened, and when, in nanoseconds since the run began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    pub at: u64,
    #[serde(flatten)]
    pub what: What,
}

/// Where everybody writes down what happens.
pub struct History {
    began: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    events: Vec<Event>,
    backlog: Backlog,
}

impl History {
    /// Nothing has happened; the clock begins.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            inner: Mutex::default(),
        }
    }

    /// Nanoseconds since the run began.
    pub fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// It happens now.
    pub fn add(&self, what: What) {
        self.add_at(self.now(), what);
    }

    /// It happened at `at`.
    pub fn add_at(&self, at: u64, what: What) {
        let mut inner = self.lock();
        inner.backlog.note(&what);
        inner.events.push(Event { at, what });
    }

    /// Everything so far, in order of time.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.lock().events.clone();
        events.sort_by_key(|event| event.at);
        events
    }

    /// How many events there are.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Confirmed jobs of `tenant` that the downstream has not answered for good.
    pub fn waiting(&self, tenant: u32) -> usize {
        self.lock().backlog.of(tenant)
    }

    /// One of the jobs that wait, which `choice` decides.
    pub fn some_waiting(&self, choice: u32) -> Option<Job> {
        self.lock().backlog.some(choice)
    }

    /// Final answers so far.
    pub fn ended(&self) -> usize {
        self.lock().backlog.ended()
    }

    /// Those of all tenants.
    pub fn waiting_in_all(&self) -> usize {
        self.lock().backlog.in_all()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes `events` to `path`, one a line.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, events: &[Event]) -> io::Result<()> {
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
        let job = Job {
            tenant: 3,
            number: 1042,
        };
        assert_eq!(job.to_string().parse(), Ok(job));
        for stranger in ["", "3", "3-", "-3", "a-1", "1-2-3"] {
            assert_eq!(stranger.parse::<Job>(), Err(()), "{stranger}");
        }
    }

    #[test]
    fn an_event_is_a_flat_line() {
        let event = Event {
            at: 7,
            what: What::Answered {
                call: 2,
                answer: Answer::Done,
            },
        };
        let line = serde_json::to_string(&event).expect("JSON");
        assert_eq!(
            line,
            r#"{"at":7,"event":"answered","call":2,"answer":"done"}"#
        );
    }
}
