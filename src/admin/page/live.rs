//! Views that change by themselves: as long as somebody looks, each is made once in two seconds for all who look at it, and those parts of it
//! are sent that have changed.

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
use super::views::Asked;
use crate::admin::api::Problem;

/// So many look at once.
pub const MOST_STREAMS: usize = 32;
/// A view is as old as this at most.
const EVERY: Duration = Duration::from_secs(2);
/// Who hears nothing for so long hears that there is nothing new.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A browser that lost the connection waits so long, in milliseconds.
const COME_BACK_MS: u64 = 2_000;
/// So many views are kept.
const MOST_VIEWS: usize = 64;
/// A part begins with this, its name and the end of a comment. Nothing that others wrote has it: all of that is escaped.
const MARK: &str = "<!--part:";

/// A piece of a view.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The id of its element.
    pub id: String,
    /// What is in that.
    pub html: String,
}

/// A view, or why there is none.
pub type Made = Arc<Result<Vec<Part>, Problem>>;

/// A view that somebody asked for, and when it was made.
#[derive(Default)]
struct Kept(tokio::sync::Mutex<Option<(Instant, Made)>>);

/// The views that somebody looks at.
pub struct Live {
    kept: Mutex<HashMap<String, (Instant, Arc<Kept>)>>,
    seats: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The parts of a view's HTML.
pub fn parts(html: &str) -> Vec<Part> {
    let pieces = html.split(MARK).skip(1);
    let parts = pieces.filter_map(|piece| piece.split_once("-->"));
    parts
        .map(|(id, html)| Part {
            id: id.to_owned(),
            html: html.trim().to_owned(),
        })
        .collect()
}

impl Live {
    /// Until `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            kept: Mutex::default(),
            seats: Arc::new(Semaphore::new(MOST_STREAMS)),
            stop,
        }
    }

    /// The view that is asked for, two seconds old at most.
    pub async fn view(&self, site: &Site, asked: &Asked) -> Made {
        let key = asked.address();
        let kept = {
            let now = Instant::now();
            let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = all.entry(key.clone()).or_default_at(now);
            if all.len() > MOST_VIEWS {
                // Nobody looks at these any more; if all are looked at, one is made anew.
                all.retain(|_, (used, _)| now.duration_since(*used) < 2 * EVERY);
                let oldest = all.iter().min_by_key(|(_, (used, _))| *used);
                let oldest = oldest.map(|(key, _)| key.clone());
                if all.len() > MOST_VIEWS
                    && let Some(oldest) = oldest
                {
                    all.remove(&oldest);
                }
            }
            kept
        };
        // Whoever comes meanwhile waits for the same.
        let mut last = kept.0.lock().await;
        if let Some((made, view)) = &*last
            && made.elapsed() < EVERY
        {
            return Arc::clone(view);
        }
        let begun = Instant::now();
        let html = site.source().html(asked).await;
        let view: Made = Arc::new(html.map(|html| parts(&html)));
        *last = Some((begun, Arc::clone(&view)));
        view
    }

    /// What was seen before is not what is: somebody changed something.
    pub fn forget(&self) {
        let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }

    /// What is sent to somebody who looks at a view, as server-sent events; `None`: too many look.
    pub fn stream(&self, site: Arc<Site>, asked: Asked, session: Option<Session>) -> Option<Body> {
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

/// An entry that was used now.
trait OrDefaultAt {
    fn or_default_at(self, now: Instant) -> Arc<Kept>;
}

impl OrDefaultAt for std::collections::hash_map::Entry<'_, String, (Instant, Arc<Kept>)> {
    fn or_default_at(self, now: Instant) -> Arc<Kept> {
        let (used, kept) = self.or_insert_with(|| (now, Arc::default()));
        *used = now;
        Arc::clone(kept)
    }
}

/// Somebody who looks.
struct Watcher {
    site: Arc<Site>,
    asked: Asked,
    session: Option<Session>,
    stop: CancellationToken,
    _seat: OwnedSemaphorePermit,
    /// A number for what each part was.
    sent: HashMap<String, u64>,
    next: Instant,
    /// When something was sent last; `None`: nothing was.
    spoke: Option<Instant>,
}

impl Watcher {
    /// What is sent next, and who goes on looking; `None`: it is over.
    async fn next(mut self) -> Option<(String, Option<Self>)> {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = sleep_until(self.next) => {}
            }
            let session = self.session.as_ref();
            if session.is_some_and(|session| !self.site.door.is_open(session)) {
                return Some(("event: out\ndata: \n\n".to_owned(), None));
            }
            let view = self.site.live.view(&self.site, &self.asked).await;
            self.next = Instant::now() + EVERY;
            let mut text = match self.spoke {
                None => format!("retry: {COME_BACK_MS}\n\n"),
                Some(_) => String::new(),
            };
            text += &self.news(&view);
            let is_quiet = self.spoke.is_some_and(|spoke| spoke.elapsed() < HEARTBEAT);
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

    /// The parts that are others than were sent. A view that can't be made says why, and leaves what is shown.
    fn news(&mut self, view: &Result<Vec<Part>, Problem>) -> String {
        let trouble = Part {
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
                // JSON has no line ends.
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
    fn a_view_is_its_parts() {
        let html = "x<!--part:a--> <p>1</p>\n<!--part:b-->2&#60;!--part:c--&#62;";
        let found = parts(html);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.id.as_str(), it.html.as_str()))
            .collect();
        assert_eq!(found, [("a", "<p>1</p>"), ("b", "2&#60;!--part:c--&#62;")]);
    }
}
