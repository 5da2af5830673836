//! What the properties of a queue that Sluicegate did not declare mean for its jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::text::show_duration;

/// The `x-delivery-limit` of Sluicegate's own queues, which jobs never reach. RabbitMQ 4 drops a
/// message after 20 deliveries unless the queue has another limit, and a channel's close counts as
/// one. -1 means "unlimited" there, and on 3.10 "drop at the first requeue".
pub const DELIVERY_LIMIT: i64 = 1_000_000;

/// The properties of an existing queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueProperties {
    /// Whether the queue outlives a restart of RabbitMQ.
    pub durable: bool,
    /// Whether the queue ends with its last consumer.
    pub auto_delete: bool,
    /// Its arguments as text, by name.
    pub arguments: BTreeMap<String, String>,
    /// Why its other properties are unknown, or `None` if all are known.
    pub unread: Option<String>,
}

/// The effect of one property on jobs, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectOnJobs {
    /// It endangers no job.
    None(String),
    /// It can lose jobs.
    Risk(String),
    /// Sluicegate can't work with it.
    Unfit(String),
}

use EffectOnJobs::{None as Harmless, Risk, Unfit};

impl Default for QueueProperties {
    /// Returns a durable queue without arguments.
    fn default() -> Self {
        Self {
            durable: true,
            auto_delete: false,
            arguments: BTreeMap::new(),
            unread: None,
        }
    }
}

impl QueueProperties {
    /// Sets the property `name` as RabbitMQ writes its value. Returns false if that changes
    /// nothing, or if the value is unknown.
    pub fn learn(&mut self, name: &str, value: &str) -> bool {
        let before = self.clone();
        match (name, value) {
            (_, "?") => {}
            ("durable", _) => self.durable = value == "true",
            ("auto_delete", _) => self.auto_delete = value == "true",
            (_, "none") => {
                self.arguments.remove(name);
            }
            _ => {
                let value = if value == "''" { "" } else { value };
                self.arguments.insert(name.to_owned(), value.to_owned());
            }
        }
        *self != before
    }

    /// Returns what the properties mean for jobs, the worst first. RabbitMQ takes back unacked jobs
    /// after `consumer_timeout`, as far as the configuration knows.
    pub fn effects(&self, consumer_timeout: Duration) -> Vec<EffectOnJobs> {
        let mut effects = self.unfit(consumer_timeout);
        effects.extend(self.risks());
        if let Some(priorities) = self.text("x-max-priority") {
            effects.push(Harmless(format!(
                "x-max-priority = {priorities}: workers get jobs of a higher AMQP priority first"
            )));
        }
        if let Some(why) = &self.unread {
            effects.push(Risk(format!(
                "not all arguments were read ({why}); see `rabbitmqctl list_queues name durable \
                auto_delete arguments`"
            )));
        }
        effects
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).map(String::as_str)
    }

    fn duration(&self, name: &str) -> Option<Duration> {
        Some(Duration::from_millis(self.text(name)?.parse().ok()?))
    }

    /// Returns what keeps Sluicegate from working with the queue.
    fn unfit(&self, consumer_timeout: Duration) -> Vec<EffectOnJobs> {
        let mut all = Vec::new();
        if self.text("x-queue-type") == Some("stream") {
            all.push(Unfit(
                "x-queue-type = stream: a stream keeps jobs that are done, and skips those that \
                wait while no worker runs"
                    .to_owned(),
            ));
        }
        if self.auto_delete {
            all.push(Unfit(
                "auto-delete: RabbitMQ deletes it with its jobs when the last worker stops or \
                loses its session (P1)"
                    .to_owned(),
            ));
        }
        if self.text("x-single-active-consumer") == Some("true") {
            all.push(Unfit(
                "x-single-active-consumer = true: only one worker would get its jobs".to_owned(),
            ));
        }
        let timeout = self.duration("x-consumer-timeout");
        if let Some(timeout) = timeout.filter(|timeout| *timeout < consumer_timeout) {
            all.push(Unfit(format!(
                "x-consumer-timeout = {}: RabbitMQ takes jobs back earlier than \
                amqp.consumer-timeout says; set amqp.consumer-timeout: {}",
                timeout.as_millis(),
                show_duration(timeout)
            )));
        }
        all
    }

    /// Returns what can lose jobs.
    fn risks(&self) -> Vec<EffectOnJobs> {
        let mut all = Vec::new();
        if !self.durable {
            all.push(Risk(
                "not durable: a restart of RabbitMQ deletes it with its jobs (P1)".to_owned(),
            ));
        }
        let kind = self.text("x-queue-type").unwrap_or("classic");
        if kind == "classic" && self.unread.is_none() {
            all.push(Risk(
                "a classic queue: a crash of its node can lose confirmed jobs (P1); a quorum queue \
                keeps them"
                    .to_owned(),
            ));
        }
        let lost = self.fate();
        if let Some(ttl) = self.duration("x-message-ttl") {
            let ttl = show_duration(ttl);
            all.push(Risk(format!(
                "x-message-ttl: jobs that wait longer than {ttl} in it {lost} (P1)"
            )));
        }
        if let Some(expires) = self.duration("x-expires") {
            let expires = show_duration(expires);
            all.push(Risk(format!(
                "x-expires: if no worker consumes it for {expires}, RabbitMQ deletes it with its \
                jobs (P1)"
            )));
        }
        for (name, what) in [("x-max-length", "jobs"), ("x-max-length-bytes", "bytes")] {
            if let Some(max) = self.text(name) {
                all.push(self.bounded(name, max, what, &lost));
            }
        }
        let limit = self.text("x-delivery-limit").map(str::parse::<i64>);
        match limit {
            Some(Ok(limit)) if limit < 0 => all.push(Risk(
                "x-delivery-limit = -1: RabbitMQ before version 4 drops a job that a worker \
                returns (P1)"
                    .to_owned(),
            )),
            Some(Ok(limit)) if limit < DELIVERY_LIMIT => {
                all.push(returned(&limit.to_string(), &lost));
            }
            None if kind == "quorum" => {
                all.push(returned("20 (the default since RabbitMQ 4)", &lost))
            }
            _ => {}
        }
        all
    }

    /// Returns the effect of a maximum length.
    fn bounded(&self, name: &str, max: &str, what: &str, lost: &str) -> EffectOnJobs {
        match self.text("x-overflow") {
            Some("reject-publish" | "reject-publish-dlx") => Harmless(format!(
                "{name}: beyond {max} {what}, RabbitMQ refuses new jobs; publishers notice only \
                with confirms"
            )),
            _ => Risk(format!(
                "{name}: beyond {max} {what}, the oldest jobs {lost} (P1)"
            )),
        }
    }

    /// Says what becomes of jobs that RabbitMQ removes from the queue.
    fn fate(&self) -> String {
        let key = self.text("x-dead-letter-routing-key");
        match (self.text("x-dead-letter-exchange"), key) {
            (None, _) => "are lost".to_owned(),
            (Some(""), Some(queue)) => format!("go to the queue {queue}"),
            (Some(""), None) => "come back to this queue".to_owned(),
            (Some(exchange), _) => format!("go to the exchange {exchange}"),
        }
    }
}

/// Returns the effect of a limit of deliveries.
fn returned(limit: &str, lost: &str) -> EffectOnJobs {
    Risk(format!(
        "x-delivery-limit: jobs that are returned more than {limit} times, such as by stopped \
        workers and lost sessions, {lost} (P1)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1_800);
    const FINE: [(&str, &str); 2] = [("x-queue-type", "quorum"), ("x-delivery-limit", "1000000")];

    /// Returns the effects of `properties`, which must differ from the default.
    fn effects(properties: &[(&str, &str)]) -> Vec<String> {
        let mut queue = QueueProperties::default();
        for (name, value) in properties {
            assert!(queue.learn(name, value), "{name} = {value}");
        }
        let all = queue.effects(TIMEOUT).into_iter();
        all.map(|effect| match effect {
            Harmless(text) => format!("none {text}"),
            Risk(text) => format!("risk {text}"),
            Unfit(text) => format!("unfit {text}"),
        })
        .collect()
    }

    /// Checks that `properties` have one effect that begins with each of `begins`, in this order,
    /// and no other.
    fn assert_effects(properties: &[(&str, &str)], begins: &[&str]) {
        let found = effects(properties);
        let fits = |(line, begin): (&String, &&str)| line.starts_with(begin);
        let fit = found.len() == begins.len() && found.iter().zip(begins).all(fits);
        assert!(fit, "{properties:?}: {found:#?}");
    }

    #[test]
    fn each_property_has_its_effect() {
        let letters = [("x-dead-letter-exchange", "late")];
        let reject = [("x-overflow", "reject-publish")];
        let own = [
            ("x-dead-letter-exchange", "''"),
            ("x-dead-letter-routing-key", "jobs.dead"),
        ];
        let ttl = ("x-message-ttl", "60000");
        let long = ("x-max-length", "500");
        for (properties, begins) in [
            (&[][..], &[][..]),
            (
                &[ttl],
                &["risk x-message-ttl: jobs that wait longer than 1m in it are lost (P1)"],
            ),
            (
                &[letters[0], ttl],
                &[
                    "risk x-message-ttl: jobs that wait longer than 1m in it go to the exchange late (P1)",
                ],
            ),
            (
                &[own[0], own[1], ttl],
                &[
                    "risk x-message-ttl: jobs that wait longer than 1m in it go to the queue jobs.dead (P1)",
                ],
            ),
            (&letters, &[]),
            (
                &[long],
                &["risk x-max-length: beyond 500 jobs, the oldest jobs are lost (P1)"],
            ),
            (
                &[long, reject[0]],
                &["none x-max-length: beyond 500 jobs, RabbitMQ refuses new jobs"],
            ),
            (
                &[("x-expires", "1800000")],
                &["risk x-expires: if no worker consumes it for 30m"],
            ),
            (&[("durable", "false")], &["risk not durable"]),
            (&[("x-max-priority", "10")], &["none x-max-priority = 10"]),
            (
                &[("x-single-active-consumer", "true")],
                &["unfit x-single-active-consumer"],
            ),
            (
                &[("auto_delete", "true"), ttl],
                &["unfit auto-delete", "risk x-message-ttl"],
            ),
            (&[("x-consumer-timeout", "1800000")], &[]),
            (
                &[("x-consumer-timeout", "600000")],
                &[
                    "unfit x-consumer-timeout = 600000: RabbitMQ takes jobs back earlier than amqp.consumer-timeout says; set amqp.consumer-timeout: 10m",
                ],
            ),
            (&[("x-queue-leader-locator", "balanced")], &[]),
        ] {
            assert_effects(&[&FINE, properties].concat(), begins);
        }
    }

    #[test]
    fn the_type_and_the_limit_of_deliveries_count_also_if_they_are_missing() {
        let classic = "risk a classic queue";
        for (properties, begins) in [
            (&[][..], &[classic][..]),
            (&[("x-queue-type", "classic")], &[classic]),
            (
                &[("x-queue-type", "quorum")],
                &["risk x-delivery-limit: jobs that are returned more than 20 (the default"],
            ),
            (
                &[FINE[0], ("x-delivery-limit", "3")],
                &["risk x-delivery-limit: jobs that are returned more than 3 times"],
            ),
            (
                &[FINE[0], ("x-delivery-limit", "-1")],
                &["risk x-delivery-limit = -1"],
            ),
            (
                &[("x-queue-type", "stream")],
                &["unfit x-queue-type = stream"],
            ),
        ] {
            assert_effects(properties, begins);
        }
    }

    #[test]
    fn what_was_not_read_is_a_risk_and_says_how_to_see_it() {
        let queue = QueueProperties {
            unread: Some("why".to_owned()),
            ..QueueProperties::default()
        };
        let [Risk(text)] = &queue.effects(TIMEOUT)[..] else {
            panic!("one risk");
        };
        assert!(
            text.contains("(why)") && text.contains("rabbitmqctl"),
            "{text}"
        );
    }

    #[test]
    fn only_news_are_learned() {
        let mut queue = QueueProperties::default();
        assert!(!queue.learn("durable", "true"));
        assert!(!queue.learn("x-expires", "none"));
        assert!(!queue.learn("x-expires", "?"));
        assert!(queue.learn("x-dead-letter-exchange", "''"));
        assert_eq!(queue.arguments["x-dead-letter-exchange"], "");
        assert!(!queue.learn("x-dead-letter-exchange", "''"));
        assert!(queue.learn("x-dead-letter-exchange", "none"));
        assert_eq!(queue, QueueProperties::default());
    }
}
