//! `sluicegate`: the worker and the operators' commands.
#![forbid(unsafe_code)]

/// Prints a line to standard error. Unlike the macro of the standard library, it does not end the
/// program in the middle of its work if the reader has gone.
macro_rules! eprintln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Prints a line to standard output, with the same difference.
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod commands;
mod demo;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{Arg, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, value_parser};
use config::Pipelines;

use commands::{
    Failure, check, completions, dead, echo, explain, health, hold, init, inspect, job, man,
    publish, run, schema, simulate, tenant, tenants, test, top, workers,
};

/// Rate-limits RabbitMQ workers per tenant with an atomic gate in Redis
#[derive(Parser)]
#[command(name = "sluicegate", version, propagate_version = true)]
#[command(after_help = "Examples:
  sluicegate init
  sluicegate check
  sluicegate publish --tenant acme '{\"order\": 7}'
  sluicegate run

Exit status: 0 success, 1 failure, 2 wrong usage or configuration.")]
struct Cli {
    /// Configuration file [default: sluicegate.yaml, if it exists]
    #[arg(long, global = true, value_name = "FILE", env = "SLUICEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// Pipeline to use, if the configuration has several [default for run, check, workers, tenants,
    /// top, pause, resume, drain and health: all]
    #[arg(long, global = true, value_name = "NAME", env = "SLUICEGATE_PIPELINE")]
    pipeline: Option<String>,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    Init(init::InitArgs),
    Run(run::RunArgs),
    Publish(publish::PublishArgs),
    Check(check::CheckArgs),
    Simulate(simulate::SimulateArgs),
    Test(test::TestArgs),
    Workers(workers::WorkersArgs),
    Tenants(tenants::TenantsArgs),
    Top(top::TopArgs),
    Inspect(inspect::InspectArgs),
    Explain(explain::ExplainArgs),
    Job(job::JobArgs),
    Dead(dead::DeadArgs),
    Tenant(tenant::TenantArgs),
    Pause(hold::PauseArgs),
    Resume(hold::ResumeArgs),
    Drain(hold::DrainArgs),
    Health(health::HealthArgs),
    Echo(echo::EchoArgs),
    Schema(schema::SchemaArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// Run a live workload and check that the promises hold
    Demo(demo::DemoArgs),
}

/// Commands without a configuration. An invalid one does not keep them from running.
const WITHOUT_CONFIG: [&str; 6] = ["echo", "test", "init", "schema", "completions", "man"];

/// Returns the commands. The global options that a command does not use are accepted but hidden.
fn program() -> clap::Command {
    let unused = |name: &'static str| Arg::new(name).long(name).hide(true);
    WITHOUT_CONFIG.iter().fold(Cli::command(), |program, name| {
        program.mut_subcommand(name, |command| {
            let config = unused("config").value_parser(value_parser!(PathBuf));
            match *name {
                // Its cases may have configurations with several pipelines.
                "test" => command.arg(config),
                _ => command.args([config, unused("pipeline")]),
            }
        })
    })
}

fn main() -> ExitCode {
    let matches = program().get_matches();
    let is_argument = matches.value_source("pipeline") == Some(ValueSource::CommandLine);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    app::install_tls_provider();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: can't start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(perform(cli, is_argument));
    // A read of standard input can't be canceled, so its thread is left behind.
    runtime.shutdown_background();
    result.unwrap_or_else(|failure| failure.report())
}

/// Runs the command. `is_argument` is set if an argument names the pipeline, and not an environment
/// variable.
async fn perform(cli: Cli, is_argument: bool) -> Result<ExitCode, Failure> {
    let (file, name) = (cli.config, cli.pipeline);
    let all = || Pipelines::from_env(file.as_deref());
    // Loads the named pipeline, or the only one.
    let load = || match all()?.select(name.as_deref()) {
        Ok((_, config)) => Ok::<_, Failure>(config.clone()),
        Err(words) => Err(Failure::Usage(words)),
    };
    match cli.command {
        CliCommand::Run(args) => run::run(args, all()?, (file, name)).await,
        CliCommand::Publish(args) => publish::run(args, &load()?).await,
        CliCommand::Check(args) => check::run(args, &all()?, name.as_deref()).await,
        CliCommand::Workers(args) => workers::run(args, &all()?, name.as_deref()).await,
        CliCommand::Tenants(args) => tenants::run(args, &all()?, name.as_deref()).await,
        CliCommand::Top(args) => top::run(args, &all()?, (file, name.as_deref())).await,
        CliCommand::Inspect(args) => inspect::run(args, &load()?).await,
        CliCommand::Dead(args) => dead::run(args, &load()?).await,
        CliCommand::Tenant(args) => tenant::run(args, &load()?).await,
        CliCommand::Explain(args) => explain::run(args, &load()?).await,
        CliCommand::Job(args) => job::run(args, &load()?).await,
        CliCommand::Pause(args) => hold::pause(args, &all()?, name.as_deref()).await,
        CliCommand::Resume(args) => hold::resume(args, &all()?, name.as_deref()).await,
        CliCommand::Drain(args) => hold::drain(args, &all()?, name.as_deref()).await,
        // With --url, no configuration is needed.
        CliCommand::Health(args) => health::run(args, all, name.as_deref()).await,
        // The configuration may have several pipelines.
        CliCommand::Simulate(args) => simulate::run(args, name.as_deref()).await,
        CliCommand::Echo(args) => echo::run(args).await,
        // Its cases are independent of environment variables.
        CliCommand::Test(args) => {
            let name = name.filter(|_| is_argument);
            test::run(args, name.as_deref()).await
        }
        CliCommand::Init(args) => init::run(&args),
        CliCommand::Schema(args) => schema::run(&args),
        CliCommand::Completions(args) => completions::run(&args, program()),
        CliCommand::Man(args) => man::run(&args, program()),
        CliCommand::Demo(args) => demo::run(args, load()?)
            .await
            .map_err(|error| Failure::Failed(error.to_string())),
    }
}
