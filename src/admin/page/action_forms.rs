//! Actions: each action of `/api/v1` as a form that asks for confirmation. The table of the API
//! defines the fields.

use axum::http::HeaderMap;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use super::text::{address, query};
use crate::api::{ApiProblem, ApiRoute, Param, ParamKind, ParamLocation, route};
use operator::times::at;

/// An action on the page.
pub struct ActionForm {
    /// Name in addresses.
    pub name: &'static str,
    /// Path in the table of `/api/v1`.
    pub path: &'static str,
    /// Question in the form; `{}` stands for the tenant or the job.
    pub question: &'static str,
    /// Effect in a sentence.
    pub about: &'static str,
    /// Label of the button.
    pub button: &'static str,
    /// Whether the action can't be undone.
    pub is_irreversible: bool,
    /// Default values of fields.
    usual: &'static [(&'static str, &'static str)],
    /// Parameters with a fixed value instead of a field. One with an empty value is never sent.
    fixed: &'static [(&'static str, &'static str)],
    /// A parameter that has no field because another action covers it. It is still read from a
    /// form, since a page loaded before an upgrade may send it.
    hidden: Option<&'static str>,
    /// Name of another action that the form offers.
    also: Option<&'static str>,
}

/// Fixed parameters of an action that starts a trial.
const TRY: &[(&str, &str)] = &[("shadow", "true"), ("clear", "")];
/// Fixed parameters of an action that ends a trial.
const END_TRY: &[(&str, &str)] = &[
    ("shadow", "true"),
    ("clear", "true"),
    ("max", ""),
    ("for", ""),
];
/// Fixed parameters of an action that enforces a limit.
const ENFORCE: &[(&str, &str)] = &[("shadow", ""), ("clear", "")];

/// All actions.
#[rustfmt::skip]
pub const ACTION_FORMS: [ActionForm; 16] = [
    act("pause", "/tenants/{tenant}/pause", "Pause {}?",
        "No job of this tenant is admitted until then. Its jobs wait; none is lost.", "Pause", &[("for", "1h")]),
    act("resume", "/tenants/{tenant}/resume", "Resume {}?",
        "Ends this tenant's pause and throttle, and closes its breaker.", "Resume", &[]),
    ActionForm { hidden: Some("shadow"), also: Some("try"), ..act("limit", "/tenants/{tenant}/limit", "Change a limit of {}?",
        "Sets a temporary max-requests. After that, the configured limit applies again. Try it \
        first to see its effect.", "Change", &[("for", "1h")]) },
    ActionForm { fixed: TRY, ..act("try", "/tenants/{tenant}/limit", "Try a limit of {}?",
        "Counts another max-requests as a shadow for a time: it denies nothing, and this page \
        shows what it would have done. The enforced limit does not change.", "Try it", &[("for", "1d")]) },
    ActionForm { fixed: ENFORCE, ..act("enforce", "/tenants/{tenant}/limit", "Enforce the tried \
        limit of {}?",
        "All workers enforce this max-requests at once, including jobs that have already started, \
        and the trial ends. After that time, the configured limit applies again.", "Enforce it", &[("for", "1h")]) },
    ActionForm { fixed: END_TRY, ..act("end-try", "/tenants/{tenant}/limit", "End the trial of {}?",
        "Ends the trial. The enforced limit does not change.", "End the trial", &[]) },
    act("reset", "/tenants/{tenant}/reset", "Empty the waitlist of {}?",
        "The jobs stay and ask for new turns. Limits still hold.", "Empty it", &[]),
    act("divert", "/tenants/{tenant}/divert", "Divert the jobs of {}?",
        "Moves its jobs to another queue instead of calling them.", "Divert", &[("for", "1h")]),
    act("undivert", "/tenants/{tenant}/undivert", "Stop diverting {}?",
        "Its jobs are called again.", "Stop diverting", &[]),
    irreversible("cancel", "/tenants/{tenant}/jobs/{id}/cancel", "Cancel the job {}?",
        "The job is not called again and becomes a dead letter.", "Cancel the job", &[("for", "24h")]),
    irreversible("pause-all", "/pause", "Pause all workers?",
        "No worker makes a call until then. Calls in flight finish.", "Pause all", &[("for", "1h")]),
    act("drain", "/drain", "Drain all workers?",
        "No worker takes a new job until then. Jobs that were already taken are finished.", "Drain", &[("for", "1h")]),
    act("resume-all", "/resume", "Resume all workers?",
        "Ends a pause and a drain of all workers.", "Resume all", &[]),
    act("resume-calls", "/calls/resume", "Resume the calls of all tenants?",
        "Ends the throttle and closes the breaker of all tenants together. A tenant's own \
        suspension stays.", "Resume calls", &[]),
    act("replay", "/dead/replay", "Replay dead letters?",
        "Returns them to the work queue as new jobs, for at most 5 s: repeat it for the rest.", "Replay", &[]),
    irreversible("drop", "/dead/drop", "Delete dead letters?",
        "This can't be undone.", "Delete", &[]),
];

const fn act(
    name: &'static str,
    path: &'static str,
    question: &'static str,
    about: &'static str,
    button: &'static str,
    usual: &'static [(&'static str, &'static str)],
) -> ActionForm {
    ActionForm {
        name,
        path,
        question,
        about,
        button,
        is_irreversible: false,
        usual,
        fixed: &[],
        hidden: None,
        also: None,
    }
}

const fn irreversible(
    name: &'static str,
    path: &'static str,
    question: &'static str,
    about: &'static str,
    button: &'static str,
    usual: &'static [(&'static str, &'static str)],
) -> ActionForm {
    ActionForm {
        is_irreversible: true,
        ..act(name, path, question, about, button, usual)
    }
}

/// Values of a form, or of the link to it.
#[derive(Debug, Default, Clone)]
pub struct FormValues(Vec<(String, String)>);

impl FormValues {
    /// Parses a query or a form's body.
    pub fn of(text: &[u8]) -> Self {
        let pairs = url::form_urlencoded::parse(text);
        Self(pairs.into_owned().collect())
    }

    /// Adds the values of `query`, behind the values of the form.
    pub fn and(mut self, query: &str) -> Self {
        self.0.extend(Self::of(query.as_bytes()).0);
        self
    }

    /// Returns the value with this name; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// A field of a form.
pub struct FormField {
    pub name: &'static str,
    pub about: &'static str,
    pub value: String,
    /// Type of the input element: `text`, `number` or `checkbox`.
    pub kind: &'static str,
    pub is_checked: bool,
    pub min: Option<u64>,
    pub max: Option<u64>,
    pub longest: Option<usize>,
    /// Whether the field has the focus when the form opens.
    pub is_first: bool,
}

impl ActionForm {
    /// Returns the action with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ACTION_FORMS.iter().find(|act| act.name == name)
    }

    fn route(&self) -> &'static ApiRoute {
        route(self.path).expect("each is one of the table, as a test says")
    }

    /// Returns the other action that the form offers.
    pub fn also(&self) -> Option<&'static Self> {
        self.also.and_then(Self::find)
    }

    /// Returns the fixed value of a parameter, empty if it is never sent, or `None` if it is a
    /// field.
    fn fixed(&self, name: &str) -> Option<&'static str> {
        let mut fixed = self.fixed.iter();
        fixed.find_map(|(known, value)| (*known == name).then_some(*value))
    }

    /// Returns the names of the parameters that identify the subject: a tenant, a job.
    pub fn subject(&self) -> Vec<&'static str> {
        (self.route().params_in(ParamLocation::Path))
            .map(|param| param.name)
            .collect()
    }

    /// Returns the question of the form.
    pub fn question(&self, values: &FormValues) -> String {
        let subject = self.subject();
        let name = values.get(subject.last().copied().unwrap_or_default());
        let mut question = self.question.replacen("{}", name, 1);
        if subject.len() > 1 {
            let of = values.get(subject[0]);
            question = format!("{} of {of}?", question.trim_end_matches('?'));
        }
        match values.get("pipeline") {
            "" => question,
            pipeline => format!("{} (pipeline {pipeline})?", question.trim_end_matches('?')),
        }
    }

    /// Returns the fields, with the values given so far.
    pub fn fields(&self, values: &FormValues, is_again: bool) -> Vec<FormField> {
        let fields = self.route().params_in(ParamLocation::Body);
        let fields = fields.filter(|it| {
            self.fixed(it.name).is_none() && self.hidden.is_none_or(|one| one != it.name)
        });
        let fields = fields.enumerate();
        let field = |(location, param): (usize, &'static Param)| {
            let usual = self.usual.iter().find(|(name, _)| *name == param.name);
            let usual = usual.map_or("", |(_, value)| value);
            let value = match values.get(param.name) {
                "" if is_again => "",
                "" => usual,
                value => value,
            };
            let (kind, min, max, longest) = match param.kind {
                ParamKind::Flag => ("checkbox", None, None, None),
                ParamKind::Number { min, max } => ("number", Some(min), Some(max), None),
                ParamKind::Text(max) => ("text", None, None, Some(max)),
                ParamKind::Span | ParamKind::Rate | ParamKind::Word(_) => {
                    ("text", None, None, Some(64))
                }
            };
            FormField {
                name: param.name,
                about: param.about,
                value: value.to_owned(),
                kind,
                is_checked: kind == "checkbox" && !value.is_empty(),
                min,
                max,
                longest,
                is_first: location == 0,
            }
        };
        fields.map(field).collect()
    }

    /// Returns the values of the address that the form keeps in hidden fields.
    pub fn hidden_values<'a>(&self, values: &'a FormValues) -> Vec<(&'static str, &'a str)> {
        let mut hidden: Vec<_> = (self.subject().into_iter())
            .map(|name| (name, values.get(name)))
            .collect();
        if self.route().accepts_pipeline() {
            hidden.push(("pipeline", values.get("pipeline")));
        }
        hidden.retain(|(_, value)| !value.is_empty());
        hidden
    }

    /// Returns the request to `/api/v1`: path, query and fields.
    ///
    /// # Errors
    /// A value is missing, or is not a number.
    pub fn asks(
        &self,
        values: &FormValues,
    ) -> Result<(String, String, Map<String, Value>), ApiProblem> {
        let mut path = self.path.to_owned();
        for name in self.subject() {
            let value = values.get(name);
            if value.is_empty() {
                return Err(ApiProblem::wrong(format!("which {name}?")));
            }
            let part = utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
            path = path.replacen(&format!("{{{name}}}"), &part, 1);
        }
        let mut fields = Map::new();
        for param in self.route().params_in(ParamLocation::Body) {
            let text = values.get(param.name);
            let value = self.fixed(param.name).unwrap_or(text);
            if value.is_empty() {
                continue;
            }
            let value: Value = match param.kind {
                ParamKind::Flag => true.into(),
                ParamKind::Number { .. } => {
                    let number = value.trim().parse::<u64>();
                    let words =
                        |_| ApiProblem::wrong(format!("{}: must be a whole number", param.name));
                    number.map_err(words)?.into()
                }
                // A name may begin or end with spaces.
                ParamKind::Text(_) => value.into(),
                _ => value.trim().into(),
            };
            fields.insert(param.name.to_owned(), value);
        }
        let pipeline = match self.route().accepts_pipeline() {
            true => values.get("pipeline"),
            false => "",
        };
        Ok((path, query([("pipeline", pipeline)]), fields))
    }

    /// Returns the page, below `/ui`, that links to the action and is shown after it.
    pub fn home(&self, values: &FormValues) -> String {
        let pipeline = values.get("pipeline");
        let of_dead = self.path.starts_with("/dead");
        let (path, pairs) = match values.get("tenant") {
            "" if of_dead => ("/dead", [("pipeline", pipeline), ("", "")]),
            _ if of_dead => (
                "/dead",
                [("tenant", values.get("tenant")), ("pipeline", pipeline)],
            ),
            "" => ("", [("pipeline", pipeline), ("", "")]),
            tenant => ("/tenant", [("name", tenant), ("pipeline", pipeline)]),
        };
        address(path, pairs)
    }

    /// Describes the completed action in one line.
    pub fn done(&self, values: &FormValues, answer: &Value) -> String {
        let question = self.question(values);
        let question = question.trim_end_matches('?');
        let mut words = Vec::new();
        list(answer, "", &mut words);
        format!("Done: {question}. {}", words.join(" · "))
    }
}

/// Appends the fields of an answer to `words`.
fn list(answer: &Value, before: &str, words: &mut Vec<String>) {
    let Some(fields) = answer.as_object() else {
        return;
    };
    for (name, value) in fields {
        let spoken = name.trim_end_matches("_ms").replace('_', " ");
        match value {
            Value::Null | Value::Array(_) | Value::Bool(false) => {}
            Value::Object(_) => list(value, &format!("{spoken} "), words),
            Value::Number(ms) if name.ends_with("until_ms") => {
                let time = ms.as_u64().filter(|ms| *ms > 0).map(at);
                words.extend(time.map(|time| format!("{before}{spoken} {time}")));
            }
            // The question contains it.
            Value::String(_) if name == "tenant" || name == "id" => {}
            Value::String(text) => words.push(format!("{before}{spoken} {text}")),
            other => words.push(format!("{before}{spoken} {other}")),
        }
    }
}

/// Returns true if the request's body is a form as browsers send it.
pub fn is_form(headers: &HeaderMap) -> bool {
    let kind = crate::api::one(headers, &axum::http::header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| {
        kind.trim()
            .eq_ignore_ascii_case("application/x-www-form-urlencoded")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_action_of_the_api_has_a_form() {
        for act in &ACTION_FORMS {
            assert!(
                act.fields(&FormValues::default(), false).len() < 8,
                "{}",
                act.name
            );
            assert_eq!(act.question.contains("{}"), !act.subject().is_empty());
            let fields = act.fields(&FormValues::default(), false);
            for (name, _) in act.usual {
                assert!(fields.iter().any(|field| field.name == *name), "{name}");
            }
        }
        let paths = crate::api::actions();
        let missing: Vec<_> = paths
            .filter(|path| !ACTION_FORMS.iter().any(|act| act.path == *path))
            .collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn a_form_and_a_request_mean_the_same() {
        let act = ActionForm::find("limit").expect("one");
        let values = FormValues::of(b"tenant=a%2Fb%3F&max=9&for=+30m&clear=&pipeline=mail");
        assert_eq!(
            act.question(&values),
            "Change a limit of a/b (pipeline mail)?"
        );
        let (path, query, fields) = act.asks(&values).expect("right");
        assert_eq!(
            (path.as_str(), query.as_str()),
            ("/tenants/a%2Fb%3F/limit", "pipeline=mail")
        );
        assert_eq!(Value::from(fields), json!({"max": 9, "for": "30m"}));
        assert_eq!(act.home(&values), "/ui/tenant?name=a%2Fb%3F&pipeline=mail");
        let wrong = act
            .asks(&FormValues::of(b"tenant=a&max=x"))
            .expect_err("no number");
        assert_eq!(wrong.words(), "max: must be a whole number");
        let none = act.asks(&FormValues::of(b"max=9")).expect_err("no tenant");
        assert_eq!(none.words(), "which tenant?");
        let drop = ActionForm::find("drop").expect("one");
        let (_, _, fields) = drop.asks(&FormValues::of(b"all=on")).expect("right");
        assert_eq!(Value::from(fields), json!({"all": true}));
        let (_, _, fields) = drop
            .asks(&FormValues::of(b"id=7+&tenant=+a"))
            .expect("right");
        assert_eq!(Value::from(fields), json!({"id": "7 ", "tenant": " a"}));
        let cancel = ActionForm::find("cancel").expect("one");
        let values = FormValues::of(b"tenant=acme&id=7");
        assert_eq!(cancel.question(&values), "Cancel the job 7 of acme?");
    }

    #[test]
    fn trying_a_limit_never_enforces_it() {
        let asks = |name: &str, form: &str| {
            let act = ActionForm::find(name).expect("one");
            let values = FormValues::of(format!("tenant=acme&{form}").as_bytes());
            let (path, _, fields) = act.asks(&values).expect("it makes sense");
            assert_eq!(path, "/tenants/acme/limit");
            Value::from(fields)
        };
        let all = "max=5&limit=few&for=1d&clear=on&shadow=on";
        let expected = json!({"max": 5, "limit": "few", "for": "1d", "shadow": true});
        assert_eq!(asks("try", all), expected);
        let expected = json!({"limit": "few", "clear": true, "shadow": true});
        assert_eq!(asks("end-try", all), expected);
        let expected = json!({"max": 5, "limit": "few", "for": "1d"});
        assert_eq!(asks("enforce", all), expected);
        // A page loaded before an upgrade may still send `shadow`.
        let expected = json!({"max": 5, "shadow": true});
        assert_eq!(asks("limit", "max=5&shadow=on"), expected);
    }

    #[test]
    fn a_completed_action_is_reported_in_one_line() {
        let act = ActionForm::find("pause").expect("one");
        let answer = json!({"tenant": "acme", "change": "pause", "until_ms": 1_700_000_000_000_u64, "x": null});
        assert_eq!(
            act.done(&FormValues::of(b"tenant=acme"), &answer),
            "Done: Pause acme. change pause · until Tue, 14 Nov 2023 22:13:20 GMT"
        );
    }
}
