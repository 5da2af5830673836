//! One access token for all calls, fetched and renewed in the background.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument;

use super::super::token_endpoint::{Endpoint, TokenClient, TokenError};
use super::{AccessToken, FailureLog, pauses};

/// Keeps a token. Dropping it ends the renewal.
pub(in crate::http) struct SharedToken {
    shared: Arc<Renewal>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Renewal {
    endpoint: Endpoint,
    client: TokenClient,
    state: watch::Sender<TokenState>,
}

#[derive(Default)]
struct TokenState {
    token: Option<Arc<AccessToken>>,
    /// Why there is no newer token.
    why: Option<TokenError>,
}

impl TokenState {
    fn usable(&self) -> Option<&Arc<AccessToken>> {
        self.token.as_ref().filter(|token| token.is_usable())
    }
}

impl SharedToken {
    /// Keeps a token of `client` from `endpoint`. The first one is fetched now, or, without a
    /// runtime, when a token is first needed in one.
    pub(super) fn new(endpoint: Endpoint, client: TokenClient) -> Self {
        let tokens = Self {
            shared: Arc::new(Renewal {
                endpoint,
                client,
                state: watch::Sender::default(),
            }),
            task: Mutex::default(),
        };
        tokens.start();
        tokens
    }

    /// Starts the task that fetches tokens, if it does not run.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        // The option is consistent at any time.
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(runtime.spawn(keep(Arc::clone(&self.shared)).in_current_span()));
        }
    }

    /// Returns the token that a call can carry now.
    pub(super) fn usable(&self) -> Option<Arc<AccessToken>> {
        let usable = self.shared.state.borrow().usable().cloned();
        if usable.is_none() {
            self.start();
        }
        usable
    }

    /// Waits for a token.
    ///
    /// # Errors
    /// There is no token by `deadline`. The error is the last failure, if there was one.
    pub(super) async fn wait(
        &self,
        deadline: Instant,
    ) -> Result<Arc<AccessToken>, Option<TokenError>> {
        self.start();
        let mut states = self.shared.state.subscribe();
        let usable = states.wait_for(|state| state.usable().is_some());
        let token = match timeout_at(deadline, usable).await {
            Ok(Ok(state)) => state.usable().cloned(),
            Ok(Err(_)) | Err(_) => None,
        };
        token.ok_or_else(|| self.shared.state.borrow().why.clone())
    }

    /// Discards `token`, which the API refused, so that another one is fetched at once.
    pub(super) fn refused(&self, token: &Arc<AccessToken>) {
        let same = |own: &Arc<AccessToken>| Arc::ptr_eq(own, token);
        self.shared.state.send_if_modified(|state| {
            let is_own = state.token.as_ref().is_some_and(same);
            if is_own {
                *state = TokenState::default();
            }
            is_own
        });
    }
}

impl Drop for SharedToken {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

/// Fetches a token, and the next one before it expires or when it was refused.
async fn keep(shared: Arc<Renewal>) {
    let mut states = shared.state.subscribe();
    let (mut pauses, mut failure_log) = (pauses(), FailureLog::default());
    loop {
        match AccessToken::fetch(&shared.endpoint, &shared.client).await {
            Ok(token) => {
                let renew = token.renew;
                pauses.reset();
                failure_log.log_recovery();
                shared.state.send_replace(TokenState {
                    token: Some(Arc::new(token)),
                    why: None,
                });
                tokio::select! {
                    () = sleep_until(renew) => {}
                    _ = states.wait_for(|state| state.token.is_none()) => {}
                }
            }
            Err(why) => {
                failure_log.log_failure(&why.why, None);
                shared.state.send_modify(|state| state.why = Some(why));
                sleep(pauses.next(rand::random())).await;
            }
        }
    }
}
