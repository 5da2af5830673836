//! The state of the screen, and its reaction to keys, answers and time. Without I/O or a clock:
//! requests to servers are returned.

mod requests;

use std::cell::Cell;
use std::collections::BTreeSet;

use config::{Config, PipelineName, Pipelines};
use operator::dead::LetterList;
use operator::fleet::BusiestTenants;
use operator::fullness::Fullness;
use operator::inspect::InspectionAnswer;
use operator::overview::Overview;
use rules::report::view::{Row, Sort};
use rules::scope::Scope;
use rules::tenant::Tenant;

use super::cursor::{Cursor, RowKey};
use super::dialogs::Prompt;
use super::query::QueryState;
pub use requests::{ServerAnswer, ServerRequest};

/// The result of a read: the pipelines to show, or the reason why the file can't be used.
pub type FileReading = Result<Pipelines, String>;

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

/// All views in the order of their keys, with their titles.
pub const VIEWS: [(TopView, &str); 4] = [
    (TopView::Fleet, "Fleet"),
    (TopView::Tenants, "Tenants"),
    (TopView::Limits, "Limits"),
    (TopView::DeadLetters, "Dead letters"),
];

/// One pipeline and its last answers.
pub struct PipelineModel {
    pub name: PipelineName,
    pub config: Config,
    pub picture: QueryState<Box<Overview>>,
    pub letters: QueryState<LetterList>,
}

impl PipelineModel {
    /// Returns the last picture of its fleet, and Redis's clock as of now.
    pub fn picture(&self, now_ms: u64) -> Option<(&Overview, u64)> {
        let (picture, at_ms) = self.picture.answer()?;
        let passed = now_ms.saturating_sub(at_ms);
        Some((picture, picture.fleet.view.now_ms.saturating_add(passed)))
    }
}

/// A tenant at a glance.
#[derive(Default)]
pub struct Glance {
    pub found: InspectionAnswer,
    /// How full its limits are, followed by its shadow limits.
    pub limits: Vec<Fullness>,
    /// The full inspection in words.
    pub description: String,
}

/// A tenant's own page.
pub struct TenantPage {
    pub tenant: Tenant,
    pub glance: QueryState<Box<Glance>>,
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

/// A limit, with its tenant unless all tenants share it.
pub type ListedLimit<'a> = (Option<&'a Tenant>, &'a Fullness);

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
    pub fn new(pipelines: &Pipelines, sort: Sort, now_ms: u64) -> Self {
        let pipeline = |(name, config): (&PipelineName, &Config)| PipelineModel {
            name: name.clone(),
            config: config.clone(),
            picture: QueryState::default(),
            letters: QueryState::default(),
        };
        Self {
            pipelines: pipelines.each().iter().map(pipeline).collect(),
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
        let all = all.each();
        if !all.keys().eq(self.pipelines.iter().map(|it| &it.name)) {
            let words = "the pipelines in the file have changed: restart top to see them";
            self.file_error = Some(words.to_owned());
            return false;
        }
        let mut is_new = false;
        for (pipeline, config) in self.pipelines.iter_mut().zip(all.values()) {
            if pipeline.config == *config {
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
            pipeline.config = config.clone();
            is_new = true;
        }
        if is_new {
            self.urge();
            // The question was about the servers of before.
            let words = match self.prompt.take() {
                Some(_) => "the changed configuration was read: please ask again",
                None => "the changed configuration was read",
            };
            self.show_status(words, false);
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
        self.pipelines.iter().map(|pipeline| &pipeline.config)
    }

    pub(super) fn pipeline_mut(&mut self) -> &mut PipelineModel {
        &mut self.pipelines[self.at]
    }

    /// Returns the last picture of the selected pipeline's fleet, and Redis's clock as of now.
    pub fn picture(&self) -> Option<(&Overview, u64)> {
        self.pipeline().picture(self.now_ms)
    }

    /// Returns the tenants that the gate was asked for, with their limits.
    pub fn shown(&self) -> Option<&BusiestTenants> {
        self.picture()?.0.shown.as_ref()
    }

    /// Returns the listed tenants: the tenants that the gate was asked for. During a search, also
    /// returns all tenants in the workers' reports.
    pub fn tenants(&self) -> Vec<&Row> {
        let Some((picture, _)) = self.picture() else {
            return Vec::new();
        };
        let asked = picture.shown.iter().flat_map(|shown| &shown.rows);
        let mut rows: Vec<&Row> = asked.collect();
        if !self.search.is_empty() {
            let known: BTreeSet<&Tenant> = rows.iter().map(|row| &row.tenant).collect();
            let all = picture.fleet.view.tenants.iter();
            rows.extend(all.filter(|row| !known.contains(&row.tenant)));
            rows.retain(|row| row.has_in_name(&self.search));
        }
        rows.sort_by(|one, two| self.sort.order(one, two));
        rows
    }

    /// Returns the limits that all tenants share, once each, then the limits of each listed tenant.
    pub fn limits(&self) -> Vec<ListedLimit<'_>> {
        let Some(shown) = self.shown() else {
            return Vec::new();
        };
        let mut shared: Vec<ListedLimit> = Vec::new();
        let mut own = Vec::new();
        for row in self.tenants() {
            for limit in shown.limits.get(&row.tenant).into_iter().flatten() {
                let key = |limit: &Fullness| (limit.name.clone(), limit.shadow.is_some());
                if limit.scope != Scope::Global {
                    own.push((Some(&row.tenant), limit));
                } else if shared.iter().all(|(_, known)| key(known) != key(limit)) {
                    shared.push((None, limit));
                }
            }
        }
        shared.sort_by(|(_, one), (_, two)| one.name.cmp(&two.name));
        shared.extend(own);
        shared
    }

    /// Returns the limits of `tenant` that an operator tries with another maximum, from the last
    /// answer: their names and these maximums.
    pub fn trials(&self, tenant: &Tenant) -> impl Iterator<Item = (&str, u64)> {
        let page = self.page.as_ref().filter(|page| page.tenant == *tenant);
        let known = match page.and_then(|page| page.glance.answer()) {
            Some((glance, _)) => Some(&glance.limits),
            None => self.shown().and_then(|shown| shown.limits.get(tenant)),
        };
        let tried = known.into_iter().flatten().filter(|limit| limit.is_tried);
        tried.map(|limit| (limit.name.as_str(), limit.max))
    }

    /// Returns the view's rows.
    pub fn rows(&self) -> Vec<RowKey> {
        match self.view {
            TopView::Fleet => {
                let workers = self.picture().into_iter();
                let workers = workers.flat_map(|(picture, _)| &picture.fleet.view.workers);
                workers.map(|worker| (None, worker.name.clone())).collect()
            }
            TopView::Tenants => {
                let tenants = self.tenants().into_iter().map(|row| row.tenant.clone());
                tenants.map(|it| (Some(it), String::new())).collect()
            }
            TopView::Limits => {
                let limits = self.limits().into_iter();
                let limits = limits.map(|(tenant, limit)| {
                    let mark = if limit.shadow.is_some() { "~" } else { "" };
                    (tenant.cloned(), format!("{}{mark}", limit.name))
                });
                limits.collect()
            }
            TopView::DeadLetters => {
                let listed = self.pipeline().letters.answer().into_iter();
                let letters = listed.flat_map(|(listed, _)| &listed.rows);
                let tenants = letters.map(|letter| Tenant::parse(letter.tenant.as_deref()?).ok());
                let rows = tenants.enumerate();
                rows.map(|(at, it)| (it, at.to_string())).collect()
            }
        }
    }

    /// Returns the index of the selected row.
    pub fn place(&self) -> Option<usize> {
        self.cursors[self.view as usize].place(&self.rows())
    }

    /// Returns true if the list of dead letters is shown.
    pub fn shows_letters(&self) -> bool {
        self.view == TopView::DeadLetters && self.page.is_none()
    }

    /// Returns the tenant that keys act on.
    pub fn selected_tenant(&self) -> Option<Tenant> {
        if let Some(page) = &self.page {
            return Some(page.tenant.clone());
        }
        let at = self.place()?;
        self.rows().swap_remove(at).0
    }

    /// Moves the selection by this many rows. With 0, keeps it on its row in a new picture.
    pub(super) fn move_cursor(&mut self, by: isize) {
        let rows = self.rows();
        self.cursors[self.view as usize].go(&rows, by);
    }

    /// Returns the last message while it is recent.
    pub fn status(&self) -> Option<&StatusMessage> {
        let message = self.status_message.as_ref()?;
        (self.now_ms.saturating_sub(message.at_ms) < TOLD_MS).then_some(message)
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
