//! Decides which questions are sent to servers and when, and takes the answers.

use operator::dead::LetterList;
use operator::overview::{Overview, TenantSelection};
use rules::report::REPORT_INTERVAL_MS;
use rules::tenant::Tenant;

use super::{Glance, Model, RunningAction, TopView};
use crate::commands::top::action::Act;

/// Maximum number of tenants that the gate is asked for, as in `tenants`.
const MAX_TENANTS: usize = 100;
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
                self.pipelines[at].picture.receive(number, answer, now_ms);
                if at == self.at && self.view != TopView::DeadLetters {
                    self.move_cursor(0);
                }
            }
            ServerAnswer::DeadLetters(at, answer) => {
                let is_new = self.pipelines[at].letters.receive(number, answer, now_ms);
                if is_new && at == self.at && self.view == TopView::DeadLetters {
                    self.cursors[TopView::DeadLetters as usize] = Default::default();
                }
            }
            ServerAnswer::Glance(answer) => {
                if let Some(page) = &mut self.page {
                    page.glance.receive(number, answer, now_ms);
                }
            }
            ServerAnswer::Progress(progress) => {
                let action = self.action.as_mut();
                if let Some(action) = action.filter(|action| action.number == number) {
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
        if self.shows_letters() && self.action.is_none() {
            let letters = &mut self.pipeline_mut().letters;
            if !letters.is_in_flight() && letters.is_older(now_ms, LETTERS_MS) {
                letters.urge();
            }
        }
        self.move_cursor(0);
    }

    /// Returns the due questions with their numbers.
    pub fn due(&mut self) -> Vec<(u64, ServerRequest)> {
        let (now_ms, at) = (self.now_ms, self.at);
        let looks_at_tenants =
            self.page.is_none() && matches!(self.view, TopView::Tenants | TopView::Limits);
        let selection = looks_at_tenants.then(|| TenantSelection {
            sort: self.sort,
            max: MAX_TENANTS,
            name: self.search.clone(),
        });
        let mut due = Vec::new();
        for (place, pipeline) in self.pipelines.iter_mut().enumerate() {
            let is_shown = place == at || self.view == TopView::Fleet;
            if is_shown && pipeline.picture.is_due(now_ms, REPORT_INTERVAL_MS) {
                let selection = selection.clone().filter(|_| place == at);
                pipeline.picture.begin(&mut self.numbers, now_ms);
                due.push((self.numbers, ServerRequest::Overview(place, selection)));
            }
        }
        let letters = &mut self.pipelines[at].letters;
        if let Some(page) = &mut self.page {
            if page.glance.is_due(now_ms, REPORT_INTERVAL_MS) {
                page.glance.begin(&mut self.numbers, now_ms);
                due.push((self.numbers, ServerRequest::Glance(at, page.tenant.clone())));
            }
        // While an action runs, which may be a replay, nothing is fetched.
        } else if self.view == TopView::DeadLetters && self.action.is_none() && letters.is_new() {
            letters.begin(&mut self.numbers, now_ms);
            due.push((self.numbers, ServerRequest::DeadLetters(at)));
        }
        due
    }

    /// Begins `act` and returns the request for it.
    pub(in super::super) fn begin(&mut self, act: Act) -> (u64, ServerRequest) {
        self.numbers += 1;
        self.action = Some(RunningAction {
            number: self.numbers,
            replays_in: matches!(act, Act::Replay(_)).then_some(self.at),
            what: act.describe().0,
            progress: String::new(),
            since_ms: self.now_ms,
        });
        self.status_message = None;
        (self.numbers, ServerRequest::Act(self.at, act))
    }
}
