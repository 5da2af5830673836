//! The names of all queues, including the delay queues.

use std::sync::Arc;

use strum::IntoStaticStr;

use super::levels::{DelayLevels, Route};

/// Maximum length of a work queue's name in bytes. AMQP names have at most 255 bytes, and the
/// derived queues have longer names: 18 bytes more now, with room for later versions.
pub const MAX_WORK_QUEUE_BYTES: usize = 200;

/// The queue that a delivery came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum DeliverySource {
    /// `jobs`: new jobs. If they have headers of ours, the publisher set them, and they are
    /// ignored.
    #[strum(serialize = "new")]
    Fresh,
    /// `jobs.due`: jobs that a policy moved out of a delay queue, and replayed dead letters.
    Due,
    /// `jobs.recheck`: taken like `jobs.due`, with a smaller prefetch. Workers publish no jobs to
    /// it.
    Recheck,
    /// A delay queue, by its position. The job waits there until its turn.
    Delay(u8),
}

/// The names of all queues, derived from the work queue's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames {
    /// `jobs`: new jobs.
    pub fresh: Arc<str>,
    /// `jobs.due`: jobs that a policy moved out of a delay queue, and dead letters that are
    /// replayed with a routing key of their own.
    pub due: Arc<str>,
    /// `jobs.recheck`: taken like `jobs.due`, with a smaller prefetch. Workers publish no jobs to
    /// it.
    pub recheck: Arc<str>,
    /// `jobs.dead`: dead letters.
    pub dead: Arc<str>,
    delays: Vec<Arc<str>>,
    more: Vec<Arc<str>>,
}

impl QueueNames {
    /// Returns the names for the work queue `work`. A delay queue's name contains the shortest wait
    /// of its jobs. Each job carries its own time, so it does no harm if another version's levels
    /// differ slightly under the same name.
    pub fn new(work: &str, levels: &DelayLevels) -> Self {
        let delay_queue = |from: &u64| format!("{work}.delay.from-{from}").into();
        Self {
            fresh: work.into(),
            due: format!("{work}.due").into(),
            recheck: format!("{work}.recheck").into(),
            dead: format!("{work}.dead").into(),
            delays: levels.from_ms().iter().map(delay_queue).collect(),
            more: Vec::new(),
        }
    }

    /// Adds more queues with new jobs.
    pub fn with_more<'a>(mut self, queues: impl IntoIterator<Item = &'a str>) -> Self {
        self.more.extend(queues.into_iter().map(Arc::from));
        self
    }

    /// Returns true if publishers put new jobs into `queue`.
    pub fn is_new(&self, queue: &str) -> bool {
        *self.fresh == *queue || self.more.iter().any(|name| **name == *queue)
    }

    /// Returns the queues with new jobs other than the work queue.
    pub fn more(&self) -> &[Arc<str>] {
        &self.more
    }

    /// Returns true if `queue` is one of these queues, or a delay queue of another version.
    pub fn has(&self, queue: &str) -> bool {
        let own = [&self.due, &self.recheck, &self.dead];
        let rest = queue.strip_prefix(&*self.fresh);
        self.is_new(queue)
            || own.iter().any(|name| ***name == *queue)
            || rest.is_some_and(|rest| rest.starts_with(".delay."))
    }

    /// Returns the delay queue of the route. A route with unknown levels falls back to `jobs.due`,
    /// where the job waits as well.
    pub fn delay(&self, route: Route) -> &Arc<str> {
        self.delays.get(route.level).unwrap_or(&self.due)
    }

    /// Returns the delay queues, in the order of [`DelayLevels::from_ms`].
    pub fn delays(&self) -> &[Arc<str>] {
        &self.delays
    }

    /// Returns the sources of all delay queues.
    pub fn delay_sources(&self) -> impl Iterator<Item = DeliverySource> + use<> {
        // About thirty, up to the longest trip.
        (0..u8::try_from(self.delays().len()).unwrap_or(u8::MAX)).map(DeliverySource::Delay)
    }

    /// Returns the queue that deliveries of `source` come from.
    pub fn of(&self, source: DeliverySource) -> &Arc<str> {
        match source {
            DeliverySource::Fresh => &self.fresh,
            DeliverySource::Due => &self.due,
            DeliverySource::Recheck => &self.recheck,
            DeliverySource::Delay(level) => {
                self.delays().get(usize::from(level)).unwrap_or(&self.due)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_workers_of_a_work_queue_have_the_same_delay_queues() {
        let names = |secs| QueueNames::new("jobs", &DelayLevels::new(Duration::from_secs(secs)));
        let some = names(300);
        assert_eq!(some, names(1));
        assert_eq!(some, names(86_400));
        assert_eq!(
            [&*some.fresh, &*some.due, &*some.recheck, &*some.dead],
            ["jobs", "jobs.due", "jobs.recheck", "jobs.dead"]
        );
        let delay_queue = |wait| {
            let levels = DelayLevels::new(Duration::from_secs(300));
            some.delay(levels.choose(wait)).to_string()
        };
        assert_eq!(delay_queue(60), "jobs.delay.from-0");
        assert_eq!(delay_queue(300_000), "jobs.delay.from-256000");
        assert_eq!(delay_queue(u64::MAX), "jobs.delay.from-256000");
        assert_eq!(delay_queue(128_000), "jobs.delay.from-128000");
    }

    #[test]
    fn delay_queues_ascend_and_names_are_unique_and_fit() {
        let levels = DelayLevels::new(Duration::from_secs(300));
        let names = QueueNames::new(&"q".repeat(MAX_WORK_QUEUE_BYTES), &levels);
        assert!(names.delays().iter().all(|name| name.len() <= 255));
        let unique: std::collections::HashSet<_> = names.delays().iter().collect();
        assert_eq!(unique.len(), levels.from_ms().len());
        assert!(levels.from_ms().windows(2).all(|pair| pair[0] < pair[1]));
    }
}
