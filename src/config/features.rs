//! Parts that a build of the library may lack, and their keys.

use super::reading::{ConfigInput, ConfigProblem};

/// A part of the library that depends on a feature: the feature, the prefix of the paths of its
/// keys, and whether this build has the part.
pub(super) type OptionalFeature = (&'static str, &'static str, bool);

/// All optional parts.
pub(super) const OPTIONAL_FEATURES: [OptionalFeature; 2] = [
    ("admin", "admin.", cfg!(feature = "admin")),
    ("http", "dispatch.http.", cfg!(feature = "http")),
];

impl ConfigInput {
    /// Reports keys of missing parts. If they were ignored silently, they would seem to be in
    /// force.
    pub(super) fn check_features(&mut self, parts: &[OptionalFeature]) {
        for (feature, keys, _) in parts.iter().filter(|(.., is_there)| !is_there) {
            let words = format!(
                "this worker was built without it; enable the feature `{feature}` of sluicegate in \
                its Cargo.toml, or remove the key"
            );
            let set = (self.entries()).filter(|entry| entry.path.starts_with(keys));
            let problems = set.map(|entry| ConfigProblem::of(&entry.at, entry.path, &words));
            self.problems.extend(problems.collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{env, file};
    use super::*;

    #[test]
    fn a_key_of_a_missing_feature_is_refused_by_name() {
        let text = "dispatch: {http: {timeout: 1s}, concurrency: 2}\nadmin: {listen: '[::1]:0'}\n";
        let url = ("SLUICEGATE_DISPATCH__HTTP__URL", "http://h/");
        let set = [(url.0.to_owned(), url.1.to_owned())];
        let mut input = ConfigInput {
            layers: vec![
                env::parse(set.into_iter(), &[]).0.entries,
                file::parse("c.yaml", text).expect("YAML").0.entries,
            ],
            ..ConfigInput::default()
        };
        let part = |is_there| ("http", "dispatch.http.", is_there);
        input.check_features(&[part(true)]);
        assert_eq!(input.problems, []);
        input.check_features(&[part(false)]);
        let found: Vec<String> = input
            .problems
            .iter()
            .map(ConfigProblem::to_string)
            .collect();
        let words = "this worker was built without it; enable the feature `http` of sluicegate in \
            its Cargo.toml, or remove the key";
        assert_eq!(
            found,
            [
                format!("c.yaml:1:19: dispatch.http.timeout: {words}"),
                format!("environment variable {}: dispatch.http.url: {words}", url.0),
            ]
        );
    }
}
