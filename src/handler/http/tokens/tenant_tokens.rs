//! One access token per tenant. It is fetched when the tenant's first job is prepared, and renewed
//! while it has jobs.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::Instrument;

use super::super::requests::NoRequest;
use super::super::secrets::Secrets;
use super::super::token_endpoint::{Endpoint, TokenClient, TokenError};
use super::{AccessToken, FETCH_RETRY_DELAYS, FailureLog, NoToken, pauses};
use rules::failures::retry::Backoff;
use rules::tenant::Tenant;

/// Maximum number of tenants whose tokens are kept.
const MAX_TENANTS: usize = 10_000;
/// Maximum number of fetches with a turn: for tenants whose last attempt did not fail, and for the
/// others. Tenants that keep failing do not delay new ones.
const MAX_FETCHES: [usize; 2] = [8, 4];
/// Maximum duration of a fetch's turn. A longer fetch continues without a turn, so that endpoints
/// that hang do not delay other fetches.
const MAX_TURN: Duration = Duration::from_millis(500);
/// Maximum number of fetches without a turn. A further one makes the oldest give up.
const MAX_SLOW_FETCHES: u64 = 64;
/// Maximum time that a job waits for the tenant's first token. Meanwhile it occupies a worker slot
/// that other jobs need.
const FIRST_TOKEN_WAIT: Duration = Duration::from_secs(2);
/// Maximum time that a job waits for a token if the tenant's last attempt failed.
const WAIT_AFTER_FAILURE: Duration = Duration::from_millis(250);
/// Bounds of the delay after which a job without a token returns. Within them, the delay equals the
/// time that the attempt has taken.
const RETRY_DELAY_BOUNDS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(15)];

/// Keeps a token for each tenant that has jobs.
pub(in crate::http) struct TenantTokens {
    source: Arc<TokenSource>,
    known: Mutex<HashMap<Tenant, Arc<TenantEntry>>>,
}

/// Fetches tokens.
struct TokenSource {
    endpoint: Endpoint,
    /// Secrets of clients, if each tenant has its own.
    secrets: Option<Secrets>,
    turns: [Semaphore; 2],
    /// Counts the fetches that continued without a turn.
    slow: watch::Sender<u64>,
    failure_log: Mutex<FailureLog>,
}

/// State of one tenant.
type TenantEntry = watch::Sender<TenantTokenState>;

struct TenantTokenState {
    token: Option<Arc<AccessToken>>,
    /// When the fetch in progress began, or `None` if there is none.
    asked: Option<Instant>,
    /// Why the last attempt failed, and until when there is no further one.
    failed: Option<(FetchFailure, Instant)>,
    pauses: Backoff,
}

/// The reason why an attempt failed.
#[derive(Debug, Clone)]
enum FetchFailure {
    Fetch(TokenError),
    /// The tenant has no usable secret.
    Client(NoRequest),
}

impl From<FetchFailure> for NoToken {
    fn from(why: FetchFailure) -> Self {
        match why {
            FetchFailure::Fetch(why) => Self::Failed(why),
            FetchFailure::Client(why) => Self::NoClient(why),
        }
    }
}

impl Default for TenantTokenState {
    fn default() -> Self {
        Self {
            token: None,
            asked: None,
            failed: None,
            pauses: pauses(),
        }
    }
}

impl TenantTokenState {
    fn usable(&self) -> Option<&Arc<AccessToken>> {
        self.token.as_ref().filter(|token| token.is_usable())
    }

    fn failed(&self) -> Option<&FetchFailure> {
        let (why, until) = self.failed.as_ref()?;
        (Instant::now() < *until).then_some(why)
    }

    /// Returns true if it is time to fetch a token and no fetch is in progress.
    fn is_due(&self) -> bool {
        let is_fresh = |token: &Arc<AccessToken>| Instant::now() < token.renew;
        self.asked.is_none() && self.failed().is_none() && !self.usable().is_some_and(is_fresh)
    }

    /// Returns the time until which a job waits for the fetch in progress.
    fn waits_until(&self) -> Instant {
        let asked = self.asked.unwrap_or_else(Instant::now);
        match self.unfetched() {
            None => asked + FIRST_TOKEN_WAIT,
            Some(_) => asked + WAIT_AFTER_FAILURE,
        }
    }

    /// Returns why the token endpoint gave no token at the last attempt.
    fn unfetched(&self) -> Option<&TokenError> {
        match &self.failed {
            Some((FetchFailure::Fetch(why), _)) => Some(why),
            // The secret may exist by now.
            Some((FetchFailure::Client(_), _)) | None => None,
        }
    }

    /// Returns the reason why a job stops waiting.
    fn pending(&self) -> NoToken {
        match (self.unfetched(), self.asked) {
            (Some(why), _) => NoToken::Failed(why.clone()),
            (None, asked) => {
                let [min, max] = RETRY_DELAY_BOUNDS;
                let elapsed = asked.map_or(min, |asked| asked.elapsed());
                NoToken::Pending(elapsed.clamp(min, max))
            }
        }
    }
}

impl TenantTokens {
    /// Fetches tokens from `endpoint`, for clients with these `secrets`.
    pub(super) fn new(endpoint: Endpoint, secrets: Option<Secrets>) -> Self {
        Self {
            source: Arc::new(TokenSource {
                endpoint,
                secrets,
                turns: MAX_FETCHES.map(Semaphore::new),
                slow: watch::Sender::new(0),
                failure_log: Mutex::default(),
            }),
            known: Mutex::default(),
        }
    }

    /// Returns the token that a call of `tenant` can carry now.
    pub(super) fn usable(&self, tenant: &Tenant) -> Option<Arc<AccessToken>> {
        let entry = self.known().get(tenant).map(Arc::clone)?;
        if entry.borrow().is_due() {
            self.ask(tenant, &entry);
        }
        entry.borrow().usable().cloned()
    }

    /// Waits for a usable token for a bounded time.
    ///
    /// # Errors
    /// [`NoToken`]; a fetch in progress continues.
    pub(super) async fn wait(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Arc<AccessToken>, NoToken> {
        let entry = self.entry_of(tenant);
        if entry.borrow().is_due() {
            self.ask(tenant, &entry);
        }
        let mut states = entry.subscribe();
        let until = entry.borrow().waits_until().min(deadline);
        let known = states.wait_for(|state| state.usable().is_some() || state.asked.is_none());
        let Ok(state) = timeout_at(until, known).await else {
            return Err(entry.borrow().pending());
        };
        let failed = || NoToken::Failed("it was refused".to_owned().into());
        let state = state.map_err(|_| failed())?;
        match (state.usable(), state.failed()) {
            (Some(token), _) => Ok(Arc::clone(token)),
            (None, Some(why)) => Err(why.clone().into()),
            (None, None) => Err(failed()),
        }
    }

    /// Returns the state of `tenant`.
    fn entry_of(&self, tenant: &Tenant) -> Arc<TenantEntry> {
        let mut known = self.known();
        if let Some(entry) = known.get(tenant) {
            return Arc::clone(entry);
        }
        if known.len() >= MAX_TENANTS {
            make_room(&mut known);
        }
        let entry = Arc::new(TenantEntry::default());
        known.insert(tenant.clone(), Arc::clone(&entry));
        entry
    }

    /// Starts a fetch, which continues even if the job that needs it is given up.
    fn ask(&self, tenant: &Tenant, entry: &Arc<TenantEntry>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut has_failed = false;
        let is_first = entry.send_if_modified(|state| {
            has_failed = state.unfetched().is_some();
            let is_first = state.asked.is_none();
            state.asked.get_or_insert_with(Instant::now);
            is_first
        });
        if !is_first {
            return;
        }
        let (source, entry, tenant) = (Arc::clone(&self.source), Arc::clone(entry), tenant.clone());
        let fetching = async move {
            let fetched = source.fetch(&tenant, has_failed).await;
            entry.send_modify(|state| {
                state.asked = None;
                match fetched {
                    Ok(token) => {
                        state.token = Some(Arc::new(token));
                        state.failed = None;
                        state.pauses.reset();
                    }
                    Err(why) => {
                        let pause = match &why {
                            FetchFailure::Fetch(why) => {
                                source.failure_log().log_failure(&why.why, Some(&tenant));
                                state.pauses.next(rand::random())
                            }
                            // The job reports the failure. The file may be readable in a moment.
                            FetchFailure::Client(_) => FETCH_RETRY_DELAYS[0],
                        };
                        state.failed = Some((why, Instant::now() + pause));
                    }
                }
            });
        };
        runtime.spawn(fetching.in_current_span());
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Tenant, Arc<TenantEntry>>> {
        // The map is consistent at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes at least a tenth of the tenants, so that not every new tenant causes a search. Tenants
/// without a usable token go first, since they have no jobs, and then those whose tokens are due
/// for renewal first.
fn make_room(known: &mut HashMap<Tenant, Arc<TenantEntry>>) {
    known.retain(|_, entry| entry.borrow().usable().is_some());
    let left = MAX_TENANTS - MAX_TENANTS / 10;
    let Some(more) = known.len().checked_sub(left).filter(|more| *more > 0) else {
        return;
    };
    let renewed = |entry: &TenantEntry| entry.borrow().token.as_ref().map(|token| token.renew);
    let all = known.iter();
    let mut all: Vec<_> = all
        .map(|(tenant, entry)| (renewed(entry), tenant.clone()))
        .collect();
    all.sort_unstable_by_key(|(renewed, _)| *renewed);
    for (_, tenant) in all.iter().take(more) {
        known.remove(tenant);
    }
}

impl TokenSource {
    fn failure_log(&self) -> MutexGuard<'_, FailureLog> {
        // The state is consistent at any time.
        self.failure_log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches a token for `tenant` when it has a turn. `has_failed` says whether the last attempt
    /// failed.
    async fn fetch(&self, tenant: &Tenant, has_failed: bool) -> Result<AccessToken, FetchFailure> {
        let client = self.client(tenant).await.map_err(FetchFailure::Client)?;
        let fetched = self.fetch_for(&client, has_failed).await;
        fetched.map_err(FetchFailure::Fetch)
    }

    async fn fetch_for(
        &self,
        client: &TokenClient,
        has_failed: bool,
    ) -> Result<AccessToken, TokenError> {
        // The semaphore is never closed.
        let turn = self.turns[usize::from(has_failed)].acquire().await;
        let mut fetch = pin!(AccessToken::fetch(&self.endpoint, client));
        if let Ok(fetched) = timeout(MAX_TURN, &mut fetch).await {
            return fetched;
        }
        drop(turn);
        let (mut number, mut count) = (0, self.slow.subscribe());
        self.slow.send_modify(|count| {
            *count += 1;
            number = *count;
        });
        tokio::select! {
            fetched = fetch => fetched,
            _ = count.wait_for(|count| *count >= number + MAX_SLOW_FETCHES) => {
                let why = "the token URL did not answer, and other tenants wait for their tokens";
                Err(why.to_owned().into())
            }
        }
    }

    /// Returns the client that requests tokens for `tenant`.
    async fn client(&self, tenant: &Tenant) -> Result<TokenClient, NoRequest> {
        let secret = match &self.secrets {
            Some(secrets) => Some(secrets.of(tenant).await?),
            None => None,
        };
        let client = self.endpoint.client_of(tenant, secret.as_deref());
        client.map_err(NoRequest::Permanent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::gate::tenant;

    /// Creates a tenant whose token is renewed after `seconds` and expires after twice that time.
    fn with_token(seconds: u64) -> Arc<TenantEntry> {
        let now = Instant::now();
        let (entry, renew) = (TenantEntry::default(), Duration::from_secs(seconds));
        let token = AccessToken::lasting(now, now + renew, now + 2 * renew);
        entry.send_modify(|state| state.token = Some(Arc::new(token)));
        Arc::new(entry)
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_with_the_earliest_renewal_are_evicted_first() {
        // Shuffled: the factor has no divisor in common with the number of tenants.
        let seconds = |number: usize| 1 + (number * 7 % MAX_TENANTS) as u64;
        let all = (0..MAX_TENANTS).map(|number| (tenant(number), with_token(seconds(number))));
        let mut known: HashMap<_, _> = all.collect();
        make_room(&mut known);
        assert_eq!(known.len(), MAX_TENANTS * 9 / 10);
        let remains = |number: usize| seconds(number) > (MAX_TENANTS / 10) as u64;
        assert!(
            (0..MAX_TENANTS).all(|number| known.contains_key(&tenant(number)) == remains(number))
        );
        // Enough tokens have expired by themselves.
        tokio::time::advance(Duration::from_secs(MAX_TENANTS as u64)).await;
        let before = known.len();
        make_room(&mut known);
        let usable = (known.values()).all(|entry| entry.borrow().usable().is_some());
        assert!(
            usable && known.len() < before && known.len() > MAX_TENANTS / 4,
            "{}",
            known.len()
        );
        // A tenant whose token was never requested.
        known.insert(tenant(MAX_TENANTS), Arc::default());
        make_room(&mut known);
        assert!(!known.contains_key(&tenant(MAX_TENANTS)));
    }
}
