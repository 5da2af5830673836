//! The access token of all calls: fetched and renewed beside them, so that none waits for it with a permit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::HeaderValue;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument;

use super::token_endpoint::{Endpoint, Granted};
use crate::rules::retry::Reconnect;

/// Pauses after failures: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// A token that the API refuses is another one than a younger one: that which was just fetched is not at fault, the job or the client is.
const YOUNG: Duration = Duration::from_secs(10);
/// A call that is on its way while its token expires comes too late: so long before that none is sent, at most.
const MARGIN: Duration = Duration::from_secs(5);
/// A failure that goes on is logged so often.
const REMIND: Duration = Duration::from_secs(60);

/// Keeps a token. Dropped, it ends.
pub(super) struct Tokens {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    endpoint: Endpoint,
    state: watch::Sender<State>,
}

#[derive(Default)]
struct State {
    token: Option<Arc<Token>>,
    /// Why there is no other one.
    why: Option<String>,
}

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
}

impl Token {
    /// What was `granted` to who asked at that time.
    fn new(Granted { token, life }: Granted, asked: Instant) -> Result<Self, String> {
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header = header.map_err(|why| why.to_string())?;
        header.set_sensitive(true);
        Ok(Self {
            header,
            text: token,
            asked,
            until: asked + life - MARGIN.min(life / 10),
            // One that lives for a moment is not fetched in a loop.
            renew: asked + (life * 3 / 4).max(PAUSES[0]),
        })
    }
}

impl State {
    fn usable(&self) -> Option<&Arc<Token>> {
        (self.token.as_ref()).filter(|token| Instant::now() < token.until)
    }
}

impl Tokens {
    /// From `endpoint`; the first one is fetched now, or when one is first looked for in a runtime.
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let tokens = Self {
            shared: Arc::new(Shared {
                endpoint,
                state: watch::Sender::default(),
            }),
            task: Mutex::default(),
        };
        tokens.start();
        tokens
    }

    /// Sees to it that tokens are fetched.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        // What it holds is whole at any time.
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(runtime.spawn(keep(Arc::clone(&self.shared)).in_current_span()));
        }
    }

    /// The one that a call can carry now.
    pub(super) fn usable(&self) -> Option<Arc<Token>> {
        let usable = self.shared.state.borrow().usable().cloned();
        if usable.is_none() {
            self.start();
        }
        usable
    }

    /// Waits until there is one.
    ///
    /// # Errors
    /// There is none at `deadline`: why the last attempt to fetch one failed, if it is known.
    pub(super) async fn wait(&self, deadline: Instant) -> Result<(), Option<String>> {
        self.start();
        let mut states = self.shared.state.subscribe();
        let usable = states.wait_for(|state| state.usable().is_some());
        match timeout_at(deadline, usable).await {
            Ok(_) => Ok(()),
            Err(_) => Err(self.shared.state.borrow().why.clone()),
        }
    }

    /// The API has refused `token`: no call carries it from now on, and another one is fetched at once; once in [`YOUNG`] at most.
    pub(super) fn refused(&self, token: &Arc<Token>) {
        let dropped = self.shared.state.send_if_modified(|state| {
            let same = |own: &Arc<Token>| Arc::ptr_eq(own, token);
            let is_at_fault =
                state.token.as_ref().is_some_and(same) && token.asked.elapsed() >= YOUNG;
            if is_at_fault {
                *state = State::default();
            }
            is_at_fault
        });
        if dropped {
            tracing::info!("the API refused the access token (401): fetching another one");
        }
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

/// Fetches a token, and the next one before it expires, or when it was refused.
async fn keep(shared: Arc<Shared>) {
    let mut states = shared.state.subscribe();
    let mut pauses = Reconnect::between(PAUSES[0], PAUSES[1]);
    let mut logged: Option<(String, Instant)> = None;
    loop {
        let asked = Instant::now();
        let granted = shared.endpoint.fetch().await;
        match granted.and_then(|granted| Token::new(granted, asked)) {
            Ok(token) => {
                let renew = token.renew;
                pauses.reset();
                if logged.take().is_some() {
                    tracing::info!("access tokens can be fetched again");
                }
                shared.state.send_replace(State {
                    token: Some(Arc::new(token)),
                    why: None,
                });
                tokio::select! {
                    () = sleep_until(renew) => {}
                    _ = states.wait_for(|state| state.token.is_none()) => {}
                }
            }
            Err(why) => {
                let is_told =
                    |(last, at): &(String, Instant)| *last == why && at.elapsed() < REMIND;
                if !logged.as_ref().is_some_and(is_told) {
                    tracing::warn!(error = %why, "no access token; trying again");
                    logged = Some((why.clone(), Instant::now()));
                }
                shared.state.send_modify(|state| state.why = Some(why));
                sleep(pauses.next(rand::random())).await;
            }
        }
    }
}
