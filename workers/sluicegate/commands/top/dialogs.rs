//! The dialogs with the operator: first one line per missing value, then a confirmation.

use config::Config;
use gate::Change;
use operator::steer;
use operator::tenant::limit_name;
use operator::tenant_action::TenantAction;
use operator::trials::Trial;
use ratatui::crossterm::event::KeyCode;
use rules::limit::{Limit, MAX_REQUESTS, ceil_ms};
use rules::tenant::Tenant;

use super::action::Act;
use super::view::parts::name;

/// The default duration.
const DEFAULT_DURATION: &str = "1h";
/// Maximum number of typed characters.
const MAX_TYPED_CHARS: usize = 64;

/// A question on the screen.
pub enum Prompt {
    /// Waits for a typed line.
    Line(Question),
    /// Waits for the confirmation of an action.
    Sure(Act),
}

/// A question for one value.
pub struct Question {
    pub text: String,
    /// The typed text so far.
    pub typed: String,
    /// The reason why the last input was refused.
    pub wrong: Option<String>,
    next: NextPrompt,
}

/// Takes the typed line, and returns the next question or the error in the line.
type NextPrompt = Box<dyn Fn(&str, &Config) -> Result<Prompt, String> + Send>;

/// A change of a limit.
#[derive(Debug, Clone, Copy)]
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

impl Question {
    fn ask(
        text: String,
        next: impl Fn(&str, &Config) -> Result<Prompt, String> + Send + 'static,
    ) -> Prompt {
        Prompt::Line(Self {
            text,
            typed: String::new(),
            wrong: None,
            next: Box::new(next),
        })
    }

    /// Handles a key. Returns the next question, or the same one, perhaps with an error.
    pub fn pressed(mut self, key: KeyCode, config: &Config) -> Prompt {
        match key {
            KeyCode::Enter => match (self.next)(self.typed.trim(), config) {
                Ok(next) => return next,
                Err(wrong) => self.wrong = Some(wrong),
            },
            KeyCode::Backspace => drop(self.typed.pop()),
            KeyCode::Char(c) if !c.is_control() && self.typed.chars().count() < MAX_TYPED_CHARS => {
                self.typed.push(c);
            }
            _ => {}
        }
        Prompt::Line(self)
    }
}

/// Asks for the duration of an action, and then for its confirmation.
fn ask_duration(what: &str, action: impl Fn(u64) -> TenantAction + Send + 'static) -> Prompt {
    let text = format!("{what} for how long? (90s, 30m, 7d; Enter: {DEFAULT_DURATION})");
    Question::ask(text, move |typed, _| {
        let typed = if typed.is_empty() {
            DEFAULT_DURATION
        } else {
            typed
        };
        let duration_ms = ceil_ms(steer::span(typed)?);
        Ok(Prompt::Sure(Act::Tenant(action(duration_ms))))
    })
}

fn ask_max(
    text: String,
    next: impl Fn(u64, &Config) -> Result<Prompt, String> + Send + 'static,
) -> Prompt {
    Question::ask(text, move |typed, config| {
        let max = typed.parse().ok();
        let max = max.filter(|max| (1..=MAX_REQUESTS).contains(max));
        let wrong = || format!("it must be a number from 1 to {MAX_REQUESTS}");
        next(max.ok_or_else(wrong)?, config)
    })
}

/// Asks for how long to pause `tenant`.
pub fn pause(tenant: Tenant) -> Prompt {
    let what = format!("Pause {}", name(tenant.as_str()));
    ask_duration(&what, move |duration_ms| {
        TenantAction::Change(tenant.clone(), Change::Pause { duration_ms })
    })
}

/// Asks for how long to enforce `max` for the limit `limit` of `tenant`.
pub fn enforce(tenant: Tenant, limit: String, max: u64) -> Prompt {
    let what = format!("Limit {limit} of {}: {max}", name(tenant.as_str()));
    ask_duration(&what, move |duration_ms| {
        let name = limit.clone();
        let change = Change::Limit {
            name,
            max,
            duration_ms,
        };
        TenantAction::Change(tenant.clone(), change)
    })
}

/// Asks for the values of a change of a limit of `tenant`: of `selected`, or of the only one.
///
/// # Errors
/// The reason why the limit can't be changed.
pub fn change_limit(
    change: LimitChange,
    (tenant, selected): (Tenant, Option<&str>),
    config: &Config,
) -> Result<Prompt, String> {
    let policy = &config.rate_limiter.policy;
    let of = name(tenant.as_str());
    let limit = match limit_name(policy, &tenant, selected) {
        Ok(limit) => limit,
        Err(why) => {
            let (_, limits) = policy.find(&tenant, None);
            let names: Vec<&str> = limits.own().map(Limit::name).collect();
            if selected.is_some() || names.is_empty() {
                return Err(why.to_string());
            }
            let text = format!("Which limit of {of}? ({})", names.join(", "));
            return Ok(Question::ask(text, move |typed, config| {
                change_limit(change, (tenant.clone(), Some(typed)), config)
            }));
        }
    };
    let what = format!("Limit {limit} of {of}");
    Ok(match change {
        LimitChange::Clear => {
            let change = Change::Unlimit { name: limit };
            Prompt::Sure(Act::Tenant(TenantAction::Change(tenant, change)))
        }
        LimitChange::EndTry => Prompt::Sure(Act::Tenant(TenantAction::EndTry(tenant, limit))),
        LimitChange::Set => {
            let text = format!("{what}: temporary max-requests?");
            ask_max(text, move |max, _| {
                Ok(enforce(tenant.clone(), limit.clone(), max))
            })
        }
        LimitChange::Try => {
            let trial = move |max, config: &Config| {
                let policy = &config.rate_limiter.policy;
                let trial = Trial::new(policy, tenant.clone(), limit.clone(), max);
                trial.map_err(|why| why.to_string())
            };
            // Some limits can't be tried with any maximum.
            trial(1, config)?;
            let text = format!("{what}: max-requests to try? It denies nothing.");
            ask_max(text, move |max, config| {
                let trial = trial(max, config)?;
                let what = format!("{what}: try {max}");
                Ok(ask_duration(&what, move |ms| {
                    TenantAction::Try(trial.clone(), ms)
                }))
            })
        }
    })
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

    fn question(prompt: Prompt) -> Question {
        match prompt {
            Prompt::Line(question) => question,
            Prompt::Sure(act) => panic!("{act:?}"),
        }
    }

    fn sure(prompt: Prompt) -> TenantAction {
        match prompt {
            Prompt::Sure(Act::Tenant(action)) => action,
            Prompt::Sure(act) => panic!("{act:?}"),
            Prompt::Line(question) => panic!("{}", question.text),
        }
    }

    fn typed(prompt: Prompt, text: &str, config: &Config) -> Prompt {
        let mut question = question(prompt);
        question.typed.clear();
        let keys = text.chars().map(KeyCode::Char).chain([KeyCode::Enter]);
        keys.fold(Prompt::Line(question), |prompt, key| match prompt {
            Prompt::Line(question) => question.pressed(key, config),
            sure => sure,
        })
    }

    fn wrong(prompt: &Prompt) -> &str {
        match prompt {
            Prompt::Line(question) => question.wrong.as_deref().expect("an error"),
            Prompt::Sure(act) => panic!("{act:?}"),
        }
    }

    #[test]
    fn a_pause_asks_for_how_long_and_then_whether() {
        let config = config("");
        let prompt = typed(pause(tenant()), "soon", &config);
        assert!(wrong(&prompt).contains("90s or 1h"), "{}", wrong(&prompt));
        let prompt = typed(prompt, "2y", &config);
        assert!(!wrong(&prompt).is_empty());
        let change = Change::Pause {
            duration_ms: 3_600_000,
        };
        let expected = TenantAction::Change(tenant(), change);
        assert_eq!(sure(typed(prompt, "1h", &config)), expected);
        let usual = typed(pause(tenant()), "", &config);
        assert_eq!(sure(usual), expected);
    }

    #[test]
    fn one_of_several_limits_must_be_named() {
        let one = config("");
        let prompt = change_limit(LimitChange::Set, (tenant(), None), &one).expect("a question");
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
        assert_eq!(sure(prompt), TenantAction::Change(tenant(), change));

        let two = config("rate-limiter: {limits: [{name: day}, {name: hour}]}");
        let prompt = change_limit(LimitChange::Clear, (tenant(), None), &two).expect("a question");
        let question = question(prompt);
        assert_eq!(question.text, "Which limit of acme? (day, hour)");
        let prompt = typed(Prompt::Line(question), "hours", &two);
        assert!(
            wrong(&prompt).contains("did you mean hour?"),
            "{}",
            wrong(&prompt)
        );
        let name = "hour".to_owned();
        let clear = TenantAction::Change(tenant(), Change::Unlimit { name });
        assert_eq!(sure(typed(prompt, "hour", &two)), clear);
        // The selected limit is not asked for.
        let selected = change_limit(LimitChange::Clear, (tenant(), Some("hour")), &two);
        assert_eq!(selected.map(sure), Ok(clear));
        // An impossible one is refused, and no other limit is asked for.
        let shadow = config("rate-limiter: {limits: [{name: day}, {name: hour, shadow: true}]}");
        let why = change_limit(LimitChange::Set, (tenant(), Some("hour")), &shadow)
            .err()
            .expect("it denies nothing");
        assert!(why.contains("hour is a shadow"), "{why}");

        let global = config("rate-limiter: {scope: global}");
        let why = change_limit(LimitChange::Set, (tenant(), None), &global)
            .err()
            .expect("it has none");
        assert!(why.contains("scope: global"), "{why}");
    }

    #[test]
    fn a_limit_is_tried_if_possible() {
        let config =
            config("rate-limiter: {limits: [{name: day}, {name: at-once, max-concurrent: 4}]}");
        let prompt =
            change_limit(LimitChange::Try, (tenant(), Some("day")), &config).expect("a question");
        let prompt = typed(prompt, "few", &config);
        assert_eq!(
            wrong(&prompt),
            "it must be a number from 1 to 1000000000000"
        );
        let prompt = typed(typed(prompt, "7", &config), "1d", &config);
        let policy = &config.rate_limiter.policy;
        let trial = Trial::new(policy, tenant(), "day".to_owned(), 7).expect("it can be");
        let trial = TenantAction::Try(trial, 86_400_000);
        assert_eq!(sure(prompt), trial);
        // A limit that can't be tried is refused before a number is typed.
        let why = change_limit(LimitChange::Try, (tenant(), Some("at-once")), &config)
            .err()
            .expect("it holds leases");
        assert!(why.contains("max-concurrent"), "{why}");
        let end = TenantAction::EndTry(tenant(), "day".to_owned());
        assert_eq!(
            change_limit(LimitChange::EndTry, (tenant(), Some("day")), &config).map(sure),
            Ok(end)
        );
    }

    #[test]
    fn typed_input_is_bounded() {
        let config = config("");
        let prompt = typed(pause(tenant()), &"1".repeat(1_000), &config);
        assert_eq!(question(prompt).typed.chars().count(), MAX_TYPED_CHARS);
        let control = typed(pause(tenant()), "1s\u{1b}", &config);
        let change = Change::Pause { duration_ms: 1_000 };
        assert_eq!(sure(control), TenantAction::Change(tenant(), change));
    }
}
