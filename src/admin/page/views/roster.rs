//! Remembers workers seen while the page was open. A worker that disappears is shown as gone for a
//! while, so that its absence is noticed.

use std::collections::BTreeMap;

/// Time for which a worker is shown as gone.
const GONE_SHOWN_MS: u64 = 600_000;
/// Maximum number of workers remembered.
const MAX_WORKERS: usize = 1_000;

/// A worker that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoneWorker {
    /// Machine and process where it ran.
    pub location: String,
    /// Time at which it was last seen, by Redis's clock in milliseconds.
    pub seen_ms: u64,
}

/// All workers seen, by pipeline and name.
#[derive(Debug, Default)]
pub struct Roster(BTreeMap<(String, String), GoneWorker>);

impl Roster {
    /// Records the pipeline's current workers with their locations. Returns the workers that are
    /// gone, latest first.
    pub fn seen<'a>(
        &mut self,
        pipeline: &str,
        now_ms: u64,
        workers: impl Iterator<Item = (&'a str, String)>,
    ) -> Vec<GoneWorker> {
        for (name, location) in workers {
            let key = (pipeline.to_owned(), name.to_owned());
            let seen_ms = now_ms;
            self.0.insert(key, GoneWorker { location, seen_ms });
        }
        self.0
            .retain(|(of, _), it| of != pipeline || it.seen_ms + GONE_SHOWN_MS > now_ms);
        while self.0.len() > MAX_WORKERS {
            self.0.pop_first();
        }
        let own = self.0.iter().filter(|((of, _), _)| of == pipeline);
        let mut gone: Vec<GoneWorker> = own
            .filter(|(_, it)| it.seen_ms < now_ms)
            .map(|(_, it)| it.clone())
            .collect();
        gone.sort_by_key(|it| std::cmp::Reverse(it.seen_ms));
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_worker_is_shown_as_gone_for_a_while() {
        let mut roster = Roster::default();
        let mut seen = |now_ms, names: &[&'static str]| {
            let workers = names.iter().map(|name| (*name, format!("host {name}")));
            let gone = roster.seen("p", now_ms, workers);
            gone.iter()
                .map(|it| it.location.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(seen(1_000, &["a", "b"]), [""; 0]);
        assert_eq!(seen(3_000, &["a"]), ["host b"]);
        assert_eq!(seen(5_000, &[]), ["host a", "host b"]);
        assert_eq!(seen(6_000, &["b"]), ["host a"]);
        assert_eq!(seen(3_000 + GONE_SHOWN_MS, &["b"]), [""; 0]);
        assert_eq!(roster.seen("q", 7_000, std::iter::empty()), []);
    }

    #[test]
    fn the_number_of_workers_is_bounded() {
        let mut roster = Roster::default();
        for number in 0..3_000 {
            let name = format!("{number}");
            let one = [(name.as_str(), String::new())];
            roster.seen("p", 1, one.into_iter());
        }
        assert_eq!(roster.0.len(), MAX_WORKERS);
    }
}
