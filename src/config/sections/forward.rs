//! `dispatch.forward`: the queue of other workers that gets each job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::placeholders;
use crate::reading::error::shown;
use crate::reading::input::ConfigInput;
use crate::reading::key::{MAX_CALL_MS, boolean, duration, keys, text};
use crate::values::amqp_name::{MAX_NAME_BYTES, PATTERN, name_or_empty};
use rules::delays::QueueNames;
use rules::job::call::{CarriedFields, Template};

keys! {
    EXCHANGE: String = text(
        "dispatch.forward.exchange",
        "name of an exchange; empty for the default exchange, whose routing keys are names of \
        queues",
        || json!({"type": "string", "maxLength": MAX_NAME_BYTES, "pattern": PATTERN}),
        |raw| name_or_empty(raw, "the name of an exchange, of up to 255 bytes"),
    )
        .about("Exchange that admitted jobs are published to instead of calling an API.")
        .note("It must exist. See [forwarding](HANDLERS.md#forwarding).");
    ROUTING_KEY: String = text(
        "dispatch.forward.routing-key",
        "a routing key, which may have [placeholders](HANDLERS.md#what-a-call-carries)",
        key_schema,
        |raw| name_or_empty(raw, "a routing key of up to 255 bytes"),
    )
        .about("Routing key of forwarded jobs; without it, each job keeps its own.");
    DONE: bool = boolean("dispatch.forward.done")
        .default("false")
        .about("Whether a job is done only when the receiving worker reports it.")
        .note("`max-concurrent` counts it until then. See \
            [forwarding](HANDLERS.md#until-a-job-is-done).");
    TIMEOUT: Duration = duration::<1, MAX_CALL_MS>("dispatch.forward.timeout")
        .default("60s")
        .about("Time that a receiving worker has to report that a job is done; after that the job \
            is retried.");
}

fn key_schema() -> Json {
    let [part, _, end] = placeholders::patterns("tenant|id|attempt");
    let pattern = format!("^{part}*{end}$");
    json!({"type": "string", "maxLength": MAX_NAME_BYTES, "pattern": pattern})
}

/// `dispatch.forward`
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// `dispatch.forward.exchange`; empty for the default exchange.
    pub exchange: String,
    /// `dispatch.forward.routing-key`, or `None` to keep each job's own.
    pub routing_key: Option<RoutingKey>,
    /// `dispatch.forward.done`
    pub done: bool,
    /// `dispatch.forward.timeout`
    pub timeout: Duration,
}

/// `dispatch.forward.routing-key`
#[derive(Debug, Clone, PartialEq)]
pub struct RoutingKey {
    /// Text as written.
    pub text: String,
    /// The text as a template, if it has placeholders.
    pub of_jobs: Option<Template>,
    /// The values of jobs in it.
    pub carried: CarriedFields,
}

impl ConfigInput {
    /// Reads the section. Returns `Some(None)` if it names no target, and `None` after a problem.
    pub(crate) fn forward(&mut self) -> Option<Option<Forward>> {
        let exchange = self.optional(&EXCHANGE);
        let routing_key = self.optional(&ROUTING_KEY);
        let done = self.get(&DONE);
        let timeout = self.get(&TIMEOUT);
        let (exchange, routing_key) = (exchange?, routing_key?);
        let (done, timeout) = (done?, timeout?);
        if exchange.is_none() && routing_key.is_none() {
            let key = DONE.changed(&done).or(TIMEOUT.changed(&timeout));
            let words = "has no effect without dispatch.forward.exchange or dispatch.forward.routing-key; \
                set one of them or remove this key";
            return self.unused("dispatch.forward.", key, words);
        }
        let no_exchange = exchange.as_ref().is_none_or(String::is_empty);
        let no_queue = no_exchange && routing_key.as_ref().is_some_and(String::is_empty);
        let words = "is empty, and so is the exchange, but no queue has an empty name; set it to \
            the queue of your workers";
        self.check(&ROUTING_KEY.key, no_queue.then_some(words))?;
        let routing_key = match routing_key {
            None => None,
            Some(text) => {
                let mut carried = CarriedFields::default();
                let of_jobs = placeholders::header(&text, ROUTING_KEY.key.path, &mut carried);
                let of_jobs = self.valid(&ROUTING_KEY.key, of_jobs)?;
                let has_secret = of_jobs.as_ref().is_some_and(Template::has_secret);
                let words = "has {secret:tenant}; a routing key must not contain a secret";
                self.check(&ROUTING_KEY.key, has_secret.then_some(words))?;
                Some(RoutingKey {
                    text,
                    of_jobs,
                    carried,
                })
            }
        };
        let exchange = exchange.unwrap_or_default();
        self.shown.set(&EXCHANGE.key, &exchange);
        Some(Some(Forward {
            exchange,
            routing_key,
            done,
            timeout,
        }))
    }

    /// Reports a fixed routing key that names one of the queues `own`: jobs would come back.
    pub(crate) fn check_forward_target(
        &mut self,
        forward: &Forward,
        own: &QueueNames,
    ) -> Option<()> {
        let key = forward.routing_key.as_ref();
        let fixed = key.filter(|key| key.of_jobs.is_none() && forward.exchange.is_empty());
        let own = fixed.filter(|key| own.has(&key.text));
        let words = own.map(|own| {
            format!(
                "is {}, a queue of Sluicegate, so jobs would come back; set it to the queue of \
                your workers",
                shown(&own.text)
            )
        });
        self.check(&ROUTING_KEY.key, words)
    }
}
