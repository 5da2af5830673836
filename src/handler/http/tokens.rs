//! The access tokens of calls: fetched and renewed beside them, so that none waits for one with a permit.

mod by_tenant;
mod of_all;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::time::Instant;

use super::requests::NoRequest;
use super::secrets::Secrets;
use super::token_endpoint::{Client, Endpoint, Granted, Unfetched};
use crate::config::Http;
use crate::rules::retry::Reconnect;
use crate::rules::tenant::Tenant;
use by_tenant::ByTenant;
use of_all::OfAll;

/// Pauses after failures: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// A token that the API refuses is another one than a younger one: that which was just fetched is not at fault, the job or the client is.
const YOUNG: Duration = Duration::from_secs(10);
/// A call that is on its way while its token expires comes too late: so long before that none is sent, at most.
const MARGIN: Duration = Duration::from_secs(5);
/// A failure that goes on is logged so often.
const REMIND: Duration = Duration::from_secs(60);

/// What calls carry.
pub(super) struct Token {
    /// The value of `authorization`.
    pub header: HeaderValue,
    pub text: String,
    asked: Instant,
    /// It is used until then,
    until: Instant,
    /// and another one is fetched from then on.
    renew: Instant,
    refused: AtomicBool,
}

impl Token {
    /// One that `client` gets now.
    async fn fetch(endpoint: &Endpoint, client: &Client) -> Result<Self, Unfetched> {
        let asked = Instant::now();
        let Granted { token, life } = endpoint.fetch(client).await?;
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header = header.map_err(|why| Unfetched::from(why.to_string()))?;
        header.set_sensitive(true);
        Ok(Self {
            header,
            text: token,
            asked,
            until: asked + life - MARGIN.min(life / 10),
            // One that lives for a moment is not fetched in a loop.
            renew: asked + (life * 3 / 4).max(PAUSES[0]),
            refused: AtomicBool::default(),
        })
    }

    /// One that was asked for then.
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

    /// A call can carry it now.
    pub(super) fn is_usable(&self) -> bool {
        Instant::now() < self.until && !self.refused.load(Ordering::Relaxed)
    }
}

/// The failure that was logged last.
#[derive(Default)]
struct Told(Option<(String, Instant)>);

impl Told {
    /// Logs a failure to fetch a token for all calls, or those of a tenant, if it is news.
    fn tell(&mut self, why: &str, of: Option<&Tenant>) {
        // Where tenants fail in turns, each for a reason of its own, it is one line a second.
        let is_told = |(last, at): &(String, Instant)| {
            at.elapsed() < if last == why { REMIND } else { PAUSES[0] }
        };
        if !self.0.as_ref().is_some_and(is_told) {
            let of = of.map(Tenant::as_str);
            tracing::warn!(error = %why, tenant = of, "no access token; trying again");
            self.0 = Some((why.to_owned(), Instant::now()));
        }
    }

    /// There is a token.
    fn over(&mut self) {
        if self.0.take().is_some() {
            tracing::info!("access tokens can be fetched again");
        }
    }
}

/// The pauses between attempts.
fn pauses() -> Reconnect {
    Reconnect::between(PAUSES[0], PAUSES[1])
}

/// Keeps the tokens of one API.
pub(super) enum Tokens {
    /// One for all calls.
    OfAll(OfAll),
    /// One for each tenant.
    ByTenant(ByTenant),
}

impl Tokens {
    /// From `endpoint`, as `http` has it.
    ///
    /// # Errors
    /// In words: what is configured can't be sent.
    pub(super) fn new(endpoint: Endpoint, http: &Http) -> Result<Self, String> {
        let oauth2 = http.oauth2.as_ref();
        if !oauth2.is_some_and(|oauth2| oauth2.is_by_tenant()) {
            let client = endpoint.client()?;
            return Ok(Self::OfAll(OfAll::new(endpoint, client)));
        }
        let has_secrets = oauth2.is_some_and(|oauth2| oauth2.has_secrets_of_tenants());
        let secrets = http.secrets.clone().filter(|_| has_secrets);
        Ok(Self::ByTenant(ByTenant::new(
            endpoint,
            secrets.map(Secrets::new),
        )))
    }

    /// The one that any call can carry now.
    pub(super) fn usable(&self) -> Option<Arc<Token>> {
        match self {
            Self::OfAll(tokens) => tokens.usable(),
            Self::ByTenant(_) => None,
        }
    }

    /// The one that a call of `tenant` can carry now.
    pub(super) fn usable_for(&self, tenant: &Tenant) -> Option<Arc<Token>> {
        match self {
            Self::OfAll(tokens) => tokens.usable(),
            Self::ByTenant(tokens) => tokens.usable(tenant),
        }
    }

    /// Waits until there is one for a call of `tenant`.
    ///
    /// # Errors
    /// [`NoToken`]; where there is none at `deadline`, too.
    pub(super) async fn wait(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Arc<Token>, NoToken> {
        match self {
            Self::OfAll(tokens) => tokens.wait(deadline).await.map_err(NoToken::InTime),
            Self::ByTenant(tokens) => tokens.wait(tenant, deadline).await,
        }
    }

    /// The API has refused `token` of `tenant`: no call carries it from now on, and another one is fetched at once; once in
    /// [`YOUNG`] at most.
    pub(super) fn refused(&self, tenant: &Tenant, token: &Arc<Token>) {
        if token.asked.elapsed() < YOUNG || token.refused.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!("the API refused the access token (401): fetching another one");
        match self {
            Self::OfAll(tokens) => tokens.refused(token),
            // The next call of this tenant fetches one.
            Self::ByTenant(_) => drop(self.usable_for(tenant)),
        }
    }
}

/// Why there is no token; no text of it holds a secret.
pub(super) enum NoToken {
    /// There was none in time; why the last attempt failed, if it is known.
    InTime(Option<Unfetched>),
    /// The tenant's last attempt failed.
    Failed(String),
    /// The tenant's first attempt is in progress. Its job should not wait here but come again after this time.
    Pending(Duration),
    /// This machine lacked a resource that is needed to ask.
    Short(String),
    /// Nobody can ask for one.
    NoClient(NoRequest),
}

impl From<Unfetched> for NoToken {
    /// Converts the failure of the tenant's last attempt.
    fn from(Unfetched { why, is_shortage }: Unfetched) -> Self {
        match is_shortage {
            true => Self::Short(why),
            false => Self::Failed(why),
        }
    }
}
