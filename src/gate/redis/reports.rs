//! The workers' reports in Redis: one key with an expiry per worker.

use ::redis::{Cmd, Value, cmd};

use super::RedisGate;
use crate::GateError;
use crate::link::Request;
use crate::refusal;
use rules::report::{KEPT_MS, Report, ReportError};

impl RedisGate {
    /// Stores the report of `worker` with one command.
    ///
    /// # Errors
    /// [`GateError`] if Redis refused the report, or if it is unknown whether it was stored.
    pub async fn put_report(&self, worker: &str, report: Report) -> Result<(), GateError> {
        let key = self.keys.report(worker);
        let mut set = cmd("SET");
        set.arg(&key).arg(report.write()).arg("PX").arg(KEPT_MS);
        let mut stored = self.send_plain(&[key], |_| set.clone()).await?;
        stored.pop().map_or(Ok(()), |answer| answer.map(drop))
    }

    /// Returns the reports of `workers`, in their order, or `None` for a worker without a recent
    /// report. A report that can't be read has its own error, since in a cluster others are on
    /// other primaries.
    ///
    /// # Errors
    /// [`GateError`] if no report can be read.
    pub(crate) async fn reports(
        &self,
        workers: &[String],
    ) -> Result<Vec<Result<Option<Result<Report, ReportError>>, GateError>>, GateError> {
        let keys: Vec<String> = workers.iter().map(|name| self.keys.report(name)).collect();
        let get = |key: &str| {
            let mut get = cmd("GET");
            get.arg(key);
            get
        };
        let answers = self.send_plain(&keys, get).await?;
        let read = |value: Value| match value {
            Value::Nil => None,
            value => {
                let text: Result<String, _> = ::redis::from_redis_value(value);
                let broken = |_| ReportError::Broken("it is not text".to_owned());
                Some(text.map_err(broken).and_then(|text| Report::read(&text)))
            }
        };
        Ok((answers.into_iter())
            .map(|answer| answer.map(read))
            .collect())
    }

    /// Sends one command per key in one round trip.
    async fn send_plain(
        &self,
        keys: &[String],
        command: impl Fn(&str) -> Cmd,
    ) -> Result<Vec<Result<Value, GateError>>, GateError> {
        let request = |key| Request {
            key,
            command: command(key),
            load: None,
        };
        let requests = keys.iter().map(|key| request(key.as_str())).collect();
        let answers = self.link.send(requests).await?;
        let answered = |(key, answer): (&String, Result<Value, GateError>)| match answer? {
            Value::ServerError(error) => Err(refusal::refused(&error, key)),
            value => Ok(value),
        };
        Ok(keys.iter().zip(answers).map(answered).collect())
    }
}
