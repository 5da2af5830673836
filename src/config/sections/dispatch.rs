//! `dispatch`: how jobs run.

use std::time::Duration;

use super::breaker::BreakerConfig;
use super::exec::{self, Exec};
use super::forward::{self, Forward};
use super::http::{self, Http};
use super::results::Results;
use super::section::section;
use crate::reading::key::{HOUR, duration, integer};
use crate::reading::{ConfigInput, keys};
use rules::job::call::CarriedFields;

keys! {
    CONCURRENCY: usize = integer::<_, 1, 10_000>("dispatch.concurrency", "calls")
        .default("64")
        .live()
        .about("Maximum number of calls in flight per worker.");
    SHUTDOWN_TIMEOUT: Duration = duration::<0, HOUR>("dispatch.shutdown-timeout")
        .default("30s")
        .about("Time that calls in flight have to finish after SIGTERM; other workers repeat the \
            unfinished ones.");
}

section! {
    /// `dispatch`
    #[derive(Debug, Clone, PartialEq)]
    pub struct Dispatch {
        /// `dispatch.concurrency`: maximum number of jobs that run at once.
        pub concurrency: usize = CONCURRENCY,
        /// `dispatch.shutdown-timeout`: maximum time for running jobs after SIGTERM.
        pub shutdown_timeout: Duration = SHUTDOWN_TIMEOUT,
        /// `dispatch.breaker`, or `None` if it is not `enabled`.
        pub breaker: Option<BreakerConfig> = BreakerConfig::read_if,
        /// `dispatch.results`
        pub results: Results = Results::read,
        /// `dispatch.http`. At most one of `http`, `exec` and `forward` is set. A worker with its
        /// own handler needs none of them, any other worker needs one.
        pub http: Option<Http> = Http::read_if,
        /// `dispatch.exec`
        pub exec: Option<Exec> = Exec::read_if,
        /// `dispatch.forward`
        pub forward: Option<Forward> = Forward::read_if,
    }
    |input| {
        input.check_destinations(http.as_ref()?, exec.as_ref()?, forward.as_ref()?)?;
    }
}

impl Dispatch {
    /// Returns the maximum duration of a call for the configured kind of dispatch.
    pub fn call_timeout(&self) -> Duration {
        let http = self.http.as_ref().map(|http| http.timeout);
        let exec = self.exec.as_ref().map(|exec| exec.timeout);
        let forward = self.forward.as_ref().map(|forward| forward.timeout);
        http.or(exec).or(forward).unwrap_or_default()
    }

    /// Returns which values of jobs calls carry.
    pub(crate) fn carried(&self) -> CarriedFields {
        let of_http = self.http.as_ref().map(|http| &http.carried);
        let key = self.forward.as_ref().and_then(|to| to.routing_key.as_ref());
        let carried = of_http.or(key.map(|key| &key.carried));
        carried.cloned().unwrap_or_default()
    }
}

impl ConfigInput {
    /// Reports a second destination of jobs, and keys of `dispatch.http` without calls.
    fn check_destinations(
        &mut self,
        http: &Option<Http>,
        exec: &Option<Exec>,
        forward: &Option<Forward>,
    ) -> Option<()> {
        let of_forward = self.set_key_of(&forward::EXCHANGE, &forward::ROUTING_KEY);
        let destinations = [
            (http.is_some(), &http::URL.key),
            (exec.is_some(), &exec::COMMAND.key),
            (forward.is_some(), of_forward),
        ];
        let set = destinations.into_iter().filter(|(is_set, _)| *is_set);
        let mut keys = set.map(|(_, key)| key);
        match (keys.next(), keys.next()) {
            (Some(first), Some(second)) => {
                let words = format!(
                    "is set together with {}, but jobs have only one destination; keep one of them",
                    first.path
                );
                self.wrong(second, words)
            }
            (Some(key), None) if http.is_none() => self.no_calls_beside(key.path),
            _ => Some(()),
        }
    }
}
