//! A job that no worker has: is it a dead letter?
//!
//! Each message that is looked at is fetched and given back, and RabbitMQ counts that as a delivery. So the look is short: it says how far it came,
//! and `dead show` looks at all of them.

use serde_json::{Value, json};

use crate::operator::dead::{self, Dead, Filter};
use crate::operator::job::Which;
use crate::operator::letters::Row;
use crate::operator::times::at;
use crate::operator::words::{count, plain};

/// So many dead letters at most are looked at for one job,
const MOST: u32 = 1_000;
/// nor more than so many bytes of bodies.
const MOST_BYTES: usize = 16 << 20;

/// What a look among the dead letters found.
pub enum Look {
    /// Nobody looked: a worker has the job.
    None,
    /// It is one.
    Found(Box<Found>),
    /// It is not among those that were looked at.
    Missing {
        /// Their queue.
        queue: String,
        /// So many.
        seen: u64,
        /// So many are behind them.
        left: u32,
    },
    /// They could not be looked at, and why.
    Failed(String),
}

/// A job as a dead letter.
pub struct Found {
    queue: String,
    row: Row,
}

impl Look {
    /// Looks among those of `dead`, for the job `which`.
    pub async fn at(dead: &Dead<'_>, which: &Which) -> Self {
        let filter = Filter {
            tenant: Some(which.tenant.as_str().to_owned()),
            id: Some(which.id.clone()),
            reason: None,
        };
        let queue = dead.queue.to_string();
        match dead.first(&filter, (MOST, MOST_BYTES)).await {
            Ok((Some(letter), _)) => {
                let row = Row::new(&letter, dead.tenant(&letter));
                Self::Found(Box::new(Found { queue, row }))
            }
            Ok((None, dead::Look { seen, left, .. })) => Self::Missing { queue, seen, left },
            Err(why) => Self::Failed(why.to_string()),
        }
    }

    /// It is one.
    pub fn is_found(&self) -> bool {
        self.found().is_some()
    }

    pub(super) fn found(&self) -> Option<&Found> {
        match self {
            Self::Found(found) => Some(found),
            _ => None,
        }
    }

    pub(super) fn in_vain(&self, id: &str) -> Option<String> {
        match self {
            Self::None | Self::Found(_) => None,
            Self::Missing { queue, seen: 0, .. } => Some(format!("{queue} holds no dead letter")),
            Self::Missing {
                queue,
                seen,
                left: 0,
            } => Some(format!(
                "it is not in {queue} ({}, all looked at)",
                count(*seen, "dead letter")
            )),
            Self::Missing { queue, seen, left } => Some(format!(
                "it is not among the first {} of {queue}, and {left} behind them were not looked at: {} looks at all",
                count(*seen, "dead letter"),
                shows(id)
            )),
            Self::Failed(why) => Some(format!("dead letters were not looked at: {why}")),
        }
    }

    /// For programs.
    pub(super) fn tell(&self, json: &mut Value) {
        json["dead_letter"] = self.found().map_or(Value::Null, |found| {
            let mut letter = found.row.as_json();
            letter["queue"] = found.queue.clone().into();
            letter
        });
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

impl Found {
    /// Where it is.
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// A line for each thing.
    pub(super) fn in_words(&self, which: &Which) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
        line("why", self.row.why());
        let since = (self.row.died_ms).map_or_else(|| "not known".to_owned(), at);
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
    // What begins like an option is none.
    let dashes = if id.starts_with('-') { "-- " } else { "" };
    format!("sluicegate dead show {dashes}{}", argument(id))
}

/// `text` as a shell reads it as one word.
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
    fn a_look_in_vain_says_how_far_it_came() {
        let looked = |seen, left| {
            let queue = "jobs.dead".to_owned();
            Look::Missing { queue, seen, left }.in_vain("o 7")
        };
        let words = |seen, left| looked(seen, left).expect("it was in vain");
        assert_eq!(words(0, 0), "jobs.dead holds no dead letter");
        assert_eq!(
            words(2, 0),
            "it is not in jobs.dead (2 dead letters, all looked at)"
        );
        assert_eq!(
            words(1_000, 7),
            "it is not among the first 1000 dead letters of jobs.dead, and 7 behind them were not looked at: sluicegate dead show 'o 7' looks at all"
        );
    }
}
