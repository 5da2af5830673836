//! `dispatch.forward`: the queue of other workers that gets each job.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::placeholders;
use super::section::{or_empty, section};
use crate::reading::key::{MAX_CALL_MS, boolean, duration, text};
use crate::reading::{ConfigInput, keys, shown};
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

section! {
    /// `dispatch.forward`
    #[derive(Debug, Clone, PartialEq)]
    optional struct Forward {
        /// `dispatch.forward.exchange`; empty for the default exchange.
        pub exchange: String = or_empty(&EXCHANGE),
        /// `dispatch.forward.routing-key`, or `None` to keep each job's own.
        pub routing_key: Option<RoutingKey> = ConfigInput::routing_key,
        /// `dispatch.forward.done`
        pub done: bool = DONE,
        /// `dispatch.forward.timeout`
        pub timeout: Duration = TIMEOUT,
    }
    |input| {
        if input.lacks(&EXCHANGE.key) && input.lacks(&ROUTING_KEY.key) {
            let words = "has no effect without dispatch.forward.exchange or \
                dispatch.forward.routing-key; set one of them or remove this key";
            return input.unused("dispatch.forward.", words);
        }
        let (to, key) = (exchange.as_ref()?, routing_key.as_ref()?);
        let is_nowhere = to.is_empty() && key.as_ref().is_some_and(|key| key.text.is_empty());
        let words = "is empty, and so is the exchange, but no queue has an empty name; set it to \
            the queue of your workers";
        input.check(&ROUTING_KEY.key, is_nowhere.then_some(words))?;
        input.shown.set(&EXCHANGE.key, to);
    }
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
    fn routing_key(&mut self) -> Option<Option<RoutingKey>> {
        let Some(text) = self.optional(&ROUTING_KEY)? else {
            return Some(None);
        };
        let key = &ROUTING_KEY.key;
        let mut carried = CarriedFields::default();
        let of_jobs = self.valid(key, placeholders::header(&text, key.path, &mut carried))?;
        let has_secret = of_jobs.as_ref().is_some_and(Template::has_secret);
        let words = "has {secret:tenant}; a routing key must not contain a secret";
        self.check(key, has_secret.then_some(words))?;
        Some(Some(RoutingKey {
            text,
            of_jobs,
            carried,
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
