//! Decides which questions are sent to servers and when, and takes the answers.

use operator::dead::LetterList;
use operator::inspect::Glance;
use operator::overview::{Overview, TenantSelection};
use rules::report::REPORT_INTERVAL_MS;
use rules::tenant::Tenant;

use super::{Model, RunningAction, TopView};
use crate::commands::top::action::Act;
use crate::commands::top::cursor::Cursor;

/// Maximum age of dead letters, in milliseconds, at which opening their view does not fetch them
/// again, since fetching is expensive.
const LETTERS_MS: u64 = 10_000;

/// The requests to servers.
#[derive(Debug, PartialEq)]
pub enum ServerRequest {
    Overview(usize, Option<TenantSelection>),
    Glance(usize, Tenant),
    DeadLetters(usize),
    Act(usize, Act),
    /// Ends the running action as soon as possible.
    Stop,
}

/// The answers.
pub enum ServerAnswer {
    Overview(usize, Result<Box<Overview>, String>),
    Glance(Result<Box<Glance>, String>),
    DeadLetters(usize, Result<LetterList, String>),
    Progress(String),
    Done(Result<String, String>),
}

impl Model {
    /// Takes an answer to the question `number`.
    pub fn receive(&mut self, number: u64, answer: ServerAnswer) {
        let now_ms = self.now_ms;
        match answer {
            ServerAnswer::Overview(at, answer) => {
                let answer = answer.map(|picture| *picture);
                self.pipelines[at].picture.receive(number, answer, now_ms);
                if at == self.at && self.view != TopView::DeadLetters {
                    self.settle();
                }
            }
            ServerAnswer::DeadLetters(at, answer) => {
                let is_new = self.pipelines[at].letters.receive(number, answer, now_ms);
                if is_new && at == self.at && self.view == TopView::DeadLetters {
                    self.cursors[TopView::DeadLetters as usize] = Cursor::default();
                }
            }
            ServerAnswer::Glance(answer) => {
                if let Some(page) = &mut self.page {
                    let answer = answer.map(|glance| *glance);
                    page.glance.receive(number, answer, now_ms);
                }
            }
            ServerAnswer::Progress(progress) => {
                let action = self
                    .action
                    .as_mut()
                    .filter(|action| action.number == number);
                if let Some(action) = action {
                    action.progress = progress;
                }
            }
            ServerAnswer::Done(ended) => {
                let action = self.action.take_if(|action| action.number == number);
                let is_bad = ended.is_err();
                self.show_status(ended.unwrap_or_else(|why| why), is_bad);
                self.urge();
                if let Some(at) = action.and_then(|action| action.replays_in) {
                    self.pipelines[at].letters.urge();
                }
            }
        }
    }

    /// Makes the current view's questions due at once.
    pub(in super::super) fn urge(&mut self) {
        self.pipeline_mut().picture.urge();
        if let Some(page) = &mut self.page {
            page.glance.urge();
        }
    }

    /// Handles the opening of a view or page.
    pub(in super::super) fn enter(&mut self) {
        self.urge();
        let now_ms = self.now_ms;
        if self.view == TopView::DeadLetters && self.page.is_none() && self.action.is_none() {
            let letters = &mut self.pipeline_mut().letters;
            if !letters.is_in_flight() && letters.is_older(now_ms, LETTERS_MS) {
                letters.urge();
            }
        }
        self.settle();
    }

    /// Returns the due questions with their numbers.
    pub fn due(&mut self) -> Vec<(u64, ServerRequest)> {
        let mut due = Vec::new();
        let (now_ms, at) = (self.now_ms, self.at);
        let looks_at_tenants =
            self.page.is_none() && matches!(self.view, TopView::Tenants | TopView::Limits);
        let selection = looks_at_tenants.then(|| self.selection());
        let mut numbers = self.numbers;
        let mut number = || {
            numbers += 1;
            numbers
        };
        for (place, pipeline) in self.pipelines.iter_mut().enumerate() {
            if pipeline.picture.is_due(now_ms, REPORT_INTERVAL_MS)
                && (place == at || self.view == TopView::Fleet)
            {
                let number = number();
                pipeline.picture.begin(number, now_ms);
                let selection = selection.clone().filter(|_| place == at);
                due.push((number, ServerRequest::Overview(place, selection)));
            }
        }
        if let Some(page) = &mut self.page {
            if page.glance.is_due(now_ms, REPORT_INTERVAL_MS) {
                let number = number();
                page.glance.begin(number, now_ms);
                due.push((number, ServerRequest::Glance(at, page.tenant.clone())));
            }
        } else if self.view == TopView::DeadLetters
            // While an action runs, which may be a replay, nothing is fetched.
            && self.action.is_none()
            && self.pipelines[at].letters.is_new()
        {
            let number = number();
            self.pipelines[at].letters.begin(number, now_ms);
            due.push((number, ServerRequest::DeadLetters(at)));
        }
        self.numbers = numbers;
        due
    }

    /// Begins `act` and returns the request for it.
    pub(in super::super) fn begin(&mut self, act: Act) -> (u64, ServerRequest) {
        self.numbers += 1;
        self.action = Some(RunningAction {
            number: self.numbers,
            replays_in: matches!(act, Act::Replay(_)).then_some(self.at),
            what: act.short(),
            progress: String::new(),
            since_ms: self.now_ms,
        });
        self.status_message = None;
        (self.numbers, ServerRequest::Act(self.at, act))
    }
}
