//! Looks for a job that no worker has among the dead letters.
//!
//! RabbitMQ counts each message that is fetched and returned as a delivery. The search is therefore
//! short and reports how far it got; `dead show` searches all dead letters.

use serde_json::{Value, json};

use crate::operator::answer::answers;
use crate::operator::dead::{self, Dead, Filter};
use crate::operator::job::JobRef;
use crate::operator::letters::LetterRow;
use crate::operator::text::{count, plain};
use crate::operator::times::at;

/// Maximum number of dead letters fetched for one job.
const MAX_SEARCHED: u32 = 1_000;
/// Maximum number of bytes of bodies fetched for one job.
const MAX_SEARCH_BYTES: usize = 16 << 20;

/// Result of a search among the dead letters.
pub enum DeadLetterSearch {
    /// There was no search, since a worker has the job.
    None,
    /// The job is a dead letter.
    Found(Box<FoundLetter>),
    /// The job is not among the dead letters that were looked at.
    Missing {
        /// Queue of the dead letters.
        queue: String,
        /// Number of dead letters that were looked at.
        seen: u64,
        /// Number of dead letters behind them.
        left: u32,
    },
    /// The search failed, and why.
    Failed(String),
}

/// A job found as a dead letter.
pub struct FoundLetter {
    queue: String,
    row: LetterRow,
}

impl DeadLetterSearch {
    /// Searches the dead letters in `dead` for `job`.
    pub async fn at(dead: &Dead<'_>, which: &JobRef) -> Self {
        let filter = Filter {
            tenant: Some(which.tenant.as_str().to_owned()),
            id: Some(which.id.clone()),
            reason: None,
        };
        let queue = dead.queue.to_string();
        match dead.first(&filter, (MAX_SEARCHED, MAX_SEARCH_BYTES)).await {
            Ok((Some(letter), _)) => {
                let row = LetterRow::new(&letter, dead.tenant(&letter));
                Self::Found(Box::new(FoundLetter { queue, row }))
            }
            Ok((None, dead::SearchProgress { seen, left, .. })) => {
                Self::Missing { queue, seen, left }
            }
            Err(why) => Self::Failed(why.to_string()),
        }
    }

    /// Returns true if the job is a dead letter.
    pub fn is_found(&self) -> bool {
        self.found().is_some()
    }

    pub(super) fn found(&self) -> Option<&FoundLetter> {
        match self {
            Self::Found(found) => Some(found),
            _ => None,
        }
    }

    pub(super) fn failure(&self, id: &str) -> Option<String> {
        match self {
            Self::None | Self::Found(_) => None,
            Self::Missing { queue, seen: 0, .. } => Some(format!("{queue} has no dead letters")),
            Self::Missing {
                queue,
                seen,
                left: 0,
            } => Some(format!(
                "it is not in {queue} ({}, all read)",
                count(*seen, "dead letter")
            )),
            Self::Missing { queue, seen, left } => Some(format!(
                "it is not among the first {} of {queue}, and {left} behind them were not read: \
                {} reads all",
                count(*seen, "dead letter"),
                shows(id)
            )),
            Self::Failed(why) => Some(format!("dead letters were not read: {why}")),
        }
    }

    /// Adds the result to `json`.
    pub(super) fn add_to_json(&self, json: &mut Value) {
        let letter = self.found().map(|found| LetterInQueue {
            base: found.row.clone(),
            queue: found.queue.clone(),
        });
        json["dead_letter"] = json!(letter);
        json["dead_letters"] = match self {
            Self::None | Self::Found(_) => Value::Null,
            Self::Missing { queue, seen, left } => {
                json!({"queue": queue, "looked_at": seen, "not_looked_at": left, "unread": null})
            }
            Self::Failed(why) => {
                json!({"queue": null, "looked_at": 0, "not_looked_at": null, "unread": why})
            }
        };
    }
}

answers! {
    /// A dead letter, and the queue that holds it.
    pub struct LetterInQueue: LetterRow {
        pub queue: String,
    }
}

impl FoundLetter {
    /// Returns the queue that holds the dead letter.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Describes the dead letter for people, one line for each fact.
    pub(super) fn describe(&self, which: &JobRef) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
        line("why", self.row.why());
        let since = (self.row.died_ms).map_or_else(|| "unknown".to_owned(), at);
        line("since", since);
        if let Some(story) = self.row.story() {
            line("lived", story);
        }
        line("look", shows(&which.id));
        let tenant = argument(which.tenant.as_str());
        let id = argument(&which.id);
        line(
            "replay",
            format!("sluicegate dead replay --tenant={tenant} --id={id}"),
        );
        text
    }
}

fn shows(id: &str) -> String {
    // An ID that begins with a dash would be read as an option.
    let dashes = if id.starts_with('-') { "-- " } else { "" };
    format!("sluicegate dead show {dashes}{}", argument(id))
}

/// Returns `text` quoted so that a shell reads it as one word.
fn argument(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", plain(text, 255).replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_word_for_a_shell() {
        assert_eq!(argument("order-7"), "order-7");
        assert_eq!(argument("a b'c"), r"'a b'\''c'");
        assert_eq!(argument("$(reboot)"), "'$(reboot)'");
        assert_eq!(shows("-x"), "sluicegate dead show -- -x");
    }

    #[test]
    fn a_failed_search_reports_how_far_it_read() {
        let looked = |seen, left| {
            let queue = "jobs.dead".to_owned();
            DeadLetterSearch::Missing { queue, seen, left }.failure("o 7")
        };
        let words = |seen, left| looked(seen, left).expect("it was in vain");
        assert_eq!(words(0, 0), "jobs.dead has no dead letters");
        assert_eq!(
            words(2, 0),
            "it is not in jobs.dead (2 dead letters, all read)"
        );
        assert_eq!(
            words(1_000, 7),
            "it is not among the first 1000 dead letters of jobs.dead, and 7 behind them were not \
            read: sluicegate dead show 'o 7' reads all"
        );
    }
}
