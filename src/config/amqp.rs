//! `amqp`: RabbitMQ, and the queues there.

use serde_json::{Value as Json, json};

use super::amqp_servers::{AmqpServers, unlike};
use super::error::shown;
use super::form::{Wrong, text as parse_text};
use super::input::Input;
use super::key::{Named, choice, file, integer, keys, pem, text, url};
use super::secret::SecretUrl;
use super::shown::{Shown, Values};
use super::tls::Tls;
use super::tls_keys::TlsKeys;
use super::urls::UrlForm;
use super::yaml::Raw;
use crate::rules::delays::MAX_WORK_QUEUE_BYTES;

const URLS: UrlForm = UrlForm {
    schemes: ["amqp", "amqps"],
    example: "amqp://user:password@host:5672/%2f",
};
const TLS: TlsKeys = [&CA_FILE, &CERT_FILE, &KEY_FILE];

keys! {
    URL: Vec<SecretUrl> = url("amqp.url", URLS.schemes, true, |raw| URLS.several(raw))
        .default("amqp://guest:guest@127.0.0.1:5672/%2f")
        .example("amqp://h/v")
        .about("RabbitMQ, with user, password and virtual host.")
        .note("Several urls are nodes of one [cluster](DEPLOYMENT.md#a-cluster-of-rabbitmq).");
    URL_FILE: String = file("amqp.url-file").about("A file that holds `amqp.url`.");
    CA_FILE: String = pem("amqp.ca-file")
        .about("The authorities whose certificates are accepted with amqps://, instead of the system's.")
        .note("See [TLS](DEPLOYMENT.md#tls).");
    CERT_FILE: String = pem("amqp.cert-file")
        .about("The certificate that workers show, and those that sign it.");
    KEY_FILE: String = pem("amqp.key-file").about("Its private key, without a passphrase.");
    QUEUE: String = text("amqp.queue", "1 to 200 bytes, not `amq.…`", queue_schema, queue)
        .default("jobs")
        .example("orders")
        .about("The work queue.")
        .note("The 38 queues of its own are named after it (`.due`, `.recheck`, `.dead`, and the 35 delay queues `.delay.from-…`).");
    QUEUE_TYPE: QueueType = choice("amqp.queue-type")
        .default("quorum")
        .example("classic")
        .about("The type of the work queues.")
        .note("Delay queues are always quorum queues, since no other kind keeps jobs through a crash.");
    PREFETCH: u16 = integer::<_, 1, 65_535>("amqp.prefetch", "jobs")
        .default("500")
        .example("7")
        .about("How many jobs one worker holds unacked from each of its two main queues.")
        .note("From each of the 35 delay queues it holds an eighth of that, and `dispatch.concurrency` more (as it was at the start). More hides the way to the broker, less gives an even spread over workers. It bounds a worker's memory: with large bodies lower it (docs/GUARANTEES.md, *What strangers can make it take*).");
}

/// `amqp`
#[derive(Debug, Clone, PartialEq)]
pub struct Amqp {
    /// `amqp.url`
    pub url: AmqpServers,
    /// `amqp.ca-file`, `amqp.cert-file` and `amqp.key-file`; the files are read at each connect.
    pub tls: Tls,
    /// `amqp.queue`: the work queue; the others are named after it.
    pub queue: String,
    /// `amqp.queue-type`
    pub queue_type: QueueType,
    /// `amqp.prefetch`: unacked deliveries of each of the two main consumers.
    pub prefetch: u16,
}

/// `amqp.queue-type`: the type of the work queues (delay queues are always quorum queues).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueType {
    /// `quorum`
    Quorum,
    /// `classic`
    Classic,
}

impl QueueType {
    /// The value in the configuration, and in RabbitMQ's `x-queue-type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl Named for QueueType {
    fn all() -> Vec<(&'static str, Self)> {
        [Self::Quorum, Self::Classic]
            .map(|kind| (kind.name(), kind))
            .to_vec()
    }
}

impl Amqp {
    /// What is set.
    pub(super) fn show(&self, values: &mut Values) {
        let Self {
            url,
            tls,
            queue,
            queue_type,
            prefetch,
        } = self;
        values.set(&URL.key, Shown::urls(&url.urls));
        tls.show(TLS, values);
        values.set(&QUEUE.key, Shown::text(queue));
        values.set(&QUEUE_TYPE.key, Shown::bare(queue_type.name()));
        values.set(&PREFETCH.key, Shown::bare(prefetch));
    }
}

impl Input {
    /// The section; `None` after a problem.
    pub(super) fn amqp(&mut self) -> Option<Amqp> {
        // Each key is read before the first `?`, so that one run reports all that is wrong.
        let urls = self.secret(&URL, &URL_FILE);
        let tls = self.tls(TLS);
        let queue = self.get(&QUEUE);
        let queue_type = self.get(&QUEUE_TYPE);
        let prefetch = self.get(&PREFETCH);
        let urls = urls??;
        if let Some(words) = unlike(&urls) {
            return self.wrong(self.set_of(&URL, &URL_FILE), words);
        }
        if !urls[0].has_scheme("amqps") {
            self.tls_unused(TLS, "amqp.url begin with amqps://")?;
        }
        Some(Amqp {
            url: AmqpServers { urls },
            tls: tls?,
            queue: queue?,
            queue_type: queue_type?,
            prefetch: prefetch?,
        })
    }
}

fn queue(raw: &Raw) -> Result<String, Wrong> {
    let must = format!("a name of 1 to {MAX_WORK_QUEUE_BYTES} bytes");
    let name = parse_text(raw, &must)?;
    if name.len() > MAX_WORK_QUEUE_BYTES {
        return Err(format!("has {} bytes; it must be {must}", name.len()));
    }
    if name.starts_with("amq.") {
        return Err(format!(
            "is {}; RabbitMQ keeps names that begin with `amq.` for itself",
            shown(name)
        ));
    }
    if name.contains(char::is_control) {
        return Err("has a control character; no queue name of ours may have one".to_owned());
    }
    Ok(name.to_owned())
}

fn queue_schema() -> Json {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_WORK_QUEUE_BYTES,
        "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$",
        "not": {"pattern": "^amq\\."},
    })
}
