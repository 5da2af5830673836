//! The findings of `check` on the destination of jobs: an API, a program, or a queue of other
//! workers.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker::amqp::target_exists;
use config::{ApiProfile, Config, Forward, Http, ResultsTo, show_duration};
use rules::answers::{AnswerRule, Consequence, WaitSource};

use super::findings::{Findings, Severity};

const CONFIG: &str = "config";
const ANSWERS: &str = "answers";

/// Makes the checks that need no server.
pub(super) fn offline(config: &Config, findings: &mut Findings) {
    let dispatch = &config.dispatch;
    if let Some(exec) = &dispatch.exec {
        let program = exec.command.first().map_or("", String::as_str);
        match found(program) {
            Some(path) => {
                let max = dispatch.concurrency;
                let text = format!("jobs go to up to {max} processes of {}", path.display());
                findings.add(Severity::Ok, CONFIG, text);
            }
            None => findings.add(
                Severity::Error,
                CONFIG,
                format!("dispatch.exec.command: there is no executable program {program}"),
            ),
        }
    } else if let Some(forward) = &dispatch.forward {
        let until = match forward.done {
            true => "the receiving workers report when they are done",
            false => "a job ends when it is forwarded",
        };
        let text = format!("jobs go to {}; {until}", target(forward));
        findings.add(Severity::Ok, CONFIG, text);
    } else if let Some(http) = &dispatch.http {
        answers(http, config.rate_limiter.max_throttle, findings);
        secrets(http, findings);
    } else {
        findings.add(
            Severity::Warn,
            CONFIG,
            "jobs have no destination: run needs dispatch.http.url, dispatch.exec.command or \
            dispatch.forward",
        );
    }
}

/// Lists the rules on answers in words, in the order in which they are tried.
fn answers(http: &Http, max_throttle: Duration, findings: &mut Findings) {
    let mut add = |text: String| findings.add(Severity::Ok, ANSWERS, text);
    let in_force = |rule: &AnswerRule| {
        let is_cut =
            |wait: &WaitSource| matches!(wait, WaitSource::Time(time) if *time > max_throttle);
        let max = show_duration(max_throttle);
        match rule.means != Consequence::Retry && rule.wait.iter().any(is_cut) {
            true => format!("{rule}; rate-limiter.max-throttle cuts the time to {max}"),
            false => rule.to_string(),
        }
    };
    for (number, rule) in http.answers.rules().rules.iter().enumerate() {
        let rule = in_force(rule);
        add(format!("dispatch.http.answers[{number}]: {rule}"));
    }
    let Some(api) = http.api else {
        return;
    };
    let profile = ApiProfile::of(api);
    let (title, checked) = (&profile.title, &profile.checked);
    let sources = profile.sources.join(", ");
    add(format!(
        "{api} is in force: {title}, read on {checked} from {sources}"
    ));
    for rule in &profile.rules.rules {
        add(format!("{api}: {}", in_force(rule)));
    }
    let cost: Vec<String> = profile.rules.cost.iter().map(ToString::to_string).collect();
    if !cost.is_empty() {
        add(format!(
            "{api}: what a call cost is in {}",
            cost.join(", or ")
        ));
    }
}

/// Warns if all tenants have the default secret, as if the folder was not mounted.
fn secrets(http: &Http, findings: &mut Findings) {
    let files = http.secrets.as_ref();
    let Some(folder) = files.and_then(|files| files.default.as_ref().and(files.folder.as_ref()))
    else {
        return;
    };
    if folder.read_dir().is_ok_and(|mut all| all.next().is_none()) {
        let text = format!(
            "dispatch.http.secrets-folder: {} is empty, so the calls of all tenants carry the \
            secret of default-secret-file",
            folder.display()
        );
        findings.add(Severity::Warn, CONFIG, text);
    }
}

/// Checks that the destinations of forwarded jobs and of results exist.
pub(super) async fn rabbitmq(config: &Config, findings: &mut Findings) {
    if let Some(forward) = &config.dispatch.forward {
        forwards(config, forward, findings).await;
    }
    let results = &config.dispatch.results;
    let exchange = results.exchange.as_deref();
    if let Some(exchange) = exchange.filter(|_| results.to == ResultsTo::Exchange) {
        let target = format!("the exchange {exchange}");
        let lost = "results are dropped (dispatch.results.exchange)";
        exists(config, (exchange, ""), (&target, lost), findings).await;
    }
}

async fn forwards(config: &Config, forward: &Forward, findings: &mut Findings) {
    let key = match &forward.routing_key {
        Some(key) if key.of_jobs.is_none() => key.text.as_str(),
        // The queue differs per job.
        _ if forward.exchange.is_empty() => return,
        _ => "",
    };
    let lost = "jobs can't be forwarded (dispatch.forward)";
    let at = (forward.exchange.as_str(), key);
    exists(config, at, (&target(forward), lost), findings).await;
}

/// Checks that RabbitMQ has the exchange, or the queue `key` if `exchange` is empty. `target` is
/// its name in messages, and `lost` the consequence if it is missing.
async fn exists(
    config: &Config,
    (exchange, key): (&str, &str),
    (target, lost): (&str, &str),
    findings: &mut Findings,
) {
    const WHAT: &str = "rabbitmq";
    match target_exists(&config.amqp, exchange, key).await {
        Ok(true) => findings.add(Severity::Ok, WHAT, format!("{target} exists")),
        Ok(false) => findings.add(
            Severity::Error,
            WHAT,
            format!("{target} does not exist: {lost}"),
        ),
        Err(error) => findings.add(Severity::Error, WHAT, error.to_string()),
    }
}

fn target(forward: &Forward) -> String {
    let key = forward.routing_key.as_ref().map(|key| key.text.as_str());
    match (forward.exchange.as_str(), key) {
        ("", Some(key)) => format!("the queue {key}"),
        ("", None) => "the queue that is each job's routing key".to_owned(),
        (exchange, _) => format!("the exchange {exchange}"),
    }
}

/// Returns the program `name`, searched for as the system does.
fn found(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return can_be_run(Path::new(name)).then(|| PathBuf::from(name));
    }
    let folders = env::var_os("PATH")?;
    let mut paths = env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| can_be_run(path))
}

fn can_be_run(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(limiter: &str, http: &str) -> String {
        let yaml = format!(
            "{{rate-limiter: {{{limiter}}}, dispatch: {{http: {{url: 'https://h/', {http}}}}}}}"
        );
        let config = Config::parse("c.yaml", &yaml, std::iter::empty()).expect("valid");
        let mut findings = Findings::default();
        offline(&config, &mut findings);
        serde_json::to_string(&findings.0).expect("JSON")
    }

    #[test]
    fn the_cap_of_a_throttle_is_named() {
        let rule = |means: &str| {
            format!("answers: [{{when: {{status: 451}}, means: {means}, wait: [{{time: 30s}}]}}]")
        };
        let salesforce = "api: salesforce".to_owned();
        for (limiter, http, cut) in [
            ("max-throttle: 8s", rule("throttle"), Some("8s")),
            ("max-throttle: 8s", rule("done"), Some("8s")),
            ("max-throttle: 8s", rule("retry"), None),
            ("max-throttle: 30s", rule("throttle"), None),
            ("max-throttle: 1m", salesforce.clone(), Some("1m")),
            ("", salesforce, None),
        ] {
            let text = findings(limiter, &http);
            let words = "; rate-limiter.max-throttle cuts the time to ";
            assert_eq!(text.contains(words), cut.is_some(), "{text}");
            let cut = cut.map(|max| format!("{words}{max}\"")).unwrap_or_default();
            assert!(text.contains(&cut), "{text}");
        }
    }

    #[test]
    fn a_folder_without_secrets_beside_a_default_has_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let (path, default) = (folder.path().display(), file.path().display());
        let own = format!("headers: {{a: '{{secret:tenant}}'}}, secrets-folder: '{path}'");
        let both = format!("{own}, default-secret-file: '{default}'");
        let words = "is empty, so the calls of all tenants carry the secret of default-secret-file";
        assert!(findings("", &both).contains(words));
        assert!(!findings("", &own).contains(words));
        std::fs::write(folder.path().join("acme"), "key").expect("written");
        assert!(!findings("", &both).contains(words));
    }

    #[test]
    fn a_program_is_searched_like_the_system_does() {
        assert!(found("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(found("/bin/sh"), Some(PathBuf::from("/bin/sh")));
        for none in ["", "no-such-program-here", "/etc/passwd", "/"] {
            assert_eq!(found(none), None, "{none}");
        }
    }
}
