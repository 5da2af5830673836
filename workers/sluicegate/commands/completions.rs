//! `sluicegate completions`: shell completions.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

use super::Failure;

/// Print what a shell completes: commands, options, files
///
/// Packages bring it where shells look. By hand, it goes into the shell's own folder for completions. It needs no configuration.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate completions bash > /usr/share/bash-completion/completions/sluicegate
  sluicegate completions zsh > /usr/local/share/zsh/site-functions/_sluicegate
  sluicegate completions fish > ~/.config/fish/completions/sluicegate.fish")]
pub struct CompletionsArgs {
    /// Of which shell
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
