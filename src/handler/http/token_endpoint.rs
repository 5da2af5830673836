//! The endpoint of access tokens: requests with client credentials (RFC 6749, 4.4), and their
//! answers.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, USER_AGENT,
};
use hyper::{Method, Request, StatusCode, Uri};
use rustls::ClientConfig;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded::{Serializer, byte_serialize};
use url::{Position, Url};

use super::advice::{no_answer, no_connection};
use super::call::{CallResult, Exchange};
use super::hosts::HostFaults;
use super::pool::{Pool, PooledConnection, offer};
use super::proxy::Proxies;
use super::requests::{AGENT, uri};
use super::server::{Server, ServerSetup};
use config::{ClientAuth, OAuth2, TENANT};
use rules::failures::breaker::Trouble;
use rules::job::call::{ValuePlace, encode};
use rules::tenant::Tenant;
use runtime::shortage;

/// Maximum number of bytes read of an answer.
const MAX_BODY: usize = 64 * 1024;
/// Maximum length of a token in bytes. Servers accept a request's head with such a token.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Lifetime of a token whose answer does not state it.
const DEFAULT_LIFE: Duration = Duration::from_secs(300);
/// Minimum lifetime of a token. A token with a shorter one would serve no call, and be fetched for
/// each.
const MIN_LIFE: Duration = Duration::from_secs(1);
/// Maximum time that a token is kept.
const MAX_LIFE: Duration = Duration::from_secs(86_400);
/// Maximum length of an error code that is shown.
const MAX_CODE_BYTES: usize = 64;

/// Requests tokens.
pub(super) struct Endpoint {
    pool: Arc<Pool>,
    oauth2: OAuth2,
    /// Decides whom a failure counts against if each tenant has its own host.
    faults: Option<HostFaults>,
    timeout: Duration,
    encrypted: bool,
}

/// A client of the endpoint: the parts of its token request.
pub(super) struct TokenClient {
    server: Arc<Server>,
    /// URL without its server.
    target: Uri,
    /// URL including its server.
    full_uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    secret: String,
}

/// A token, and its lifetime from the time of the request.
pub(super) struct GrantedToken {
    pub token: String,
    pub life: Duration,
}

/// The reason why there is no token. Its text contains neither the client's secret nor a part of
/// the URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenError {
    pub why: String,
    /// The party at fault. If all tenants share the token server, it is no tenant's failure if it
    /// can't be reached.
    pub trouble: Trouble,
}

impl From<String> for TokenError {
    fn from(why: String) -> Self {
        Self {
            why,
            trouble: Trouble::Tenant,
        }
    }
}

impl Endpoint {
    /// Creates the endpoint of `oauth2`. It uses `tls` if its URL requires TLS, and `proxies`. A
    /// request may take `timeout`.
    ///
    /// # Errors
    /// A message for the operator: the URL contains something that no request can carry.
    pub(super) fn new(
        oauth2: &OAuth2,
        mut tls: ClientConfig,
        timeout: Duration,
        proxies: Proxies,
    ) -> Result<Self, String> {
        let url = oauth2.token_url.parse().map_err(|why| why.to_string())?;
        let encrypted = url.scheme() == "https";
        tls.alpn_protocols = offer(false);
        let setup = ServerSetup::new(encrypted, tls, proxies, timeout);
        setup.server(&url[Position::BeforeHost..Position::AfterPort])?;
        Ok(Self {
            // Tokens are requested rarely, so a single HTTP/1.1 connection is enough.
            pool: Pool::new(setup, 1),
            faults: oauth2.has_hosts_of_tenants().then(HostFaults::default),
            oauth2: oauth2.clone(),
            timeout,
            encrypted,
        })
    }

    /// Returns the client for all tenants.
    ///
    /// # Errors
    /// A message for the operator: a configured value can't be sent.
    pub(super) fn client(&self) -> Result<TokenClient, String> {
        let secret = self.oauth2.client_secret.expose();
        self.with(str::to_owned, self.oauth2.token_url.expose(), secret)
    }

    /// Returns the client for `tenant`. `secret` is the content of the tenant's file, if tenants
    /// have secrets of their own.
    ///
    /// # Errors
    /// A message for the operator, without the secret: a value can't be sent.
    pub(super) fn client_of(
        &self,
        tenant: &Tenant,
        secret: Option<&str>,
    ) -> Result<TokenClient, String> {
        let name = tenant.as_str();
        let mut url = self.oauth2.token_url.expose().to_owned();
        if url.contains(TENANT) {
            let of_host = self.faults.as_ref().map(|_| ValuePlace::Host);
            let places = of_host.into_iter().chain([ValuePlace::Path]);
            if let Some(why) = places.into_iter().find_map(|place| place.refuses(name)) {
                return Err(format!(
                    "the tenant {why}, which the token URL can't contain"
                ));
            }
            let mut encoded = String::new();
            encode(name, &mut encoded);
            url = url.replace(TENANT, &encoded);
        }
        let secret = secret.unwrap_or(self.oauth2.client_secret.expose());
        self.with(|text| text.replace(TENANT, name), &url, secret)
    }

    /// Creates a client with this URL and secret. `fill` replaces placeholders in the other texts.
    fn with(
        &self,
        fill: impl Fn(&str) -> String,
        url: &str,
        secret: &str,
    ) -> Result<TokenClient, String> {
        let url = Url::parse(url).map_err(|why| why.to_string())?;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let path = &url[Position::BeforePath..Position::AfterQuery];
        let server = self.pool.server(host)?;
        let OAuth2 {
            client_id,
            scope,
            audience,
            ..
        } = &self.oauth2;
        let (id, secret) = match client_id {
            Some(id) => (fill(id), secret),
            None => {
                let pair = secret.split_once(':').filter(|(id, _)| !id.is_empty());
                let (id, secret) = pair.ok_or(
                    "the secret of this tenant (dispatch.http.secrets-folder) is not client-id:client-secret (dispatch.http.oauth2.client-id is not set)",
                )?;
                (id.to_owned(), secret)
            }
        };
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        for (name, value) in [("scope", scope), ("audience", audience)] {
            if let Some(value) = value {
                form.append_pair(name, &fill(value));
            }
        }
        let mut headers = HeaderMap::new();
        match self.oauth2.client_auth {
            ClientAuth::Basic => {
                headers.insert(AUTHORIZATION, basic(&id, secret)?);
            }
            ClientAuth::Post => {
                form.append_pair("client_id", &id);
                form.append_pair("client_secret", secret);
            }
        }
        let body = Bytes::from(form.finish());
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(HOST, server.host.clone());
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CONTENT_LENGTH, body.len().into());
        Ok(TokenClient {
            server,
            target: uri(path)?,
            full_uri: uri(&format!("{}://{host}{path}", url.scheme()))?,
            headers,
            body,
            secret: secret.to_owned(),
        })
    }

    /// Requests a token for `client`.
    ///
    /// # Errors
    /// [`TokenError`] if there is no token now.
    pub(super) async fn fetch(&self, client: &TokenClient) -> Result<GrantedToken, TokenError> {
        let deadline = Instant::now() + self.timeout;
        let pooled = self.open(client, deadline).await?;
        match timeout_at(deadline, self.ask_over(pooled, client)).await {
            Ok(result) => Ok(result?),
            Err(_) => {
                let timeout = self.timeout;
                let why = format!(
                    "the token URL did not answer within {timeout:?} (dispatch.http.timeout)"
                );
                Err(why.into())
            }
        }
    }

    async fn open(
        &self,
        client: &TokenClient,
        deadline: Instant,
    ) -> Result<PooledConnection, TokenError> {
        let server = &client.server;
        let why = match timeout_at(deadline, self.pool.open(server)).await {
            Ok(Ok(pooled)) => {
                self.faults.iter().for_each(HostFaults::reached);
                return Ok(pooled);
            }
            Ok(Err(why)) => Some(why),
            Err(_) => None,
        };
        let words = match &why {
            Some(why) => no_connection(why.as_ref(), self.encrypted),
            None => format!("none within {:?} (dispatch.http.timeout)", self.timeout),
        };
        let why = why
            .as_ref()
            .map(|why| why.as_ref() as &(dyn Error + 'static));
        let trouble = match (&self.faults, why) {
            (Some(faults), why) => faults.failed(server, why),
            (None, Some(why)) if shortage::of(why).is_some() => Trouble::Local,
            (None, _) => Trouble::Unreachable,
        };
        Err(TokenError {
            why: format!("no connection to the token URL: {words}"),
            trouble,
        })
    }

    async fn ask_over(
        &self,
        pooled: PooledConnection,
        client: &TokenClient,
    ) -> Result<GrantedToken, String> {
        let mut request = Request::new(client.body.clone());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = client.target.clone();
        request.headers_mut().clone_from(&client.headers);
        let closed = || "the token URL's server closed the connection".to_owned();
        let mut exchange = pooled.send(request, &client.full_uri).ok_or_else(closed)?;
        let status = match exchange.answer().await {
            CallResult::Answered(head) => head.status,
            CallResult::Unwritten => return Err(closed()),
            CallResult::Refused(why) | CallResult::Failed(why) => {
                let words = no_answer(&why);
                return Err(format!("the token URL did not answer: {words}"));
            }
        };
        let body = whole_body(&mut exchange).await?;
        client.read(status, &body)
    }
}

impl TokenClient {
    /// Parses the answer. Nothing of it is shown but an error code and a token's type, since it
    /// contains the token or may repeat the request.
    fn read(&self, status: StatusCode, body: &[u8]) -> Result<GrantedToken, String> {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        if status != StatusCode::OK {
            let code = value.get("error").and_then(Value::as_str);
            let code = code.filter(|code| self.may_be_shown(code));
            let code = code.map_or(String::new(), |code| format!(": {code}"));
            return Err(format!("the token URL answered {}{code}", status.as_u16()));
        }
        let text = |name| value.get(name).and_then(Value::as_str);
        let kind = text("token_type").unwrap_or("bearer");
        // Apigee has a name of its own for Bearer tokens.
        let is_bearer = |name: &&str| kind.eq_ignore_ascii_case(name);
        if !["bearer", "bearertoken"].iter().any(is_bearer) {
            let shown = Some(kind).filter(|kind| !kind.is_empty() && self.may_be_shown(kind));
            let shown = shown.map_or(String::new(), |kind| format!(" but of type {kind}"));
            return Err(format!(
                "the token URL returned a token that is not a Bearer token{shown}"
            ));
        }
        let token = text("access_token").filter(|token| is_token(token));
        let token = token.ok_or(
            "the token URL answered 200 without a JSON access_token that is valid in a header",
        )?;
        let life = match value.get("expires_in") {
            None | Some(Value::Null) => DEFAULT_LIFE,
            // Some endpoints write the number in quotes.
            Some(life) => {
                let seconds = life.as_f64().or_else(|| life.as_str()?.parse().ok());
                let seconds = seconds.filter(|life| *life >= MIN_LIFE.as_secs_f64());
                let seconds = seconds.ok_or(
                    "the token URL returned a token whose expires_in is not a number of seconds \
                    of at least 1",
                )?;
                Duration::from_secs_f64(seconds.min(MAX_LIFE.as_secs_f64()))
            }
        };
        Ok(GrantedToken {
            token: token.to_owned(),
            life,
        })
    }

    /// Returns true if the text is a code, and not an echo of the client's secret.
    fn may_be_shown(&self, code: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        code.len() <= MAX_CODE_BYTES && code.bytes().all(is_plain) && !code.contains(&*self.secret)
    }
}

/// Returns true if a header can carry the text unchanged.
fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the Basic authorization for the client and its secret, both form-encoded (RFC 6749,
/// 2.3.1).
fn basic(id: &str, secret: &str) -> Result<HeaderValue, String> {
    let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    let pair = format!("{}:{}", encoded(id), encoded(secret));
    let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::from_str(&text).map_err(|why| why.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

async fn whole_body(exchange: &mut Exchange) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = exchange.next().await {
        let chunk = chunk.map_err(|_| "the token URL's answer is incomplete")?;
        if body.len() + chunk.len() > MAX_BODY {
            return Err("the token URL's answer is larger than 64 KiB".to_owned());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, Secret, SecretUrl};
    use runtime::tls;

    fn oauth2() -> OAuth2 {
        OAuth2 {
            token_url: SecretUrl::new("http://h/token?key=hunter3"),
            client_id: Some("a client".to_owned()),
            client_secret: Secret::new("hunter2:/"),
            client_auth: ClientAuth::Basic,
            scope: Some("a b".to_owned()),
            audience: None,
        }
    }

    fn endpoint(oauth2: &OAuth2) -> Endpoint {
        let tls = tls::untrusting().expect("nothing can fail");
        let http = Config::parse(
            "",
            "dispatch: {http: {url: 'http://h/'}}",
            std::iter::empty(),
        );
        let http = http.expect("valid").dispatch.http.expect("a url");
        let proxies = Proxies::new(&http, None);
        Endpoint::new(oauth2, tls, Duration::from_secs(1), proxies).expect("a url")
    }

    fn client() -> TokenClient {
        endpoint(&oauth2()).client().expect("it can be sent")
    }

    #[test]
    fn a_client_is_encoded_by_the_standard() {
        let client = client();
        let basic = BASE64_STANDARD.encode("a+client:hunter2%3A%2F");
        assert_eq!(client.headers[AUTHORIZATION], format!("Basic {basic}"));
        assert_eq!(client.body, "grant_type=client_credentials&scope=a+b");
    }

    #[test]
    fn a_tenants_client_name_and_secret_are_sent_in_their_fields() {
        let mut oauth2 = OAuth2 {
            token_url: SecretUrl::new("http://h/{tenant}/token?of={tenant}"),
            client_id: Some("shop-{tenant}".to_owned()),
            client_secret: Secret::new("{secret:tenant}"),
            client_auth: ClientAuth::Post,
            scope: Some("of:{tenant}".to_owned()),
            audience: None,
        };
        let of = |oauth2: &OAuth2, name: &str, secret: &str| {
            let tenant = Tenant::parse(name).expect("a tenant");
            let client = endpoint(oauth2).client_of(&tenant, Some(secret))?;
            let body = String::from_utf8(client.body.to_vec()).expect("a form");
            Ok::<_, String>((client.target.to_string(), body))
        };
        let (target, body) = of(&oauth2, "a/b&", "hunter2").expect("it can be sent");
        assert_eq!(target, "/a%2Fb%26/token?of=a%2Fb%26");
        let form = "grant_type=client_credentials&scope=of%3Aa%2Fb%26&client_id=shop-a%2Fb%26&client_secret=hunter2";
        assert_eq!(body, form);
        let why = of(&oauth2, "..", "hunter2").expect_err("it would be another path");
        assert!(why.contains("a path segment"), "{why}");

        oauth2.client_id = None;
        let (_, body) = of(&oauth2, "acme", "own:hunter2:3").expect("it can be sent");
        assert!(
            body.ends_with("&client_id=own&client_secret=hunter2%3A3"),
            "{body}"
        );
        for secret in ["hunter2", ":hunter2"] {
            let why = of(&oauth2, "acme", secret).expect_err("there is no client");
            assert!(
                why.contains("client-id:client-secret") && !why.contains("hunter"),
                "{why}"
            );
        }
    }

    #[test]
    fn an_answer_holds_a_token_or_the_reason_for_none() {
        let client = client();
        let read = |status, body: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            let granted = client.read(status, body.as_bytes());
            granted.map(|granted| (granted.token, granted.life.as_secs()))
        };
        for (body, token, seconds) in [
            (r#"{"access_token": "t"}"#, "t", 300),
            (
                r#"{"access_token": "t", "token_type": "bearer", "expires_in": 60}"#,
                "t",
                60,
            ),
            (
                r#"{"access_token": "t", "token_type": "Bearer", "expires_in": "7200"}"#,
                "t",
                7200,
            ),
            (
                r#"{"access_token": "t", "token_type": "BearerToken", "expires_in": "1799"}"#,
                "t",
                1799,
            ),
            (r#"{"access_token": "t", "expires_in": 1e99}"#, "t", 86_400),
        ] {
            assert_eq!(read(200, body), Ok((token.to_owned(), seconds)), "{body}");
        }
        for (status, body, words) in [
            (
                401,
                r#"{"error": "invalid_client"}"#,
                "answered 401: invalid_client",
            ),
            (400, r#"{"error": "no hunter2:/"}"#, "answered 400"),
            (302, "", "answered 302"),
            (201, r#"{"access_token": "t"}"#, "answered 201"),
            (200, "hunter2", "without a JSON access_token"),
            (
                200,
                r#"{"access_token": "a b"}"#,
                "without a JSON access_token",
            ),
            (
                200,
                r#"{"access_token": ""}"#,
                "without a JSON access_token",
            ),
            (
                200,
                r#"{"access_token": "t", "token_type": "mac"}"#,
                "not a Bearer token but of type mac",
            ),
            (
                200,
                r#"{"access_token": "t", "token_type": "DPoP"}"#,
                "not a Bearer token but of type DPoP",
            ),
            (
                200,
                r#"{"access_token": "t", "token_type": "hunter2:/"}"#,
                "not a Bearer token",
            ),
            (
                200,
                r#"{"access_token": "t", "expires_in": 0}"#,
                "at least 1",
            ),
            (
                200,
                r#"{"access_token": "t", "expires_in": 0.9}"#,
                "at least 1",
            ),
            (
                200,
                r#"{"access_token": "t", "expires_in": "NaN"}"#,
                "at least 1",
            ),
        ] {
            let why = read(status, body).expect_err(body);
            assert!(why.contains(words) && !why.contains("hunter"), "{why}");
        }
    }
}
