//! Forwards each job, when its turn has come, to the queue of existing workers
//! (`dispatch.forward`).
//!
//! A job is done when RabbitMQ has confirmed its copy. With `done`, it is done when the worker that
//! got the copy reports so. Until then it stays unacked, and limits on calls in flight count it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::verdicts::{self, retry, unprepared};
use super::{Attempt, Fate, LateEnd, Outcome, Permit, PreparingHandler, Trouble};
use broker::amqp::Forwarder;
use broker::forwarding::{ExpectedEnd, Forwarding};
use broker::{BrokerError, ExternalMessage, Message, PublishError};
use config::{self, Config, Forward};
use rules::decision::LEASE_MS;
use rules::delays::{DelayLevels, QueueNames};
use rules::headers::{self, HeaderValue};
use rules::job::Job;
use rules::job::verdict::{self, Verdict};

/// Maximum length of a name in AMQP, in bytes.
const MAX_NAME_BYTES: usize = 255;
/// Maximum time to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwards jobs.
pub struct ForwardHandler<F = Forwarder> {
    forwarder: Arc<F>,
    exchange: Arc<str>,
    routing_key: Option<config::RoutingKey>,
    timeout: Duration,
    /// The worker's own queues: a job must not be forwarded to one of them, since it would come
    /// back.
    own: QueueNames,
}

impl ForwardHandler {
    /// Connects in the background. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BrokerError::Url`] if the URL can't be used.
    pub fn new(config: &Config, forward: &Forward) -> Result<Self, BrokerError> {
        let work = &config.amqp.queue;
        let done = forward.done.then(|| format!("{work}.done.{}", token()));
        let own = (config.amqp).names(&DelayLevels::new(config.delay.max_delay));
        let forwarder = Forwarder::start(&config.amqp, done)?;
        Ok(Self::over(Arc::new(forwarder), forward, own))
    }

    /// Returns a future that closes the connection after the worker has ended.
    pub fn closer(&self) -> impl Future<Output = ()> + use<> {
        let forwarder = Arc::clone(&self.forwarder);
        async move { forwarder.close().await }
    }
}

impl<F: Forwarding> ForwardHandler<F> {
    /// Forwards jobs by `forwarder`, and none to the queues in `own`.
    pub fn over(forwarder: Arc<F>, forward: &Forward, own: QueueNames) -> Self {
        Self {
            forwarder,
            exchange: forward.exchange.as_str().into(),
            routing_key: forward.routing_key.clone(),
            timeout: forward.timeout,
            own,
        }
    }

    /// Returns the message to forward, and the handle that waits for the job's end if there is one.
    /// The error says why the job can never be forwarded.
    fn outgoing(&self, job: &Job) -> Result<(ExternalMessage, Option<ExpectedEnd>), String> {
        let key = match &self.routing_key {
            None => job.routing_key().to_owned(),
            Some(key) => match &key.of_jobs {
                None => key.text.clone(),
                Some(of_jobs) => of_jobs.render(job, ""),
            },
        };
        if key.len() > MAX_NAME_BYTES {
            let length = key.len();
            return Err(format!(
                "its routing key would be {length} bytes long; the maximum is {MAX_NAME_BYTES}"
            ));
        }
        if self.exchange.is_empty() && self.own.has(&key) {
            return Err(format!(
                "it would come back: dispatch.forward sends it to {key}, a queue of Sluicegate"
            ));
        }
        if ExternalMessage::is_direct_target(&self.exchange, &key) {
            return Err(format!(
                "dispatch.forward would send it to {key}, a client's direct reply-to, which is \
                not a queue and may drop it"
            ));
        }
        let message = job.published.message::<Message>();
        let message = message.ok_or("it did not come as a message")?;
        let mut set = Vec::new();
        let expected = self.forwarder.done_queue().map(|queue| {
            let token = token();
            set.push((headers::DONE, HeaderValue::Text(queue.to_owned())));
            set.push((headers::DONE_TOKEN, HeaderValue::Text(token.clone())));
            self.forwarder.expect(token)
        });
        set.extend(
            job.traceparent()
                .map(|text| (headers::TRACEPARENT, HeaderValue::Text(text))),
        );
        let outgoing = ExternalMessage {
            exchange: Arc::clone(&self.exchange),
            routing_key: key.into(),
            message: message.for_workers(&set),
        };
        Ok((outgoing, expected))
    }

    /// Waits for the worker's report on the job, within the timeout.
    async fn end(&self, job: &Job, mut expected: ExpectedEnd) -> Attempt {
        let within = self.timeout;
        match timeout(within, expected.end()).await {
            Ok(Some(body)) => report_attempt(&body, &job.id),
            Ok(None) => retry("its end is no longer awaited").into(),
            Err(_) => Attempt {
                fate: abandoned(expected),
                ..retry(format!(
                    "no worker reported it done within {within:?} (dispatch.forward.timeout)"
                ))
                .into()
            },
        }
    }
}

/// Returns the fate of a job that a worker may still be working on. The report of that worker ends
/// its lease.
fn abandoned(mut expected: ExpectedEnd) -> Fate {
    Fate::Abandoned {
        lease: Duration::from_millis(LEASE_MS),
        ended: LateEnd::new(async move {
            expected.end().await;
        }),
    }
}

/// Turns a worker's report on the job `id` into an attempt. An empty report means done.
fn report_attempt(body: &[u8], id: &str) -> Attempt {
    if body.is_empty() {
        return verdicts::attempt(Verdict::DONE);
    }
    let why = match verdict::read(body) {
        Ok(verdict) if verdict.call.is_some() => {
            r#"it has a "call", which only programs of dispatch.exec get"#.to_owned()
        }
        Ok(verdict) if verdict.id.as_ref().is_none_or(|of| of == id) => {
            return verdicts::attempt(verdict);
        }
        Ok(_) => "it has another job's id".to_owned(),
        Err(why) => why.to_string(),
    };
    Attempt {
        fate: Fate::Answered,
        ..retry(format!("the worker's answer is invalid: {why}")).into()
    }
}

/// Returns an unguessable token.
fn token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

// Not for authors of workers, who see the pages of the trait.
#[doc(hidden)]
impl<F: Forwarding> PreparingHandler for ForwardHandler<F> {
    /// The connection, which all jobs share; nothing else needs to be prepared.
    type Ready = ();

    fn at_once(&self) -> Option<()> {
        self.forwarder.is_up().then_some(())
    }

    async fn prepare(&self, _: &Job) -> Result<(), Attempt> {
        let up = timeout(CONNECT_TIMEOUT, self.forwarder.up()).await;
        up.map_err(|_| {
            let why = format!(
                "RabbitMQ accepts no jobs for workers: no connection within {CONNECT_TIMEOUT:?}"
            );
            unprepared(Trouble::Unreachable, why)
        })
    }

    fn is_ready(&self, (): &mut ()) -> bool {
        self.forwarder.is_up()
    }

    async fn send(&self, job: &Job, (): (), permit: Permit) -> Attempt {
        let (outgoing, expected) = match self.outgoing(job) {
            Ok(both) => both,
            Err(reason) => {
                return Attempt {
                    fate: Fate::Unwritten,
                    ..Outcome::Reject { reason }.into()
                };
            }
        };
        if !permit.is_good() || !self.forwarder.is_up() {
            return Outcome::Late.into();
        }
        let key = Arc::clone(&outgoing.routing_key);
        // RabbitMQ may delay the message, behind others or during an alarm. The job counts from the
        // moment at which RabbitMQ has it.
        let is_there = Arc::new(AtomicBool::new(false));
        let has_arrived = Arc::clone(&is_there);
        permit.written(move || has_arrived.load(Ordering::Relaxed));
        let published = self.forwarder.publish(outgoing).await;
        is_there.store(published.is_ok(), Ordering::Relaxed);
        let (why, mut expected) = match (published, expected) {
            (Ok(()), None) => return verdicts::attempt(Verdict::DONE),
            (Ok(()), Some(expected)) => return self.end(job, expected).await,
            (Err(why), expected) => (why, expected),
        };
        // The confirm was lost, but the worker that got the job has already reported its end.
        let end = expected.as_mut().and_then(|it| it.end().now_or_never());
        if let Some(body) = end.flatten() {
            return report_attempt(&body, &job.id);
        }
        let exchange = match &*self.exchange {
            "" => "the default exchange",
            name => name,
        };
        let reason = format!("not forwarded to {exchange} with the key {key}: {why}");
        let fate = match (&why, expected) {
            (
                PublishError::Returned
                | PublishError::Nacked
                | PublishError::Refused(_)
                | PublishError::Forbidden(_),
                _,
            ) => Fate::Answered,
            // RabbitMQ may have the job, and so may a worker.
            (PublishError::Unconfirmed | PublishError::Down(_), Some(expected)) => {
                abandoned(expected)
            }
            (PublishError::Unconfirmed | PublishError::Down(_), None) => Fate::Unknown,
        };
        let outcome = match why {
            // Another attempt would close the connection of all jobs again.
            PublishError::Refused(_) => Outcome::Reject { reason },
            _ => retry(reason),
        };
        Attempt {
            fate,
            ..outcome.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broker::forwarding::PendingEnds;
    use bytes::Bytes;
    use kit::gate::tenant;
    use rules::job::{Field, JobMessage};
    use tokio::time::Instant;

    /// A worker that reports at once. Then the connection is lost, and the confirm with it.
    #[derive(Default)]
    struct UnconfirmedWorker(PendingEnds);

    impl Forwarding for UnconfirmedWorker {
        fn is_up(&self) -> bool {
            true
        }

        async fn up(&self) {}

        fn done_queue(&self) -> Option<&str> {
            Some("jobs.done")
        }

        fn expect(&self, token: String) -> ExpectedEnd {
            self.0.expect(token)
        }

        async fn publish(&self, outgoing: ExternalMessage) -> Result<(), PublishError> {
            let Field::Text(token) = outgoing.message.header(headers::DONE_TOKEN) else {
                panic!("there is no token");
            };
            assert!(self.0.report(token, Bytes::new()));
            Err(PublishError::Down("injected".to_owned()))
        }
    }

    #[tokio::test]
    async fn a_report_counts_even_if_the_confirm_is_lost() {
        let forward = Forward {
            exchange: "workers".to_owned(),
            routing_key: None,
            done: true,
            timeout: Duration::from_secs(10),
        };
        let own = QueueNames::new("jobs", &DelayLevels::new(Duration::from_secs(60)));
        let worker = Arc::new(UnconfirmedWorker::default());
        let handler = ForwardHandler::over(worker, &forward, own);
        let mut job = Job::new("1", tenant("acme"), "");
        job.published = JobMessage::new(Arc::new(kit::job("acme", "1")));
        let permit = Permit::until(Instant::now() + Duration::from_secs(10));
        let attempt = handler.send(&job, (), permit).await;
        assert_eq!(attempt.outcome, Outcome::Done);
        assert!(matches!(attempt.fate, Fate::Answered));
    }

    #[test]
    fn nothing_is_done_and_nonsense_is_tried_again() {
        assert_eq!(report_attempt(b"", "7").outcome, Outcome::Done);
        assert_eq!(
            report_attempt(br#"{"outcome":"done","id":"7"}"#, "7").outcome,
            Outcome::Done
        );
        for (body, word) in [
            (&br#"{"outcome":"done","id":"8"}"#[..], "another job"),
            (br#"{"outcome":"done","call":1}"#, "has a \"call\""),
            (b"ok", "not a verdict"),
            (b"\xff", "not a verdict"),
        ] {
            let attempt = report_attempt(body, "7");
            let Outcome::Retry { reason, .. } = &attempt.outcome else {
                panic!("{attempt:?}")
            };
            assert!(reason.contains(word), "{reason}");
            assert!(matches!(attempt.fate, Fate::Answered));
        }
    }

    #[test]
    fn no_two_tokens_are_the_same() {
        assert_ne!(token(), token());
        assert_eq!(token().len(), 32);
    }
}
