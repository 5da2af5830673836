//! `dispatch.http.oauth2`: access tokens of calls, by client credentials.

use ::http::header::AUTHORIZATION;
use serde_json::json;
use strum::{IntoStaticStr, VariantArray};

use super::headers::{ConfiguredHeaders, has_user};
use super::secrets::OF_TENANTS;
use crate::reading::key::{choice, file, text, url};
use crate::reading::{
    ConfigInput, Raw, ShownValue, ValueError, hint, keys, parse, show, shown, wrong,
};
use crate::sections::placeholders;
use crate::sections::section::section;
use crate::shape;
use crate::values::secret::{Secret, SecretUrl};
use crate::values::urls::UrlForm;
use rules::job::call::CarriedFields;
use rules::named::Named;

const URLS: UrlForm = UrlForm {
    schemes: ["http", "https"],
    example: "https://login.example.com/oauth2/token",
};
/// Maximum length of a text in bytes, longer than any in use.
const MAX_TEXT_BYTES: usize = 1 << 10;
/// Characters of a text in RFC 6749 (appendix A).
const PATTERN: &str = "^[ -~]{1,1024}$";
/// Placeholder for the tenant's name.
pub const TENANT: &str = "{tenant}";
const NO_SECRET: &str =
    "has {secret:tenant}, which only dispatch.http.oauth2.client-secret can contain";

fn schema() -> serde_json::Value {
    json!({"type": "string", "pattern": PATTERN, "not": {"pattern": "\\{(id|attempt|(secret|header|json):[^}]*)\\}"}})
}

fn fits(text: &str) -> bool {
    let is_plain = text
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic());
    is_plain && (1..=MAX_TEXT_BYTES).contains(&text.len())
}

fn ascii_text(raw: &Raw) -> Result<String, ValueError> {
    const MUST: &str = "a text of 1 to 1024 ASCII characters";
    let text = parse::text(raw, MUST)?;
    if !fits(text) {
        return Err(wrong(raw, MUST));
    }
    match text.contains(OF_TENANTS) {
        true => Err(NO_SECRET.to_owned()),
        false => check_placeholders(text).map(|()| text.to_owned()),
    }
}

/// Rejects placeholders of calls and misspellings of the tenant's, since they can't be meant
/// literally.
fn check_placeholders(text: &str) -> Result<(), ValueError> {
    for rest in text.split('{').skip(1) {
        let name = rest.split_once('}').map_or("", |(name, _)| name);
        let of_calls = ["header:", "json:", "secret:"];
        let is_of_calls =
            ["id", "attempt"].contains(&name) || of_calls.iter().any(|kind| name.starts_with(kind));
        let near = hint(name, ["tenant"]);
        if name != "tenant" && (is_of_calls || !near.is_empty()) {
            let name = shown(&format!("{{{name}}}"));
            return Err(format!(
                "has the unknown placeholder {name}; it must be {TENANT}{near}"
            ));
        }
    }
    Ok(())
}

fn client_secret(raw: &Raw) -> Result<Secret, ValueError> {
    const MUST: &str = "a text of 1 to 1024 ASCII characters";
    let text = parse::secret(raw, MUST)?;
    if !fits(text) {
        return Err(format!("must be {MUST}"));
    }
    let is_all = text == OF_TENANTS;
    // Errors show no part of the text, which may be the beginning of a secret.
    let is_near = text.starts_with("{secret:") && text.ends_with('}');
    if !is_all && (is_near || text.contains(OF_TENANTS) || text.contains(TENANT)) {
        return Err(format!(
            "must be {OF_TENANTS} alone, or contain no placeholder"
        ));
    }
    Ok(Secret::new(text))
}

/// Parses the URL. Its host, path and query may contain the tenant's name.
fn token_url(raw: &Raw) -> Result<SecretUrl, ValueError> {
    let url = URLS.one(raw)?;
    let text = url.expose();
    if text.contains(OF_TENANTS) {
        return Err(NO_SECRET.to_owned());
    }
    check_placeholders(text)?;
    let behind = text.find('#').unwrap_or(text.len());
    if text[behind..].contains(TENANT) {
        return Err("has {tenant} after a #, but that part is never sent".to_owned());
    }
    placeholders::host(text, TOKEN_URL.key.path, &mut CarriedFields::default())?;
    Ok(url)
}

keys! {
    TOKEN_URL: SecretUrl = url("dispatch.http.oauth2.token-url", URLS.schemes, false, token_url)
        .about("URL that issues access tokens (OAuth2 client credentials); setting it enables \
            them.")
        .note("See [access tokens](HANDLERS.md#access-tokens).");
    CLIENT_ID: String = text("dispatch.http.oauth2.client-id", "text of 1 to 1024 ASCII characters", schema, ascii_text)
        .about("Client's name at the token URL.")
        .note("`{tenant}` in it, in the URL's host or path, in `scope` or in `audience` requests one \
            token per tenant.");
    CLIENT_SECRET: Secret = text("dispatch.http.oauth2.client-secret", "text of 1 to 1024 ASCII characters", || shape::pattern(PATTERN), client_secret)
        .secret()
        .or_file(&CLIENT_SECRET_FILE)
        .about("Client's secret.")
        .note("`{secret:tenant}` is the secret of the job's tenant and requests one token per \
            tenant.");
    CLIENT_SECRET_FILE: String = file("dispatch.http.oauth2.client-secret-file")
        .about("File that contains `dispatch.http.oauth2.client-secret`.");
    CLIENT_AUTH: ClientAuth = choice("dispatch.http.oauth2.client-auth")
        .default("basic")
        .about("How the client sends its secret: as HTTP Basic authorization, or in the body.");
    SCOPE: String = text("dispatch.http.oauth2.scope", "scopes with spaces between them", schema, ascii_text)
        .about("Scope that is requested for the token.");
    AUDIENCE: String = text("dispatch.http.oauth2.audience", "text of 1 to 1024 ASCII characters", schema, ascii_text)
        .about("Audience that is requested for the token.");
}

section! {
    /// `dispatch.http.oauth2`
    #[derive(Debug, Clone, PartialEq, Eq)]
    optional struct OAuth2 {
        /// `dispatch.http.oauth2.token-url`
        pub token_url: SecretUrl = TOKEN_URL,
        /// `dispatch.http.oauth2.client-id`, or `None` if each tenant's secret contains it, as
        /// `client-id:client-secret`.
        pub client_id: Option<String> = CLIENT_ID,
        /// `dispatch.http.oauth2.client-secret`
        pub client_secret: Secret = CLIENT_SECRET,
        /// `dispatch.http.oauth2.client-auth`
        pub client_auth: ClientAuth = CLIENT_AUTH,
        /// `dispatch.http.oauth2.scope`
        pub scope: Option<String> = SCOPE,
        /// `dispatch.http.oauth2.audience`
        pub audience: Option<String> = AUDIENCE,
    }
    |input| {
        let key = &TOKEN_URL.key;
        if input.lacks(key) {
            let words = "has no effect without dispatch.http.oauth2.token-url; set that or remove \
                this key";
            return input.unused("dispatch.http.oauth2.", words);
        }
        let words = "contains a user; set dispatch.http.oauth2.client-id and client-secret instead";
        input.check(key, has_user(token_url.as_ref()?).then_some(words))?;
        let words = "needs the client's secret: set dispatch.http.oauth2.client-secret or \
            dispatch.http.oauth2.client-secret-file";
        input.check(key, input.lacks(&CLIENT_SECRET.key).then_some(words))?;
        let is_named = client_id.as_ref()?.is_some();
        let lacks_client = !is_named && client_secret.as_ref()?.expose() != OF_TENANTS;
        let words = "needs a client: set dispatch.http.oauth2.client-id";
        input.check(key, lacks_client.then_some(words))?;
    }
}

/// `dispatch.http.oauth2.client-auth`
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ClientAuth {
    /// `basic`
    Basic,
    /// `post`
    Post,
}

impl Named for ClientAuth {}
show!(ShownValue::named => ClientAuth);

impl OAuth2 {
    /// Returns true if each tenant has a token of its own.
    pub fn is_by_tenant(&self) -> bool {
        let texts = [&self.client_id, &self.scope, &self.audience];
        let texts = texts.into_iter().flatten().map(String::as_str);
        let mut texts = texts.chain([self.token_url.expose()]);
        self.has_secrets_of_tenants() || texts.any(|text| text.contains(TENANT))
    }

    /// Returns true if each tenant has a client secret of its own.
    pub fn has_secrets_of_tenants(&self) -> bool {
        self.client_secret.expose() == OF_TENANTS
    }

    /// Returns true if the host of the URL contains the tenant's name.
    pub fn has_hosts_of_tenants(&self) -> bool {
        let url = self.token_url.expose();
        let host = placeholders::host(url, TOKEN_URL.key.path, &mut CarriedFields::default());
        host.is_ok_and(|host| host.is_some())
    }

    /// Returns true if tokens are fetched over TLS.
    pub fn has_tls(&self) -> bool {
        self.token_url.has_scheme("https")
    }
}

impl ConfigInput {
    /// Reports another source of a call's authorization than the access tokens: `url`, `headers` or
    /// `forward`, unless they are invalid.
    pub(crate) fn check_authorization(
        &mut self,
        (url, headers, forward): (
            Option<&SecretUrl>,
            Option<&ConfiguredHeaders>,
            Option<&[String]>,
        ),
    ) -> Option<()> {
        let in_headers = headers.is_some_and(|headers| headers.has(&AUTHORIZATION));
        let mut names = forward.unwrap_or_default().iter();
        let others = [
            (url.is_some_and(has_user), "the user in dispatch.http.url"),
            (in_headers, "dispatch.http.headers"),
            (
                names.any(|name| name.eq_ignore_ascii_case(AUTHORIZATION.as_str())),
                "dispatch.http.forward-headers",
            ),
        ];
        let other = others.into_iter().find(|(sets, _)| *sets);
        let words = other.map(|(_, other)| {
            format!("sets authorization, and {other} sets it, too; keep one of them")
        });
        self.check(&TOKEN_URL.key, words)
    }
}
