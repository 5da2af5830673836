//! The dialogs with the operator: first one line per missing value, then a confirmation.

use config::Config;
use gate::Change;
use operator::steer;
use operator::tenant::limit_name;
use operator::tenant_action::TenantAction;
use operator::trials::Trial;
use rules::limit::{MAX_REQUESTS, ceil_ms};
use rules::tenant::Tenant;

use super::action::Act;
use super::view::parts::name;

/// The default duration.
const DEFAULT_DURATION: &str = "1h";
/// Maximum number of typed characters.
const MAX_TYPED_CHARS: usize = 64;

/// A question on the screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Waits for a typed line.
    Line {
        /// The action without the value to be typed.
        draft: Draft,
        /// The typed text so far.
        text: String,
        /// The reason why the last input was refused.
        wrong: Option<String>,
    },
    /// Waits for the confirmation of an action.
    Sure(Act),
}

/// An action on a tenant, whose missing values are to be typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    tenant: Tenant,
    wish: Wish,
    limit: Option<String>,
    max: Option<u64>,
}

/// The kind of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Pauses the tenant.
    Pause,
    /// Sets another maximum of a limit for some time.
    Set,
    /// Restores the configured maximum.
    Clear,
    /// Tries another maximum.
    Try,
    /// Ends the trial.
    EndTry,
}

/// A value to be typed.
enum MissingValue {
    Limit,
    Max,
    Duration,
}

impl Prompt {
    /// Appends a typed character.
    pub fn add(&mut self, c: char) {
        if let Self::Line { text, .. } = self
            && !c.is_control()
            && text.chars().count() < MAX_TYPED_CHARS
        {
            text.push(c);
        }
    }

    /// Deletes the last character.
    pub fn delete(&mut self) {
        if let Self::Line { text, .. } = self {
            text.pop();
        }
    }

    /// Takes the typed line. Returns the next question, or the same one with the error.
    pub fn submit(self, config: &Config) -> Self {
        let Self::Line { draft, text, .. } = self else {
            return self;
        };
        match draft.clone().with(text.trim(), config) {
            Ok(next) => next,
            Err(wrong) => Self::Line {
                draft,
                text,
                wrong: Some(wrong),
            },
        }
    }
}

impl Draft {
    /// Drafts a pause of `tenant`.
    pub fn pause(tenant: Tenant) -> Self {
        Self {
            tenant,
            wish: Wish::Pause,
            limit: None,
            max: None,
        }
    }

    /// Drafts a change of a limit of `tenant`: of `selected`, or of the only one.
    ///
    /// # Errors
    /// The reason why the limit can't be changed.
    pub fn limit(
        config: &Config,
        tenant: Tenant,
        wish: Wish,
        selected: Option<&str>,
    ) -> Result<Self, String> {
        let limit = match limit_name(&config.rate_limiter.policy, &tenant, selected) {
            Ok(name) => Some(name),
            Err(_) if selected.is_none() && !names(config, &tenant).is_empty() => None,
            Err(why) => return Err(why.to_string()),
        };
        Ok(Self {
            wish,
            limit,
            ..Self::pause(tenant)
        })
    }

    /// Drafts the enforcement of `max` for the limit `name` of `tenant`.
    pub fn enforce(tenant: Tenant, name: String, max: u64) -> Self {
        Self {
            wish: Wish::Set,
            limit: Some(name),
            max: Some(max),
            ..Self::pause(tenant)
        }
    }

    fn missing(&self) -> Option<MissingValue> {
        match self.wish {
            Wish::Pause => Some(MissingValue::Duration),
            _ if self.limit.is_none() => Some(MissingValue::Limit),
            Wish::Clear | Wish::EndTry => None,
            Wish::Set | Wish::Try if self.max.is_none() => Some(MissingValue::Max),
            Wish::Set | Wish::Try => Some(MissingValue::Duration),
        }
    }

    /// Asks for the first missing value, or for the confirmation.
    ///
    /// # Errors
    /// The reason why the limit can't be tried.
    pub fn ask(self, config: &Config) -> Result<Prompt, String> {
        if let (Wish::Try, Some(limit)) = (self.wish, &self.limit) {
            // Some limits can't be tried with any maximum.
            let (tenant, max) = (self.tenant.clone(), self.max.unwrap_or(1));
            Trial::new(&config.rate_limiter.policy, tenant, limit.clone(), max)
                .map_err(|why| why.to_string())?;
        }
        Ok(match self.missing() {
            None => Prompt::Sure(self.act(0)),
            Some(_) => Prompt::Line {
                draft: self,
                text: String::new(),
                wrong: None,
            },
        })
    }

    /// Takes the typed text as the missing value.
    fn with(mut self, text: &str, config: &Config) -> Result<Prompt, String> {
        match self.missing() {
            Some(MissingValue::Limit) => {
                let policy = &config.rate_limiter.policy;
                let name = limit_name(policy, &self.tenant, Some(text));
                self.limit = Some(name.map_err(|why| why.to_string())?);
            }
            Some(MissingValue::Max) => {
                let max = text.parse().ok();
                let max = max.filter(|max| (1..=MAX_REQUESTS).contains(max));
                let wrong = || format!("it must be a number from 1 to {MAX_REQUESTS}");
                self.max = Some(max.ok_or_else(wrong)?);
            }
            Some(MissingValue::Duration) | None => {
                let text = if text.is_empty() {
                    DEFAULT_DURATION
                } else {
                    text
                };
                return Ok(Prompt::Sure(self.act(ceil_ms(steer::span(text)?))));
            }
        }
        self.ask(config)
    }

    /// Returns the action, which has all values.
    fn act(self, duration_ms: u64) -> Act {
        let (tenant, max) = (self.tenant, self.max.unwrap_or_default());
        let name = self.limit.unwrap_or_default();
        let change = match self.wish {
            Wish::Pause => Change::Pause { duration_ms },
            Wish::Set => Change::Limit {
                name,
                max,
                duration_ms,
            },
            Wish::Clear => Change::Unlimit { name },
            Wish::Try => {
                let trial = Trial {
                    tenant,
                    limit: name,
                    max,
                };
                return Act::Tenant(TenantAction::Try(trial, duration_ms));
            }
            Wish::EndTry => return Act::Tenant(TenantAction::EndTry(tenant, name)),
        };
        Act::Tenant(TenantAction::Change(tenant, change))
    }

    /// Returns the question for the missing value.
    pub fn describe(&self, config: &Config) -> String {
        let tenant = name(self.tenant.as_str());
        let limit = self.limit.as_deref().unwrap_or_default();
        let tries = self.wish == Wish::Try;
        match (self.missing(), self.max) {
            (Some(MissingValue::Limit), _) => {
                let names = names(config, &self.tenant).join(", ");
                format!("Which limit of {tenant}? ({names})")
            }
            (Some(MissingValue::Max), _) if tries => {
                format!("Limit {limit} of {tenant}: max-requests to try? It denies nothing.")
            }
            (Some(MissingValue::Max), _) => {
                format!("Limit {limit} of {tenant}: temporary max-requests?")
            }
            (_, max) => {
                let change = match max {
                    None => format!("Pause {tenant}"),
                    Some(max) if tries => format!("Limit {limit} of {tenant}: try {max}"),
                    Some(max) => format!("Limit {limit} of {tenant}: {max}"),
                };
                format!("{change} for how long? (90s, 30m, 7d; Enter: {DEFAULT_DURATION})")
            }
        }
    }
}

/// Returns the names of the limits that `tenant` alone has without a plan.
fn names(config: &Config, tenant: &Tenant) -> Vec<String> {
    let (_, limits) = config.rate_limiter.policy.find(tenant, None);
    limits.own().map(|limit| limit.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(yaml: &str) -> Config {
        Config::parse("c.yaml", yaml, std::iter::empty()).expect("valid")
    }

    fn tenant() -> Tenant {
        Tenant::parse("acme").expect("a tenant")
    }

    fn typed(mut prompt: Prompt, text: &str, config: &Config) -> Prompt {
        while matches!(&prompt, Prompt::Line { text, .. } if !text.is_empty()) {
            prompt.delete();
        }
        text.chars().for_each(|c| prompt.add(c));
        prompt.submit(config)
    }

    fn limit(config: &Config, wish: Wish, selected: Option<&str>) -> Result<Prompt, String> {
        Draft::limit(config, tenant(), wish, selected)?.ask(config)
    }

    fn wrong(prompt: &Prompt) -> &str {
        match prompt {
            Prompt::Line {
                wrong: Some(why), ..
            } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pause_asks_for_how_long_and_then_whether() {
        let config = config("");
        let pause = || Draft::pause(tenant()).ask(&config).expect("a question");
        let prompt = typed(pause(), "soon", &config);
        assert!(wrong(&prompt).contains("90s or 1h"), "{prompt:?}");
        let prompt = typed(prompt, "2y", &config);
        assert!(!wrong(&prompt).is_empty());
        let change = Change::Pause {
            duration_ms: 3_600_000,
        };
        let sure = Prompt::Sure(Act::Tenant(TenantAction::Change(tenant(), change)));
        assert_eq!(typed(prompt, "1h", &config), sure);
        assert_eq!(pause().submit(&config), sure, "is usual");
    }

    #[test]
    fn one_of_several_limits_must_be_named() {
        let one = config("");
        let prompt = limit(&one, Wish::Set, None).expect("a question");
        let prompt = typed(prompt, "0", &one);
        assert_eq!(
            wrong(&prompt),
            "it must be a number from 1 to 1000000000000"
        );
        let prompt = typed(typed(prompt, "7", &one), "30m", &one);
        let change = Change::Limit {
            name: "default".to_owned(),
            max: 7,
            duration_ms: 1_800_000,
        };
        assert_eq!(
            prompt,
            Prompt::Sure(Act::Tenant(TenantAction::Change(tenant(), change)))
        );

        let two = config("rate-limiter: {limits: [{name: day}, {name: hour}]}");
        let prompt = limit(&two, Wish::Clear, None).expect("a question");
        let Prompt::Line { draft, .. } = &prompt else {
            panic!("{prompt:?}");
        };
        assert_eq!(draft.describe(&two), "Which limit of acme? (day, hour)");
        let prompt = typed(prompt, "hours", &two);
        assert!(
            wrong(&prompt).contains("did you mean hour?"),
            "{}",
            wrong(&prompt)
        );
        let name = "hour".to_owned();
        let clear = TenantAction::Change(tenant(), Change::Unlimit { name });
        let clear = Prompt::Sure(Act::Tenant(clear));
        assert_eq!(typed(prompt, "hour", &two), clear);
        // The selected limit is not asked for.
        assert_eq!(limit(&two, Wish::Clear, Some("hour")), Ok(clear));
        // An impossible one is refused, and no other limit is asked for.
        let shadow = config("rate-limiter: {limits: [{name: day}, {name: hour, shadow: true}]}");
        let why = limit(&shadow, Wish::Set, Some("hour")).expect_err("it denies nothing");
        assert!(why.contains("hour is a shadow"), "{why}");

        let global = config("rate-limiter: {scope: global}");
        let why = limit(&global, Wish::Set, None).expect_err("it has none");
        assert!(why.contains("scope: global"), "{why}");
    }

    #[test]
    fn a_limit_is_tried_if_possible() {
        let config =
            config("rate-limiter: {limits: [{name: day}, {name: at-once, max-concurrent: 4}]}");
        let prompt = limit(&config, Wish::Try, Some("day")).expect("a question");
        let prompt = typed(prompt, "few", &config);
        assert_eq!(
            wrong(&prompt),
            "it must be a number from 1 to 1000000000000"
        );
        let prompt = typed(typed(prompt, "7", &config), "1d", &config);
        let policy = &config.rate_limiter.policy;
        let trial = Trial::new(policy, tenant(), "day".to_owned(), 7).expect("it can be");
        let trial = TenantAction::Try(trial, 86_400_000);
        assert_eq!(prompt, Prompt::Sure(Act::Tenant(trial)));
        // A limit that can't be tried is refused before a number is typed.
        let why = limit(&config, Wish::Try, Some("at-once")).expect_err("it holds leases");
        assert!(why.contains("max-concurrent"), "{why}");
        let end = TenantAction::EndTry(tenant(), "day".to_owned());
        let end = Prompt::Sure(Act::Tenant(end));
        assert_eq!(limit(&config, Wish::EndTry, Some("day")), Ok(end));
    }

    #[test]
    fn typed_input_is_bounded() {
        let config = config("");
        let mut prompt = Draft::pause(tenant()).ask(&config).expect("a question");
        (0..1_000).for_each(|_| prompt.add('1'));
        prompt.add('\u{1b}');
        let Prompt::Line { text, .. } = prompt else {
            panic!("a line");
        };
        assert_eq!(text.chars().count(), MAX_TYPED_CHARS);
    }
}
