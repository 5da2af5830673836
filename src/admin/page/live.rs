//! Views that update themselves. While a browser watches a view, it is rendered once every two
//! seconds for all of its watchers, who receive only the parts that changed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Site;
use super::sessions::Session;
use super::views::ViewRequest;
use crate::api::ApiProblem;

/// Maximum number of watchers.
pub const MAX_WATCHERS: usize = 32;
/// Maximum age of a view.
const VIEW_MAX_AGE: Duration = Duration::from_secs(2);
/// Silence after which a watcher gets a heartbeat.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Delay in milliseconds before a browser reconnects.
const RECONNECT_DELAY_MS: u64 = 2_000;
/// Maximum number of views that are kept.
const MAX_VIEWS: usize = 64;
/// Start of the mark before each part; the part's ID and the end of a comment follow. Text from
/// outside can't contain it because all of it is escaped.
const PART_MARK: &str = "<!--part:";

/// A part of a view.
#[derive(Debug, PartialEq, Eq)]
pub struct ViewPart {
    /// ID of its element.
    pub id: String,
    /// HTML inside the element.
    pub html: String,
}

/// A view's parts, or the problem in their place.
pub type RenderedView = Arc<Result<Vec<ViewPart>, ApiProblem>>;

/// A requested view, and when it was rendered.
#[derive(Default)]
struct CachedView(tokio::sync::Mutex<Option<(Instant, RenderedView)>>);

/// The views that have watchers.
pub struct LiveViews {
    cache: Mutex<HashMap<String, (Instant, Arc<CachedView>)>>,
    seats: Arc<Semaphore>,
    stop: CancellationToken,
}

/// Splits a view's HTML into its parts.
pub fn parts(html: &str) -> Vec<ViewPart> {
    let pieces = html.split(PART_MARK).skip(1);
    let parts = pieces.filter_map(|piece| piece.split_once("-->"));
    parts
        .map(|(id, html)| ViewPart {
            id: id.to_owned(),
            html: html.trim().to_owned(),
        })
        .collect()
}

impl LiveViews {
    /// Creates an empty set of views, whose streams end at `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            cache: Mutex::default(),
            seats: Arc::new(Semaphore::new(MAX_WATCHERS)),
            stop,
        }
    }

    /// Returns the requested view, at most two seconds old.
    pub async fn view(&self, site: &Site, asked: &ViewRequest) -> RenderedView {
        let key = asked.address();
        let cached = {
            let now = Instant::now();
            let mut all = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            let (used, cached) = all
                .entry(key.clone())
                .or_insert_with(|| (now, Arc::default()));
            *used = now;
            let cached = Arc::clone(cached);
            if all.len() > MAX_VIEWS {
                // Remove views without watchers. If all have watchers, remove the oldest, which is
                // rendered anew.
                all.retain(|_, (used, _)| now.duration_since(*used) < 2 * VIEW_MAX_AGE);
                let oldest = all.iter().min_by_key(|(_, (used, _))| *used);
                let oldest = oldest.map(|(key, _)| key.clone());
                if all.len() > MAX_VIEWS
                    && let Some(oldest) = oldest
                {
                    all.remove(&oldest);
                }
            }
            cached
        };
        // Concurrent requests for the view wait here for the same rendering.
        let mut last = cached.0.lock().await;
        if let Some((made, view)) = &*last
            && made.elapsed() < VIEW_MAX_AGE
        {
            return Arc::clone(view);
        }
        let started = Instant::now();
        let html = site.source().html(asked).await;
        let view: RenderedView = Arc::new(html.map(|html| parts(&html)));
        *last = Some((started, Arc::clone(&view)));
        view
    }

    /// Discards all views because an action changed something.
    pub fn forget(&self) {
        let mut all = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }

    /// Returns the updates of a view as server-sent events, or `None` if there are too many
    /// watchers.
    pub fn stream(
        &self,
        site: Arc<Site>,
        asked: ViewRequest,
        session: Option<Session>,
    ) -> Option<Body> {
        let seat = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        let watcher = Watcher {
            site,
            asked,
            session,
            stop: self.stop.clone(),
            _seat: seat,
            sent: HashMap::new(),
            next: Instant::now(),
            spoke: None,
        };
        let stream = unfold(Some(watcher), |watcher| async move {
            let (text, watcher) = watcher?.next().await?;
            Some((Ok::<_, Infallible>(Bytes::from(text)), watcher))
        });
        Some(Body::from_stream(stream))
    }
}

/// A browser that watches a view.
struct Watcher {
    site: Arc<Site>,
    asked: ViewRequest,
    session: Option<Session>,
    stop: CancellationToken,
    _seat: OwnedSemaphorePermit,
    /// Hash of each part as it was sent last.
    sent: HashMap<String, u64>,
    next: Instant,
    /// Time at which something was sent last, or `None` if nothing was.
    spoke: Option<Instant>,
}

impl Watcher {
    /// Returns the next text to send, and the watcher unless it has ended. Returns `None` at the
    /// end.
    async fn next(mut self) -> Option<(String, Option<Self>)> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep_until(self.next) => {}
            }
            let session = self.session.as_ref();
            if session.is_some_and(|session| !self.site.access.is_open(session)) {
                return Some(("event: out\ndata: \n\n".to_owned(), None));
            }
            let view = self.site.live.view(&self.site, &self.asked).await;
            self.next = Instant::now() + VIEW_MAX_AGE;
            let mut text = match self.spoke {
                None => format!("retry: {RECONNECT_DELAY_MS}\n\n"),
                Some(_) => String::new(),
            };
            text += &self.news(&view);
            let is_quiet = self
                .spoke
                .is_some_and(|spoke| spoke.elapsed() < HEARTBEAT_INTERVAL);
            if text.is_empty() && is_quiet {
                continue;
            }
            if text.is_empty() {
                ": nothing new\n\n".clone_into(&mut text);
            }
            self.spoke = Some(Instant::now());
            return Some((text, Some(self)));
        }
    }

    /// Returns the parts that changed since they were sent. If the view can't be rendered, the
    /// problem is shown and the old parts stay.
    fn news(&mut self, view: &Result<Vec<ViewPart>, ApiProblem>) -> String {
        let trouble = ViewPart {
            id: "trouble".to_owned(),
            html: match view {
                Ok(_) => String::new(),
                Err(problem) => super::frame::trouble(problem),
            },
        };
        let parts = view.as_deref().unwrap_or_default().iter();
        let mut text = String::new();
        for part in parts.chain([&trouble]) {
            let mut hasher = DefaultHasher::new();
            part.html.hash(&mut hasher);
            let now = hasher.finish();
            if self.sent.insert(part.id.clone(), now) != Some(now) {
                // JSON contains no line breaks.
                let data = json!({"id": part.id, "html": part.html});
                text += &format!("event: part\ndata: {data}\n\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_consists_of_its_parts() {
        let html = "x<!--part:a--> <p>1</p>\n<!--part:b-->2&#60;!--part:c--&#62;";
        let found = parts(html);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.id.as_str(), it.html.as_str()))
            .collect();
        assert_eq!(found, [("a", "<p>1</p>"), ("b", "2&#60;!--part:c--&#62;")]);
    }
}
