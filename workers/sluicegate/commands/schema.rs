//! `sluicegate schema`: the schema of the configuration file, for programs.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Args;
use sluicegate::config::json_schema;

use super::Failure;

/// Print the JSON schema of the configuration file
///
/// Editors complete and check sluicegate.yaml with it (the first line of docs/sluicegate.yaml names the file), and so can a pipeline
/// before a deployment. It has each key with its meaning, default and bounds (draft 2020-12). What only several keys together can
/// get wrong, check --offline tells. It needs no configuration.
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
