//! Levels of a tenant's jobs, and how quota is shared among them.
//!
//! A level of weight w has w waitlists, and each of its jobs waits in one of them. The tenant's
//! limits take turns between waitlists (`rules::gate::fair_queue`). While several levels wait, they
//! have turns in proportion to their weights, regardless of which workers ask. No level starves.

use super::{Envelope, Field};
pub use crate::headers::LEVEL as PRIORITY;
use crate::text::stable_hash;

/// The level of jobs that name none.
pub const NORMAL: &str = "normal";
/// Maximum sum of all weights, which is the number of a tenant's waitlists.
pub const MAX_WEIGHT_SUM: u32 = 32;

/// The levels and their weights; empty if jobs have no levels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Priorities(Vec<(String, u32)>);

impl Priorities {
    /// Returns the levels with their weights. A job that names none has the level [`NORMAL`], whose
    /// weight is 1 unless it is set.
    pub fn new(mut levels: Vec<(String, u32)>) -> Self {
        if !levels.is_empty() && levels.iter().all(|(name, _)| name != NORMAL) {
            levels.push((NORMAL.to_owned(), 1));
        }
        Self(levels)
    }

    /// Returns the levels and their weights.
    pub fn levels(&self) -> &[(String, u32)] {
        &self.0
    }

    /// Iterates over all waitlists, with the names of their levels.
    pub fn waitlists(&self) -> impl Iterator<Item = (&str, String)> {
        let of_level = |(name, weight): &(String, u32)| {
            let name = name.clone();
            (0..(*weight).max(1)).map(move |index| waitlist(&name, index))
        };
        let all = self.0.iter().map(move |level| (&*level.0, of_level(level)));
        all.flat_map(|(name, waitlists)| waitlists.map(move |waitlist| (name, waitlist)))
    }

    /// Returns the waitlist of `message`, or `None` if there are no levels.
    ///
    /// # Errors
    /// Returns a text if the message names an unknown level.
    pub fn label(&self, message: &impl Envelope) -> Result<Option<String>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let number;
        let named = match message.header(PRIORITY) {
            Field::Missing => Some(NORMAL),
            Field::Text(text) => Some(text),
            Field::Int(n) => {
                number = n.to_string();
                Some(number.as_str())
            }
            _ => None,
        };
        let level = self.0.iter().find(|(name, _)| Some(name.as_str()) == named);
        let Some((name, weight)) = level else {
            let found = super::start::shown(message.header(PRIORITY));
            let names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!(
                "header {PRIORITY} is {found}; it must be one of {names} (job.priorities)"
            ));
        };
        let index = hash(message.id().unwrap_or_default()) % (*weight).max(1);
        Ok(Some(waitlist(name, index)))
    }
}

fn waitlist(level: &str, index: u32) -> String {
    format!("{level}/{index}")
}

/// Returns a stable hash, folded.
fn hash(text: &str) -> u32 {
    let hash = stable_hash(text);
    ((hash >> 32) ^ (hash & 0xffff_ffff)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::read::tests::Fake;
    use super::*;

    #[test]
    fn a_level_has_as_many_waitlists_as_its_weight_and_jobs_of_it_are_spread_over_them() {
        let mut places = BTreeMap::<u32, u32>::new();
        for n in 0..8_000 {
            *places.entry(hash(&format!("job-{n}")) % 4).or_default() += 1;
        }
        assert_eq!(places.len(), 4);
        assert!(
            places.values().all(|jobs| (1_800..2_200).contains(jobs)),
            "{places:?}"
        );
    }

    #[test]
    fn the_waitlist_of_a_job_is_among_all_of_them() {
        let all = Priorities::new(vec![("high".to_owned(), 2)]);
        let names: Vec<_> = all.waitlists().collect();
        let name = |level, name: &str| (level, name.to_owned());
        let right = [
            ("high", "high/0"),
            ("high", "high/1"),
            ("normal", "normal/0"),
        ];
        assert_eq!(names, right.map(|(level, it)| name(level, it)));
        let high = all.label(&Fake::of(&[(PRIORITY, Field::Text("high"))]));
        let high = high.expect("a level").expect("there are levels");
        assert!(names.contains(&name("high", &high)));
    }

    #[test]
    fn a_job_has_an_existing_level() {
        let all = Priorities::new(vec![("high".to_owned(), 1), ("7".to_owned(), 1)]);
        let label = |headers: &[(&'static str, Field<'static>)]| all.label(&Fake::of(headers));
        let some = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(label(&[]), some("normal/0"));
        assert_eq!(label(&[(PRIORITY, Field::Text("high"))]), some("high/0"));
        assert_eq!(label(&[(PRIORITY, Field::Int(7))]), some("7/0"));
        for field in [
            Field::Text("hihg"),
            Field::Text(""),
            Field::Int(8),
            Field::Other("a table"),
        ] {
            let error = label(&[(PRIORITY, field)]).expect_err("no level");
            assert!(
                error.contains("it must be one of high, 7, normal (job.priorities)"),
                "{error}"
            );
        }
        let none = Priorities::new(Vec::new()).label(&Fake::of(&[(PRIORITY, Field::Text("x"))]));
        assert_eq!(none, Ok(None), "jobs have no levels");
    }
}
