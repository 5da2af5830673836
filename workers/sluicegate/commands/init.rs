//! `sluicegate init`: a first configuration for the user's API.

mod dialog;
mod forms;
mod known_apis;

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, BufRead, IsTerminal as _, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use config::{Config, TenantField};
use operator::text::argument;
use serde_json::json;

use simulator::limiter::Counting;

use super::Failure;
use dialog::Dialog;
use forms::{Form, parse_all, section};
use known_apis::KnownApi;

/// Folder with the secrets of tenants, beside the file.
const SECRETS: &str = "secrets";

/// Write a first configuration for an API
///
/// Asks for missing values if there is a terminal. It reads limits the way API documentation states
/// them. The file has comments and is checked before it is written. If each tenant of a known API
/// has its own host and token, the URL contains {tenant}, and the folder `secrets` is created for
/// the tokens, one file per tenant. The command contacts no server.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate init
  sluicegate init --api
  sluicegate init --api shopify-graphql --plan plus
  sluicegate init --api github --url https://api.github.com/repos/acme/shop/issues
  sluicegate init --url https://api.example.com/v1/orders --limit '100/min'
  sluicegate init --url https://api.example.com/ --limit '10 per second, 10,000 per day' --windows aligned
  sluicegate init --url https://api.example.com/ --limit '10,000 per day, resets at midnight Pacific'
  sluicegate init --url https://api.example.com/ --limit 10/s --api-limiter nginx
  sluicegate init --url https://llm.example.com/v1/chat --limit '500 rpm, 90000 tokens/min, 5 at once'
  sluicegate init --url https://shop.example.com/ --limit '2/s burst 40' --tenant json:/shop/id --output shop.yaml")]
pub struct InitArgs {
    /// URL of the API; host, path and query can contain {tenant}, {header:NAME} and {json:/pointer}
    /// [default: the known API's, if each tenant has its own host]
    #[arg(long)]
    url: Option<String>,
    /// Known API, whose limits and answers are written; without a NAME, list the known APIs
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    api: Option<String>,
    /// Plan of the known API [default: its first one]
    #[arg(long, requires = "api", conflicts_with = "limit")]
    plan: Option<String>,
    /// Limits that the API allows each tenant, as its documentation states them, separated by
    /// commas
    #[arg(long)]
    limit: Option<String>,
    /// When the API's windows begin: at any moment, or at multiples of the window (such as full
    /// minutes)
    #[arg(long, value_enum, default_value_t = Windows::Any)]
    windows: Windows,
    /// The API's rate limiter, if known: nginx, haproxy, express-rate-limit; or how it counts:
    /// sliding, aligned, even
    #[arg(long, value_name = "LIMITER", conflicts_with = "windows")]
    api_limiter: Option<Counting>,
    /// Where a job names its tenant: header:NAME, json:/pointer, routing-key, or all (one quota for
    /// all jobs)
    #[arg(long)]
    tenant: Option<String>,
    /// Work queue in RabbitMQ
    #[arg(long, default_value = "jobs")]
    queue: String,
    /// URL of RabbitMQ
    #[arg(
        long,
        value_name = "URL",
        default_value = "amqp://guest:guest@127.0.0.1:5672/%2f"
    )]
    amqp: String,
    /// URL of Redis
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    redis: String,
    /// File to write; - means standard output
    #[arg(long, default_value = "sluicegate.yaml")]
    output: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// The values of `--windows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Windows {
    /// Any window of this length; safe for every API
    Any,
    /// Windows that begin at multiples of their length
    Aligned,
}

/// Writes the configuration.
pub fn run(args: &InitArgs) -> Result<ExitCode, Failure> {
    if args.api.as_deref() == Some("") {
        io::stdout()
            .lock()
            .write_all(known_apis::list().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let prints = args.output.as_os_str() == "-";
    if !prints && !args.force && args.output.exists() {
        return Err(Failure::Usage(format!(
            "{} already exists; --force overwrites it, --output names another file",
            args.output.display()
        )));
    }
    let stdin = io::stdin();
    let mut asked = stdin.is_terminal().then(|| Dialog {
        answers: stdin.lock(),
        questions: io::stderr(),
    });
    let asked = asked.as_mut();
    let NewConfig {
        text,
        words,
        api,
        tenant,
    } = match asked {
        Some(asked) => written(args, Some(asked))?,
        None => written::<io::Empty, io::Stderr>(args, None)?,
    };
    // The file may contain passwords.
    let mut file = OpenOptions::new();
    file.write(true).create(true).truncate(true).mode(0o600);
    if !args.force {
        file.create_new(true);
    }
    if prints {
        io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.output.display();
    let wrote = file.open(&args.output).and_then(|mut file| {
        // An existing file keeps its mode when it is opened. That of another user can't be changed.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
        file.write_all(text.as_bytes())
    });
    wrote.map_err(|error| Failure::Failed(format!("{name} can't be written: {error}")))?;
    let secrets = match api.as_ref().is_some_and(KnownApi::has_secrets) {
        true => Some(create_secrets(&args.output)?),
        false => None,
    };
    let config = match args.output.to_str() {
        Some("sluicegate.yaml") => String::new(),
        Some(path) => format!(" --config {}", argument(path)),
        None => format!(" --config {name}"),
    };
    println!("{name}: {words}. Next:");
    print_commands((&tenant, api.as_ref()), secrets.as_deref(), &config);
    Ok(ExitCode::SUCCESS)
}

/// Prints the commands that come next. `secrets` is the folder with the secrets of tenants, and
/// `config` the option that names the file.
fn print_commands(
    (tenant, api): (&TenantField, Option<&KnownApi>),
    secrets: Option<&Path>,
    config: &str,
) {
    let owner = match tenant {
        TenantField::All => "all",
        _ => "acme",
    };
    if let Some(folder) = secrets {
        let file = folder.join(owner);
        let command = format!("printf %s TOKEN > {}", argument(&file.to_string_lossy()));
        println!("  {command:<58} # stores the token of the tenant {owner}, for its calls");
    }
    let line = |command: &str, what: &str| {
        println!("  {:<58} # {what}", format!("sluicegate {command}{config}"));
    };
    line("check", "checks the configuration, RabbitMQ and Redis");
    match first_job(tenant, api) {
        Some(publish) => line(
            &publish,
            "publishes a first job; its body is sent to the API",
        ),
        None => {
            println!("  # publish a first job through an exchange, with the routing key {owner}")
        }
    }
    line(
        "run",
        "starts a worker; run as many as you like, on any number of machines",
    );
    line(
        &format!("inspect {owner}"),
        "shows the tenant's limits and why its jobs wait",
    );
}

/// Returns the command that publishes a job of the tenant `acme`, or `None` if `publish` can't.
fn first_job(tenant: &TenantField, api: Option<&KnownApi>) -> Option<String> {
    let (named, body) = match tenant {
        TenantField::RoutingKey => return None,
        TenantField::Header(_) => (" --tenant acme", None),
        TenantField::All => ("", None),
        TenantField::Json(pointer) => {
            let within =
                |value, key: &str| json!({(key.replace("~1", "/").replace("~0", "~")): value});
            let names = pointer.strip_prefix('/').unwrap_or(pointer).rsplit('/');
            ("", Some(names.fold(json!("acme"), within).to_string()))
        }
    };
    let cost = match api {
        Some(api) if api.counts_cost() => " --cost 10",
        _ => "",
    };
    let body = body.unwrap_or_else(|| match api {
        Some(_) => "BODY".to_owned(),
        None => "{\"order\": 7}".to_owned(),
    });
    let body = body.replace('\'', r"'\''");
    Some(format!("publish{named}{cost} '{body}'"))
}

/// Creates the folder with the secrets of tenants beside `output`, and returns its path.
fn create_secrets(output: &Path) -> Result<PathBuf, Failure> {
    let folder = output.with_file_name(SECRETS);
    if !folder.is_dir() {
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| {
            Failure::Failed(format!("{} can't be created: {error}", folder.display()))
        })?;
    }
    Ok(folder)
}

/// The limits to write.
enum ChosenLimits {
    /// The limits that the user named.
    Forms(Vec<Form>),
    /// The limits of a plan of a known API.
    OfApi,
}

/// A configuration to write.
struct NewConfig {
    text: String,
    /// Its limits in words.
    words: String,
    api: Option<KnownApi>,
    tenant: TenantField,
}

/// Returns the configuration.
fn written<R: BufRead, W: Write>(
    args: &InitArgs,
    mut asked: Option<&mut Dialog<R, W>>,
) -> Result<NewConfig, Failure> {
    let missing = |flag: &str| {
        Failure::Usage(format!(
            "{flag} is required, since there is no terminal; see sluicegate init --help"
        ))
    };
    let api = match &args.api {
        Some(name) => Some(KnownApi::find(name, args.plan.as_deref()).map_err(Failure::Usage)?),
        None => None,
    };
    let usual = api.as_ref().and_then(KnownApi::url);
    let url = match (&args.url, &mut asked) {
        (Some(url), _) => url.clone(),
        (None, None) if usual.is_some() => usual.unwrap_or_default().to_owned(),
        (None, Some(asked)) => asked.ask(
            "Where should jobs be sent (the API's URL)?",
            usual,
            |text| match text.starts_with("http://") || text.starts_with("https://") {
                true => Ok(text.to_owned()),
                false => Err("it must begin with http:// or https://".to_owned()),
            },
        )?,
        (None, None) => return Err(missing("--url")),
    };
    let limits = match (&args.limit, &mut asked) {
        (Some(text), _) => {
            let forms = parse_all(text).map_err(|why| Failure::Usage(format!("--limit: {why}")));
            ChosenLimits::Forms(forms?)
        }
        (None, _) if api.is_some() => ChosenLimits::OfApi,
        (None, Some(asked)) => ChosenLimits::Forms(asked.ask(
            "What does it allow each tenant, such as 100/min, or 10 per second, 5 at once?",
            None,
            parse_all,
        )?),
        (None, None) => return Err(missing("--limit or --api")),
    };
    let tenant = match (&args.tenant, &mut asked) {
        (Some(tenant), _) => tenant.clone(),
        (None, Some(asked)) => asked.ask(
            "Where does a job name its tenant (header:NAME, json:/pointer, routing-key), or all?",
            Some("header:x-tenant"),
            |text| Ok(text.to_owned()),
        )?,
        (None, None) => "header:x-tenant".to_owned(),
    };
    let text = |folder| text(args, (&url, &tenant), &limits, (api.as_ref(), folder));
    // Errors show the position in the text, which the user has not seen. The folder is created
    // later, so the check uses one that exists.
    let checked = Config::parse("the configuration", &text("/"), std::iter::empty());
    let config = checked.map_err(Failure::Config)?;
    let text = text(SECRETS);
    let words = match (&limits, &api) {
        (ChosenLimits::Forms(forms), _) => {
            let words: Vec<String> = forms.iter().map(Form::describe).collect();
            format!("{} for each tenant", words.join(", "))
        }
        (ChosenLimits::OfApi, api) => api.as_ref().map_or_else(String::new, KnownApi::describe),
    };
    Ok(NewConfig {
        text,
        words,
        api,
        tenant: config.job.tenant,
    })
}

fn text(
    args: &InitArgs,
    (url, tenant): (&str, &str),
    limits: &ChosenLimits,
    (api, folder): (Option<&KnownApi>, &str),
) -> String {
    // A JSON string is also a YAML string.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let is_of_cost = |form: &Form| matches!(form, Form::Window { of_cost: true, .. });
    let of_cost = match limits {
        ChosenLimits::Forms(forms) => forms.iter().any(is_of_cost),
        ChosenLimits::OfApi => api.is_some_and(KnownApi::counts_cost),
    };
    let corrects = match api.is_some_and(KnownApi::reports_cost) {
        true => "what the API reports",
        false => "the API's x-actual-cost",
    };
    let cost = match of_cost {
        true => format!(
            "  cost: header:x-cost    # or json:/tokens: units that the job may use, 1 without \
            it; {corrects} corrects it\n"
        ),
        false => String::new(),
    };
    let counting = args.api_limiter.unwrap_or(match args.windows {
        Windows::Any => Counting::Sliding,
        Windows::Aligned => Counting::Aligned,
    });
    let limits = match limits {
        ChosenLimits::Forms(forms) => section(forms, counting.algorithm()),
        ChosenLimits::OfApi => api.map_or_else(String::new, KnownApi::section),
    };
    let headers = match api.is_some_and(KnownApi::has_secrets) {
        true => "",
        false => {
            "    # headers: {authorization: \"Bearer …\"}    # or headers-file; a tenant's own: \
            \"Bearer {secret:tenant}\", which needs secrets-folder\n"
        }
    };
    let api = api.map_or_else(String::new, |api| api.keys(folder));
    format!(
        "# Written by sluicegate init. docs/sluicegate.yaml lists every key with its default; `sluicegate check` shows the effective values.

amqp:
  url: {amqp}    # or url-file: a file with the URL
  queue: {queue}    # the work queue; dead letters go to a queue named after it

redis:
  url: {redis}

job:
  tenant: {tenant}    # whose quota a job uses
{cost}
# Each tenant has these limits of its own, unless `scope: global` is set.
{limits}
dispatch:
  concurrency: 64    # calls in flight per worker
  http:
    url: {url}    # host, path and query can contain {{tenant}}, {{header:NAME}} or {{json:/pointer}}
    method: POST
    timeout: 10s
{api}{headers}
retry:
  max-attempts: 5    # of a failing job; waiting for quota uses none
",
        amqp = quoted(&args.amqp),
        queue = quoted(&args.queue),
        redis = quoted(&args.redis),
        tenant = quoted(tenant),
        url = quoted(url),
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use config::ApiProfile;

    use super::*;

    #[derive(Parser)]
    struct InitCli {
        #[command(flatten)]
        init: InitArgs,
    }

    fn init(args: &[&str], answers: Option<&str>) -> Result<(Config, String), Failure> {
        let args = InitCli::try_parse_from([&["init"], args].concat()).expect("the arguments fit");
        let mut asked = answers.map(|answers| Dialog {
            answers: answers.as_bytes(),
            questions: Vec::new(),
        });
        let NewConfig { text, .. } = written(&args.init, asked.as_mut())?;
        let text = text.replace("secrets-folder: secrets", "secrets-folder: /");
        let questions_text = asked.map_or_else(Vec::new, |asked| asked.questions);
        let config = Config::parse("c.yaml", &text, std::iter::empty()).expect("valid");
        Ok((config, String::from_utf8(questions_text).expect("text")))
    }

    fn why(failure: Failure) -> String {
        match failure {
            Failure::Usage(why) => why,
            Failure::Config(errors) => errors.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_can_answer_every_question() {
        let url = ["--url", "https://h/v1/{tenant}?key=a\"b"];
        let limits = "2/s burst 40, 10,000/day, 90000 tokens/min, 5 at once, 20/day";
        let args = [&url[..], &["--limit", limits, "--tenant", "json:/shop"]].concat();
        let (config, _) = init(&args, None).expect("valid");
        let limits = config.rate_limiter.policy.default_limits();
        let names: Vec<&str> = limits.iter().map(|limit| limit.name()).collect();
        let expected = ["calls-1s", "calls-1d", "tokens-1m", "running", "calls-1d-2"];
        assert_eq!(names, expected);
        assert!(config.to_string().contains("tenant: \"json:/shop\""));
        for (limiter, limit, algorithm) in [
            ("nginx", "10/s", "leaky-bucket-algo"),
            ("nginx-nodelay", "10/s burst 20", "token-bucket-algo"),
            ("haproxy", "20 per 2s, 5 at once", "leaky-bucket-algo"),
            ("express-rate-limit", "20 per 2s", "sliding-window-algo"),
            ("haproxy", "10/s burst 20", "leaky-bucket-algo"),
            ("aligned", "10/s burst 20", "token-bucket-algo"),
        ] {
            let args = [&url[..], &["--limit", limit, "--api-limiter", limiter]].concat();
            let (config, _) = init(&args, None).expect("valid");
            let limit = &config.rate_limiter.policy.default_limits()[0];
            assert_eq!(limit.algorithm().name(), algorithm, "{limiter}");
        }
        let one = [&url[..], &["--limit", "3/min", "--windows", "aligned"]].concat();
        let (config, _) = init(&one, None).expect("valid");
        let limit = &config.rate_limiter.policy.default_limits()[0];
        assert_eq!((limit.max(), limit.window_ms()), (3, 60_000));
        assert_eq!(limit.algorithm().name(), "fixed-window-algo");
    }

    #[test]
    fn a_known_api_has_its_limits_and_rules_and_needs_only_a_url() {
        let args = [
            "--api",
            "shopify-graphql",
            "--plan",
            "plus",
            "--url",
            "https://h/",
        ];
        let (config, _) = init(&args, None).expect("valid");
        let limit = &config.rate_limiter.policy.default_limits()[0];
        assert_eq!(
            (limit.name(), limit.max(), limit.burst()),
            ("points", 1000, 20_000)
        );
        let shown = config.to_string();
        assert!(shown.contains("api: shopify-graphql"), "{shown}");
        for name in ApiProfile::names() {
            let (config, questions) = init(&["--api", name], Some("https://h/\n\n")).expect(name);
            assert!(config.dispatch.http.is_some_and(|http| http.api.is_some()));
            assert!(!questions.contains("What does it allow"), "{questions}");
        }
        let args = ["--api", "github", "--url", "https://h/", "--limit", "3/s"];
        let (config, _) = init(&args, None).expect("valid");
        assert_eq!(config.rate_limiter.policy.default_limits()[0].max(), 3);
    }

    #[test]
    fn missing_values_are_requested_until_usable() {
        let answers = "example.com\nhttps://example.com/\nlots\n100/min\n\n";
        let (config, questions) = init(&[], Some(answers)).expect("valid");
        let limit = &config.rate_limiter.policy.default_limits()[0];
        assert_eq!((limit.max(), limit.window_ms()), (100, 60_000));
        for part in [
            "it must begin with http",
            "\"lots\" is not a limit",
            "[header:x-tenant]: ",
        ] {
            assert!(questions.contains(part), "{part}: {questions}");
        }
        for answers in ["", "x\nx\nx\nx\nx\nhttps://late/\n"] {
            let failure = init(&[], Some(answers)).expect_err("there is no answer");
            assert!(why(failure).contains("no valid answer"));
        }
    }

    #[test]
    fn invalid_configurations_are_reported_and_no_question_is_asked_without_a_terminal() {
        for (args, part) in [
            (&["--limit", "3/s"][..], "--url is required"),
            (&["--url", "http://h/"], "--limit or --api is required"),
            (&["--api", "githup"], "did you mean github?"),
            (&["--api", "github", "--plan", "x"], "its plans are"),
            (
                &["--url", "http://h/", "--limit", "3/x"],
                "--limit: \"3/x\" is not a limit",
            ),
            (
                &["--url", "ftp://h/", "--limit", "3/s"],
                "dispatch.http.url",
            ),
            (
                &["--url", "http://h/", "--limit", "3/s", "--tenant", "x"],
                "job.tenant",
            ),
            (
                &["--url", "http://h/", "--limit", "3/s", "--queue", ""],
                "amqp.queue",
            ),
        ] {
            let failure = init(args, None).expect_err(part);
            let why = why(failure);
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
