//! The dialogs with the operator: first one line per missing value, then a confirmation.

use config::Config;
use gate::Change;
use operator::steer;
use operator::tenant::limit_name;
use operator::text::plain;
use operator::trials::Trial;
use rules::limit::{MAX_REQUESTS, ceil_ms};
use rules::tenant::Tenant;

use super::action::Act;
use super::view::parts::NAME;

/// The default duration.
const DEFAULT_DURATION: &str = "1h";
/// Maximum number of typed characters.
const MAX_TYPED_CHARS: usize = 64;

/// A question on the screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Waits for a typed line.
    Line {
        /// The subject of the line.
        step: PromptStep,
        /// The typed text so far.
        text: String,
        /// The reason why the last input was refused.
        wrong: Option<String>,
    },
    /// Waits for the confirmation of an action.
    Sure(Act),
}

/// The value to be typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptStep {
    /// How long a tenant is paused.
    Pause(Tenant),
    /// The name of the limit, with the intended change.
    Name(Tenant, LimitChange),
    /// The limit's maximum.
    Max(Tenant, String),
    /// How long the maximum applies.
    For(Tenant, String, u64),
    /// The maximum to try.
    Try(Tenant, String),
    /// How long the maximum is tried.
    TryFor(Trial),
}

/// An intended change of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitChange {
    /// Sets another maximum for some time.
    Set,
    /// Restores the configured maximum.
    Clear,
    /// Tries another maximum.
    Try,
    /// Ends the trial.
    EndTry,
}

/// The next step.
pub enum DialogStep {
    /// Another question.
    Ask(Prompt),
    /// The request was refused for this reason.
    Refused(String),
}

impl Prompt {
    fn line(step: PromptStep) -> Self {
        Self::Line {
            step,
            text: String::new(),
            wrong: None,
        }
    }

    /// Asks how long `tenant` is to be paused.
    pub fn pause(tenant: Tenant) -> Self {
        Self::line(PromptStep::Pause(tenant))
    }

    /// Asks for the limit of `tenant` and its change. `meant` is the limit that is selected on the
    /// screen.
    pub fn limit(
        config: &Config,
        tenant: Tenant,
        wish: LimitChange,
        meant: Option<&str>,
    ) -> DialogStep {
        let policy = &config.rate_limiter.policy;
        match limit_name(policy, &tenant, meant) {
            Ok(name) => match Self::of_limit(config, tenant, name, wish) {
                Ok(asking) => DialogStep::Ask(asking),
                Err(why) => DialogStep::Refused(plain(&why, 400)),
            },
            Err(_) if meant.is_none() && !names(config, &tenant).is_empty() => {
                DialogStep::Ask(Self::line(PromptStep::Name(tenant, wish)))
            }
            Err(why) => DialogStep::Refused(plain(&why.to_string(), 400)),
        }
    }

    /// Asks how long the limit `name` of `tenant` is to be `max`.
    pub fn enforce(tenant: Tenant, name: String, max: u64) -> Self {
        Self::line(PromptStep::For(tenant, name, max))
    }

    fn of_limit(
        config: &Config,
        tenant: Tenant,
        name: String,
        wish: LimitChange,
    ) -> Result<Self, String> {
        Ok(match wish {
            LimitChange::Set => Self::line(PromptStep::Max(tenant, name)),
            LimitChange::Clear => Self::Sure(Act::Change(tenant, Change::Unlimit { name })),
            LimitChange::Try => {
                // The maximum does not matter here: a limit that holds leases can't be tried.
                tried(config, &tenant, &name, 1)?;
                Self::line(PromptStep::Try(tenant, name))
            }
            LimitChange::EndTry => Self::Sure(Act::EndTry(tenant, name)),
        })
    }

    /// Appends a typed character.
    pub fn types(&mut self, c: char) {
        if let Self::Line { text, .. } = self
            && !c.is_control()
            && text.chars().count() < MAX_TYPED_CHARS
        {
            text.push(c);
        }
    }

    /// Deletes the last character.
    pub fn rubs(&mut self) {
        if let Self::Line { text, .. } = self {
            text.pop();
        }
    }

    /// Takes the typed line. Returns the next question, or the same one with the error.
    pub fn entered(self, config: &Config) -> Self {
        let Self::Line { step, text, .. } = self else {
            return self;
        };
        match next(&step, text.trim(), config) {
            Ok(next) => next,
            Err(wrong) => Self::Line {
                step,
                text,
                wrong: Some(plain(&wrong, 400)),
            },
        }
    }
}

fn next(step: &PromptStep, text: &str, config: &Config) -> Result<Prompt, String> {
    Ok(match step {
        PromptStep::Pause(tenant) => {
            let duration_ms = span(text)?;
            Prompt::Sure(Act::Change(tenant.clone(), Change::Pause { duration_ms }))
        }
        PromptStep::Name(tenant, wish) => {
            let policy = &config.rate_limiter.policy;
            let name = limit_name(policy, tenant, Some(text)).map_err(|why| why.to_string())?;
            Prompt::of_limit(config, tenant.clone(), name, *wish)?
        }
        PromptStep::Max(tenant, name) => {
            Prompt::line(PromptStep::For(tenant.clone(), name.clone(), max(text)?))
        }
        PromptStep::Try(tenant, name) => {
            Prompt::line(PromptStep::TryFor(tried(config, tenant, name, max(text)?)?))
        }
        PromptStep::TryFor(trial) => Prompt::Sure(Act::Try(trial.clone(), span(text)?)),
        PromptStep::For(tenant, name, max) => {
            let change = Change::Limit {
                name: name.clone(),
                max: *max,
                duration_ms: span(text)?,
            };
            Prompt::Sure(Act::Change(tenant.clone(), change))
        }
    })
}

fn max(text: &str) -> Result<u64, String> {
    let max = text.parse().ok();
    let max = max.filter(|max| (1..=MAX_REQUESTS).contains(max));
    max.ok_or_else(|| format!("it must be a number from 1 to {MAX_REQUESTS}"))
}

fn tried(config: &Config, tenant: &Tenant, name: &str, max: u64) -> Result<Trial, String> {
    let policy = &config.rate_limiter.policy;
    let trial = Trial::new(policy, tenant.clone(), name.to_owned(), max);
    trial.map_err(|why| why.to_string())
}

/// Parses a duration into milliseconds. An empty text is the default.
fn span(text: &str) -> Result<u64, String> {
    let text = if text.is_empty() {
        DEFAULT_DURATION
    } else {
        text
    };
    steer::span(text).map(ceil_ms)
}

/// Returns the names of the limits that `tenant` alone has without a plan.
fn names(config: &Config, tenant: &Tenant) -> Vec<String> {
    let (_, limits) = config.rate_limiter.policy.find(tenant, None);
    limits.own().map(|limit| limit.name().to_owned()).collect()
}

impl PromptStep {
    /// Returns the question as text.
    pub fn describe(&self, config: &Config) -> String {
        let name = |tenant: &Tenant| plain(tenant.as_str(), NAME);
        match self {
            Self::Pause(tenant) => {
                format!(
                    "Pause {} for how long? (90s, 30m, 7d; Enter: {DEFAULT_DURATION})",
                    name(tenant)
                )
            }
            Self::Name(tenant, _) => format!(
                "Which limit of {}? ({})",
                name(tenant),
                names(config, tenant).join(", ")
            ),
            Self::Max(tenant, limit) => {
                format!("Limit {limit} of {}: temporary max-requests?", name(tenant))
            }
            Self::Try(tenant, limit) => format!(
                "Limit {limit} of {}: max-requests to try? It denies nothing.",
                name(tenant)
            ),
            Self::TryFor(Trial { tenant, limit, max }) => format!(
                "Limit {limit} of {}: try {max} for how long? (90s, 30m, 7d; Enter: {DEFAULT_DURATION})",
                name(tenant)
            ),
            Self::For(tenant, limit, max) => format!(
                "Limit {limit} of {}: {max} for how long? (90s, 30m, 7d; Enter: {DEFAULT_DURATION})",
                name(tenant)
            ),
        }
    }
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

    fn typed(mut asking: Prompt, text: &str, config: &Config) -> Prompt {
        while matches!(&asking, Prompt::Line { text, .. } if !text.is_empty()) {
            asking.rubs();
        }
        text.chars().for_each(|c| asking.types(c));
        asking.entered(config)
    }

    fn asked(next: DialogStep) -> Prompt {
        match next {
            DialogStep::Ask(asking) => asking,
            DialogStep::Refused(why) => panic!("{why}"),
        }
    }

    fn wrong(asking: &Prompt) -> &str {
        match asking {
            Prompt::Line {
                wrong: Some(why), ..
            } => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pause_asks_for_how_long_and_then_whether() {
        let config = config("");
        let asking = typed(Prompt::pause(tenant()), "soon", &config);
        assert!(wrong(&asking).contains("90s or 1h"), "{asking:?}");
        let asking = typed(asking, "2y", &config);
        assert!(!wrong(&asking).is_empty());
        let pause = Change::Pause {
            duration_ms: 3_600_000,
        };
        let sure = Prompt::Sure(Act::Change(tenant(), pause));
        assert_eq!(typed(asking, "1h", &config), sure);
        assert_eq!(Prompt::pause(tenant()).entered(&config), sure, "is usual");
    }

    #[test]
    fn one_of_several_limits_must_be_named() {
        let one = config("");
        let asking = asked(Prompt::limit(&one, tenant(), LimitChange::Set, None));
        let asking = typed(asking, "0", &one);
        assert_eq!(
            wrong(&asking),
            "it must be a number from 1 to 1000000000000"
        );
        let asking = typed(typed(asking, "7", &one), "30m", &one);
        let change = Change::Limit {
            name: "default".to_owned(),
            max: 7,
            duration_ms: 1_800_000,
        };
        assert_eq!(asking, Prompt::Sure(Act::Change(tenant(), change)));

        let two = config("rate-limiter: {limits: [{name: day}, {name: hour}]}");
        let asking = asked(Prompt::limit(&two, tenant(), LimitChange::Clear, None));
        let Prompt::Line { step, .. } = &asking else {
            panic!("{asking:?}");
        };
        assert_eq!(step.describe(&two), "Which limit of acme? (day, hour)");
        let asking = typed(asking, "hours", &two);
        assert!(
            wrong(&asking).contains("did you mean hour?"),
            "{}",
            wrong(&asking)
        );
        let name = "hour".to_owned();
        let clear = Prompt::Sure(Act::Change(tenant(), Change::Unlimit { name }));
        assert_eq!(typed(asking, "hour", &two), clear);
        // The selected limit is not asked for.
        assert_eq!(
            asked(Prompt::limit(
                &two,
                tenant(),
                LimitChange::Clear,
                Some("hour")
            )),
            clear
        );

        // An impossible one is refused, and no other limit is asked for.
        let shadow = config("rate-limiter: {limits: [{name: day}, {name: hour, shadow: true}]}");
        match Prompt::limit(&shadow, tenant(), LimitChange::Set, Some("hour")) {
            DialogStep::Refused(why) => assert!(why.contains("hour is a shadow"), "{why}"),
            DialogStep::Ask(other) => panic!("{other:?}"),
        }

        let global = config("rate-limiter: {scope: global}");
        match Prompt::limit(&global, tenant(), LimitChange::Set, None) {
            DialogStep::Refused(why) => assert!(why.contains("scope: global"), "{why}"),
            DialogStep::Ask(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_limit_is_tried_if_possible() {
        let config =
            config("rate-limiter: {limits: [{name: day}, {name: at-once, max-concurrent: 4}]}");
        let asking = asked(Prompt::limit(
            &config,
            tenant(),
            LimitChange::Try,
            Some("day"),
        ));
        let asking = typed(asking, "few", &config);
        assert_eq!(
            wrong(&asking),
            "it must be a number from 1 to 1000000000000"
        );
        let asking = typed(typed(asking, "7", &config), "1d", &config);
        let policy = &config.rate_limiter.policy;
        let trial = Trial::new(policy, tenant(), "day".to_owned(), 7).expect("it can be");
        assert_eq!(asking, Prompt::Sure(Act::Try(trial, 86_400_000)));
        // A limit that can't be tried is refused before a number is typed.
        match Prompt::limit(&config, tenant(), LimitChange::Try, Some("at-once")) {
            DialogStep::Refused(why) => assert!(why.contains("max-concurrent"), "{why}"),
            DialogStep::Ask(other) => panic!("{other:?}"),
        }
        let end = asked(Prompt::limit(
            &config,
            tenant(),
            LimitChange::EndTry,
            Some("day"),
        ));
        assert_eq!(end, Prompt::Sure(Act::EndTry(tenant(), "day".to_owned())));
    }

    #[test]
    fn typed_input_is_bounded() {
        let mut asking = Prompt::pause(tenant());
        (0..1_000).for_each(|_| asking.types('1'));
        asking.types('\u{1b}');
        let Prompt::Line { text, .. } = asking else {
            panic!("a line");
        };
        assert_eq!(text.chars().count(), MAX_TYPED_CHARS);
    }
}
