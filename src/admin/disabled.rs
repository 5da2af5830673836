//! Replacement for the admin server in builds without the feature `admin`: it does not listen.

use std::future::pending;
use std::sync::Arc;

use super::{AdminError, PipelineStates};
use config::Admin;
use runtime::tasks::WatchedTask;

/// Stands for the admin server.
pub struct AdminServer {
    /// A task that never ends by itself.
    pub task: WatchedTask,
}

impl AdminServer {
    /// Ends the task.
    pub async fn stop(self) {
        self.task.abort();
    }
}

/// Does not listen.
///
/// # Errors
/// None.
pub async fn serve(_: &Admin, _: Arc<PipelineStates>) -> Result<AdminServer, AdminError> {
    let task = WatchedTask::spawn(pending::<&str>());
    Ok(AdminServer { task })
}
