//! `dispatch.results`: where results of jobs are published.

use ::http::header::HeaderName;
use serde_json::{Value as Json, json};
use strum::{IntoStaticStr, VariantArray};

use super::section::{or_empty, section};
use crate::reading::key::{choice, integer, text, tree};
use crate::reading::{ConfigInput, Raw, Show, ShownValue, ValueError, keys, show, shown};
use crate::values::amqp_name::{MAX_NAME_BYTES, PATTERN, name, name_or_empty};
use crate::values::header::{http_names, http_names_schema};
use rules::named::Named;

/// Maximum number of headers in a result.
const MAX_HEADERS: usize = 32;
/// Maximum of `max-body` in bytes: a result is not meant to transfer files.
const MAX_BODY_BYTES: u64 = 1 << 20;

keys! {
    TO: ResultsTo = choice("dispatch.results.to")
        .default("none")
        .about("Where the result of a job is sent: nowhere, to the queue in the job's reply_to, \
            or to an exchange.")
        .note("See [answers back](HANDLERS.md#answers-back).");
    EXCHANGE: String = text(
        "dispatch.results.exchange",
        "the name of an exchange",
        || json!({"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES, "pattern": PATTERN}),
        |raw| name(raw, "the name of an exchange, of up to 255 bytes"),
    )
        .about("Exchange for all results with `to: exchange`.")
        .note("It must exist.");
    ROUTING_KEY: Option<String> = text(
        "dispatch.results.routing-key",
        "a routing key",
        || json!({"type": "string", "maxLength": MAX_NAME_BYTES, "pattern": PATTERN}),
        |raw| {
            let key = name_or_empty(raw, "a routing key of up to 255 bytes")?;
            Ok((!key.is_empty()).then_some(key))
        },
    )
        .about("Routing key of results with `to: exchange`.");
    HEADERS: Vec<HeaderName> = tree(
        "dispatch.results.headers",
        "list of up to 32 names of headers",
        headers_schema,
        headers,
    )
        .about("Headers of the API's answer that are copied to the result, as `x-answer-NAME`.")
        .note("Such as `[location, x-request-id]`.");
    MAX_BODY: usize = integer::<_, 0, MAX_BODY_BYTES>("dispatch.results.max-body", "bytes")
        .default("65536")
        .about("Maximum size of the answer's body in a result.");
}

/// `dispatch.results.to`
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ResultsTo {
    /// No results are published.
    None,
    /// The queue in the job's `reply_to`.
    ReplyTo,
    /// `dispatch.results.exchange`
    Exchange,
}

impl Named for ResultsTo {}
show!(ShownValue::named => ResultsTo);

impl Show for Vec<HeaderName> {
    fn shown(&self) -> Option<ShownValue> {
        let names: Vec<String> = self.iter().map(HeaderName::to_string).collect();
        names.shown()
    }
}

section! {
    /// `dispatch.results`
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Results {
        /// `dispatch.results.to`
        pub to: ResultsTo = TO,
        /// `dispatch.results.exchange`
        pub exchange: Option<String> = EXCHANGE,
        /// `dispatch.results.routing-key`
        pub routing_key: String = |input: &mut ConfigInput| {
            input.optional(&ROUTING_KEY).map(|key| key.flatten().unwrap_or_default())
        },
        /// `dispatch.results.headers`
        pub headers: Vec<HeaderName> = or_empty(&HEADERS),
        /// `dispatch.results.max-body`, in bytes.
        pub max_body: usize = MAX_BODY,
    }
    |input| {
        let lacks_exchange = to? == ResultsTo::Exchange && exchange.as_ref()?.is_none();
        let words = "is exchange, so dispatch.results.exchange must be set to the name of an \
            existing exchange";
        input.check(&TO.key, lacks_exchange.then_some(words))?;
    }
}

fn headers(raw: &Raw) -> Result<Vec<HeaderName>, ValueError> {
    const MUST: &str = "a list of header names, such as [location, x-request-id]";
    // AMQP names are limited to 255 bytes, including the prefix of the header.
    let check = |name: &str, _: &HeaderName| match name.len() <= MAX_NAME_BYTES / 2 {
        true => Ok(()),
        false => Err(format!("{} is too long", shown(name))),
    };
    let names = http_names(raw, MUST, MAX_HEADERS, check)?;
    Ok(names.into_iter().map(|(_, header)| header).collect())
}

fn headers_schema() -> Json {
    let mut schema = http_names_schema(MAX_HEADERS);
    schema["items"]["maxLength"] = (MAX_NAME_BYTES / 2).into();
    schema
}
