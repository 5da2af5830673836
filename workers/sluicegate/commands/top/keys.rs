//! The action of each key.

use std::cell::Cell;

use gate::Change;
use operator::dead::{Filter, LetterChange};
use operator::tenant_action::TenantAction;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rules::tenant::Tenant;

use super::action::{Act, LetterSelection};
use super::dialogs::{LimitChange, Prompt, change_limit, enforce, pause};
use super::model::{Model, ServerRequest, TenantPage, TopView, VIEWS};
use super::query::QueryState;

/// Number of rows per page.
const PAGE: isize = 10;
const FETCHING: &str = "dead letters are being fetched";

impl Model {
    /// Handles a key. Returns requests to servers beyond those that are due anyway.
    pub fn pressed(&mut self, key: KeyEvent) -> Vec<(u64, ServerRequest)> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.is_over |= key.code == KeyCode::Char('c');
            return Vec::new();
        }
        if self.is_help {
            self.is_help = false;
            return Vec::new();
        }
        if let Some(prompt) = self.prompt.take() {
            return self.handle_prompt_key(prompt, key.code);
        }
        if self.is_searching {
            self.handle_search_key(key.code);
            return Vec::new();
        }
        self.command(key.code)
    }

    fn handle_prompt_key(&mut self, prompt: Prompt, key: KeyCode) -> Vec<(u64, ServerRequest)> {
        match (prompt, key) {
            (Prompt::Sure(act), KeyCode::Char('y' | 'Y')) => return vec![self.begin(act)],
            (Prompt::Sure(_), _) | (Prompt::Line(_), KeyCode::Esc) => {
                self.show_status("nothing was changed", false);
            }
            (Prompt::Line(question), key) => {
                self.prompt = Some(question.pressed(key, &self.pipeline().config));
            }
        }
        Vec::new()
    }

    fn handle_search_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Down => return self.go(1),
            KeyCode::Up => return self.go(-1),
            KeyCode::Enter => {
                self.is_searching = false;
                self.end_search();
                return self.urge();
            }
            KeyCode::Esc => {
                self.is_searching = false;
                return self.search.clear();
            }
            KeyCode::Backspace => drop(self.search.pop()),
            // A tenant's name has at most 255 bytes.
            KeyCode::Char(c) if self.search.len() < 255 => self.search.push(c),
            _ => {}
        }
        self.cursors[TopView::Tenants as usize] = Default::default();
    }

    /// Ends the search: selects the only match, lists several, or, if no busy tenant matches,
    /// selects the typed name itself.
    fn end_search(&mut self) {
        let rows = self.tenants();
        let exact = rows.iter().find(|row| row.tenant.as_str() == self.search);
        let chosen = match (exact, rows.as_slice()) {
            (Some(row), _) | (None, [row]) => Some(row.tenant.clone()),
            (None, []) => match Tenant::parse(&self.search) {
                Ok(tenant) => Some(tenant),
                Err(_) if self.search.is_empty() => None,
                Err(why) => {
                    self.show_status(why.to_string(), true);
                    None
                }
            },
            (None, _) => None,
        };
        if let Some(tenant) = chosen {
            self.search.clear();
            self.open(tenant);
        }
    }

    fn open(&mut self, tenant: Tenant) {
        self.page = Some(TenantPage {
            tenant,
            glance: QueryState::default(),
            scroll: Cell::default(),
        });
    }

    fn command(&mut self, key: KeyCode) -> Vec<(u64, ServerRequest)> {
        match key {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.is_help = true,
            KeyCode::Char(c @ '1'..='4') => self.show(VIEWS[c as usize - '1' as usize].0),
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(VIEWS.len() - 1),
            KeyCode::Char(']') => self.switch(1),
            KeyCode::Char('[') => self.switch(self.pipelines.len() - 1),
            KeyCode::Char('/') => {
                self.show(TopView::Tenants);
                self.search.clear();
                self.is_searching = true;
            }
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                self.urge();
                // The operator looks for the first row of the new list.
                let is_sorted = matches!(self.view, TopView::Tenants | TopView::Limits);
                if is_sorted && self.page.is_none() {
                    self.move_cursor(isize::MIN);
                }
            }
            KeyCode::Esc | KeyCode::Backspace => return self.back(),
            KeyCode::Enter => {
                if let (None, Some(tenant)) = (&self.page, self.selected_tenant()) {
                    self.open(tenant);
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.go(PAGE),
            KeyCode::PageUp => self.go(-PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.go(isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.go(isize::MAX / 2),
            KeyCode::Char(c @ ('p' | 'r' | 'l' | 'c' | 't' | 'e' | 'x' | 'z')) => {
                let prompt = self.tenant_prompt(c);
                self.ask(prompt);
            }
            KeyCode::Char('f') if self.shows_letters() => self.fetch_letters(),
            KeyCode::Char(c @ ('R' | 'T' | 'A')) if self.shows_letters() => {
                let prompt = self.replay_prompt(c);
                self.ask(prompt);
            }
            _ => {}
        }
        Vec::new()
    }

    fn turn(&mut self, by: usize) {
        self.show(VIEWS[(self.view as usize + by) % VIEWS.len()].0);
    }

    fn show(&mut self, view: TopView) {
        let is_new = self.view != view || self.page.is_some();
        (self.view, self.page) = (view, None);
        if is_new {
            self.enter();
        }
    }

    fn switch(&mut self, by: usize) {
        if self.pipelines.len() < 2 {
            return;
        }
        self.at = (self.at + by) % self.pipelines.len();
        self.page = None;
        self.cursors = Default::default();
        self.enter();
    }

    fn back(&mut self) -> Vec<(u64, ServerRequest)> {
        if self.page.take().is_some() {
            self.enter();
        } else if !self.search.is_empty() {
            self.search.clear();
            self.urge();
        } else if self.action.is_some() {
            return vec![(0, ServerRequest::Stop)];
        }
        Vec::new()
    }

    fn go(&mut self, by: isize) {
        if let Some(page) = &self.page {
            let scroll = page.scroll.get().saturating_add_signed(by);
            return page.scroll.set(scroll);
        }
        self.move_cursor(by);
    }

    /// Checks that a new action can begin. Only one runs at a time, so that the result of each is
    /// shown.
    fn check_free(&self) -> Result<(), String> {
        match &self.action {
            None => Ok(()),
            Some(action) => Err(format!("{} is still running", action.what)),
        }
    }

    fn ask(&mut self, prompt: Result<Prompt, String>) {
        match prompt {
            Ok(prompt) => self.prompt = Some(prompt),
            Err(why) => self.show_status(why, true),
        }
    }

    fn tenant_prompt(&self, key: char) -> Result<Prompt, String> {
        let none = "no tenant is selected: 2 lists tenants, / finds one";
        let tenant = self.selected_tenant().ok_or(none)?;
        self.check_free()?;
        let limits = match (self.view, &self.page) {
            (TopView::Limits, None) => self.limits(),
            _ => Vec::new(),
        };
        let selected = self.place().and_then(|at| limits.get(at));
        let selected = selected.map(|(_, limit)| limit.name.as_str());
        let sure = |tenant, change| Prompt::Sure(Act::Tenant(TenantAction::Change(tenant, change)));
        let (change, selected) = match key {
            'p' => return Ok(pause(tenant)),
            'r' => return Ok(sure(tenant, Change::Resume)),
            'z' => return Ok(sure(tenant, Change::Reset)),
            'l' => (LimitChange::Set, selected),
            'c' => (LimitChange::Clear, selected),
            't' => (LimitChange::Try, selected),
            _ => {
                let tried = self.trials(&tenant);
                let mut tried =
                    tried.filter(|(name, _)| selected.is_none_or(|selected| selected == *name));
                match (key, tried.next(), tried.next()) {
                    ('e', Some((name, max)), None) => {
                        return Ok(enforce(tenant.clone(), name.to_owned(), max));
                    }
                    ('e', None, _) => return Err("no limit is being tried: t tries one".to_owned()),
                    ('e', ..) => {
                        let words = "several limits are being tried: select one in the limits (3)";
                        return Err(words.to_owned());
                    }
                    // The only trial needs no name.
                    (_, Some((only, _)), None) => (LimitChange::EndTry, Some(only)),
                    _ => (LimitChange::EndTry, selected),
                }
            }
        };
        change_limit(change, (tenant.clone(), selected), &self.pipeline().config)
    }

    fn fetch_letters(&mut self) {
        match (self.check_free(), self.pipeline().letters.is_in_flight()) {
            (Err(why), _) => self.show_status(why, true),
            (_, true) => self.show_status(FETCHING, false),
            (_, false) => self.pipeline_mut().letters.urge(),
        }
    }

    fn replay_prompt(&self, key: char) -> Result<Prompt, String> {
        self.check_free()?;
        // A fetch holds dead letters, which a replay at the same time would not find.
        if self.pipeline().letters.is_in_flight() {
            return Err(FETCHING.to_owned());
        }
        let none = || "no dead letter is listed: f fetches dead letters".to_owned();
        let (listed, _) = self.pipeline().letters.answer().ok_or_else(none)?;
        let rows = &listed.rows;
        let row = self.place().and_then(|at| rows.get(at)).ok_or_else(none)?;
        let tenant = row.tenant.clone().unwrap_or_default();
        let (id, tenant, listed) = match key {
            'R' => {
                let without = "it has no id: T replays its tenant's dead letters, A all";
                // IDs belong to publishers, and two tenants' may be equal.
                (Some(row.id.clone().ok_or(without)?), Some(tenant), 1)
            }
            'T' if tenant.is_empty() => return Err("it has no tenant: A replays all".to_owned()),
            'T' => {
                let rows = rows.iter();
                let rows = rows.filter(|row| row.tenant.as_ref() == Some(&tenant));
                let listed = rows.count();
                (None, Some(tenant), listed)
            }
            _ => (None, None, rows.len()),
        };
        let reason = None;
        let filter = Filter { reason, tenant, id };
        let checked =
            LetterChange::Replay(None).check(&filter, filter.is_all(), &self.pipeline().config);
        checked.map_err(|why| why.to_string())?;
        Ok(Prompt::Sure(Act::Replay(LetterSelection {
            filter,
            listed,
        })))
    }
}
