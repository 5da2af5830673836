//! `sluicegate man`: the manual pages.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use super::Failure;

/// Print the manual page, or write one per command
///
/// The pages contain the --help texts. Packages install them. It needs no configuration.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate man | man -l -
  sluicegate man --out /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Folder for sluicegate.1 and a page per command, such as sluicegate-run.1
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the page of `program`, or writes the pages of all its commands.
pub fn run(args: &ManArgs, mut program: Command) -> Result<ExitCode, Failure> {
    program.build();
    let Some(folder) = &args.out else {
        io::stdout().lock().write_all(&page(program)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let not_written = |path: &Path, error: io::Error| {
        Failure::Failed(format!("{}: can't be written: {error}", path.display()))
    };
    fs::create_dir_all(folder).map_err(|error| not_written(folder, error))?;
    let mut commands = vec![program];
    while let Some(command) = commands.pop() {
        commands.extend(command.get_subcommands().filter(|it| !is_help(it)).cloned());
        let path = folder.join(format!("{}.1", name(&command)));
        fs::write(&path, page(command)?).map_err(|error| not_written(&path, error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns true for clap's own `help` command.
fn is_help(command: &Command) -> bool {
    command.get_name() == "help"
}

/// Returns the name of a command's page, such as `sluicegate-dead-list`.
fn name(command: &Command) -> String {
    command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned()
}

fn page(command: Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
