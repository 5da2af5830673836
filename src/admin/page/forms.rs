//! Forms: sign-in and sign-out, and actions that ask for confirmation.

use axum::http::StatusCode;
use axum::response::Response;

use super::access::Viewer;
use super::action_forms::{ActionForm, FormValues};
use super::frame::{self, ConfirmForm, sign_in_for};
use super::text::{address, query};
use super::{PREFIX, Page, Visit, is_link_from_elsewhere, own_path, see_other, sessions, target};
use crate::api::{ActionClient, ApiProblem, own_site};

impl Page {
    pub(super) fn signing_in(&self, visit: &Visit<'_>) -> Response {
        let values = FormValues::of(visit.parts.uri.query().unwrap_or_default().as_bytes());
        let around = self.around(&self.viewer(visit), "Sign in", PREFIX);
        frame::sign_in(
            around,
            None,
            values.get("for") == "operator",
            values.get("to"),
        )
    }

    pub(super) fn sign_in(&self, visit: &Visit<'_>, values: &FormValues) -> Response {
        let headers = &visit.parts.headers;
        let who = (headers, visit.peer);
        match self
            .site
            .access
            .sign_in(who, values.get("token"), values.get("name"))
        {
            Ok(session) => {
                let cookie = self.site.access.set_cookie(&session, headers);
                see_other(own_path(values.get("to")), [cookie])
            }
            Err(problem) => {
                let around = self.around(&Viewer::default(), "Sign in", PREFIX);
                frame::sign_in(
                    around,
                    Some(&problem),
                    values.get("for") == "operator",
                    values.get("to"),
                )
            }
        }
    }

    pub(super) fn sign_out(&self, visit: &Visit<'_>, values: &FormValues) -> Response {
        let headers = &visit.parts.headers;
        let viewer = self.viewer(visit);
        let session = viewer.session();
        let is_own =
            session.is_some_and(|own| sessions::same(&own.form_token, values.get("form-token")));
        match own_site(headers) {
            Ok(()) if is_own => see_other(PREFIX, self.site.access.sign_out(&viewer, headers)),
            _ => see_other(PREFIX, []),
        }
    }

    /// Shows the form of an action.
    pub(super) fn asked_back(&self, visit: &Visit<'_>) -> Response {
        let query = visit.parts.uri.query().unwrap_or_default();
        let values = FormValues::of(query.as_bytes());
        if is_link_from_elsewhere(&visit.parts.headers) {
            return frame::reload_page(&target(visit));
        }
        let viewer = self.viewer(visit);
        let Some(act) = ActionForm::find(values.get("do")) else {
            let problem = ApiProblem::new(StatusCode::NOT_FOUND, "there is no such action");
            return frame::wrong(self.around(&viewer, "Not found", &fleet(&values)), &problem);
        };
        let Some(operator) = &viewer.operator else {
            if !self.site.access.has_operators() {
                let words = "changes are disabled: set admin.operator-token";
                let problem = ApiProblem::new(StatusCode::FORBIDDEN, words);
                return frame::wrong(
                    self.around(&viewer, "Refused", &act.home(&values)),
                    &problem,
                );
            }
            return see_other(&sign_in_for(&target(visit), true), []);
        };
        let asking = asking_back(act, &values, &operator.form_token, false);
        let question = asking.question.clone();
        frame::act(
            self.around(&viewer, &question, &act.home(&values)),
            asking,
            None,
        )
    }

    /// Performs the action of a form.
    pub(super) async fn act(&self, visit: &Visit<'_>, values: &FormValues) -> Response {
        let viewer = self.viewer(visit);
        let access = &self.site.access;
        let operator = match access.may_act(&visit.parts.headers, values.get("form-token")) {
            Ok(operator) => operator,
            Err(problem) => {
                let around = self.around(&viewer, "Refused", &fleet(values));
                return frame::wrong(around, &problem);
            }
        };
        let Some(act) = ActionForm::find(values.get("do")) else {
            let problem = ApiProblem::new(StatusCode::NOT_FOUND, "there is no such action");
            return frame::wrong(self.around(&viewer, "Not found", &fleet(values)), &problem);
        };
        let query = visit.parts.uri.query().unwrap_or_default();
        let values = &values.clone().and(query);
        let asker = ActionClient {
            name: match operator.name.as_str() {
                "" => "operator".to_owned(),
                name => name.to_owned(),
            },
            peer: visit.peer.to_string(),
        };
        let done = match act.asks(values) {
            Ok((path, query, fields)) => self.site.api.act(&path, &query, fields, asker).await,
            Err(problem) => Err(problem),
        };
        self.site.live.forget();
        match done {
            Ok(answer) => {
                access.set_flash(&operator, act.done(values, &answer));
                see_other(&act.home(values), [])
            }
            Err(problem) => {
                let asking = asking_back(act, values, &operator.form_token, true);
                let question = asking.question.clone();
                frame::act(
                    self.around(&viewer, &question, &act.home(values)),
                    asking,
                    Some(&problem),
                )
            }
        }
    }
}

/// Returns the address of the fleet of the pipeline that `values` name.
pub(super) fn fleet(values: &FormValues) -> String {
    address("", [("pipeline", values.get("pipeline"))])
}

fn asking_back<'a>(
    act: &'static ActionForm,
    values: &'a FormValues,
    form_token: &'a str,
    is_again: bool,
) -> ConfirmForm<'a> {
    // A browser removes or replaces line breaks in fields.
    let changes = |value: &str| value.contains(char::is_control);
    let fields = act.fields(values, is_again).into_iter();
    let (kept, fields): (Vec<_>, Vec<_>) = fields.partition(|field| changes(&field.value));
    let hidden = act.hidden_values(values).into_iter();
    let (carried, hidden): (Vec<_>, Vec<_>) = hidden.partition(|(_, value)| changes(value));
    let shown = kept.iter().map(|field| (field.name, field.value.as_str()));
    ConfirmForm {
        name: act.name,
        question: act.question(values),
        about: act.about,
        button: act.button,
        is_irreversible: act.is_irreversible,
        also: act.also().map(|other| (other.name, other.button)),
        fields,
        hidden,
        query: query(carried.into_iter().chain(shown)),
        unchanged: kept.into_iter().map(|it| (it.name, it.value)).collect(),
        form_token,
        back: act.home(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A browser removes line breaks from the value of a text field, and sends each line break of a
    /// hidden field as CR LF.
    #[test]
    fn a_value_with_a_line_break_arrives_unchanged() {
        let act = ActionForm::find("drop").expect("one");
        let link = [("id", "7\n8"), ("tenant", "a\r"), ("reason", "a b")];
        let values = FormValues::of(query(link).as_bytes());
        let asking = asking_back(act, &values, "", false);
        let fields = asking.fields.iter();
        let fields = fields.map(|field| (field.name, field.value.as_str()));
        let sent: Vec<_> = fields.chain(asking.hidden.iter().copied()).collect();
        assert!(sent.contains(&("reason", "a b")), "{sent:?}");
        assert!(!sent.iter().any(|(_, value)| value.contains(['\r', '\n'])));
        let shown = asking.unchanged.iter().map(|(_, value)| value);
        assert_eq!(shown.collect::<Vec<_>>(), ["a\r", "7\n8"]);

        let sent = FormValues::of(query(sent).as_bytes()).and(&asking.query);
        let (_, _, asks) = act.asks(&sent).expect("right");
        let expected = serde_json::json!({"id": "7\n8", "tenant": "a\r", "reason": "a b"});
        assert_eq!(serde_json::Value::from(asks), expected);
    }
}
