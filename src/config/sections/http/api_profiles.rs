//! API profiles: the limits and answers of known APIs, as data. `apis` has a file for each:
//! its sources, limits by plan, and rules on its answers. `dispatch.http.api` chooses one.

use std::fmt::{self, Display};
use std::sync::Arc;

use super::answers::{AnswersReader, MAX_TEXT_BYTES};
use crate::reading::{
    ConfigErrors, ConfigProblem, Node, Origin, Position, Raw, Show, ShownValue, parse, wrong, yaml,
};
use rules::answers::AnswerRules;

/// Declares the profiles by their names in `apis`.
macro_rules! profiles {
    ($($name:literal,)+) => {
        /// The names of all profiles, with their files.
        const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../apis/", $name, ".yaml"))),)+
        ];
    };
}

profiles! {
    "amazon-sp-api",
    "anthropic",
    "atlassian",
    "azure-devops",
    "azure-openai",
    "discord",
    "github",
    "gitlab",
    "google",
    "hubspot",
    "microsoft-graph",
    "notion",
    "openai",
    "salesforce",
    "sendgrid",
    "shopify",
    "shopify-graphql",
    "slack",
    "stripe",
    "twilio",
    "zendesk",
}

/// Maximum number of sources, plans or limits of a plan.
const MAX_ITEMS: usize = 32;

/// The name of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiName(&'static str);

impl ApiName {
    /// Returns the names of all profiles.
    pub(crate) fn all() -> Vec<(&'static str, Self)> {
        FILES.iter().map(|(name, _)| (*name, Self(name))).collect()
    }
}

impl Show for ApiName {
    fn shown(&self) -> Option<ShownValue> {
        Some(ShownValue::bare(self))
    }
}

impl fmt::Display for ApiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The limits and answers of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiProfile {
    /// Its name, such as `github`.
    pub name: String,
    /// The API's name for people.
    pub title: String,
    /// Public pages that the profile follows.
    pub sources: Vec<String>,
    /// The date at which the sources were read.
    pub checked: String,
    /// URL of a call, if each tenant has its own host.
    pub url: Option<String>,
    /// Headers with the credentials of a tenant, if each tenant has its own.
    pub headers: Vec<(String, String)>,
    /// Limits by plan; the first plan is the default. At least one.
    pub plans: Vec<ApiPlan>,
    /// Rules on answers, and the sources of a call's cost.
    pub rules: AnswerRules,
}

/// The limits of a plan of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiPlan {
    /// Its name.
    pub name: String,
    /// What a tenant and a unit are; may be empty.
    pub note: String,
    /// Items of `rate-limiter.limits`, each as a YAML mapping on one line.
    pub limits: Vec<String>,
}

impl ApiProfile {
    /// Returns the names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FILES.iter().map(|(name, _)| *name)
    }

    /// Returns the profile with this name.
    pub fn of(name: ApiName) -> Self {
        Self::find(name.0).expect("a name comes from the list")
    }

    /// Returns the profile called `name`.
    pub fn find(name: &str) -> Option<Self> {
        let (name, text) = FILES.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("a test reads all profiles"))
    }

    /// Parses the file of the profile `name`.
    ///
    /// # Errors
    /// All mistakes in the file.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigErrors> {
        let file: Arc<str> = format!("apis/{name}.yaml").into();
        let raw = match yaml::read(text) {
            Ok(raw) => raw.unwrap_or(Raw::Null),
            Err(error) => {
                let origin = Origin::WholeFile(file);
                let problem = ConfigProblem::new(origin, error.message);
                return Err(ConfigErrors::new(vec![problem]));
            }
        };
        let at = Origin::File {
            name: file,
            at: Position { line: 1, column: 1 },
        };
        let mut problems = Vec::new();
        let mut reader = AnswersReader {
            problems: &mut problems,
        };
        let profile = reader.profile(name, &Node::new(&raw, at, name));
        match profile.filter(|_| problems.is_empty()) {
            Some(profile) => Ok(profile),
            None => Err(ConfigErrors::new(problems)),
        }
    }

    /// Returns true if the API counts what each call costs. Limits without a unit count one unit
    /// per call, unless jobs state their costs.
    pub fn prices_calls(&self) -> bool {
        let mut limits = self.plans.iter().flat_map(|plan| &plan.limits);
        limits.any(|limit| limit.contains("unit: cost"))
    }

    /// Returns the plan called `name`, or the default one.
    pub fn plan(&self, name: Option<&str>) -> Option<&ApiPlan> {
        match name {
            Some(name) => self.plans.iter().find(|plan| plan.name == name),
            None => self.plans.first(),
        }
    }
}

impl AnswersReader<'_> {
    fn profile(&mut self, name: &str, node: &Node<'_>) -> Option<ApiProfile> {
        let known = [
            "title", "sources", "checked", "url", "headers", "plans", "answers", "cost",
        ];
        self.fields(node, &known, "a profile")?;
        let title = self.needed(node, "title", Self::line);
        let sources = self.needed(node, "sources", |reader, sources| {
            let sources = reader.items(sources, MAX_ITEMS, "addresses")?;
            reader.each(sources, Self::line)
        });
        let checked = self.needed(node, "checked", Self::line);
        let url = self.optional(node, "url", |reader, url| reader.line(url).map(Some));
        let headers = self.optional(node, "headers", |reader, headers| {
            let headers = reader.names(headers, MAX_ITEMS, "headers")?;
            reader.each(headers, |reader, header| {
                Some((header.name.to_owned(), reader.line(header)?))
            })
        });
        let plans = self.needed(node, "plans", Self::plans);
        let rules = self.needed(node, "answers", Self::rules);
        let cost = self.optional(node, "cost", Self::cost);
        Some(ApiProfile {
            name: name.to_owned(),
            title: title?,
            sources: sources?,
            checked: checked?,
            url: url?,
            headers: headers?,
            plans: plans?,
            rules: AnswerRules {
                rules: rules?,
                cost: cost?,
            },
        })
    }

    fn line(&mut self, node: &Node<'_>) -> Option<String> {
        match parse::text(node.raw, "a text on one line") {
            Ok(text) if text.len() <= MAX_TEXT_BYTES && !text.contains(char::is_control) => {
                Some(text.to_owned())
            }
            Ok(_) => self.wrong(node, "is too long or has several lines"),
            Err(words) => self.wrong(node, words),
        }
    }

    fn plans(&mut self, node: &Node<'_>) -> Option<Vec<ApiPlan>> {
        let plans = self.names(node, MAX_ITEMS, "plans")?;
        if plans.is_empty() {
            return self.wrong(node, "is empty; it must have a plan");
        }
        self.each(plans, |reader, plan| {
            reader.fields(plan, &["note", "limits"], "limits")?;
            let limits = reader.needed(plan, "limits", |reader, limits| {
                let items = reader.items(limits, MAX_ITEMS, "limits")?;
                reader.each(items, |reader, item| {
                    reader.value(
                        item,
                        flow(item.raw).ok_or_else(|| wrong(item.raw, "a limit")),
                    )
                })
            });
            Some(ApiPlan {
                name: plan.name.to_owned(),
                limits: limits?,
                note: reader.optional(plan, "note", Self::line)?,
            })
        })
    }
}

/// Returns a mapping of names to scalars as YAML on one line.
fn flow(raw: &Raw) -> Option<String> {
    let Raw::Map(fields) = raw else {
        return None;
    };
    let is_plain = |text: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
        text.chars().all(fits) && !text.ends_with(':') && !text.is_empty()
    };
    let pair = |name: &str, value: &dyn Display| Some(format!("{name}: {value}"));
    let fields = fields.iter().map(|field| match &field.raw {
        Raw::Int(number) => pair(&field.name, number),
        Raw::Bool(truth) => pair(&field.name, truth),
        Raw::Text(text) if is_plain(text) => pair(&field.name, text),
        // A JSON text is also a YAML text.
        Raw::Text(text) => pair(&field.name, &serde_json::Value::from(text.as_str())),
        _ => None,
    });
    let fields = fields.collect::<Option<Vec<String>>>()?;
    Some(format!("{{{}}}", fields.join(", ")))
}
