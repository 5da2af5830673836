//! In the place of the server, where the library is built without the feature `admin`: nobody is listened to.

use std::future::pending;
use std::sync::Arc;

use super::{AdminError, Board};
use crate::config::Admin;
use crate::tasks::Watched;

/// No server.
pub struct AdminServer {
    /// What never ends by itself.
    pub task: Watched,
}

impl AdminServer {
    /// Ends it.
    pub async fn stop(self) {
        self.task.abort();
    }
}

/// Listens nowhere.
///
/// # Errors
/// None.
pub async fn serve(_: &Admin, _: Arc<Board>) -> Result<AdminServer, AdminError> {
    let task = Watched::spawn(pending::<&str>());
    Ok(AdminServer { task })
}
