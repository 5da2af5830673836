//! `sluicegate completions`: shell completions.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::Failure;

/// Print a shell completion script
///
/// Packages install it. To install it by hand, write it to the shell's completions folder. It needs
/// no configuration.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate completions bash > /usr/share/bash-completion/completions/sluicegate
  sluicegate completions zsh > /usr/local/share/zsh/site-functions/_sluicegate
  sluicegate completions fish > ~/.config/fish/completions/sluicegate.fish")]
pub struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completions of `program`.
pub fn run(args: &CompletionsArgs, mut program: Command) -> Result<ExitCode, Failure> {
    // The generator panics if its output ends early, as with `| head`, so it writes to memory
    // first.
    let mut text = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(args.shell, &mut program, name, &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
