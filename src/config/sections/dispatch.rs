//! `dispatch`: how jobs run.

use std::time::Duration;

use super::breaker::BreakerConfig;
use super::exec::Exec;
use super::forward::Forward;
use super::http::Http;
use super::results::Results;
use crate::reading::input::ConfigInput;
use crate::reading::key::{HOUR, duration, integer, keys};
use rules::job::call::CarriedFields;

keys! {
    CONCURRENCY: usize = integer::<_, 1, 10_000>("dispatch.concurrency", "calls")
        .default("64")
        .example("3")
        .live()
        .about("Maximum number of calls in flight per worker.");
    SHUTDOWN_TIMEOUT: Duration = duration::<0, HOUR>("dispatch.shutdown-timeout")
        .default("30s")
        .example("0")
        .about("Time that calls in flight have to finish after SIGTERM; other workers repeat the \
            unfinished ones.");
}

/// `dispatch`
#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    /// `dispatch.concurrency`: maximum number of jobs that run at once.
    pub concurrency: usize,
    /// `dispatch.shutdown-timeout`: maximum time for running jobs after SIGTERM.
    pub shutdown_timeout: Duration,
    /// `dispatch.breaker`, or `None` if it is not `enabled`.
    pub breaker: Option<BreakerConfig>,
    /// `dispatch.results`
    pub results: Results,
    /// `dispatch.http`. At most one of `http`, `exec` and `forward` is set. A worker with its own
    /// handler needs none of them, any other worker needs one.
    pub http: Option<Http>,
    /// `dispatch.exec`
    pub exec: Option<Exec>,
    /// `dispatch.forward`
    pub forward: Option<Forward>,
}

impl Dispatch {
    /// Returns the maximum duration of a call for the configured kind of dispatch.
    pub fn call_timeout(&self) -> Duration {
        let http = self.http.as_ref().map(|http| http.timeout);
        let exec = self.exec.as_ref().map(|exec| exec.timeout);
        let forward = self.forward.as_ref().map(|forward| forward.timeout);
        http.or(exec).or(forward).unwrap_or_default()
    }

    /// Takes the values of `new` that can change in a running worker.
    pub(crate) fn take_live(&mut self, new: &Self) {
        self.concurrency = new.concurrency;
    }
}

impl ConfigInput {
    /// Reads the section, and which values of jobs calls carry. Returns `None` after a problem.
    pub(crate) fn dispatch(&mut self) -> Option<(Dispatch, CarriedFields)> {
        let concurrency = self.get(&CONCURRENCY);
        let shutdown_timeout = self.get(&SHUTDOWN_TIMEOUT);
        let breaker = self.breaker();
        let results = self.results();
        let http = self.http();
        let exec = self.exec();
        let forward = self.forward();
        let (http, carried) = http?.unzip();
        let (exec, (forward, of_forward)) = (exec?, forward?.unzip());
        if http.is_some() && exec.is_some() {
            return self.exec_with("dispatch.http.url");
        }
        let other = match (&http, &exec) {
            (Some(_), _) => Some("dispatch.http.url"),
            (_, Some(_)) => Some("dispatch.exec.command"),
            _ => None,
        };
        if let (Some(other), Some(_)) = (other, &forward) {
            return self.forward_with(other);
        }
        let dispatch_kind = match (&exec, &forward) {
            (Some(_), _) => Some("dispatch.exec.command"),
            (_, Some(_)) => Some("dispatch.forward"),
            _ => None,
        };
        if let Some(dispatch_kind) = dispatch_kind {
            self.no_calls_beside(dispatch_kind)?;
        }
        let dispatch = Dispatch {
            concurrency: concurrency?,
            shutdown_timeout: shutdown_timeout?,
            breaker: breaker?,
            results: results?,
            http,
            exec,
            forward,
        };
        Some((dispatch, carried.or(of_forward).unwrap_or_default()))
    }
}
