//! The views: what each requests from `/api/v1`, and how it is shown. A view depends on its address
//! only, so all visitors of the address share it.

mod audit;
mod fleet;
mod letters;
mod roster;
mod tenant;
mod tenants;

use std::sync::{Mutex, PoisonError};

use askama::Template;
use axum::http::StatusCode;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

pub use self::roster::Roster;
use super::PREFIX;
use super::history::PipelineHistories;
use super::text;
use crate::api::{Api, ApiProblem};

/// Maximum length of a value in an address, in bytes.
const MAX_ADDRESS_BYTES: usize = 1_024;
/// Maximum number of values in an address.
const MAX_VALUES: usize = 16;

/// Kinds of views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewKind {
    Fleet,
    Tenants,
    Tenant,
    DeadLetters,
    DeadLetter,
    Audit,
}

struct ViewInfo {
    kind: ViewKind,
    path: &'static str,
    values: &'static [&'static str],
}

const VIEWS: [ViewInfo; 6] = [
    ViewInfo {
        kind: ViewKind::Fleet,
        path: "",
        values: &[],
    },
    ViewInfo {
        kind: ViewKind::Tenants,
        path: "/tenants",
        values: &["sort", "search", "offset"],
    },
    ViewInfo {
        kind: ViewKind::Tenant,
        path: "/tenant",
        values: &["name", "plan", "header", "routing-key"],
    },
    ViewInfo {
        kind: ViewKind::DeadLetters,
        path: "/dead",
        values: &["reason", "tenant", "id", "offset"],
    },
    ViewInfo {
        kind: ViewKind::DeadLetter,
        path: "/letter",
        values: &["id", "tenant", "no-tenant"],
    },
    ViewInfo {
        kind: ViewKind::Audit,
        path: "/audit",
        values: &["before"],
    },
];

/// A view as named by its address.
#[derive(Debug, Clone)]
pub struct ViewRequest {
    /// Kind.
    pub kind: ViewKind,
    /// Pipeline, if there are several.
    pub pipeline: Option<String>,
    values: Vec<(&'static str, String)>,
}

impl ViewRequest {
    /// Parses `path`, below `/ui`, and `query`. If `query` names no pipeline, the first of several
    /// `pipelines` is meant. Returns `None` if there is no such view.
    ///
    /// # Errors
    /// The address is too long.
    pub fn of(path: &str, query: &str, pipelines: &[String]) -> Option<Result<Self, ApiProblem>> {
        let about = VIEWS
            .iter()
            .find(|about| about.path == path.trim_end_matches('/'))?;
        let mut asked = Self {
            kind: about.kind,
            pipeline: None,
            values: Vec::new(),
        };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if value.len() > MAX_ADDRESS_BYTES || asked.values.len() >= MAX_VALUES {
                let words = "this address is too long";
                return Some(Err(ApiProblem::wrong(words)));
            }
            if value.is_empty() {
                continue;
            }
            if name == "pipeline" {
                asked.pipeline = Some(value.into_owned());
            } else if let Some(known) = about.values.iter().find(|known| **known == name) {
                asked.values.push((known, value.into_owned()));
            }
        }
        match (pipelines, &asked.pipeline) {
            ([only], Some(name)) if name == only => asked.pipeline = None,
            ([first, _, ..], None) => asked.pipeline = Some(first.clone()),
            _ => {}
        }
        Some(Ok(asked))
    }

    /// Returns true if the view updates itself. A look at dead letters takes them out of their
    /// queue for a moment, and an audit is not worth watching.
    pub fn is_live(&self) -> bool {
        matches!(
            self.kind,
            ViewKind::Fleet | ViewKind::Tenants | ViewKind::Tenant
        )
    }

    /// Returns the value with this name; empty if there is none.
    fn value(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    }

    fn number(&self, name: &str) -> u64 {
        self.value(name).parse().unwrap_or_default()
    }

    /// Returns the address, which is the same for all requests of this view.
    pub fn address(&self) -> String {
        let about = VIEWS.iter().find(|about| about.kind == self.kind);
        let path = about.map_or("", |about| about.path);
        let values = self.values.iter();
        let values = values.map(|(name, value)| (*name, value.as_str()));
        match self.query(values) {
            query if query.is_empty() => format!("{PREFIX}{path}"),
            query => format!("{PREFIX}{path}?{query}"),
        }
    }

    /// Returns a query that includes the pipeline.
    fn query<'a>(&'a self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
        let pipeline = self.pipeline.as_deref().unwrap_or_default();
        text::query(pairs.into_iter().chain([("pipeline", pipeline)]))
    }

    /// Returns a query for the page of a tenant.
    fn of_tenant(&self, name: &str) -> String {
        self.query([("name", name)])
    }

    /// Returns the title of the page.
    pub fn title(&self) -> String {
        match self.kind {
            ViewKind::Fleet => "Fleet".to_owned(),
            ViewKind::Tenants => "Tenants".to_owned(),
            ViewKind::Tenant => self.value("name").to_owned(),
            ViewKind::DeadLetters => "Dead letters".to_owned(),
            ViewKind::DeadLetter => "Dead letter".to_owned(),
            ViewKind::Audit => "Audit".to_owned(),
        }
    }
}

/// Sources of the views.
pub struct ViewSource<'a> {
    /// Source of everything but the charts.
    pub api: &'a Api,
    /// Source of the charts.
    pub history: &'a PipelineHistories,
    /// Name of the only pipeline.
    pub only: Option<String>,
    /// Workers seen so far.
    pub roster: &'a Mutex<Roster>,
}

impl ViewSource<'_> {
    /// Returns the HTML of a view, with a mark before each part.
    ///
    /// # Errors
    /// The problem that `/api/v1` reports.
    pub async fn html(&self, asked: &ViewRequest) -> Result<String, ApiProblem> {
        match asked.kind {
            ViewKind::Fleet => fleet::html(self, asked).await,
            ViewKind::Tenants => tenants::html(self, asked).await,
            ViewKind::Tenant => tenant::html(self, asked).await,
            ViewKind::DeadLetters => letters::list(self, asked).await,
            ViewKind::DeadLetter => letters::one(self, asked).await,
            ViewKind::Audit => audit::html(self, asked).await,
        }
    }

    /// Reads the answer to a GET of this path of `/api/v1`.
    async fn read<T: DeserializeOwned>(&self, path: &str, query: &str) -> Result<T, ApiProblem> {
        let answer = self.api.read(path, query).await?;
        serde_json::from_value(answer).map_err(|why| {
            let words = format!("the answer of /api/v1{path} has an unknown form: {why}");
            ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, words)
        })
    }

    fn roster<R>(&self, run: impl FnOnce(&mut Roster) -> R) -> R {
        run(&mut self.roster.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Encodes a segment of a path.
fn part(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn rendered(view: &impl Template) -> Result<String, ApiProblem> {
    view.render().map_err(|why| {
        let words = format!("the page can't be written: {why}");
        ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, words)
    })
}

/// Links to the other pages of a list.
#[derive(Debug, Default)]
struct Pager {
    /// Addresses, or `None` if there is no such page.
    first: Option<String>,
    next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, query: &str, pipelines: &[&str]) -> Option<String> {
        let pipelines: Vec<String> = pipelines.iter().map(|it| (*it).to_owned()).collect();
        let asked = ViewRequest::of(path, query, &pipelines)?.expect("short");
        Some(asked.address())
    }

    #[test]
    fn equal_requests_have_the_same_address() {
        let one = ["default"];
        assert_eq!(asked("", "utm=1", &one).as_deref(), Some("/ui"));
        let named = asked("/", "pipeline=default", &one);
        assert_eq!(named.as_deref(), Some("/ui"));
        // A pipeline of another process is missing here.
        let other = asked("/", "pipeline=x", &one);
        assert_eq!(other.as_deref(), Some("/ui?pipeline=x"));
        let two = ["a", "b"];
        assert_eq!(asked("", "", &two).as_deref(), Some("/ui?pipeline=a"));
        let b = asked("/tenants", "x=1&pipeline=b&sort=denied&search=", &two);
        assert_eq!(b.as_deref(), Some("/ui/tenants?sort=denied&pipeline=b"));
        // Two tenants may use one ID.
        let letter = asked("/letter", "id=7&tenant=a", &one);
        assert_eq!(letter.as_deref(), Some("/ui/letter?id=7&tenant=a"));
        let letter = asked("/letter", "id=7&no-tenant=true", &one);
        assert_eq!(letter.as_deref(), Some("/ui/letter?id=7&no-tenant=true"));
        assert_eq!(asked("/none", "", &one), None);
        let long = format!("name={}", "x".repeat(MAX_ADDRESS_BYTES + 1));
        assert!(
            ViewRequest::of("/tenant", &long, &[])
                .expect("a view")
                .is_err()
        );
    }

    #[test]
    fn a_path_can_hold_every_valid_name() {
        assert_eq!(part("../a b"), "%2E%2E%2Fa%20b");
    }
}
