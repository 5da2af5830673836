//! The state of the screen, and its reaction to keys, answers and time. Without I/O or a clock:
//! requests to servers are returned.

mod questions;
mod rows;

use std::cell::Cell;
use std::sync::Arc;

use config::{Config, PipelineName};
use operator::dead::LetterList;
use operator::inspect::Glance;
use operator::overview::Overview;
use rules::report::view::Sort;
use rules::tenant::Tenant;

use super::cursor::Cursor;
use super::dialogs::Prompt;
use super::file::FileReading;
use super::query::QueryState;
pub use questions::{ServerAnswer, ServerRequest};
pub use rows::ListedLimit;

/// How long the result of an action is shown, in milliseconds.
const TOLD_MS: u64 = 30_000;

/// The views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopView {
    Fleet,
    Tenants,
    Limits,
    DeadLetters,
}

/// All views in the order of their keys.
pub const VIEWS: [TopView; 4] = [
    TopView::Fleet,
    TopView::Tenants,
    TopView::Limits,
    TopView::DeadLetters,
];

/// One pipeline and its last answers.
pub struct PipelineModel {
    pub name: PipelineName,
    pub config: Arc<Config>,
    pub picture: QueryState<Overview>,
    pub letters: QueryState<LetterList>,
}

/// A tenant's own page.
pub struct TenantPage {
    pub tenant: Tenant,
    pub glance: QueryState<Glance>,
    /// Number of text lines scrolled past the top. Only the screen knows how many there are, and
    /// lowers a number that is too large.
    pub scroll: Cell<usize>,
}

/// The message shown after an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMessage {
    pub text: String,
    pub is_bad: bool,
    at_ms: u64,
}

/// A running action.
pub struct RunningAction {
    number: u64,
    /// The pipeline whose dead letters it replays.
    replays_in: Option<usize>,
    pub what: String,
    pub progress: String,
    pub since_ms: u64,
}

/// The whole screen.
pub struct Model {
    pub pipelines: Vec<PipelineModel>,
    pub at: usize,
    pub view: TopView,
    pub page: Option<TenantPage>,
    pub is_help: bool,
    pub sort: Sort,
    /// Filters tenants by this part of their names.
    pub search: String,
    pub is_searching: bool,
    pub prompt: Option<Prompt>,
    pub action: Option<RunningAction>,
    pub cursors: [Cursor; 4],
    pub now_ms: u64,
    /// Whether the operator wants to leave.
    pub is_over: bool,
    /// The reason why the changed configuration is not shown, or `None` if it is.
    pub file_error: Option<String>,
    status_message: Option<StatusMessage>,
    numbers: u64,
}

impl Model {
    /// Creates the state, which knows nothing yet.
    pub fn new(
        pipelines: impl IntoIterator<Item = (PipelineName, Config)>,
        sort: Sort,
        now_ms: u64,
    ) -> Self {
        let pipeline = |(name, config)| PipelineModel {
            name,
            config: Arc::new(config),
            picture: QueryState::default(),
            letters: QueryState::default(),
        };
        Self {
            pipelines: pipelines.into_iter().map(pipeline).collect(),
            at: 0,
            view: TopView::Fleet,
            page: None,
            is_help: false,
            sort,
            search: String::new(),
            is_searching: false,
            prompt: None,
            action: None,
            cursors: Default::default(),
            now_ms,
            is_over: false,
            file_error: None,
            status_message: None,
            numbers: 0,
        }
    }

    /// Takes a read of the configuration. Returns true if another one is shown from now on. An
    /// unusable configuration changes nothing and is reported.
    pub fn reread(&mut self, read: FileReading) -> bool {
        let all = match read {
            Ok(all) => all,
            Err(why) => {
                self.file_error = Some(why);
                return false;
            }
        };
        let names = all.iter().map(|(name, _)| name);
        if !names.eq(self.pipelines.iter().map(|it| &it.name)) {
            let words = "the pipelines in the file have changed: restart top to see them";
            self.file_error = Some(words.to_owned());
            return false;
        }
        let mut is_new = false;
        for (pipeline, (_, config)) in self.pipelines.iter_mut().zip(all) {
            if *pipeline.config == config {
                continue;
            }
            // Answers of other servers don't apply to these.
            if pipeline.config.redis != config.redis {
                pipeline.picture = QueryState::default();
            }
            if pipeline.config.amqp != config.amqp {
                // A second fetch would not find the dead letters that the first one holds.
                pipeline.letters.renew();
            }
            pipeline.config = Arc::new(config);
            is_new = true;
        }
        if is_new {
            self.urge();
            self.show_status("the changed configuration was read", false);
        } else if self.file_error.is_some() {
            self.show_status("the configuration is valid again", false);
        }
        self.file_error = None;
        is_new
    }

    /// Returns the selected pipeline.
    pub fn pipeline(&self) -> &PipelineModel {
        &self.pipelines[self.at]
    }

    /// Returns the configuration of each pipeline.
    pub fn configs(&self) -> impl Iterator<Item = &Config> {
        self.pipelines.iter().map(|pipeline| &*pipeline.config)
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut PipelineModel {
        &mut self.pipelines[self.at]
    }

    /// Returns the last picture of its fleet, and Redis's clock as of now.
    pub fn picture(&self) -> Option<(&Overview, u64)> {
        let (picture, at_ms) = self.pipeline().picture.answer()?;
        let passed = self.now_ms.saturating_sub(at_ms);
        Some((picture, picture.fleet.view.now_ms.saturating_add(passed)))
    }

    /// Returns the last message while it is recent.
    pub fn status(&self) -> Option<&StatusMessage> {
        let is_news = |status_message: &&StatusMessage| {
            self.now_ms.saturating_sub(status_message.at_ms) < TOLD_MS
        };
        self.status_message.as_ref().filter(is_news)
    }

    pub(super) fn show_status(&mut self, text: impl Into<String>, is_bad: bool) {
        self.status_message = Some(StatusMessage {
            text: text.into(),
            is_bad,
            at_ms: self.now_ms,
        });
    }

    /// Advances the time.
    pub fn at_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms.max(self.now_ms);
    }
}
