//! `sluicegate schema`: the schema of the configuration file, for programs.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use config::json_schema;

use super::Failure;

/// Print the JSON schema of the configuration file
///
/// Editors complete and check sluicegate.yaml with it (the first line of docs/sluicegate.yaml names
/// the file), and CI can check the file before a deployment. The schema (draft 2020-12) has the
/// meaning, default and bounds of every key. Only `check --offline` finds keys that contradict each
/// other. It needs no configuration.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate schema
  sluicegate schema > sluicegate.schema.json")]
pub struct SchemaArgs {}

/// Prints the schema.
pub fn run(_: &SchemaArgs) -> Result<ExitCode, Failure> {
    let text = format!("{:#}", json_schema());
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}
