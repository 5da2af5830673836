//! A test's own Prometheus, from Debian's package: its targets, its rules, and promtool's checks.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::process::{Process, get};
use crate::servers::free_port;

const MISSING: &str = "scripts/test installs what is missing (Debian's package prometheus)";

/// Runs `promtool`, which returns an error for invalid files.
///
/// # Errors
/// Its output.
pub fn promtool(args: &[&str]) -> Result<String, String> {
    let output = Command::new("promtool").args(args).output();
    let output = output.unwrap_or_else(|why| panic!("promtool: {why} ({MISSING})"));
    let printed = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&printed).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(text),
    }
}

/// A running Prometheus. Dropping it kills it and deletes its data.
pub struct Prometheus {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes `targets` (`HOST:PORT`) as the job `job` every second, and evaluates the rules in
    /// `file` as often.
    pub fn start(job: &str, targets: &[String], file: &Path) -> Self {
        let folder = TempDir::new().expect("a folder");
        let config = folder.path().join("prometheus.yml");
        let rules = file.display();
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs: [{{job_name: '{job}', static_configs: [{{targets: {targets:?}}}]}}]
"
        );
        std::fs::write(&config, text).expect("written");
        let port = free_port();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        let data = folder.path().join("data");
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.arg("--enable-feature=exemplar-storage");
        let there = Command::new("prometheus").arg("--version").output();
        assert!(there.is_ok(), "prometheus is not there: {MISSING}");
        Self {
            process: Process::start(command),
            port,
            _folder: folder,
        }
    }

    /// Returns its JSON answer at `path`, such as `/api/v1/rules`, or `None` if it does not listen
    /// yet.
    pub fn get(&self, path: &str) -> Option<String> {
        get(("127.0.0.1", self.port), path)
    }

    /// Returns its answer at `path` for the parameter `query`.
    pub fn query(&self, path: &str, query: &str) -> Option<String> {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        self.get(&format!("{path}query={query}"))
    }

    /// Returns its log so far.
    pub fn log(&self) -> Vec<String> {
        self.process.log()
    }
}
