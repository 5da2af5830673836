//! Errors that prevent a session with the broker: typed, in one line, without secrets.

use std::time::Duration;

use lapin::ErrorKind;

use runtime::shortage;

/// An error while connecting or declaring. Each text names the problem, the place and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// `amqp.url` is not an AMQP URL. The error does not contain the URL, which may hold a
    /// password.
    #[error("amqp.url: {0}; write amqp://USER:PASSWORD@HOST:PORT/VHOST, amqps:// for TLS")]
    Url(String),
    /// `amqp.queue` leads to queue names that AMQP does not allow.
    #[error("amqp.queue: the name is {0} bytes long; the maximum is {max}", max = rules::delays::MAX_WORK_QUEUE_BYTES)]
    QueueName(usize),
    /// No server answers at the URL in time.
    #[error(
        "RabbitMQ at {at} can't be reached: {reason}; check that it is running and that amqp.url \
        is correct"
    )]
    Unreachable {
        /// The URL, redacted.
        at: String,
        /// The cause.
        reason: String,
    },
    /// This process or machine lacks a resource that a connection needs.
    #[error("RabbitMQ at {at}: {reason}: {missing}")]
    Shortage {
        /// The URL, redacted.
        at: String,
        /// The cause.
        reason: String,
        /// The missing resource, and advice.
        missing: &'static str,
    },
    /// A limit of the broker, of its virtual host or of its user: connections, channels or queues.
    #[error(
        "RabbitMQ at {at} has reached a limit: {reason}; raise it (docs/DEPLOYMENT.md lists what \
        a worker needs)"
    )]
    Limit {
        /// The URL, redacted.
        at: String,
        /// The broker's text.
        reason: String,
    },
    /// 403 at the login.
    #[error("RabbitMQ at {at} refused the login: check the user and the password in amqp.url")]
    Credentials {
        /// The URL, redacted.
        at: String,
    },
    /// 530: the virtual host does not exist, or the user may not access it.
    #[error(
        "RabbitMQ at {at} refused the virtual host: {reason}; create it, give the user access to \
        it, or correct amqp.url"
    )]
    Vhost {
        /// The URL, redacted.
        at: String,
        /// The broker's text.
        reason: String,
    },
    /// 404: the queue does not exist.
    #[error(
        "RabbitMQ at {at} has no queue '{queue}'; check amqp.queue, or let `run` or `publish` \
        create the queues"
    )]
    NoQueue {
        /// The URL, redacted.
        at: String,
        /// The queue's name.
        queue: String,
    },
    /// 404: a queue does not exist that Sluicegate does not declare.
    #[error(
        "RabbitMQ at {at} has no queue '{queue}', and Sluicegate does not declare it: create it, \
        correct amqp.queue or amqp.queues, or remove amqp.declare"
    )]
    QueueMissing {
        /// The URL, redacted.
        at: String,
        /// The queue's name.
        queue: String,
    },
    /// A queue that Sluicegate does not declare is unfit for jobs.
    #[error(
        "the queue '{queue}' can't be used for jobs: {reason}; create it anew, use another \
        amqp.queue, or remove amqp.declare"
    )]
    QueueUnusable {
        /// The queue's name.
        queue: String,
        /// Why, with what to do where another remedy is better.
        reason: String,
    },
    /// 403 for a queue.
    #[error(
        "RabbitMQ at {at} denied permission: {reason}; docs/DEPLOYMENT.md lists the permissions \
        that the user needs"
    )]
    Forbidden {
        /// The URL, redacted.
        at: String,
        /// The broker's text.
        reason: String,
    },
    /// 406: a queue exists with other arguments.
    #[error(transparent)]
    QueueDiffers(#[from] QueueDifference),
    /// Any other refusal, or a session that ended.
    #[error("RabbitMQ at {at}: {reason}")]
    Failed {
        /// The URL, redacted.
        at: String,
        /// The cause.
        reason: String,
    },
}

/// A queue that exists with other arguments than ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the queue '{queue}' exists with {argument} = {found}, but {argument} = {wanted} is \
    required: {}", self.advice())]
pub struct QueueDifference {
    /// The queue's name.
    pub queue: String,
    /// The argument, such as `x-message-ttl` or `durable`.
    pub argument: String,
    /// The argument's value in the existing queue.
    pub found: String,
    /// The argument's value that we declare.
    pub wanted: String,
}

impl QueueDifference {
    /// Parses the broker's 406 text: `PRECONDITION_FAILED - inequivalent arg 'A' for queue 'Q' in
    /// vhost 'V': received X but current is Y`. It may be cut off at 255 bytes; missing values read
    /// `?`.
    pub fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("inequivalent arg '")?;
        let (argument, rest) = rest.split_once("' for queue '")?;
        let (queue, rest) = rest.split_once("' in vhost '").unwrap_or((rest, ""));
        let (_, values) = rest.split_once("': received ").unwrap_or(("", ""));
        let (wanted, found) = values
            .split_once(" but current is ")
            .unwrap_or((values, ""));
        Some(Self {
            queue: queue.to_owned(),
            argument: argument.to_owned(),
            found: plain(found),
            wanted: plain(wanted),
        })
    }

    fn advice(&self) -> String {
        let delete = "delete the queue once it is empty, or use another amqp.queue; \
            amqp.declare: false uses a queue of new jobs as it is";
        if self.argument == "x-queue-type" && ["classic", "quorum"].contains(&self.found.as_str()) {
            format!("set amqp.queue-type: {}, {delete}", self.found)
        } else {
            delete.to_owned()
        }
    }
}

/// Parses the broker's 406 text: `PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed
/// out. Timeout value used: 1800000 ms. …`.
fn ack_timeout(text: &str) -> Option<Duration> {
    let (what, rest) = text.split_once("Timeout value used: ")?;
    let number = rest.split(' ').next()?.parse().ok()?;
    (what.contains("acknowledgement") && number > 0).then(|| Duration::from_millis(number))
}

/// Simplifies a value: `the value '5' of type 'signedint'` and `'5'` become `5`. `none` stays, and
/// an empty text becomes `''`.
fn plain(value: &str) -> String {
    if value.is_empty() {
        return "?".to_owned();
    }
    let value = value.strip_prefix("the value ").unwrap_or(value);
    let value = value.split("' of type '").next().unwrap_or(value);
    let value = value.trim_matches('\'');
    if value.is_empty() { "''" } else { value }.to_owned()
}

impl BrokerError {
    /// Converts an error of the server at `at` (a redacted URL).
    pub(crate) fn from_lapin(at: &str, error: &lapin::Error) -> Self {
        let at = at.to_owned();
        if let ErrorKind::ChannelsLimitReached = error.kind() {
            let reason = "the connection has no free channels (channel_max)".to_owned();
            return Self::Limit { at, reason };
        }
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            let reason = error.to_string();
            // "Connection refused" already says what kind of error it is.
            let reason = reason.strip_prefix("IO error: ").unwrap_or(&reason);
            let reason = reason.to_owned();
            return if let ErrorKind::IOError(why) = error.kind()
                && let Some(missing) = shortage::of(&**why)
            {
                Self::Shortage {
                    at,
                    reason,
                    missing,
                }
            } else if error.is_io_error() {
                Self::Unreachable { at, reason }
            } else {
                Self::Failed { at, reason }
            };
        };
        let reason = refusal.get_message().to_string();
        // The texts: `connection limit (N) is reached`, `queue limit in vhost 'V' (N) is reached`,
        // `has reached the maximum allowed user limit`.
        let is_limit = reason.contains("limit") && reason.contains("reached");
        match refusal.get_id() {
            406 | 530 if is_limit => Self::Limit { at, reason },
            506 => Self::Limit { at, reason },
            403 if reason.contains("Login was refused") => Self::Credentials { at },
            403 => Self::Forbidden { at, reason },
            530 if reason.contains("vhost") => Self::Vhost { at, reason },
            406 => match QueueDifference::parse(&reason) {
                Some(differs) => differs.into(),
                None => Self::Failed { at, reason },
            },
            _ => Self::Failed { at, reason },
        }
    }

    /// Returns AMQP's code of a refusal, such as 404.
    pub(crate) fn reply_code(error: &lapin::Error) -> Option<u16> {
        match error.kind() {
            ErrorKind::ProtocolError(refusal) => Some(refusal.get_id()),
            _ => None,
        }
    }

    /// Appends `advice` if the server is unreachable.
    pub(crate) fn advised(mut self, advice: Option<String>) -> Self {
        if let (Self::Unreachable { reason, .. }, Some(advice)) = (&mut self, advice) {
            *reason = format!("{reason} ({advice})");
        }
        self
    }

    /// Returns RabbitMQ's `consumer_timeout` if it ended the session.
    pub fn ack_timeout(&self) -> Option<Duration> {
        match self {
            Self::Failed { reason, .. } => ack_timeout(reason),
            _ => None,
        }
    }

    /// Returns true if waiting does not help: an operator has to change the configuration or the
    /// server.
    pub fn is_misconfiguration(&self) -> bool {
        !matches!(
            self,
            Self::Unreachable { .. } | Self::Shortage { .. } | Self::Failed { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brokers_406_is_read() {
        for (text, line) in [
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'jobs.delay.50' in vhost '/': received the value '5' of type 'signedint' but current is the value '6' of type 'signedint'",
                "the queue 'jobs.delay.50' exists with x-message-ttl = 6, but x-message-ttl = 5 \
                is required: delete the queue once it is empty, or use another amqp.queue; \
                amqp.declare: false uses a queue of new jobs as it is",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'jobs' in vhost 'v': received the value 'quorum' of type 'longstr' but current is the value 'classic' of type 'longstr'",
                "the queue 'jobs' exists with x-queue-type = classic, but x-queue-type = quorum \
                is required: set amqp.queue-type: classic, delete the queue once it is empty, or \
                use another amqp.queue; amqp.declare: false uses a queue of new jobs as it is",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'jobs' in vhost '/': received 'true' but current is 'false'",
                "the queue 'jobs' exists with durable = false, but durable = true is required: \
                delete the queue once it is empty, or use another amqp.queue; \
                amqp.declare: false uses a queue of new jobs as it is",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'jobs' in vhost '/': received the value '1' of type 'signedint' but current is none",
                "the queue 'jobs' exists with x-delivery-limit = none, but x-delivery-limit = 1 \
                is required: delete the queue once it is empty, or use another amqp.queue; \
                amqp.declare: false uses a queue of new jobs as it is",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'jobs' in vhost '/': received the value '' of type 'longstr' but current is none",
                "the queue 'jobs' exists with x-dead-letter-exchange = none, but \
                x-dead-letter-exchange = '' is required: delete the queue once it is empty, or \
                use another amqp.queue; amqp.declare: false uses a queue of new jobs as it is",
            ),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'cut off...",
                "the queue 'cut off...' exists with x-message-ttl = ?, but x-message-ttl = ? is \
                required: delete the queue once it is empty, or use another amqp.queue; \
                amqp.declare: false uses a queue of new jobs as it is",
            ),
        ] {
            let read = QueueDifference::parse(text).map(|differs| differs.to_string());
            assert_eq!(read.as_deref(), Some(line));
        }
        assert_eq!(
            QueueDifference::parse("PRECONDITION_FAILED - unknown delivery tag 1"),
            None
        );
    }

    #[test]
    fn the_timeout_of_an_ack_is_read() {
        let error = |reason: &str| BrokerError::Failed {
            at: "amqp://h".to_owned(),
            reason: reason.to_owned(),
        };
        let text = "PRECONDITION_FAILED - delivery acknowledgement on channel 3 timed out. Timeout value used: 60000 ms. This timeout value can be configured, see consumers doc guide to learn more";
        assert_eq!(error(text).ack_timeout(), Some(Duration::from_secs(60)));
        for other in [
            "PRECONDITION_FAILED - unknown delivery tag 1",
            "PRECONDITION_FAILED - delivery acknowledgement on channel 3 timed out. Timeout value used: x ms.",
            "",
        ] {
            assert_eq!(error(other).ack_timeout(), None, "{other}");
        }
    }
}
