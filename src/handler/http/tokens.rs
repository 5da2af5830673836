//! Access tokens of calls. They are fetched and renewed in the background, so no call waits for one
//! while it holds a permit.

mod shared_token;
mod tenant_tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::requests::NoRequest;
use super::secrets::Secrets;
use super::token_endpoint::{Endpoint, GrantedToken, TokenClient, TokenError};
use config::Http;
use rules::failures::retry::Backoff;
use rules::tenant::Tenant;
use shared_token::SharedToken;
use tenant_tokens::TenantTokens;

/// Pauses after failures: the first and the longest.
const FETCH_RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Minimum age of a token that a refusal invalidates. If the API refuses a token that was just
/// fetched, the job or the client is at fault.
const MIN_REFUSABLE_AGE: Duration = Duration::from_secs(10);
/// Maximum time before its expiry at which a token is no longer sent, since the call could arrive
/// too late.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5);
/// Interval at which a persistent failure is logged again.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// An access token.
pub(super) struct AccessToken {
    /// Value of the `authorization` header.
    pub header: HeaderValue,
    pub text: String,
    asked: Instant,
    /// Time until which calls carry it.
    until: Instant,
    /// Time from which another token is fetched.
    renew: Instant,
    refused: AtomicBool,
}

impl AccessToken {
    /// Fetches a token for `client`.
    async fn fetch(endpoint: &Endpoint, client: &TokenClient) -> Result<Self, TokenError> {
        let asked = Instant::now();
        let GrantedToken { token, life } = endpoint.fetch(client).await?;
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header = header.map_err(|why| TokenError::from(why.to_string()))?;
        header.set_sensitive(true);
        Ok(Self {
            header,
            text: token,
            asked,
            until: asked + life - EXPIRY_MARGIN.min(life / 10),
            // A token that lives for a moment only must not be fetched in a tight loop.
            renew: asked + (life * 3 / 4).max(FETCH_RETRY_DELAYS[0]),
            refused: AtomicBool::default(),
        })
    }

    /// Creates a token that was requested at `asked`.
    #[cfg(test)]
    fn lasting(asked: Instant, renew: Instant, until: Instant) -> Self {
        Self {
            header: HeaderValue::from_static("Bearer t"),
            text: "t".to_owned(),
            asked,
            until,
            renew,
            refused: AtomicBool::default(),
        }
    }

    /// Returns true if a call can carry the token now.
    pub(super) fn is_usable(&self) -> bool {
        Instant::now() < self.until && !self.refused.load(Ordering::Relaxed)
    }
}

/// The failure that was logged last.
#[derive(Default)]
struct FailureLog(Option<(String, Instant)>);

impl FailureLog {
    /// Logs a failure to fetch a token, for all calls or for one tenant, unless it was logged
    /// lately.
    fn log_failure(&mut self, why: &str, of: Option<&Tenant>) {
        // Even if tenants fail alternately for different reasons, at most one line per second is
        // logged.
        let is_logged = |(last, at): &(String, Instant)| {
            at.elapsed()
                < if last == why {
                    REMINDER_INTERVAL
                } else {
                    FETCH_RETRY_DELAYS[0]
                }
        };
        if !self.0.as_ref().is_some_and(is_logged) {
            let of = of.map(Tenant::as_str);
            tracing::warn!(error = %why, tenant = of, "no access token: retrying");
            self.0 = Some((why.to_owned(), Instant::now()));
        }
    }

    /// Logs that tokens can be fetched again, after a failure.
    fn log_recovery(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("access tokens can be fetched again");
        }
    }
}

/// Returns the pauses between attempts.
fn pauses() -> Backoff {
    Backoff::between(FETCH_RETRY_DELAYS[0], FETCH_RETRY_DELAYS[1])
}

/// Keeps the tokens of one API.
pub(super) enum Tokens {
    /// One token for all calls.
    Shared(SharedToken),
    /// One token for each tenant.
    PerTenant(TenantTokens),
}

impl Tokens {
    /// Keeps tokens from `endpoint` as `http` configures them.
    ///
    /// # Errors
    /// A message for the operator: a configured value can't be sent.
    pub(super) fn new(endpoint: Endpoint, http: &Http) -> Result<Self, String> {
        let oauth2 = http.oauth2.as_ref();
        if !oauth2.is_some_and(|oauth2| oauth2.is_by_tenant()) {
            let client = endpoint.client()?;
            return Ok(Self::Shared(SharedToken::new(endpoint, client)));
        }
        let has_secrets = oauth2.is_some_and(|oauth2| oauth2.has_secrets_of_tenants());
        let secrets = http.secrets.clone().filter(|_| has_secrets);
        Ok(Self::PerTenant(TenantTokens::new(
            endpoint,
            secrets.map(Secrets::new),
        )))
    }

    /// Returns the token that any call can carry now.
    pub(super) fn usable(&self) -> Option<Arc<AccessToken>> {
        match self {
            Self::Shared(tokens) => tokens.usable(),
            Self::PerTenant(_) => None,
        }
    }

    /// Returns the token that a call of `tenant` can carry now.
    pub(super) fn usable_for(&self, tenant: &Tenant) -> Option<Arc<AccessToken>> {
        match self {
            Self::Shared(tokens) => tokens.usable(),
            Self::PerTenant(tokens) => tokens.usable(tenant),
        }
    }

    /// Waits for a token for a call of `tenant`.
    ///
    /// # Errors
    /// [`NoToken`], also if there is no token by `deadline`.
    pub(super) async fn wait(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Arc<AccessToken>, NoToken> {
        match self {
            Self::Shared(tokens) => tokens.wait(deadline).await.map_err(NoToken::InTime),
            Self::PerTenant(tokens) => tokens.wait(tenant, deadline).await,
        }
    }

    /// Invalidates the token that the API refused and fetches another one at once, at most once in
    /// [`MIN_REFUSABLE_AGE`].
    pub(super) fn refused(&self, tenant: &Tenant, token: &Arc<AccessToken>) {
        if token.asked.elapsed() < MIN_REFUSABLE_AGE || token.refused.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::info!("the API refused the access token (401): fetching another one");
        match self {
            Self::Shared(tokens) => tokens.refused(token),
            // The next call of this tenant fetches one.
            Self::PerTenant(_) => drop(self.usable_for(tenant)),
        }
    }
}

/// The reason why there is no token. Its text contains no secret.
pub(super) enum NoToken {
    /// There was no token in time. Contains the last failure, if there was one.
    InTime(Option<TokenError>),
    /// The tenant's last attempt failed.
    Failed(TokenError),
    /// The tenant's first attempt is in progress. Its job should not wait here but return after
    /// this time.
    Pending(Duration),
    /// A token can't be requested without a usable client.
    NoClient(NoRequest),
}
