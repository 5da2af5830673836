//! `dispatch.http`: the API that is called for each job.

use std::time::Duration;

use ::http::header::HeaderMap;

use super::http_answers::{self, answers};
use super::http_headers;
use super::input::Input;
use super::key::{MINUTE, as_written, boolean, duration, file, file_with, keys, pem, tree, url};
use super::secret::SecretUrl;
use super::shown::{Shown, Values};
use super::tls::Tls;
use super::tls_keys::TlsKeys;
use super::urls::UrlForm;
use super::yaml::Raw;
use crate::rules::answers::Answers;
use crate::rules::decision::LEASE_MS;

const URLS: UrlForm = UrlForm {
    schemes: ["http", "https"],
    example: "https://api.example.com/jobs",
};
const TLS: TlsKeys = [&CA_FILE, &CERT_FILE, &KEY_FILE];
/// RabbitMQ closes a channel whose delivery is unacked for 30 minutes.
const LONGEST_CALL: u64 = 25 * MINUTE;

keys! {
    URL: SecretUrl = url("dispatch.http.url", URLS.schemes, false, |raw| URLS.one(raw))
        .example("http://h/")
        .about("Where each job is sent, by POST; run needs it.")
        .note("`http://` is HTTP/1.1, `https://` is HTTP/2 where the API offers it, else HTTP/1.1.");
    URL_FILE: String = file("dispatch.http.url-file").about("A file that holds `dispatch.http.url`.");
    HEADERS: Raw = tree(
        "dispatch.http.headers",
        "mapping of up to 32 names to texts of 1 to 1024 bytes; none that belong to the connection, the body or the job (`host`, `content-…`, `x-tenant`, …)",
        http_headers::schema,
        as_written,
    )
        .secret()
        .example("{x-api-key: k}")
        .about("Headers of each call; their values are never shown.")
        .note("Such as `{x-api-key: \"…\", user-agent: shop}`.");
    HEADERS_FILE: String = file_with("dispatch.http.headers-file", http_headers::path)
        .about("A file that holds more headers, written the same way.")
        .note("Such as `authorization: Bearer …`.");
    CA_FILE: String = pem("dispatch.http.ca-file")
        .about("The authorities whose certificates are accepted with https://, instead of the system's.")
        .note("See [TLS](DEPLOYMENT.md#tls).");
    CERT_FILE: String = pem("dispatch.http.cert-file")
        .about("The certificate that workers show, and those that sign it.");
    KEY_FILE: String = pem("dispatch.http.key-file").about("Its private key, without a passphrase.");
    HTTP2: bool = boolean("dispatch.http.http2")
        .default("true")
        .example("false")
        .about("Whether HTTP/2 is spoken where an https:// API offers it.")
        .note("`false` is for one that offers it and does not keep to it.");
    TIMEOUT: Duration = duration::<1, LONGEST_CALL>("dispatch.http.timeout")
        .default("10s")
        .example("2m")
        .about("How long one call may take, with the connection set-up before it.")
        .note("RabbitMQ takes a job back after 30 minutes.");
    ABANDONED: Duration = duration::<0, LEASE_MS>("dispatch.http.abandoned")
        .default("60s")
        .example("0")
        .about("How long a call that got no answer in time counts as in flight for guard: strict and max-concurrent.")
        .note("It ends earlier if the worker detects the call's end. An API that hung may read the call later: set it to the longest time that the API hangs; with 0 such calls do not count.");
    ANSWERS: Answers = tree(
        "dispatch.http.answers",
        "mapping of statuses to `done`, `retry`, `throttle`, `reject`",
        http_answers::schema,
        answers,
    )
        .example("{409: retry}")
        .about("What an answer means for its job, where that is not the default.")
        .note("See [answers](WORKERS.md#what-an-answer-means).");
}

/// `dispatch.http`
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// `dispatch.http.url`
    pub url: SecretUrl,
    /// `dispatch.http.ca-file`, `dispatch.http.cert-file` and `dispatch.http.key-file`
    pub tls: Tls,
    /// `dispatch.http.headers` and `dispatch.http.headers-file`: what each call carries; sensitive values.
    pub headers: HeaderMap,
    /// `dispatch.http.answers`: what an answer means.
    pub answers: Answers,
    /// `dispatch.http.http2`: HTTP/2 where a server with TLS offers it.
    pub http2: bool,
    /// `dispatch.http.timeout`: for the whole call, connection set-up included.
    pub timeout: Duration,
    /// `dispatch.http.abandoned`: how long a call without an answer in time counts as in flight.
    pub abandoned: Duration,
}

impl Http {
    /// What is set.
    pub(super) fn show(&self, values: &mut Values) {
        let Self {
            url,
            tls,
            headers,
            answers,
            http2,
            timeout,
            abandoned,
        } = self;
        values.set(&URL.key, Shown::urls(std::slice::from_ref(url)));
        if !headers.is_empty() {
            let headers = headers.iter().map(|(name, value)| {
                (
                    name,
                    Shown::hidden(&String::from_utf8_lossy(value.as_bytes())),
                )
            });
            values.set(&HEADERS.key, Shown::names(headers));
        }
        tls.show(TLS, values);
        values.set(&HTTP2.key, Shown::bare(http2));
        values.set(&TIMEOUT.key, Shown::duration(*timeout));
        values.set(&ABANDONED.key, Shown::duration(*abandoned));
        if answers.own().len() > 0 {
            let own = answers
                .own()
                .map(|(which, meaning)| (which, Shown::bare(meaning.name())));
            values.set(&ANSWERS.key, Shown::names(own));
        }
    }
}

impl Input {
    /// The section, `Some(None)` where it has no url; `None` after a problem.
    pub(super) fn http(&mut self) -> Option<Option<Http>> {
        let url = self.secret(&URL, &URL_FILE);
        let http2 = self.get(&HTTP2);
        let timeout = self.get(&TIMEOUT);
        let abandoned = self.get(&ABANDONED);
        let tls = self.tls(TLS);
        let url_known = url.as_ref().and_then(Option::as_ref);
        let headers = self.headers(url_known, &HEADERS, &HEADERS_FILE);
        let answers = self.optional(&ANSWERS);
        let (url, tls, headers, http2) = (url?, tls?, headers?, http2?);
        let (answers, timeout, abandoned) = (answers?, timeout?, abandoned?);
        let Some(url) = url else {
            return Some(None);
        };
        if !url.has_scheme("https") {
            self.tls_unused(TLS, "dispatch.http.url begin with https://")?;
        }
        Some(Some(Http {
            url,
            tls,
            headers,
            answers: answers.unwrap_or_default(),
            http2,
            timeout,
            abandoned,
        }))
    }
}
