//! A store in place of a Redis server, with which tests control time, data loss and delays.

use ::redis::{Pipeline, Value};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::GateError;

/// Runs pipelines of commands like a Redis server.
pub trait Store: Send + Sync + 'static {
    /// Runs the commands in order, in one round trip. Returns one value per command, as Redis
    /// returns it.
    ///
    /// # Errors
    /// Returns a [`GateError`] if the result is unknown; the commands may have run.
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>>;
}

/// A function that answers immediately.
impl<F: Fn(&Pipeline) -> Vec<Value> + Send + Sync + 'static> Store for F {
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
        ready(Ok(self(pipeline))).boxed()
    }
}
