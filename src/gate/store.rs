//! What the gate's client code needs of a store: it answers a pipeline of commands in one round trip. Redis does; so does what stands in
//! its place where the caller decides about time, losses and delays.

use ::redis::{Pipeline, Value};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::gate::GateError;

/// A store without a server of its own.
pub trait Store: Send + Sync + 'static {
    /// Runs the commands in order, in one round trip. Returns one value for each, as Redis has it.
    ///
    /// # Errors
    /// [`GateError`]: it may have run them, or not.
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>>;
}

/// A function that answers at once.
impl<F: Fn(&Pipeline) -> Vec<Value> + Send + Sync + 'static> Store for F {
    fn run<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, GateError>> {
        ready(Ok(self(pipeline))).boxed()
    }
}
