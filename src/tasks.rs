//! The tasks that run for as long as the worker does. None of them may end by itself: the worker would go on without it, and
//! look as if it were well. So the first that does names itself and its reason, and the worker ends.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, TryFutureExt};
use tokio::task::{AbortHandle, Id, JoinSet};

/// How a task ended: what it gave, or what it said when it panicked.
pub type End = Result<String, String>;

/// Which task ended, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The task's name.
    pub task: &'static str,
    /// What it said at last.
    pub why: String,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended: {}", self.task, self.why)
    }
}

/// `task` to its end, whatever that is.
async fn to_its_end<R: fmt::Display>(task: impl Future<Output = R>) -> End {
    let end = AssertUnwindSafe(task).catch_unwind();
    let told = |panic: Box<dyn Any + Send>| format!("it panicked: {}", message(&*panic));
    end.map_ok(|why| why.to_string()).map_err(told).await
}

/// What a panic said.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a word")
}

/// A task whose end several may wait for.
#[derive(Clone)]
pub struct Watched {
    end: Shared<BoxFuture<'static, End>>,
    abort: AbortHandle,
}

impl Watched {
    /// Runs `task`; what it gives is its reason.
    pub fn spawn<R: fmt::Display + 'static>(
        task: impl Future<Output = R> + Send + 'static,
    ) -> Self {
        let task = tokio::spawn(to_its_end(task));
        let abort = task.abort_handle();
        let end = task.map(|joined| joined.unwrap_or_else(|why| Ok(why.to_string())));
        let end = end.boxed().shared();
        Self { end, abort }
    }

    /// Waits for its end.
    pub async fn ended(&self) -> End {
        self.end.clone().await
    }

    /// Ends it.
    pub fn abort(&self) {
        self.abort.abort();
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.abort.id()).finish()
    }
}

/// Tasks that must not end. Dropped, they are aborted.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<End>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Runs `task`, which is not expected to end; what it gives is its reason.
    pub fn spawn<R: fmt::Display + 'static>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = R> + Send + 'static,
    ) {
        self.add(name, to_its_end(task));
    }

    /// Waits for a task that somebody else runs.
    pub fn watch(&mut self, name: &'static str, task: &Watched) {
        let task = task.clone();
        self.add(name, async move { task.ended().await });
    }

    fn add(&mut self, name: &'static str, end: impl Future<Output = End> + Send + 'static) {
        let id = self.set.spawn(end).id();
        self.names.insert(id, name);
    }

    /// Waits until one of them has ended, or panicked. For ever, where there are none.
    pub async fn first_end(&mut self) -> Ended {
        let (id, why) = match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, Ok(why) | Err(why)))) => (id, why),
            Some(Err(why)) => (why.id(), why.to_string()),
        };
        let task = self.names.get(&id).copied().unwrap_or("a task");
        Ended { task, why }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn the_first_task_that_ends_or_panics_is_named_with_its_reason() {
        let mut tasks = Tasks::default();
        tasks.spawn("well", pending::<String>());
        tasks.watch("watched", &Watched::spawn(pending::<String>()));
        tasks.spawn("ill", async { "nobody reads it any more" });
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "ill ended: nobody reads it any more");
        fn panics() -> String {
            panic!("it is there")
        }
        tasks.spawn("worse", async { panics() });
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "worse ended: it panicked: it is there");
        let watched = Watched::spawn(async { "others wait for it, too" });
        tasks.watch("shared", &watched);
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "shared ended: others wait for it, too");
        assert!(watched.ended().await.is_ok());
    }
}
