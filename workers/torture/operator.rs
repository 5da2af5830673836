//! An operator, who sometimes cancels a waiting job with the command of the program under test.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use trial::worker;

use crate::RunFailure;
use crate::history::{EventKind, History, JobId};

/// Time after which a command is given up: its server may be frozen.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Exit status of a command that was used incorrectly.
const USAGE: i32 = 2;

/// Cancels jobs.
pub struct Operator {
    pub program: PathBuf,
    pub config: PathBuf,
    pub seed: u64,
    pub history: Arc<History>,
    /// Stops the operator when it is set.
    pub enough: Arc<AtomicBool>,
}

impl Operator {
    /// Cancels jobs until `enough` is set.
    ///
    /// # Errors
    /// Returns an error if the command can't be started or rejects its arguments.
    pub async fn run(self) -> Result<(), RunFailure> {
        let mut random = StdRng::seed_from_u64(self.seed ^ 0x0b_e8);
        let mut asked = HashSet::new();
        while !self.enough.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.random_range(200..2000))).await;
            if let Some(job) = self.history.some_waiting(random.random())
                && asked.insert(job)
            {
                self.cancel(job).await?;
            }
        }
        Ok(())
    }

    async fn cancel(&self, job: JobId) -> Result<(), RunFailure> {
        let (tenant, id) = (job.tenant_name(), job.to_string());
        let mut command = worker::command(&self.program);
        command
            .args(["job", "cancel", "--wait", "3s", "--for", "10m", "--json"])
            .args(["--tenant", &tenant, "--id", &id, "--config"])
            .arg(&self.config);
        self.history.add(EventKind::Canceling { job });
        let Ok(output) = timeout(COMMAND_TIMEOUT, command.output()).await else {
            return Ok(());
        };
        let output = output?;
        if output.status.code() == Some(USAGE) {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(RunFailure::new(format!("job cancel: {errors}")));
        }
        // A failed command has reported nothing: Redis may be down.
        if output.status.success() {
            let state = read(&output.stdout);
            let (state, all_follow) = state.ok_or_else(|| {
                let text = String::from_utf8_lossy(&output.stdout);
                RunFailure::new(format!("job cancel has an unexpected answer: {text}"))
            })?;
            self.history.add(EventKind::Asked {
                job,
                said: state,
                all_follow,
            });
        }
        Ok(())
    }
}

/// Reads the job's state from the command's output, and whether all workers follow.
fn read(json: &[u8]) -> Option<(String, bool)> {
    let output: Value = serde_json::from_slice(json).ok()?;
    let number = |name: &str| output.get(name)?.as_u64();
    let state = output.get("state")?.as_str()?.to_owned();
    Some((state, number("workers")? == number("workers_following")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_output_is_read() {
        let output_of = |following| {
            format!(r#"{{"state":"requested","workers":3,"workers_following":{following}}}"#)
        };
        let requested = |follow| Some(("requested".to_owned(), follow));
        assert_eq!(read(output_of(3).as_bytes()), requested(true));
        assert_eq!(read(output_of(2).as_bytes()), requested(false));
        assert_eq!(read(br#"{"state":"requested"}"#), None);
    }
}
