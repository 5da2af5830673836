//! `amqp`: RabbitMQ, and its queues.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use strum::{IntoStaticStr, VariantArray};

use super::section::{or_empty, section};
use super::tls_keys::{TlsKeys, tls};
use crate::reading::key::{
    DAY, SECOND, boolean, choice, duration, file, integer, pem, text, tree, url,
};
use crate::reading::parse::{integer as parse_integer, text as parse_text};
use crate::reading::{Item, Raw, ShownValue, ValueError, YamlField, keys, show, shown, wrong};
use crate::values::amqp_name::PATTERN;
use crate::values::amqp_servers::AmqpServers;
use crate::values::tls::Tls;
use crate::values::urls::{UrlForm, difference};
use rules::broker::holding::Holding;
use rules::broker::shares::shares;
use rules::delays::{DelayLevels, MAX_WORK_QUEUE_BYTES, QueueNames};
use rules::named::Named;
use rules::text::show_duration;

const URLS: UrlForm = UrlForm {
    schemes: ["amqp", "amqps"],
    example: "amqp://user:password@host:5672/%2f",
};
/// Maximum number of queues of new jobs.
const MAX_QUEUES: usize = 16;
/// Maximum weight of a queue.
const MAX_WEIGHT: u64 = 100;
const TLS: TlsKeys = [&CA_FILE, &CERT_FILE, &KEY_FILE];

keys! {
    URL: AmqpServers = url("amqp.url", URLS.schemes, true, |raw| {
        URLS.several(raw).map(|urls| AmqpServers { urls })
    })
        .or_file(&URL_FILE)
        .default("amqp://guest:guest@127.0.0.1:5672/%2f")
        .about("RabbitMQ's URL, with user, password and virtual host.")
        .note("Several URLs are nodes of one [cluster](DEPLOYMENT.md#a-cluster-of-rabbitmq).");
    URL_FILE: String = file("amqp.url-file").about("File that contains `amqp.url`.");
    CA_FILE: String = pem("amqp.ca-file")
        .about("Certificate authorities to trust with amqps://, instead of the system's.")
        .note("See [TLS](DEPLOYMENT.md#tls).");
    CERT_FILE: String = pem("amqp.cert-file")
        .about("Client certificate of workers, with its chain.");
    KEY_FILE: String = pem("amqp.key-file").about("Private key of the client certificate, without \
        a passphrase.");
    QUEUE: String = text("amqp.queue", "1 to 200 bytes, not `amq.…`", queue_schema, queue)
        .default("jobs")
        .about("The work queue.")
        .note("Sluicegate's 38 other queues are named after it (`.due`, `.recheck`, `.dead`, and \
            the 35 delay queues `.delay.from-…`).");
    QUEUES: BTreeMap<String, u16> = tree(
        "amqp.queues",
        "names of queues with their weights, 1 to 100, or a list of names; at most 16",
        queues_schema,
        queues,
    )
        .about("Additional queues of new jobs, and each queue's share of the jobs that a worker \
            takes.")
        .note("`amqp.queue` is one of them, with weight 1 unless it is listed here; the queues \
            for retries and dead letters are named after it alone. See [several \
            queues](PIPELINES.md#several-queues-of-one-pipeline).");
    DECLARE: bool = boolean("amqp.declare")
        .default("true")
        .about("Whether Sluicegate declares the queues of new jobs.")
        .note("With `false` they must exist, with any arguments: see [queues that \
            exist](DEPLOYMENT.md#queues-that-exist).");
    QUEUE_TYPE: QueueType = choice("amqp.queue-type")
        .default("quorum")
        .about("The type of the work queues.")
        .note("Delay queues are always quorum queues, since no other type keeps jobs through a \
            crash.");
    PREFETCH: u16 = integer::<_, 1, 65_535>("amqp.prefetch", "jobs")
        .default("500")
        .about("Number of unacked jobs that a worker holds from each of its two main queues.")
        .note("From each of the 35 delay queues it holds an eighth of that plus \
            `dispatch.concurrency` (as of the start). A higher value hides the latency to the \
            broker, a lower one spreads jobs evenly over workers. It bounds a worker's memory: \
            lower it if bodies are large ([resource bounds](GUARANTEES.md#resource-bounds)).");
    CONSUMER_TIMEOUT: Duration = duration::<{ 10 * SECOND }, { 7 * DAY }>("amqp.consumer-timeout")
        .default("30m")
        .about("RabbitMQ's `consumer_timeout`: the longest time that a job may be unacked.")
        .note("A worker returns waiting jobs before that, so that RabbitMQ closes no session. Set \
            it if RabbitMQ has a shorter one, in rabbitmq.conf, a policy (`consumer-timeout`) or \
            a queue's `x-consumer-timeout`.");
}

section! {
    /// `amqp`
    #[derive(Debug, Clone, PartialEq)]
    pub struct Amqp {
        /// `amqp.url`
        pub url: AmqpServers = URL,
        /// `amqp.ca-file`, `amqp.cert-file` and `amqp.key-file`; the files are read for each
        /// connection.
        pub tls: Tls = tls(TLS),
        /// `amqp.queue`: the work queue. The names of other queues begin with its name.
        pub queue: String = QUEUE,
        /// `amqp.queues`: the weights of queues of new jobs; empty if the work queue is the only
        /// one.
        pub queues: BTreeMap<String, u16> = or_empty(&QUEUES),
        /// `amqp.declare`: whether Sluicegate declares the queues of new jobs.
        pub declare: bool = DECLARE,
        /// `amqp.queue-type`
        pub queue_type: QueueType = QUEUE_TYPE,
        /// `amqp.prefetch`: maximum number of unacked deliveries of each of the two main consumers.
        pub prefetch: u16 = PREFETCH,
        /// `amqp.consumer-timeout`: how long RabbitMQ lets a delivery stay unacked.
        pub consumer_timeout: Duration = CONSUMER_TIMEOUT,
    }
    |input| {
        let urls = &url.as_ref()?.urls;
        input.check(&URL.key, difference(urls))?;
        if !urls[0].has_scheme("amqps") {
            input.tls_unused(TLS, "amqp.url begin with amqps://")?;
        }
        input.check(&QUEUES.key, own_queue(queue.as_ref()?, queues.as_ref()?))?;
    }
}

/// `amqp.queue-type`: the type of the work queues. Delay queues are always quorum queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum QueueType {
    /// `quorum`
    Quorum,
    /// `classic`
    Classic,
}

impl Named for QueueType {}
show!(ShownValue::named => QueueType);
show!(|weights: &BTreeMap<_, _>| ShownValue::weights(weights) => BTreeMap<String, u16>);

impl Amqp {
    /// Returns the names of all queues, with the delay queues of `levels`.
    pub fn names(&self, levels: &DelayLevels) -> QueueNames {
        let more = self.queues.keys().filter(|name| **name != self.queue);
        QueueNames::new(&self.queue, levels).with_more(more.map(String::as_str))
    }

    /// Returns the queues of new jobs, the work queue first, with a worker's maximum number of
    /// unacked jobs of each.
    pub fn shares(&self) -> Vec<(Arc<str>, u16)> {
        let own = self.queues.get(&self.queue).copied().unwrap_or(1);
        let more = self.queues.iter().filter(|(name, _)| **name != self.queue);
        let all = std::iter::once((&self.queue, &own)).chain(more);
        let (names, weights): (Vec<&String>, Vec<u16>) = all.unzip();
        let shares = shares(self.prefetch.max(1), &weights);
        let names = names.into_iter().map(|name| Arc::from(name.as_str()));
        names.zip(shares).collect()
    }
}

/// Returns why calls of up to `call` do not fit into `timeout`, or `None` if they do.
pub(crate) fn too_short(timeout: Duration, call: Duration) -> Option<ValueError> {
    let longest = Holding::longest_call(timeout);
    (call > longest).then(|| {
        format!(
            "is {}, which leaves {} for a call, but the timeout of dispatch is {}: RabbitMQ would \
            take back jobs during their calls; lower that timeout, or raise both this key and \
            consumer_timeout in RabbitMQ",
            show_duration(timeout),
            show_duration(longest),
            show_duration(call)
        )
    })
}

fn queue(raw: &Raw) -> Result<String, ValueError> {
    let must = format!("a name of 1 to {MAX_WORK_QUEUE_BYTES} bytes");
    queue_name(parse_text(raw, &must)?, &must)
}

/// Checks a queue's name.
fn queue_name(name: &str, must: &str) -> Result<String, ValueError> {
    if name.is_empty() {
        return Err(format!("is empty; it must be {must}"));
    }
    if name.len() > MAX_WORK_QUEUE_BYTES {
        return Err(format!("has {} bytes; it must be {must}", name.len()));
    }
    if name.starts_with("amq.") {
        return Err(format!(
            "is {}; RabbitMQ reserves names that begin with `amq.`",
            shown(name)
        ));
    }
    if name.contains(char::is_control) {
        return Err("has a control character, which queue names must not contain".to_owned());
    }
    Ok(name.to_owned())
}

/// Parses a mapping of names to weights, or a list of names.
fn queues(raw: &Raw) -> Result<BTreeMap<String, u16>, ValueError> {
    const MUST: &str =
        "names of queues with their weights, such as {orders: 3, bulk: 1}, or a list of names";
    let must = format!("names of 1 to {MAX_WORK_QUEUE_BYTES} bytes");
    let parse_name = |name: &str| {
        queue_name(name, &must).map_err(|words| format!("the name {} {words}", shown(name)))
    };
    let weights: Vec<(String, u16)> = match raw {
        Raw::Map(fields) => {
            let weight = |field: &YamlField| {
                let weight = parse_integer(&field.raw, 1, MAX_WEIGHT)
                    .map_err(|words| format!("{} {words}", shown(&field.name)))?;
                Ok((parse_name(&field.name)?, weight))
            };
            fields
                .iter()
                .map(weight)
                .collect::<Result<_, ValueError>>()?
        }
        Raw::List(items) => {
            let name = |item: &Item| Ok((parse_name(parse_text(&item.raw, MUST)?)?, 1));
            items.iter().map(name).collect::<Result<_, ValueError>>()?
        }
        raw => return Err(wrong(raw, MUST)),
    };
    let (number, queues) = (weights.len(), BTreeMap::from_iter(weights));
    match queues.len() {
        0 => Err(format!("is empty; it must be {MUST}")),
        len if len < number => Err("names a queue twice".to_owned()),
        len if len > MAX_QUEUES => Err(format!("has {len} queues; the maximum is {MAX_QUEUES}")),
        _ => Ok(queues),
    }
}

/// Returns a problem if a queue in `queues` has the name of one of the queues that belong to
/// `queue`.
fn own_queue(queue: &str, queues: &BTreeMap<String, u16>) -> Option<String> {
    // The names are the same for all levels.
    let names = QueueNames::new(queue, &DelayLevels::new(Duration::from_secs(1)));
    let own = queues
        .keys()
        .find(|name| *name != queue && names.has(name))?;
    Some(format!(
        "has {}, which is one of the queues for retries and dead letters of {}; remove it, since \
        workers consume these queues anyway",
        shown(own),
        shown(queue)
    ))
}

fn queues_schema() -> Json {
    let weight = json!({"type": "integer", "minimum": 1, "maximum": MAX_WEIGHT});
    json!({"anyOf": [
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": MAX_QUEUES,
            "propertyNames": queue_schema(),
            "additionalProperties": weight,
        },
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_QUEUES,
            "uniqueItems": true,
            "items": queue_schema(),
        },
    ]})
}

fn queue_schema() -> Json {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_WORK_QUEUE_BYTES,
        "pattern": PATTERN,
        "not": {"pattern": "^amq\\."},
    })
}
