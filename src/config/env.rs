//! Environment variables: `SLUICEGATE_RATE_LIMITER__USE_ALGO` sets `rate-limiter.use-algo`.

use super::keys::{KEYS, LIST_KEY};
use super::reading::key::{PREFIX, env_name};
use super::reading::{ConfigKey, ConfigProblem, KeyEntry, Origin, Raw, closest, yaml};
use super::sections::rate_limiter::limit_keys::LIST_ONLY;
use super::values::pipeline_name::{PipelineName, SHARED};

/// Variable of the `--config` option. It has our prefix but sets no key.
const CONFIG: &str = "SLUICEGATE_CONFIG";
/// Variable of the `--pipeline` option, which sets no key either.
const PIPELINE: &str = "SLUICEGATE_PIPELINE";
/// Prefix of variables that set keys of pipelines.
const OF_PIPELINES: &str = "SLUICEGATE_PIPELINES__";

/// Keys that variables set.
#[derive(Debug, Default)]
pub(super) struct EnvKeys {
    /// Keys at the top level.
    pub entries: Vec<KeyEntry>,
    /// Keys of each pipeline, in the order of `names`.
    pub pipelines: Vec<Vec<KeyEntry>>,
}

/// Returns the keys that `env` sets at the top level and in the pipelines `names`, and the problems
/// of other variables that begin with `SLUICEGATE_`.
pub(super) fn parse(
    env: impl Iterator<Item = (String, String)>,
    names: &[PipelineName],
) -> (EnvKeys, Vec<ConfigProblem>) {
    let mut vars: Vec<_> = env.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    // Sorted, so that errors have a stable order.
    vars.sort();
    let mut found = EnvKeys {
        entries: Vec::new(),
        pipelines: names.iter().map(|_| Vec::new()).collect(),
    };
    let begins: Vec<String> = names.iter().map(PipelineName::env_prefix).collect();
    let mut problems = Vec::new();
    for (name, value) in vars {
        if [CONFIG, PIPELINE].contains(&name.as_str()) || set_by_kubernetes(&name, &value) {
            continue;
        }
        let at = Origin::Env(name.clone());
        // Translate a pipeline's variable to the name that it would have at the top level.
        let mut all = begins.iter().enumerate();
        let of = all.find_map(|(of, begin)| Some((of, name.strip_prefix(begin)?)));
        if of.is_none() && name.starts_with(OF_PIPELINES) {
            problems.push(unknown_pipeline(at, names));
            continue;
        }
        let (entries, plain, begin) = match of {
            Some((of, rest)) => {
                let plain = format!("{PREFIX}{rest}");
                (&mut found.pipelines[of], plain, begins[of].as_str())
            }
            None => (&mut found.entries, name.clone(), PREFIX),
        };
        let shared = SHARED.iter().any(|shared| is_in(&plain, shared));
        let words = "sets a key that applies to all pipelines; remove the pipeline from its name";
        let read = match find(&plain) {
            _ if of.is_some() && shared => Err(ConfigProblem::new(at, words)),
            Some(key) => entry(key, at, value),
            None if is_in(&plain, LIST_KEY) => Err(ConfigProblem::of(&at, LIST_KEY, LIST_ONLY)),
            None => Err(unknown(at, &plain, begin)),
        };
        match read {
            Ok(entry) => entries.push(entry),
            Err(problem) => problems.push(problem),
        }
    }
    (found, problems)
}

/// Returns the entry of a variable that sets `key`.
fn entry(key: &ConfigKey, at: Origin, value: String) -> Result<KeyEntry, ConfigProblem> {
    let wrong = |words: &str| ConfigProblem::of(&at, key.path, words);
    if value.is_empty() {
        return Err(wrong("is empty; set a value or unset the variable"));
    }
    let raw = match key.is_tree().then(|| yaml::read(&value)) {
        None => Raw::Text(value),
        Some(Ok(raw)) => raw.unwrap_or(Raw::Null),
        // The parser's message may contain a secret.
        Some(Err(_)) if key.secret => return Err(wrong("is not valid YAML")),
        Some(Err(error)) => return Err(wrong(&error.message)),
    };
    let path = key.path;
    Ok(KeyEntry { path, raw, at })
}

/// Returns true if the variable `name` sets the key `path`, or one below it.
fn is_in(name: &str, path: &str) -> bool {
    let rest = name.strip_prefix(&env_name(path));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("__"))
}

fn unknown_pipeline(at: Origin, names: &[PipelineName]) -> ConfigProblem {
    let words = match names {
        [] => "sets a key of a pipeline, but the file has no `pipelines`".to_owned(),
        names => {
            let begins: Vec<String> = names.iter().map(PipelineName::env_prefix).collect();
            let begins = begins.join("…, ");
            format!(
                "sets a key of an unknown pipeline; variables of the file's pipelines begin \
                with {begins}…"
            )
        }
    };
    ConfigProblem::new(at, words)
}

/// Returns the key that the variable `name` sets.
fn find(name: &str) -> Option<&'static ConfigKey> {
    KEYS.iter().find(|key| key.env_name() == name).copied()
}

/// Returns the problem of a variable that sets no key. `begin` is the prefix of its group of
/// variables.
fn unknown(at: Origin, name: &str, begin: &str) -> ConfigProblem {
    let full = |known: &str| known.replacen(PREFIX, begin, 1);
    let within = |key: &&&ConfigKey| name.starts_with(&format!("{}__", key.env_name()));
    if let Some(tree) = KEYS.iter().filter(|key| key.is_tree()).find(within) {
        let words = format!(
            "sets no key; set {} as a whole, as YAML text in {}",
            tree.path,
            full(&tree.env_name())
        );
        return ConfigProblem::new(at, words);
    }
    let names: Vec<String> = KEYS.iter().map(|key| key.env_name()).collect();
    // One `_` instead of two is the most likely mistake, so it is checked first.
    let flat = |name: &str| name.replace("__", "_");
    let meant = names
        .iter()
        .find(|known| flat(known) == flat(name))
        .map(String::as_str)
        .or_else(|| closest(name, names.iter().map(String::as_str)));
    let hint = match meant {
        Some(meant) => format!("did you mean {}?", full(meant)),
        None => "docs/CONFIGURATION.md lists all keys".to_owned(),
    };
    ConfigProblem::new(at, format!("sets no key; {hint}"))
}

/// Returns true for variables that Kubernetes sets. It sets `X_PORT`, `X_SERVICE_HOST`,
/// `X_PORT_80_TCP_ADDR` and similar ones for each service X of the namespace. A service called
/// `sluicegate` must not keep the worker from starting. A variable of a pipeline may have any name.
fn set_by_kubernetes(name: &str, value: &str) -> bool {
    let protocols = ["_TCP", "_UDP", "_SCTP"];
    let service = name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_");
    let port = (name.ends_with("_PORT") && value.contains("://"))
        || (name.contains("_PORT_") && protocols.iter().any(|protocol| name.contains(protocol)));
    (service || port) && !name.starts_with(OF_PIPELINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_kubernetes_are_ignored() {
        for (name, value) in [
            ("SLUICEGATE_SERVICE_HOST", "10.0.0.1"),
            ("SLUICEGATE_SERVICE_PORT_METRICS", "9464"),
            ("SLUICEGATE_PORT", "tcp://10.0.0.1:9464"),
            ("SLUICEGATE_PORT_9464_TCP", "tcp://10.0.0.1:9464"),
            ("SLUICEGATE_ADMIN_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(set_by_kubernetes(name, value), "{name}");
        }
        assert!(!set_by_kubernetes("SLUICEGATE_ADMIN_PORT", "9464"));
        let of_pipeline = "SLUICEGATE_PIPELINES__SERVICE_PORT__REDIS__URL";
        assert!(!set_by_kubernetes(of_pipeline, "redis://h"));
        for key in KEYS.iter() {
            let name = key.env_name();
            assert!(!set_by_kubernetes(&name, "tcp://h:1"), "{name}");
        }
    }
}
