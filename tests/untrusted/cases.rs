//! Files of cases that a user wrote for `sluicegate test`.

use config::Pipelines;
use simulator::cases::read_with;

/// Checks a file of cases. Files that it names are not read.
///
/// An error must be a single line that says where it is.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let load = |_: &_| Pipelines::parse("config", "", std::iter::empty());
    match read_with("a.yaml", text, &load) {
        Ok(cases) => {
            let lines = text.lines().count() as u64;
            assert!(!cases.is_empty() && cases.iter().all(|case| (1..=lines).contains(&case.line)));
        }
        Err(why) => {
            let words = why.to_string();
            assert!(
                words.starts_with("a.yaml:") && !words.contains(char::is_control),
                "{words}"
            );
        }
    }
}
