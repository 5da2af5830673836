//! An operator: now and then a job that waits is cancelled, by the command that is under test, too.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::Failure;
use crate::history::{History, Job, What};
use crate::workers::without_our_variables;

/// A command that takes longer is given up: its server may be frozen.
const WITHIN: Duration = Duration::from_secs(30);
/// How the command ends that was used wrongly.
const USAGE: i32 = 2;

/// Cancels jobs.
pub struct Operator {
    pub program: PathBuf,
    pub config: PathBuf,
    pub seed: u64,
    pub history: Arc<History>,
    /// No more are cancelled.
    pub enough: Arc<AtomicBool>,
}

impl Operator {
    /// Until there is enough.
    ///
    /// # Errors
    /// The command can't be started, or does not understand what it is asked.
    pub async fn run(self) -> Result<(), Failure> {
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

    async fn cancel(&self, job: Job) -> Result<(), Failure> {
        let (tenant, id) = (job.tenant_name(), job.to_string());
        let mut command = Command::new(&self.program);
        without_our_variables(&mut command);
        command
            .args(["job", "cancel", "--wait", "3s", "--for", "10m", "--json"])
            .args(["--tenant", &tenant, "--id", &id, "--config"])
            .arg(&self.config)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        self.history.add(What::Cancelling { job });
        let Ok(output) = timeout(WITHIN, command.output()).await else {
            return Ok(());
        };
        let output = output?;
        if output.status.code() == Some(USAGE) {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(format!("job cancel: {said}")));
        }
        // One that fails has said nothing: Redis may be away.
        if output.status.success() {
            let said = read(&output.stdout);
            let (said, all_follow) = said.ok_or_else(|| {
                let text = String::from_utf8_lossy(&output.stdout);
                Failure::new(format!("job cancel says what nobody understands: {text}"))
            })?;
            self.history.add(What::Asked {
                job,
                said,
                all_follow,
            });
        }
        Ok(())
    }
}

/// How the command says that the job stands, and whether all workers follow.
fn read(json: &[u8]) -> Option<(String, bool)> {
    let said: Value = serde_json::from_slice(json).ok()?;
    let number = |name: &str| said.get(name)?.as_u64();
    let state = said.get("state")?.as_str()?.to_owned();
    Some((state, number("workers")? == number("workers_following")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_says_is_read() {
        let said = |following| {
            format!(r#"{{"state":"requested","workers":3,"workers_following":{following}}}"#)
        };
        let requested = |follow| Some(("requested".to_owned(), follow));
        assert_eq!(read(said(3).as_bytes()), requested(true));
        assert_eq!(read(said(2).as_bytes()), requested(false));
        assert_eq!(read(br#"{"state":"requested"}"#), None);
    }
}
