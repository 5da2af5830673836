//! All that the screen shows, and what follows from what happens: from a key, from an answer, from time that passes. No I/O and no clock:
//! what is to be asked of servers comes out.

use std::sync::Arc;

use sluicegate::config::{Config, PipelineName};
use sluicegate::operator::dead::Listed;
use sluicegate::operator::fullness::Fullness;
use sluicegate::operator::inspect::Glance;
use sluicegate::operator::overview::{Overview, Wanted};
use sluicegate::rules::report::view::{Row, Sort};
use sluicegate::rules::scope::Scope;
use sluicegate::rules::tenant::Tenant;

use super::act::Act;
use super::asked::Asked;
use super::asking::Asking;
use super::cursor::Cursor;
use super::file::Read;

/// Workers say something new so often, in milliseconds.
const EVERY_MS: u64 = 2_000;
/// The gate is asked of so many tenants at most, as `tenants` can ask.
const MOST: usize = 100;
/// Opening the view fetches dead letters anew if they are older, in milliseconds: to look has its price.
const LETTERS_MS: u64 = 10_000;
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

/// A row of the limits: whose, and which.
pub struct LimitRow<'a> {
    /// `None`: all tenants'.
    pub tenant: Option<&'a Tenant>,
    pub limit: &'a Fullness,
}

impl LimitRow<'_> {
    /// Both are one limit of all tenants.
    fn is_like(&self, other: &Fullness) -> bool {
        let (name, is_shadow) = (&self.limit.name, self.limit.shadow.is_some());
        *name == other.name && is_shadow == other.shadow.is_some()
    }

    /// No other row has this name.
    fn name(&self) -> String {
        let tenant = self.tenant.map_or("", |tenant| tenant.as_str());
        let shadow = if self.limit.shadow.is_some() { "~" } else { "" };
        format!("{}{shadow} {tenant}", self.limit.name)
    }
}

/// What servers are asked for.
#[derive(Debug, PartialEq)]
pub enum Request {
    Overview(usize, Option<Wanted>),
    Glance(usize, Tenant),
    Letters(usize),
    Act(usize, Act),
    /// The action that is being done ends as soon as it can.
    Stop,
}

/// What comes back.
pub enum Came {
    Overview(usize, Result<Box<Overview>, String>),
    Glance(Result<Box<Glance>, String>),
    Letters(usize, Result<Listed, String>),
    Progress(String),
    Done(Result<String, String>),
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

    pub(super) fn is_wanted(&self, tenant: &str) -> bool {
        self.wanted().names(tenant)
    }

    fn wanted(&self) -> Wanted {
        Wanted {
            sort: self.sort,
            most: MOST,
            name: self.search.clone(),
        }
    }

    /// The tenants that are listed: those of whom the gate was asked, and, while a name is searched for, all that workers name.
    pub fn tenants(&self) -> Vec<&Row> {
        let Some((picture, _)) = self.picture() else {
            return Vec::new();
        };
        let asked = picture.shown.iter().flat_map(|shown| &shown.rows);
        let mut rows: Vec<&Row> = asked.collect();
        if !self.search.is_empty() {
            let all = picture.fleet.view.tenants.iter();
            let known: std::collections::HashSet<_> =
                rows.iter().map(|row| row.tenant.as_str()).collect();
            let others: Vec<&Row> = all
                .filter(|row| !known.contains(row.tenant.as_str()))
                .collect();
            rows.extend(others);
            rows.retain(|row| self.is_wanted(row.tenant.as_str()));
        }
        rows.sort_by(|one, two| self.sort.order(one, two));
        rows
    }

    /// The limits of all tenants together, once each; then those of each tenant that is listed.
    pub fn limits(&self) -> Vec<LimitRow<'_>> {
        let shown = self
            .picture()
            .and_then(|(picture, _)| picture.shown.as_ref());
        let Some(shown) = shown else {
            return Vec::new();
        };
        let mut shared: Vec<LimitRow> = Vec::new();
        let mut own = Vec::new();
        for row in self.tenants() {
            for limit in shown.limits.get(&row.tenant).into_iter().flatten() {
                if limit.scope != Scope::Global {
                    let tenant = Some(&row.tenant);
                    own.push(LimitRow { tenant, limit });
                } else if shared.iter().all(|known| !known.is_like(limit)) {
                    let tenant = None;
                    shared.push(LimitRow { tenant, limit });
                }
            }
        }
        shared.sort_by(|one, two| one.limit.name.cmp(&two.limit.name));
        shared.extend(own);
        shared
    }

    /// The limits of `tenant` of which an operator tries another maximum, as far as is seen: their names, and that.
    pub fn tried(&self, tenant: &Tenant) -> impl Iterator<Item = (&str, u32)> {
        let page = self.page.as_ref().filter(|page| page.tenant == *tenant);
        let page = page.and_then(|page| page.glance.known());
        let known: &[Fullness] = match (page, self.picture()) {
            (Some((glance, _)), _) => &glance.limits,
            (None, Some((picture, _))) => {
                let shown = picture.shown.as_ref();
                let known = shown.and_then(|shown| shown.limits.get(tenant));
                known.map_or(&[], Vec::as_slice)
            }
            (None, None) => &[],
        };
        let tried = known.iter().filter(|limit| limit.is_tried);
        tried.map(|limit| (limit.name.as_str(), limit.max))
    }

    /// The names of the rows of the view.
    pub fn rows(&self) -> Vec<String> {
        match self.view {
            View::Fleet => {
                let workers = self.picture().into_iter();
                let workers = workers.flat_map(|(picture, _)| &picture.fleet.view.workers);
                workers.map(|worker| worker.name.clone()).collect()
            }
            View::Tenants => {
                let rows = self.tenants();
                let names = rows.iter().map(|row| row.tenant.as_str().to_owned());
                names.collect()
            }
            View::Limits => {
                let rows = self.limits();
                rows.iter().map(LimitRow::name).collect()
            }
            View::Letters => {
                let listed = self.pipeline().letters.known();
                let number = listed.map_or(0, |(listed, _)| listed.rows.len());
                (0..number).map(|at| at.to_string()).collect()
            }
        }
    }

    /// The place of the row that is meant.
    pub fn place(&self) -> Option<usize> {
        let rows = self.rows();
        self.cursors[self.view as usize].place(rows.iter().map(String::as_str))
    }

    pub(super) fn cursor(&mut self) -> &mut Cursor {
        &mut self.cursors[self.view as usize]
    }

    /// The tenant that a key is about.
    pub fn meant(&self) -> Option<Tenant> {
        if let Some(page) = &self.page {
            return Some(page.tenant.clone());
        }
        let at = self.place()?;
        match self.view {
            View::Fleet => None,
            View::Tenants => self.tenants().get(at).map(|row| row.tenant.clone()),
            View::Limits => self.limits().get(at)?.tenant.cloned(),
            View::Letters => {
                let (listed, _) = self.pipeline().letters.known()?;
                Tenant::parse(listed.rows.get(at)?.tenant()?).ok()
            }
        }
    }

    /// Time has passed.
    pub fn at_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms.max(self.now_ms);
    }

    /// `came` is the answer to the question `number`.
    pub fn came(&mut self, number: u64, came: Came) {
        let now_ms = self.now_ms;
        match came {
            Came::Overview(at, answer) => {
                let answer = answer.map(|picture| *picture);
                self.pipelines[at].picture.came(number, answer, now_ms);
                if at == self.at && self.view != View::Letters {
                    self.settle();
                }
            }
            Came::Letters(at, answer) => {
                let is_new = self.pipelines[at].letters.came(number, answer, now_ms);
                if is_new && at == self.at && self.view == View::Letters {
                    self.cursors[View::Letters as usize] = Cursor::default();
                }
            }
            Came::Glance(answer) => {
                if let Some(page) = &mut self.page {
                    let answer = answer.map(|glance| *glance);
                    page.glance.came(number, answer, now_ms);
                }
            }
            Came::Progress(progress) => {
                let doing = self.doing.as_mut().filter(|doing| doing.number == number);
                if let Some(doing) = doing {
                    doing.progress = progress;
                }
            }
            Came::Done(ended) => {
                self.doing.take_if(|doing| doing.number == number);
                let is_bad = ended.is_err();
                self.tell(ended.unwrap_or_else(|why| why), is_bad);
                self.urge();
                if self.view == View::Letters {
                    self.pipeline_mut().letters.urge();
                }
            }
        }
    }

    /// The row that is meant stays that row.
    pub(super) fn settle(&mut self) {
        let rows = self.rows();
        self.cursor().settle(&rows);
    }

    /// What is looked at is asked for at once.
    pub(super) fn urge(&mut self) {
        self.pipeline_mut().picture.urge();
        if let Some(page) = &mut self.page {
            page.glance.urge();
        }
    }

    /// What is looked at now was not looked at before.
    pub(super) fn opened(&mut self) {
        self.urge();
        let now_ms = self.now_ms;
        if self.view == View::Letters && self.page.is_none() {
            let letters = &mut self.pipeline_mut().letters;
            if !letters.is_under_way() && letters.is_older(now_ms, LETTERS_MS) {
                letters.urge();
            }
        }
        self.settle();
    }

    /// What is to be asked now, each with its number.
    pub fn due(&mut self) -> Vec<(u64, Request)> {
        let mut due = Vec::new();
        let (now_ms, at) = (self.now_ms, self.at);
        let looks_at_tenants =
            self.page.is_none() && matches!(self.view, View::Tenants | View::Limits);
        let wanted = looks_at_tenants.then(|| self.wanted());
        let mut numbers = self.numbers;
        let mut number = || {
            numbers += 1;
            numbers
        };
        for (place, pipeline) in self.pipelines.iter_mut().enumerate() {
            if pipeline.picture.is_due(now_ms, EVERY_MS)
                && (place == at || self.view == View::Fleet)
            {
                let number = number();
                pipeline.picture.begin(number, now_ms);
                let wanted = wanted.clone().filter(|_| place == at);
                due.push((number, Request::Overview(place, wanted)));
            }
        }
        if let Some(page) = &mut self.page {
            if page.glance.is_due(now_ms, EVERY_MS) {
                let number = number();
                page.glance.begin(number, now_ms);
                due.push((number, Request::Glance(at, page.tenant.clone())));
            }
        } else if self.view == View::Letters && self.pipelines[at].letters.is_new() {
            let number = number();
            self.pipelines[at].letters.begin(number, now_ms);
            due.push((number, Request::Letters(at)));
        }
        self.numbers = numbers;
        due
    }

    /// `act` is to be done: the question for it.
    pub(super) fn begin(&mut self, act: Act) -> (u64, Request) {
        self.numbers += 1;
        self.doing = Some(Doing {
            number: self.numbers,
            what: act.short(),
            progress: String::new(),
            since_ms: self.now_ms,
        });
        self.told = None;
        (self.numbers, Request::Act(self.at, act))
    }
}
