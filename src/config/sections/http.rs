//! `dispatch.http`: the API that is called for each job.

mod answers;
mod answers_schema;
pub(crate) mod api_profiles;
mod headers;
pub(crate) mod method;
pub(crate) mod oauth2;
pub(crate) mod secrets;

use std::time::Duration;

use ::http::header::HeaderName;

use self::answers_schema::{answers_schema, cost_schema};
use self::api_profiles::{ApiName, ApiProfile};
use self::headers::{ConfiguredHeaders, MAX_HEADERS};
use self::method::Method;
use self::oauth2::{CLIENT_SECRET, OAuth2};
use self::secrets::{OF_TENANTS, SecretFiles, Sign, signing_keys};
use super::job::COST as COST_OF_JOBS;
use super::placeholders;
use super::section::{or_empty, section};
use super::tls_keys::{TlsKeys, tls};
use crate::reading::key::{
    MAX_CALL_MS, as_written, boolean, choice, choice_of, duration, file, file_with, folder, pem,
    text, tree, url,
};
use crate::reading::{
    ConfigInput, ConfigProblem, KeyEntry, Raw, ShownValue, ValueError, keys, parse, shown,
};
use crate::shape;
use crate::values::header::http_names_schema;
use crate::values::secret::{Secret, SecretUrl};
use crate::values::tls::Tls;
use crate::values::urls::{self, UrlForm};
use rules::answers::Answers;
use rules::decision::LEASE_MS;
use rules::job::call::{CarriedFields, Template};

const URLS: UrlForm = UrlForm {
    schemes: ["http", "https"],
    example: "https://api.example.com/jobs",
};
/// Defined in IETF draft-ietf-httpapi-idempotency-key-header.
const IDEMPOTENCY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const TLS: TlsKeys = [&CA_FILE, &CERT_FILE, &KEY_FILE];

/// Headers of a signed call (Standard Webhooks).
pub const SIGNATURE_HEADERS: [&str; 3] = ["webhook-id", "webhook-timestamp", "webhook-signature"];

const SIGN_PATTERN: &str =
    r"^(\{secret:tenant\}|whsec_[A-Za-z0-9+/]{32,88}={0,2}(\s+whsec_[A-Za-z0-9+/]{32,88}={0,2})?)$";

/// Parses the keys that sign calls, or the placeholder for tenants' own keys.
fn sign_secrets(raw: &Raw) -> Result<Secret, ValueError> {
    let text = parse::secret(raw, "one or two keys such as whsec_…")?;
    if text != OF_TENANTS {
        signing_keys(text)?;
    }
    Ok(Secret::new(text))
}

keys! {
    URL: SecretUrl = url("dispatch.http.url", URLS.schemes, false, |raw| URLS.one(raw))
        .or_file(&URL_FILE)
        .about("URL of the API; `run` requires it.")
        .note("`http://` uses HTTP/1.1, `https://` uses HTTP/2 if the API offers it, otherwise \
            HTTP/1.1. Host, path and query can have [placeholders](HANDLERS.md#what-a-call-carries).");
    URL_FILE: String = file("dispatch.http.url-file").about("File that contains `dispatch.http.url`.");
    METHOD: Method = choice("dispatch.http.method")
        .default("POST")
        .about("Method of each call.")
        .note("With `GET` and `DELETE` the job's body is not sent.");
    HEADERS: Raw = tree(
        "dispatch.http.headers",
        "mapping of up to 32 names to texts of 1 to 1024 bytes; not the headers of the \
        connection, the body or the job (`host`, `content-…`, `x-tenant`, …)",
        headers::schema,
        as_written,
    )
        .secret()
        .or_file(&HEADERS_FILE)
        .about("Headers of each call; their values are never shown.")
        .note("Such as `{x-api-key: \"…\", user-agent: shop}`; values can have \
            [placeholders](HANDLERS.md#what-a-call-carries).");
    HEADERS_FILE: String = file_with("dispatch.http.headers-file", headers::path)
        .about("File with more headers in the same form.")
        .note("Such as `authorization: Bearer …`.");
    FORWARD_HEADERS: Vec<String> = tree(
        "dispatch.http.forward-headers",
        "list of up to 32 names of headers",
        || http_names_schema(MAX_HEADERS),
        headers::forward_headers,
    )
        .about("Job headers that are copied to the call.")
        .note("Such as `[traceparent, x-request-id]`. A value is a string or a 64-bit integer.");
    IDEMPOTENCY_KEY: Option<String> = text(
        "dispatch.http.idempotency-key",
        "`true`: the job's id; `false`; or a text with [placeholders](HANDLERS.md#what-a-call-carries)",
        headers::idempotency_schema,
        headers::idempotency_key,
    )
        .default("false")
        .about("Header idempotency-key of each call. APIs that support it do the same work once, \
            however often a job is called.");
    SECRETS_FOLDER: String = folder("dispatch.http.secrets-folder")
        .about("Folder with one file per tenant, which contains the value of `{secret:tenant}` in \
            its calls.")
        .note("See [secrets of tenants](HANDLERS.md#secrets-of-tenants).");
    DEFAULT_SECRET_FILE: String = file_with("dispatch.http.default-secret-file", |raw| {
        parse::text(raw, "the path of a file with the secret of tenants without a file of their \
            own").map(str::to_owned)
    })
        .about("File with the value of `{secret:tenant}` for tenants without a file of their own.")
        .note("Without it, a job of such a tenant becomes a dead letter.");
    SIGN: Sign = choice("dispatch.http.sign")
        .default("none")
        .about("How calls are signed, so that receivers can verify the sender.")
        .note("See [signatures](HANDLERS.md#signatures).");
    SIGN_SECRETS: Secret = text(
        "dispatch.http.sign-secrets",
        "one or two keys `whsec_…`, or `{secret:tenant}`",
        || shape::pattern(SIGN_PATTERN),
        sign_secrets,
    )
        .secret()
        .or_file(&SIGN_SECRETS_FILE)
        .about("Keys that sign calls; use two while receivers change from one to the other.");
    SIGN_SECRETS_FILE: String = file("dispatch.http.sign-secrets-file")
        .about("File that contains `dispatch.http.sign-secrets`.");
    CA_FILE: String = pem("dispatch.http.ca-file")
        .about("Certificate authorities to trust with https://, instead of the system's.")
        .note("See [TLS](DEPLOYMENT.md#tls).");
    CERT_FILE: String = pem("dispatch.http.cert-file")
        .about("Client certificate of workers, with its chain.");
    KEY_FILE: String = pem("dispatch.http.key-file").about("Private key of the client \
        certificate, without a passphrase.");
    HTTP2: bool = boolean("dispatch.http.http2")
        .default("true")
        .about("Whether to use HTTP/2 if an https:// API offers it.")
        .note("Set `false` if the API's HTTP/2 is broken.");
    PROXY: SecretUrl = text(
        "dispatch.http.proxy",
        "`http://host:port`, or `http://user:password@host:port`",
        || shape::pattern("^[hH][tT][tT][pP]://[^\\s/?#]+/?$"),
        urls::proxy,
    )
        .secret()
        .or_file(&PROXY_FILE)
        .about("Proxy for calls and requests for access tokens.")
        .note("Default: `HTTPS_PROXY`, `HTTP_PROXY` or `ALL_PROXY`, except for hosts in `NO_PROXY`. \
            See [proxies](HANDLERS.md#proxies).");
    PROXY_FILE: String = file("dispatch.http.proxy-file").about("File that contains `dispatch.http.proxy`.");
    TIMEOUT: Duration = duration::<1, MAX_CALL_MS>("dispatch.http.timeout")
        .default("10s")
        .about("Longest duration of a call, including the connection set-up.")
        .note("RabbitMQ takes back a job after `amqp.consumer-timeout`.");
    ABANDONED: Duration = duration::<0, LEASE_MS>("dispatch.http.abandoned")
        .default("60s")
        .about("How long a timed-out call counts as in flight for guard: strict and \
            max-concurrent.")
        .note("It ends earlier if the worker detects the call's end. A hanging API may read the \
            call later: set this to the longest time that the API hangs. With 0, such calls do \
            not count.");
    API: ApiName = choice_of(
        "dispatch.http.api",
        || ApiName::all().iter().map(|(name, _)| *name).collect(),
        |raw| parse::choice(raw, &ApiName::all()),
    )
        .about("The API that is called, if Sluicegate knows its answers.")
        .note("See [API profiles](APIS.md).");
    ANSWERS: Raw = tree(
        "dispatch.http.answers",
        "list of up to 64 [rules](APIS.md#rules), or mapping of statuses to `done`, `retry`, \
        `throttle`, `reject`",
        answers_schema,
        as_written,
    )
        .about("Meanings of answers that differ from the default.")
        .note("See [answers](HANDLERS.md#what-an-answer-means).");
    COST: Raw = tree(
        "dispatch.http.cost",
        "list of `{header: NAME}` and `{body: POINTER}`",
        cost_schema,
        as_written,
    )
        .about("Where answers tell what a call cost; the first readable place counts, then \
            x-actual-cost.");
}

section! {
    /// `dispatch.http`
    #[derive(Debug, Clone, PartialEq)]
    optional struct Http {
        /// `dispatch.http.url`
        pub url: SecretUrl = URL,
        /// `dispatch.http.ca-file`, `dispatch.http.cert-file` and `dispatch.http.key-file`
        pub tls: Tls = tls(TLS),
        /// `dispatch.http.method`
        pub method: Method = METHOD,
        /// Host and port of the URL, if they have placeholders.
        pub host: Option<Template>,
        /// Path and query of the URL, if they have placeholders.
        pub target: Option<Template>,
        /// `dispatch.http.headers`, `dispatch.http.headers-file` and
        /// `dispatch.http.idempotency-key`: headers of each call.
        pub headers: ConfiguredHeaders,
        /// `dispatch.http.forward-headers`: names of jobs' headers to forward.
        pub forward: Vec<String> = or_empty(&FORWARD_HEADERS),
        /// `dispatch.http.secrets-folder` and `dispatch.http.default-secret-file`
        pub secrets: Option<SecretFiles>,
        /// `dispatch.http.sign`
        pub sign: Sign = SIGN,
        /// `dispatch.http.sign-secrets`: the keys, or [`OF_TENANTS`] if each tenant has its own.
        pub sign_secrets: Option<Secret> = SIGN_SECRETS,
        /// `dispatch.http.oauth2`: where calls get their access tokens from.
        pub oauth2: Option<OAuth2> = OAuth2::read_if,
        /// `dispatch.http.api`
        pub api: Option<ApiName> = API,
        /// Whether `job.cost` is not set although there is a `dispatch.http.api`.
        pub lacks_cost: bool,
        /// `dispatch.http.answers` and `dispatch.http.cost` with the rules of `dispatch.http.api`:
        /// the meanings of answers.
        pub answers: Answers,
        /// `dispatch.http.proxy`
        pub proxy: Option<SecretUrl> = PROXY,
        /// `dispatch.http.http2`: whether to use HTTP/2 if a server with TLS offers it.
        pub http2: bool = HTTP2,
        /// `dispatch.http.timeout`: time limit of a call, including its connection.
        pub timeout: Duration = TIMEOUT,
        /// `dispatch.http.abandoned`: how long a call without an answer in time counts as in
        /// flight.
        pub abandoned: Duration = ABANDONED,
        /// The values of jobs that calls carry.
        pub carried: CarriedFields,
    }
    |input| {
        let mut values = CarriedFields::default();
        let idempotency_key = input.get(&IDEMPOTENCY_KEY);
        let text = url.as_ref().map_or("", SecretUrl::expose);
        let host = placeholders::host(text, URL.key.path, &mut values);
        let target = placeholders::target(text, URL.key.path, &mut values);
        let (host, target) = (input.valid(&URL.key, host), input.valid(&URL.key, target));
        let headers = input.headers(url.as_ref(), &HEADERS.key, &mut values);
        let profile = api.flatten().map(|api| ApiProfile::of(api).rules);
        let answers = input.answers(&ANSWERS.key, &COST.key, profile);
        let files = input.secret_files(&SECRETS_FOLDER, &DEFAULT_SECRET_FILE);
        let signed = input.check_sign(sign, sign_secrets.as_ref(), headers.as_ref());
        let others = (url.as_ref(), headers.as_ref(), forward.as_deref());
        let client = oauth2.as_ref().and_then(Option::as_ref);
        let authorized = client.map_or(Some(()), |_| input.check_authorization(others));
        signed.and(authorized)?;
        if input.lacks(&URL.key) {
            input.shown.drop_section("dispatch.http.");
            return Some(None);
        }
        // A mistake in `oauth2` hides which keys it uses.
        let client = oauth2.as_ref()?.as_ref();
        if !url.as_ref()?.has_scheme("https") && !client.is_some_and(OAuth2::has_tls) {
            input.tls_unused(TLS, "dispatch.http.url begin with https://")?;
        }
        let (headers, idempotency_key) = (headers?, idempotency_key?);
        input.shown.set(&HEADERS.key, &headers);
        let key = ShownValue::text(idempotency_key.as_deref().unwrap_or("false"));
        input.shown.set(&IDEMPOTENCY_KEY.key, &key);
        let headers = input.idempotent(headers, idempotency_key.as_deref(), &mut values)?;
        let own_keys = sign_secrets.as_ref()?.as_ref();
        let own_keys = own_keys.is_some_and(|keys| keys.expose() == OF_TENANTS);
        let mut of_headers = headers.of_jobs.iter().map(|(_, value)| value);
        let of_key = idempotency_key.is_some_and(|text| text.contains(OF_TENANTS));
        let uses = [
            (of_key, &IDEMPOTENCY_KEY.key),
            (target.as_ref()?.as_ref().is_some_and(Template::has_secret), &URL.key),
            (of_headers.any(Template::has_secret), &HEADERS.key),
            (own_keys && sign != Some(Sign::None), &SIGN_SECRETS.key),
            (client.is_some_and(OAuth2::has_secrets_of_tenants), &CLIENT_SECRET.key),
        ];
        let used = uses.into_iter().find(|(is_used, _)| *is_used).map(|(_, key)| key);
        let keys = (&SECRETS_FOLDER, &DEFAULT_SECRET_FILE);
        let secrets = input.used_secrets(keys, files?, used);
        values.forward.clone_from(forward.as_ref()?);
        let twice = values.forward.iter().find(|name| headers.has_named(name));
        let words = "is also in dispatch.http.headers; keep one of them";
        let twice = twice.map(|name| format!("{} {words}", shown(name)));
        input.check(&FORWARD_HEADERS.key, twice)?;
        let lacks_cost = Some(api?.is_some() && input.lacks(&COST_OF_JOBS.key));
        let (headers, carried) = (Some(headers), Some(values));
    }
}

impl ConfigInput {
    /// Reports a key of `dispatch.http` that has no effect because the key `dispatch_kind`
    /// dispatches the jobs. Skips keys with a problem.
    pub(super) fn no_calls_beside(&mut self, dispatch_kind: &str) -> Option<()> {
        // Looks up the same entry as `wrong`: the first that sets a key.
        let mut set = self.layers.iter().flatten();
        let set = set
            .find(|entry| entry.path.starts_with("dispatch.http.") && !self.has_problem(&entry.at));
        let Some(KeyEntry { path, at, .. }) = set else {
            return Some(());
        };
        let words = format!("has no effect with {dispatch_kind}; remove one of them");
        self.problems.push(ConfigProblem::of(at, path, words));
        None
    }

    /// Checks how calls are signed and with which keys. `headers` are the configured headers, unless
    /// one is invalid.
    fn check_sign(
        &mut self,
        how: Option<Sign>,
        keys: Option<&Option<Secret>>,
        headers: Option<&ConfiguredHeaders>,
    ) -> Option<()> {
        if how? == Sign::None {
            return Some(());
        }
        let words = "needs keys: set dispatch.http.sign-secrets or dispatch.http.sign-secrets-file";
        self.check(&SIGN.key, keys?.is_none().then_some(words))?;
        let is_set = |name: &&&str| headers.is_some_and(|headers| headers.has_named(name));
        let twice = SIGNATURE_HEADERS.iter().find(is_set).map(|name| {
            format!("sets {name}, and dispatch.http.headers sets it, too; keep one of them")
        });
        self.check(&SIGN.key, twice)
    }

    /// Returns `headers` with the header of `dispatch.http.idempotency-key`.
    fn idempotent(
        &mut self,
        mut headers: ConfiguredHeaders,
        text: Option<&str>,
        carried: &mut CarriedFields,
    ) -> Option<ConfiguredHeaders> {
        let key = &IDEMPOTENCY_KEY.key;
        let Some(text) = text else {
            return Some(headers);
        };
        let words = "sets a header that dispatch.http.headers sets, too; keep one of them";
        self.check(key, headers.has(&IDEMPOTENCY_HEADER).then_some(words))?;
        let template = self.valid(key, placeholders::header(text, key.path, carried))?;
        let own = template.map(|template| (IDEMPOTENCY_HEADER, template));
        headers.of_jobs.extend(own);
        Some(headers)
    }
}
