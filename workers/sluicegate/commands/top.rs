//! `sluicegate top`: the fleet, its tenants, limits and dead letters on one screen, and keys to act
//! on them.
//!
//! `model` has the state, and decides the effects of keys (`keys`), answers and time. `view`
//! draws the state. `servers` does the I/O with servers, and `screen` with the terminal and the
//! configuration file.

mod action;
mod clock;
mod cursor;
mod dialogs;
mod keys;
mod model;
mod query;
mod screen;
mod servers;
mod view;

#[cfg(test)]
mod beds;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use config::{ConfigSource, Pipelines};

use self::model::Model;
use super::Failure;
use super::tenants::TenantOrder;

/// Show workers, tenants, limits and dead letters on a live screen with keys to act
///
/// Shows what `workers`, `tenants`, `inspect` and `dead list` show, and refreshes every 2 s. Dead
/// letters are fetched when their view is opened and on a key. Keys pause, resume, limit and reset
/// a tenant and replay dead letters. Each action asks for confirmation and is written to the audit
/// log. If there are several pipelines, [ and ] switch between them. A changed configuration file
/// is read again. `?` lists the keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate top
  sluicegate top --sort closed
  sluicegate top --pipeline orders --no-color

It needs a terminal of at least 80x24. Programs can use sluicegate tenants --json and sluicegate workers --json.")]
pub struct TopArgs {
    /// Sort order of tenants; the key s changes it
    #[arg(long, value_enum, default_value_t = TenantOrder::Waiting)]
    sort: TenantOrder,
    /// Use no colors, as with the variable NO_COLOR; all information is also in words
    #[arg(long, visible_alias = "no-colour")]
    no_color: bool,
}

/// Runs the screen until the operator leaves.
///
/// # Errors
/// There is no terminal, no pipeline of this name, or the terminal went away.
pub async fn run(
    args: TopArgs,
    all: &Pipelines,
    (path, name): (Option<PathBuf>, Option<&str>),
) -> Result<ExitCode, Failure> {
    for (which, is_there) in [
        ("standard output", stdout().is_terminal()),
        ("standard input", stdin().is_terminal()),
    ] {
        if !is_there {
            return Err(Failure::Usage(format!(
                "top needs a terminal, and {which} is not one; programs can use sluicegate \
                tenants --json and sluicegate workers --json"
            )));
        }
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(Failure::Usage(
            "top needs a terminal that can move its cursor, and TERM is dumb; use sluicegate \
            tenants --watch"
                .to_owned(),
        ));
    }
    let (mut pipelines, mut source) = (all.clone(), ConfigSource::new(path));
    if name.is_some() {
        let (name, _) = all.select(name).map_err(Failure::Usage)?;
        pipelines = pipelines.restrict_to(name);
        source = source.of(name.clone());
    }
    let has_color = !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let clock = screen::wall_clock();
    let model = Model::new(&pipelines, args.sort.into(), clock());
    screen::run(model, source, clock, has_color).await
}
