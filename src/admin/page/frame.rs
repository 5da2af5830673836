//! The frame around each view, and pages that are not views: sign-in, confirmation, errors.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

use super::access::Viewer;
use super::action_forms::FormField;
use super::live::ViewPart;
use super::text::{filters, query};
use crate::api::ApiProblem;

/// Values that all pages need.
pub struct PageFrame<'a> {
    /// Title of the page.
    pub title: &'a str,
    /// Current entry of the navigation: `fleet`, `tenants`, `dead` or `audit`; empty for none.
    pub place: &'static str,
    /// All pipelines, if there are several.
    pub pipelines: Vec<PipelineLink>,
    /// Query that names the pipeline.
    pub pipeline: String,
    /// The visitor who has signed in.
    pub who: Option<SignedInUser>,
    /// Whether an operator can sign in.
    pub has_operators: bool,
    /// Address of this page, to return to.
    pub here: String,
    /// Message about an action that was done.
    pub flash: Option<String>,
}

/// A pipeline in the selection.
pub struct PipelineLink {
    pub name: String,
    pub link: String,
    pub is_this: bool,
}

/// A visitor who has signed in.
pub struct SignedInUser {
    pub name: String,
    pub is_operator: bool,
    pub form_token: String,
}

impl SignedInUser {
    /// Describes the viewer, or returns `None` for a viewer without a session.
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
struct ViewPage<'a> {
    around: PageFrame<'a>,
    parts: &'a [ViewPart],
    trouble: String,
    is_live: bool,
}

/// Returns the page of a view, or of the problem in its place.
pub fn view(
    around: PageFrame<'_>,
    is_live: bool,
    made: &Result<Vec<ViewPart>, ApiProblem>,
) -> Response {
    let (status, parts, problem_text) = match made {
        Ok(parts) => (StatusCode::OK, parts.as_slice(), String::new()),
        Err(problem) => (problem.status(), [].as_slice(), trouble(problem)),
    };
    page(
        status,
        &ViewPage {
            around,
            parts,
            trouble: problem_text,
            is_live,
        },
    )
}

#[derive(Template)]
#[template(
    ext = "html",
    source = r#"<p class="note bad" role="alert"><strong>Not up to date:</strong> {{ words }}</p>"#
)]
struct ProblemLine {
    words: String,
}

/// Returns a problem as one line of a view.
pub fn trouble(problem: &ApiProblem) -> String {
    let words = problem.words();
    ProblemLine { words }.render().unwrap_or_default()
}

#[derive(Template)]
#[template(path = "sign-in.html")]
struct SignInPage<'a> {
    around: PageFrame<'a>,
    wrong: Option<String>,
    needs_operator: bool,
    to: &'a str,
}

/// Returns the sign-in form.
pub fn sign_in(
    around: PageFrame<'_>,
    wrong: Option<&ApiProblem>,
    needs_operator: bool,
    to: &str,
) -> Response {
    let status = wrong.map_or(StatusCode::OK, ApiProblem::status);
    let wrong = wrong.map(ApiProblem::words);
    page(
        status,
        &SignInPage {
            around,
            wrong,
            needs_operator,
            to,
        },
    )
}

/// Values of the form that confirms an action.
pub struct ConfirmForm<'a> {
    pub name: &'static str,
    pub question: String,
    pub about: &'static str,
    pub button: &'static str,
    pub is_irreversible: bool,
    /// Name and button label of another action with the same fields.
    pub also: Option<(&'static str, &'static str)>,
    pub fields: Vec<FormField>,
    pub hidden: Vec<(&'static str, &'a str)>,
    /// Query of the form's action, with the values that a browser would change in fields.
    pub query: String,
    /// Names and values in `query` for which there is no field.
    pub unchanged: Vec<(&'static str, String)>,
    pub form_token: &'a str,
    pub back: String,
}

#[derive(Template)]
#[template(path = "act.html")]
struct ActionPage<'a> {
    around: PageFrame<'a>,
    asking: ConfirmForm<'a>,
    wrong: Option<String>,
}

/// Returns the form that confirms an action.
pub fn act(around: PageFrame<'_>, asking: ConfirmForm<'_>, wrong: Option<&ApiProblem>) -> Response {
    let status = wrong.map_or(StatusCode::OK, ApiProblem::status);
    let wrong = wrong.map(ApiProblem::words);
    page(
        status,
        &ActionPage {
            around,
            asking,
            wrong,
        },
    )
}

#[derive(Template)]
#[template(path = "wrong.html")]
struct ProblemPage<'a> {
    around: PageFrame<'a>,
    words: String,
}

/// Returns the page of a problem.
pub fn wrong(around: PageFrame<'_>, problem: &ApiProblem) -> Response {
    let words = problem.words();
    page(problem.status(), &ProblemPage { around, words })
}

#[derive(Template)]
#[template(path = "again.html")]
struct RedirectPage<'a> {
    to: &'a str,
}

/// Returns a page that requests `to` again from this site. A browser that follows another site's
/// link sends no cookie, but does so for this second request.
pub fn reload_page(to: &str) -> Response {
    page(StatusCode::OK, &RedirectPage { to })
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

/// Returns the address of the sign-in form that leads back to `to`.
pub fn sign_in_for(to: &str, needs_operator: bool) -> String {
    let role = if needs_operator { "operator" } else { "" };
    let query = query([("to", to), ("for", role)]);
    format!("{}/sign-in?{query}", super::PREFIX)
}
