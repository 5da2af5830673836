//! `sluicegate run` as a process of its own, and how much memory it takes.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::servers::unique;

/// A worker; dropped, it is killed.
pub struct Process {
    child: Child,
    config: PathBuf,
}

impl Process {
    /// Starts one with `yaml` as its configuration.
    pub fn start(yaml: &str) -> Self {
        let config = std::env::temp_dir().join(format!("{}.yaml", unique("worker")));
        std::fs::write(&config, yaml).expect("a config file");
        let child = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
            .arg("run")
            .arg("--config")
            .arg(&config)
            // What a process takes by itself must not depend on how many processors there are.
            .env("TOKIO_WORKER_THREADS", "2")
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a process");
        Self { child, config }
    }

    /// The memory that it has now, in kB.
    pub fn resident_kb(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The most that it ever had, in kB.
    pub fn peak_kb(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("a process that runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
        number.unwrap_or_else(|| panic!("the worker has ended: {field} is missing"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}
