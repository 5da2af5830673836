//! Looks for a job that no worker has among the dead letters.
//!
//! RabbitMQ counts each message that is fetched and returned as a delivery. The search is therefore
//! short and reports how far it got; `dead show` searches all dead letters.

use crate::answer::answers;
use crate::dead::{Filter, LetterQueue};
use crate::job::JobRef;
use crate::letters::LetterRow;
use crate::text::{argument, count};
use crate::times::at;

/// Maximum number of dead letters fetched for one job.
const MAX_SEARCHED: u32 = 1_000;
/// Maximum number of bytes of bodies fetched for one job.
const MAX_SEARCH_BYTES: usize = 16 << 20;

answers! {
    /// A dead letter, and the queue that holds it.
    pub struct LetterInQueue: LetterRow {
        pub queue: String,
    }

    /// A search that did not find the job.
    pub struct FailedSearch {
        /// Queue of the dead letters, or `None` if they could not be read.
        pub queue: Option<String>,
        pub looked_at: u64,
        /// Number of dead letters behind them.
        pub not_looked_at: Option<u64>,
        /// The reason why the dead letters could not be read.
        pub unread: Option<String>,
    }
}

/// Searches the dead letters in `dead` for the job `which`.
///
/// # Errors
/// [`FailedSearch`] if it was not found.
pub async fn search(dead: &LetterQueue<'_>, which: &JobRef) -> Result<LetterInQueue, FailedSearch> {
    let filter = Filter {
        tenant: Some(which.tenant.as_str().to_owned()),
        id: Some(which.id.clone()),
        reason: None,
    };
    let queue = dead.queue.to_string();
    match dead.first(&filter, (MAX_SEARCHED, MAX_SEARCH_BYTES)).await {
        Ok((Some(letter), _)) => Ok(LetterInQueue {
            base: LetterRow::new(&letter, dead.tenant(&letter)),
            queue,
        }),
        Ok((None, progress)) => Err(FailedSearch {
            queue: Some(queue),
            looked_at: progress.seen,
            not_looked_at: Some(progress.left.into()),
            unread: None,
        }),
        Err(why) => Err(FailedSearch::unread(why.to_string())),
    }
}

impl FailedSearch {
    /// Reports that the dead letters could not be read.
    pub fn unread(why: String) -> Self {
        Self {
            queue: None,
            looked_at: 0,
            not_looked_at: None,
            unread: Some(why),
        }
    }

    /// Describes for people how far the search for the job `id` of `tenant` got.
    pub(super) fn describe(&self, tenant: &str, id: &str) -> String {
        if let Some(why) = &self.unread {
            return format!("dead letters were not read: {why}");
        }
        let queue = self.queue.as_deref().unwrap_or_default();
        let looked_at = count(self.looked_at, "dead letter");
        match (self.looked_at, self.not_looked_at.unwrap_or_default()) {
            (0, _) => format!("{queue} has no dead letters"),
            (_, 0) => {
                format!("{queue} has none of this tenant with this id ({looked_at}, all read)")
            }
            (_, left) => format!(
                "it is not among the first {looked_at} of {queue}, and {left} behind them were \
                not read: {} reads all",
                shows(tenant, id)
            ),
        }
    }
}

impl LetterInQueue {
    /// Describes the dead letter of the job `id` of `tenant` for people, one line for each fact.
    pub(super) fn describe(&self, tenant: &str, id: &str) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| text += &format!("{name:<10}{value}\n");
        line("why", self.why());
        let since = (self.died_ms).map_or_else(|| "unknown".to_owned(), at);
        line("since", since);
        if let Some(story) = self.story() {
            line("lived", story);
        }
        line("look", shows(tenant, id));
        let (tenant, id) = (argument(tenant), argument(id));
        line(
            "replay",
            format!("sluicegate dead replay --tenant={tenant} --id={id}"),
        );
        text
    }
}

fn shows(tenant: &str, id: &str) -> String {
    // An ID that begins with a dash would be read as an option.
    let dashes = if id.starts_with('-') { "-- " } else { "" };
    let (tenant, id) = (argument(tenant), argument(id));
    format!("sluicegate dead show --tenant={tenant} {dashes}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_not_read_as_an_option() {
        assert_eq!(shows("a", "-x"), "sluicegate dead show --tenant=a -- -x");
    }

    #[test]
    fn a_failed_search_reports_how_far_it_read() {
        let words = |looked_at, left| {
            let search = FailedSearch {
                queue: Some("jobs.dead".to_owned()),
                looked_at,
                not_looked_at: Some(left),
                unread: None,
            };
            search.describe("a", "o 7")
        };
        assert_eq!(words(0, 0), "jobs.dead has no dead letters");
        assert_eq!(
            words(2, 0),
            "jobs.dead has none of this tenant with this id (2 dead letters, all read)"
        );
        assert_eq!(
            words(1_000, 7),
            "it is not among the first 1000 dead letters of jobs.dead, and 7 behind them were not \
            read: sluicegate dead show --tenant=a 'o 7' reads all"
        );
    }
}
