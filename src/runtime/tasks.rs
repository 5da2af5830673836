//! Supervises the tasks that run for as long as the worker does. None of them may end on its own,
//! because the worker would go on without it and look healthy. The first task that does is reported
//! with its name and reason, and the worker stops. A task inherits the log span of the task that
//! spawned it, so its lines name the same pipeline.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, TryFutureExt};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error};

/// The end of a task: its output, or its panic message.
pub type TaskOutput = Result<String, String>;

/// A task that ended, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskEnd {
    /// The task's name.
    pub task: &'static str,
    /// The reason it ended: its output or its panic message.
    pub why: String,
}

impl fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended: {}", self.task, self.why)
    }
}

/// Runs `task` and returns its output, or its panic message.
async fn catch_panic<R>(task: impl Future<Output = R>) -> Result<R, String> {
    let describe = |panic: Box<dyn Any + Send>| format!("it panicked: {}", message(&*panic));
    AssertUnwindSafe(task)
        .catch_unwind()
        .map_err(describe)
        .await
}

/// Returns the message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// A task whose end can be awaited by several callers.
#[derive(Clone)]
pub struct WatchedTask {
    end: Shared<BoxFuture<'static, TaskOutput>>,
    abort: AbortHandle,
}

impl WatchedTask {
    /// Spawns `task`. Its output becomes the reason in [`TaskEnd`].
    pub fn spawn<R: fmt::Display + 'static>(
        task: impl Future<Output = R> + Send + 'static,
    ) -> Self {
        let task = catch_panic(task).map_ok(|why| why.to_string());
        let task = tokio::spawn(task.in_current_span());
        let abort = task.abort_handle();
        let end = task.map(|joined| joined.unwrap_or_else(|why| Ok(why.to_string())));
        let end = end.boxed().shared();
        Self { end, abort }
    }

    /// Waits until the task has ended.
    pub async fn ended(&self) -> TaskOutput {
        self.end.clone().await
    }

    /// Aborts the task.
    pub fn abort(&self) {
        self.abort.abort();
    }
}

impl fmt::Debug for WatchedTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedTask")
            .field(&self.abort.id())
            .finish()
    }
}

/// The end of a supervised task: `Ok` if it was asked to stop, otherwise the reason.
type OrderlyEnd = Result<(), String>;

/// Tasks that must not end. Dropping the set aborts them.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<OrderlyEnd>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Spawns `task`, which is not expected to end. Its output becomes the reason in [`TaskEnd`].
    pub fn spawn<R: fmt::Display + 'static>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = R> + Send + 'static,
    ) {
        let end = catch_panic(task).map_ok(|why| why.to_string());
        self.add(name, end.map(as_unexpected_end));
    }

    /// Watches a task that runs elsewhere.
    pub fn watch(&mut self, name: &'static str, task: &WatchedTask) {
        let task = task.clone();
        self.add(name, async move { as_unexpected_end(task.ended().await) });
    }

    fn add(
        &mut self,
        name: &'static str,
        end: impl Future<Output = OrderlyEnd> + Send + 'static,
    ) -> Id {
        let id = self.set.spawn(end.in_current_span()).id();
        self.names.insert(id, name);
        id
    }

    /// Runs `main`, the task that the others support, until it ends. It ends when `stop` asks it
    /// to. If another task ends first, `run` cancels `stop` and waits for `main`.
    ///
    /// # Errors
    /// The first task that ended on its own, and why.
    pub async fn run(
        &mut self,
        name: &'static str,
        main: impl Future<Output = OrderlyEnd> + Send + 'static,
        stop: &CancellationToken,
    ) -> Result<(), TaskEnd> {
        let main = catch_panic(main).map(|end| end.unwrap_or_else(Err));
        let main = self.add(name, main);
        let mut first = Ok(());
        loop {
            let (id, end) = self.next_end().await;
            if id == main {
                return first.and(end);
            }
            if let (Ok(()), Err(ended)) = (&first, end) {
                error!(reason = %ended, "stopping: the worker can't continue without this task");
                stop.cancel();
                first = Err(ended);
            }
        }
    }

    /// Waits until a task has ended or panicked. Never returns if the set is empty.
    pub async fn first_end(&mut self) -> TaskEnd {
        loop {
            if let (_, Err(ended)) = self.next_end().await {
                return ended;
            }
        }
    }

    async fn next_end(&mut self) -> (Id, Result<(), TaskEnd>) {
        let (id, end) = match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok(ended)) => ended,
            Some(Err(why)) => (why.id(), Err(why.to_string())),
        };
        let task = self.names.get(&id).copied().unwrap_or("a task");
        (id, end.map_err(|why| TaskEnd { task, why }))
    }
}

/// Treats any end of a task as an error, for tasks that must not end.
fn as_unexpected_end(end: TaskOutput) -> OrderlyEnd {
    match end {
        Ok(why) | Err(why) => Err(why),
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
        tasks.watch("watched", &WatchedTask::spawn(pending::<String>()));
        tasks.spawn("ill", async { "nobody reads it any more" });
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "ill ended: nobody reads it any more");
        fn panics() -> String {
            panic!("it is there")
        }
        tasks.spawn("worse", async { panics() });
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "worse ended: it panicked: it is there");
        let watched = WatchedTask::spawn(async { "others wait for it, too" });
        tasks.watch("shared", &watched);
        let ended = tasks.first_end().await.to_string();
        assert_eq!(ended, "shared ended: others wait for it, too");
        assert!(watched.ended().await.is_ok());
    }

    #[tokio::test]
    async fn a_task_that_ends_stops_the_main_task_with_its_reason() {
        let (mut tasks, stop) = (Tasks::default(), CancellationToken::new());
        tasks.spawn("well", pending::<String>());
        tasks.spawn("ill", async { [0_u8; 0].first().expect("one").to_string() });
        let asked = stop.clone();
        let main = async move {
            asked.cancelled().await;
            Ok(())
        };
        let ended = tasks.run("main", main, &stop).await;
        let why = ended.expect_err("it can't go on").to_string();
        assert_eq!(why, "ill ended: it panicked: one");
    }

    #[tokio::test]
    async fn the_end_of_the_main_task_is_the_end() {
        let stop = CancellationToken::new();
        fn panics() -> OrderlyEnd {
            panic!("it is there")
        }
        let mut tasks = Tasks::default();
        tasks.spawn("well", pending::<String>());
        assert_eq!(tasks.run("main", async { Ok(()) }, &stop).await, Ok(()));
        let failed = tasks.run("main", async { Err("why".to_owned()) }, &stop);
        let why = failed.await.expect_err("it failed").to_string();
        assert_eq!(why, "main ended: why");
        let panicked = tasks.run("main", async { panics() }, &stop).await;
        let why = panicked.expect_err("it panicked").to_string();
        assert_eq!(why, "main ended: it panicked: it is there");
        assert!(!stop.is_cancelled(), "nobody else was to be stopped");
    }
}
