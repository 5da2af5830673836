//! An access token for each tenant: fetched when its first job is prepared, and renewed while it has jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

use super::super::requests::NoRequest;
use super::super::secrets::Secrets;
use super::super::token_endpoint::{Client, Endpoint};
use super::{NoToken, Token, Told, pauses};
use crate::rules::retry::Reconnect;
use crate::rules::tenant::Tenant;

/// Tenants whose tokens are kept.
const MOST: usize = 10_000;
/// Tokens that are asked for at the same time.
const AT_ONCE: usize = 8;

/// Keeps a token for each tenant that has jobs.
pub(in crate::handler::http) struct ByTenant {
    source: Arc<Source>,
    known: Mutex<HashMap<Tenant, Arc<Kept>>>,
}

/// Where tokens come from.
struct Source {
    endpoint: Endpoint,
    /// The secrets of clients, where each tenant has its own.
    secrets: Option<Secrets>,
    asking: Semaphore,
    told: Mutex<Told>,
}

/// What is known of one tenant.
type Kept = watch::Sender<State>;

struct State {
    token: Option<Arc<Token>>,
    /// One is asked for.
    is_asking: bool,
    /// Why the last attempt failed, and until when there is no other one.
    failed: Option<(String, Instant)>,
    pauses: Reconnect,
}

impl Default for State {
    fn default() -> Self {
        Self {
            token: None,
            is_asking: false,
            failed: None,
            pauses: pauses(),
        }
    }
}

impl State {
    fn usable(&self) -> Option<&Arc<Token>> {
        self.token.as_ref().filter(|token| token.is_usable())
    }

    fn failed(&self) -> Option<&str> {
        let (why, until) = self.failed.as_ref()?;
        (Instant::now() < *until).then_some(why)
    }

    /// It is time for another one, and nobody asks for it yet.
    fn is_due(&self) -> bool {
        let is_fresh = |token: &Arc<Token>| Instant::now() < token.renew;
        !self.is_asking && self.failed().is_none() && !self.usable().is_some_and(is_fresh)
    }
}

impl ByTenant {
    /// From `endpoint`; `secrets` are those of its clients.
    pub(super) fn new(endpoint: Endpoint, secrets: Option<Secrets>) -> Self {
        Self {
            source: Arc::new(Source {
                endpoint,
                secrets,
                asking: Semaphore::new(AT_ONCE),
                told: Mutex::default(),
            }),
            known: Mutex::default(),
        }
    }

    /// The one that a call of `tenant` can carry now.
    pub(super) fn usable(&self, tenant: &Tenant) -> Option<Arc<Token>> {
        let kept = self.known().get(tenant).map(Arc::clone)?;
        if kept.borrow().is_due()
            && let Ok(client) = self.source.client(tenant)
        {
            self.ask(tenant, &kept, client);
        }
        kept.borrow().usable().cloned()
    }

    /// Waits until there is one.
    ///
    /// # Errors
    /// [`NoToken`].
    pub(super) async fn wait(
        &self,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Arc<Token>, NoToken> {
        let kept = self.kept(tenant);
        if kept.borrow().is_due() {
            let client = self.source.client(tenant).map_err(NoToken::NoClient)?;
            self.ask(tenant, &kept, client);
        }
        let mut states = kept.subscribe();
        let known = states.wait_for(|state| state.usable().is_some() || !state.is_asking);
        let Ok(state) = timeout_at(deadline, known).await else {
            return Err(NoToken::InTime(None));
        };
        let failed = || NoToken::Failed("it was refused".to_owned());
        let state = state.map_err(|_| failed())?;
        match (state.usable(), state.failed()) {
            (Some(token), _) => Ok(Arc::clone(token)),
            (None, Some(why)) => Err(NoToken::Failed(why.to_owned())),
            (None, None) => Err(failed()),
        }
    }

    /// What is known of `tenant`.
    fn kept(&self, tenant: &Tenant) -> Arc<Kept> {
        let mut known = self.known();
        if let Some(kept) = known.get(tenant) {
            return Arc::clone(kept);
        }
        if known.len() >= MOST {
            make_room(&mut known);
        }
        let kept = Arc::new(Kept::default());
        known.insert(tenant.clone(), Arc::clone(&kept));
        kept
    }

    /// Asks for a token, which no job that is given up ends.
    fn ask(&self, tenant: &Tenant, kept: &Arc<Kept>, client: Client) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let is_first =
            kept.send_if_modified(|state| !std::mem::replace(&mut state.is_asking, true));
        if !is_first {
            return;
        }
        let (source, kept, tenant) = (Arc::clone(&self.source), Arc::clone(kept), tenant.clone());
        let fetching = async move {
            // It is never closed.
            let _turn = source.asking.acquire().await;
            let fetched = Token::fetch(&source.endpoint, &client).await;
            kept.send_modify(|state| {
                state.is_asking = false;
                match fetched {
                    Ok(token) => {
                        state.token = Some(Arc::new(token));
                        state.failed = None;
                        state.pauses.reset();
                    }
                    Err(why) => {
                        source.told().tell(&why, Some(&tenant));
                        let pause = state.pauses.next(rand::random());
                        state.failed = Some((why, Instant::now() + pause));
                    }
                }
            });
        };
        runtime.spawn(fetching.in_current_span());
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Tenant, Arc<Kept>>> {
        // What it holds is whole at any time.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a tenth of what is known away at least, so that it need not be looked at for each new tenant: those without a usable token, which
/// have no jobs; then those whose tokens are to be renewed first.
fn make_room(known: &mut HashMap<Tenant, Arc<Kept>>) {
    known.retain(|_, kept| kept.borrow().usable().is_some());
    let left = MOST - MOST / 10;
    let Some(more) = known.len().checked_sub(left).filter(|more| *more > 0) else {
        return;
    };
    let renewed = |kept: &Kept| kept.borrow().token.as_ref().map(|token| token.renew);
    let all = known.iter();
    let mut all: Vec<_> = all
        .map(|(tenant, kept)| (renewed(kept), tenant.clone()))
        .collect();
    all.sort_unstable_by_key(|(renewed, _)| *renewed);
    for (_, tenant) in all.iter().take(more) {
        known.remove(tenant);
    }
}

impl Source {
    fn told(&self) -> MutexGuard<'_, Told> {
        // What it holds is whole at any time.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who asks for a token of `tenant`.
    fn client(&self, tenant: &Tenant) -> Result<Client, NoRequest> {
        let secret = match &self.secrets {
            Some(secrets) => Some(secrets.of(tenant)?),
            None => None,
        };
        let client = self.endpoint.client_of(tenant, secret.as_deref());
        client.map_err(NoRequest::Ever)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn tenant(number: usize) -> Tenant {
        Tenant::parse(&number.to_string()).expect("a tenant")
    }

    /// Of a tenant whose token is renewed in so many seconds, and is used for as long again.
    fn with_token(seconds: u64) -> Arc<Kept> {
        let now = Instant::now();
        let (kept, renew) = (Kept::default(), Duration::from_secs(seconds));
        let token = Token::lasting(now, now + renew, now + 2 * renew);
        kept.send_modify(|state| state.token = Some(Arc::new(token)));
        Arc::new(kept)
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_are_renewed_first_make_room_and_the_others_stay() {
        // In no order: by a number that has no divisor in common with theirs.
        let seconds = |number: usize| 1 + (number * 7 % MOST) as u64;
        let all = (0..MOST).map(|number| (tenant(number), with_token(seconds(number))));
        let mut known: HashMap<_, _> = all.collect();
        make_room(&mut known);
        assert_eq!(known.len(), MOST * 9 / 10);
        let stays = |number: usize| seconds(number) > (MOST / 10) as u64;
        assert!((0..MOST).all(|number| known.contains_key(&tenant(number)) == stays(number)));
        // Enough have ended by themselves.
        tokio::time::advance(Duration::from_secs(MOST as u64)).await;
        let before = known.len();
        make_room(&mut known);
        let usable = (known.values()).all(|kept| kept.borrow().usable().is_some());
        assert!(
            usable && known.len() < before && known.len() > MOST / 4,
            "{}",
            known.len()
        );
        // One that nobody has asked for yet.
        known.insert(tenant(MOST), Arc::default());
        make_room(&mut known);
        assert!(!known.contains_key(&tenant(MOST)));
    }
}
