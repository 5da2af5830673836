//! The configuration file and the environment.

use config::{Origin, Pipelines};

/// Name of the file.
const NAME: &str = "fuzz.yaml";
/// Stands for a password.
const SECRET: &str = "hunter2";

/// Checks a configuration: `data` is the text of the file, followed by environment variables as
/// `NAME=VALUE`, each after a zero byte.
///
/// A valid configuration must be shown as a file with the same meaning. Each error must be a single
/// line that names an existing position and does not contain the password of a URL.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let env: Vec<(String, String)> = parts
        .filter_map(|part| part.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match Pipelines::parse(NAME, file, env.clone().into_iter()) {
        Ok(pipelines) => {
            let shown = pipelines.to_string();
            if !shown.contains("***") {
                let again = Pipelines::parse(NAME, &shown, std::iter::empty());
                let again = again.as_ref().map(Pipelines::each);
                assert_eq!(again, Ok(pipelines.each()), "{shown}");
            }
            hides_secrets(text, &shown);
        }
        Err(errors) => {
            assert!(!errors.problems().is_empty());
            for problem in errors.problems() {
                assert!(is_there(problem.origin(), file, &env), "{problem}");
                assert!(!problem.to_string().contains(char::is_control));
            }
            hides_secrets(text, &errors.to_string());
        }
    }
}

fn is_there(origin: &Origin, file: &str, env: &[(String, String)]) -> bool {
    match origin {
        // The parser knows more line ends than `lines` does, and an end may follow the last one.
        Origin::File { name, at } => {
            let ends = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
            let lines = 2 + file.matches(ends).count() as u64;
            &**name == NAME && (1..=lines).contains(&at.line) && at.column > 0
        }
        Origin::WholeFile(name) => &**name == NAME,
        Origin::Env(name) => env.iter().any(|(known, _)| known == name),
        Origin::Default => false,
    }
}

/// Asserts that `shown` has no password if the password stands only in URLs.
fn hides_secrets(text: &str, shown: &str) {
    let url = format!("://u:{SECRET}@");
    if text.matches(SECRET).count() == text.matches(&url).count() {
        assert!(!shown.contains(SECRET), "{shown}");
    }
}
