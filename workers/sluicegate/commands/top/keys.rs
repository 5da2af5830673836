//! The action of each key.

use std::cell::Cell;

use gate::Change;
use operator::tenant_action::TenantAction;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rules::tenant::Tenant;

use super::action::{Act, LetterSelection};
use super::dialogs::{Draft, Prompt, Wish};
use super::model::{Model, ServerRequest, TenantPage, TopView, VIEWS};
use super::query::QueryState;

/// Number of rows per page.
const PAGE: isize = 10;

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

    fn handle_prompt_key(&mut self, mut prompt: Prompt, key: KeyCode) -> Vec<(u64, ServerRequest)> {
        match (prompt, key) {
            (Prompt::Sure(act), KeyCode::Char('y' | 'Y')) => return vec![self.begin(act)],
            (Prompt::Sure(_), _) | (Prompt::Line { .. }, KeyCode::Esc) => {
                self.show_status("nothing was changed", false);
                return Vec::new();
            }
            (line, KeyCode::Enter) => prompt = line.submit(&self.pipeline().config),
            (line, key) => {
                prompt = line;
                match key {
                    KeyCode::Char(c) => prompt.add(c),
                    KeyCode::Backspace => prompt.delete(),
                    _ => {}
                }
            }
        }
        self.prompt = Some(prompt);
        Vec::new()
    }

    fn handle_search_key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Esc => {
                self.is_searching = false;
                self.search.clear();
            }
            KeyCode::Enter => {
                self.is_searching = false;
                self.end_search();
                self.urge();
            }
            KeyCode::Backspace => drop(self.search.pop()),
            // A tenant's name has at most 255 bytes.
            KeyCode::Char(c) if self.search.len() < 255 => self.search.push(c),
            KeyCode::Down => self.go(1),
            KeyCode::Up => self.go(-1),
            _ => {}
        }
        if self.is_searching && !matches!(key, KeyCode::Down | KeyCode::Up) {
            self.cursors[TopView::Tenants as usize] = Default::default();
        }
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
            KeyCode::Char(c @ '1'..='4') => self.show(VIEWS[c as usize - '1' as usize]),
            KeyCode::Tab => self.show(VIEWS[(self.view as usize + 1) % VIEWS.len()]),
            KeyCode::BackTab => {
                self.show(VIEWS[(self.view as usize + VIEWS.len() - 1) % VIEWS.len()]);
            }
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
                    let rows = self.rows();
                    self.cursor().set(&rows, 0);
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
                self.act_on_tenant(c)
            }
            KeyCode::Char(c @ ('f' | 'R' | 'T' | 'A')) => self.act_on_letters(c),
            _ => {}
        }
        Vec::new()
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
        let rows = self.rows();
        self.cursor().go(&rows, by);
    }

    /// Returns true if a new action can begin. Only one runs at a time, so that the result of each
    /// is shown.
    fn is_free(&mut self) -> bool {
        match &self.action {
            None => true,
            Some(action) => {
                let words = format!("{} is still running", action.what);
                self.show_status(words, true);
                false
            }
        }
    }

    fn act_on_tenant(&mut self, key: char) {
        let Some(tenant) = self.selected_tenant() else {
            return self.show_status("no tenant is selected: 2 lists tenants, / finds one", true);
        };
        if !self.is_free() {
            return;
        }
        let limit = self
            .place()
            .filter(|_| self.view == TopView::Limits && self.page.is_none());
        let limit = limit.and_then(|at| Some(self.limits().get(at)?.limit.name.clone()));
        let limit = limit.as_deref();
        let config = &self.pipeline().config;
        let change = |wish| Draft::limit(config, tenant.clone(), wish, limit)?.ask(config);
        let sure = |change| {
            let action = TenantAction::Change(tenant.clone(), change);
            Ok(Prompt::Sure(Act::Tenant(action)))
        };
        let prompt = match key {
            'p' => Draft::pause(tenant.clone()).ask(config),
            'l' => change(Wish::Set),
            'c' => change(Wish::Clear),
            't' => change(Wish::Try),
            'e' => self.enforcement(&tenant, limit),
            'x' => {
                let mut tried = self.trials(&tenant).map(|(name, _)| name);
                // The only trial needs no name.
                let only = tried.next().filter(|_| tried.next().is_none());
                let draft = Draft::limit(config, tenant.clone(), Wish::EndTry, limit.or(only));
                draft.and_then(|draft| draft.ask(config))
            }
            'r' => sure(Change::Resume),
            _ => sure(Change::Reset),
        };
        match prompt {
            Ok(prompt) => self.prompt = Some(prompt),
            Err(why) => self.show_status(why, true),
        }
    }

    /// Asks to enforce the trial of `tenant`. `selected` is the limit that is selected on the
    /// screen.
    fn enforcement(&self, tenant: &Tenant, selected: Option<&str>) -> Result<Prompt, String> {
        let tried: Vec<(&str, u64)> = (self.trials(tenant))
            .filter(|(name, _)| selected.is_none_or(|selected| selected == *name))
            .collect();
        match tried.as_slice() {
            [(name, max)] => {
                let draft = Draft::enforce(tenant.clone(), (*name).to_owned(), *max);
                draft.ask(&self.pipeline().config)
            }
            [] => Err("no limit is being tried: t tries one".to_owned()),
            _ => Err("several limits are being tried: select one in the limits (3)".to_owned()),
        }
    }

    fn act_on_letters(&mut self, key: char) {
        if self.view != TopView::DeadLetters || self.page.is_some() || !self.is_free() {
            return;
        }
        // A fetch holds dead letters, which a replay at the same time would not find.
        if self.pipeline().letters.is_in_flight() {
            return self.show_status("dead letters are being fetched", key != 'f');
        }
        if key == 'f' {
            return self.pipeline_mut().letters.urge();
        }
        match self.selected_letters(key) {
            Ok(which) => self.prompt = Some(Prompt::Sure(Act::Replay(which))),
            Err(why) => self.show_status(why, true),
        }
    }

    fn selected_letters(&self, key: char) -> Result<LetterSelection, String> {
        let none = || "no dead letter is listed: f fetches dead letters".to_owned();
        let (listed, _) = self.pipeline().letters.answer().ok_or_else(none)?;
        let row = self.place().and_then(|at| listed.rows.get(at));
        let row = row.ok_or_else(none)?;
        let tenant = row.tenant.clone();
        let which = match key {
            'R' => {
                let without = "it has no id: T replays its tenant's dead letters, A all";
                LetterSelection::One(row.id.clone().ok_or(without)?, tenant)
            }
            'T' => {
                let tenant = tenant.filter(|tenant| !tenant.is_empty());
                let tenant = tenant.ok_or("it has no tenant: A replays all")?;
                let rows = listed.rows.iter();
                let rows = rows.filter(|row| row.tenant.as_deref() == Some(&tenant));
                let listed = rows.count();
                LetterSelection::Of(tenant, listed)
            }
            _ => LetterSelection::All(listed.rows.len()),
        };
        which.check(&self.pipeline().config)?;
        Ok(which)
    }
}
