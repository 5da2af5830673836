//! What is around each view, and the pages that are none: signing in, asking back, errors.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use super::acts::Field;
use super::door::Viewer;
use super::live::Part;
use super::words::query;
use crate::admin::api::Problem;

/// What all pages have.
pub struct Around<'a> {
    /// What a browser's window is called.
    pub title: &'a str,
    /// Which of the places in the head this is: `fleet`, `tenants`, `dead`, `audit`; empty: none.
    pub place: &'static str,
    /// All pipelines, where there are several.
    pub pipelines: Vec<Pipeline>,
    /// The query that names the pipeline.
    pub pipeline: String,
    /// Who has signed in.
    pub who: Option<Who>,
    /// Somebody can sign in to act.
    pub has_operators: bool,
    /// Where to come back to.
    pub here: String,
    /// What was done.
    pub told: Option<String>,
}

/// A pipeline that can be chosen.
pub struct Pipeline {
    pub name: String,
    pub link: String,
    pub is_this: bool,
}

/// Somebody who has signed in.
pub struct Who {
    pub name: String,
    pub is_operator: bool,
    pub form_token: String,
}

impl Who {
    /// Of a viewer, if they have.
    pub fn of(viewer: &Viewer) -> Option<Self> {
        let session = viewer.session()?;
        let is_operator = viewer.operator.is_some();
        Some(Self {
            name: match session.name.as_str() {
                "" if is_operator => "operator".to_owned(),
                "" => "reader".to_owned(),
                name => name.to_owned(),
            },
            is_operator,
            form_token: session.form_token.clone(),
        })
    }
}

#[derive(Template)]
#[template(path = "view.html")]
struct View<'a> {
    around: Around<'a>,
    parts: &'a [Part],
    trouble: String,
    is_live: bool,
}

/// A view, or why there is none.
pub fn view(around: Around<'_>, is_live: bool, made: &Result<Vec<Part>, Problem>) -> Response {
    let (status, parts, said) = match made {
        Ok(parts) => (StatusCode::OK, parts.as_slice(), String::new()),
        Err(problem) => (problem.status(), [].as_slice(), trouble(problem)),
    };
    page(
        status,
        &View {
            around,
            parts,
            trouble: said,
            is_live,
        },
    )
}

#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<p class="note bad" role="alert"><strong>Not shown as it is now:</strong> {{ words }}</p>"#
)]
struct Trouble {
    words: String,
}

/// Why a view is not there, in a line of it.
pub fn trouble(problem: &Problem) -> String {
    let words = problem.words();
    Trouble { words }.render().unwrap_or_default()
}

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignIn<'a> {
    around: Around<'a>,
    wrong: Option<String>,
    needs_operator: bool,
    to: &'a str,
}

/// The form that takes a token.
pub fn sign_in(
    around: Around<'_>,
    wrong: Option<&Problem>,
    needs_operator: bool,
    to: &str,
) -> Response {
    let status = wrong.map_or(StatusCode::OK, Problem::status);
    let wrong = wrong.map(Problem::words);
    page(
        status,
        &SignIn {
            around,
            wrong,
            needs_operator,
            to,
        },
    )
}

/// An action that is asked back.
pub struct Asking<'a> {
    pub name: &'static str,
    pub question: String,
    pub about: &'static str,
    pub button: &'static str,
    pub is_grave: bool,
    /// What can be done in its place, with the same fields: its name, and what its button says.
    pub also: Option<(&'static str, &'static str)>,
    pub fields: Vec<Field>,
    pub kept: Vec<(&'static str, &'a str)>,
    pub form_token: &'a str,
    pub back: String,
}

#[derive(Template)]
#[template(path = "act.html")]
struct Act<'a> {
    around: Around<'a>,
    asking: Asking<'a>,
    wrong: Option<String>,
}

/// The form that asks back.
pub fn act(around: Around<'_>, asking: Asking<'_>, wrong: Option<&Problem>) -> Response {
    let status = wrong.map_or(StatusCode::OK, Problem::status);
    let wrong = wrong.map(Problem::words);
    page(
        status,
        &Act {
            around,
            asking,
            wrong,
        },
    )
}

#[derive(Template)]
#[template(path = "wrong.html")]
struct Wrong<'a> {
    around: Around<'a>,
    words: String,
}

/// Something did not work.
pub fn wrong(around: Around<'_>, problem: &Problem) -> Response {
    let words = problem.words();
    page(problem.status(), &Wrong { around, words })
}

#[derive(Template)]
#[template(path = "again.html")]
struct Again<'a> {
    to: &'a str,
}

/// A page that asks for this one again, from here: what another site links to comes without the cookie.
pub fn again(to: &str) -> Response {
    page(StatusCode::OK, &Again { to })
}

fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, Html(html)).into_response(),
        Err(why) => {
            let words = format!("the page can't be written: {why}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, words).into_response()
        }
    }
}

/// Where to sign in so that somebody comes back to `to`.
pub fn sign_in_for(to: &str, needs_operator: bool) -> String {
    let role = if needs_operator { "operator" } else { "" };
    let query = query([("to", to), ("for", role)]);
    format!("{}/sign-in?{query}", super::PREFIX)
}
