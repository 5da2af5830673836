//! All that the screen shows, and what follows from what happens: from a key, from an answer, from time that passes. No I/O and no clock:
//! what is to be asked of servers comes out.

mod listed;
mod questions;

use std::sync::Arc;

use sluicegate::config::{Config, PipelineName};
use sluicegate::operator::dead::Listed;
use sluicegate::operator::inspect::Glance;
use sluicegate::operator::overview::Overview;
use sluicegate::rules::report::view::Sort;
use sluicegate::rules::tenant::Tenant;

use super::asked::Asked;
use super::asking::Asking;
use super::cursor::Cursor;
use super::file::Read;
pub use listed::LimitRow;
pub use questions::{Came, Request};

/// What was done is told for so long, in milliseconds.
const TOLD_MS: u64 = 30_000;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Fleet,
    Tenants,
    Limits,
    Letters,
}

/// All of them, in the order of their keys.
pub const VIEWS: [View; 4] = [View::Fleet, View::Tenants, View::Limits, View::Letters];

/// One pipeline, and what is known of it.
pub struct Pipeline {
    pub name: PipelineName,
    pub config: Arc<Config>,
    pub picture: Asked<Overview>,
    pub letters: Asked<Listed>,
}

/// A tenant's own page.
pub struct Page {
    pub tenant: Tenant,
    pub glance: Asked<Glance>,
    /// So many lines of its text are above the screen.
    pub scroll: usize,
}

/// What is told after an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub text: String,
    pub is_bad: bool,
    at_ms: u64,
}

/// An action that is being done.
pub struct Doing {
    number: u64,
    pub what: String,
    pub progress: String,
    pub since_ms: u64,
}

/// The whole screen.
pub struct Model {
    pub pipelines: Vec<Pipeline>,
    pub at: usize,
    pub view: View,
    pub page: Option<Page>,
    pub is_help: bool,
    pub sort: Sort,
    /// Only tenants whose names contain this.
    pub search: String,
    pub is_searching: bool,
    pub asking: Option<Asking>,
    pub doing: Option<Doing>,
    pub cursors: [Cursor; 4],
    pub now_ms: u64,
    /// The operator wants to leave.
    pub is_over: bool,
    /// Why the configuration that is there by now is not the one that is shown; `None`: it is.
    pub unread: Option<String>,
    told: Option<Told>,
    numbers: u64,
}

impl Model {
    /// Nothing is known yet.
    pub fn new(
        pipelines: impl IntoIterator<Item = (PipelineName, Config)>,
        sort: Sort,
        now_ms: u64,
    ) -> Self {
        let pipeline = |(name, config)| Pipeline {
            name,
            config: Arc::new(config),
            picture: Asked::default(),
            letters: Asked::default(),
        };
        Self {
            pipelines: pipelines.into_iter().map(pipeline).collect(),
            at: 0,
            view: View::Fleet,
            page: None,
            is_help: false,
            sort,
            search: String::new(),
            is_searching: false,
            asking: None,
            doing: None,
            cursors: Default::default(),
            now_ms,
            is_over: false,
            unread: None,
            told: None,
            numbers: 0,
        }
    }

    /// The configuration was read again. Whether another one is shown from now on: what can't be used leaves all as it is, and is told.
    pub fn reread(&mut self, read: Read) -> bool {
        let (before, now) = match &read {
            Ok(all) => {
                let names = all.iter().map(|(name, _)| name);
                let same = names.eq(self.pipelines.iter().map(|it| &it.name));
                (same, all)
            }
            Err(why) => {
                self.unread = Some(why.clone());
                return false;
            }
        };
        if !before {
            let words = "the file has other pipelines now: start top again to see them";
            self.unread = Some(words.to_owned());
            return false;
        }
        let mut is_new = false;
        for (pipeline, (_, config)) in self.pipelines.iter_mut().zip(now) {
            if *pipeline.config == *config {
                continue;
            }
            // What is known of other servers is nothing of these.
            if pipeline.config.redis != config.redis {
                pipeline.picture = Asked::default();
            }
            if pipeline.config.amqp != config.amqp {
                pipeline.letters = Asked::default();
            }
            pipeline.config = Arc::new(config.clone());
            is_new = true;
        }
        if is_new {
            self.urge();
            self.tell("the configuration has changed, and was read again", false);
        } else if self.unread.is_some() {
            self.tell("the configuration can be used again", false);
        }
        self.unread = None;
        is_new
    }

    /// The pipeline that is looked at.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipelines[self.at]
    }

    /// The configuration of each pipeline.
    pub fn configs(&self) -> impl Iterator<Item = &Config> {
        self.pipelines.iter().map(|pipeline| &*pipeline.config)
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut Pipeline {
        &mut self.pipelines[self.at]
    }

    /// What is known of its fleet, and Redis's clock by now.
    pub fn picture(&self) -> Option<(&Overview, u64)> {
        let (picture, at_ms) = self.pipeline().picture.known()?;
        let passed = self.now_ms.saturating_sub(at_ms);
        Some((picture, picture.fleet.view.now_ms.saturating_add(passed)))
    }

    /// What was told last, while it is news.
    pub fn told(&self) -> Option<&Told> {
        let is_news = |told: &&Told| self.now_ms.saturating_sub(told.at_ms) < TOLD_MS;
        self.told.as_ref().filter(is_news)
    }

    pub(super) fn tell(&mut self, text: impl Into<String>, is_bad: bool) {
        self.told = Some(Told {
            text: text.into(),
            is_bad,
            at_ms: self.now_ms,
        });
    }

    /// Time has passed.
    pub fn at_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms.max(self.now_ms);
    }
}
