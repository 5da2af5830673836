//! `sluicegate publish`: publishes jobs to the work queue with confirms.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use broker::Outgoing;
use broker::amqp::Client;
use clap::Args;
use config::{Config, TenantField, parse_duration};
use indicatif::{ProgressBar, ProgressStyle};
use rules::delays::DelayLevels;
use rules::text::{self, NotText};
use serde_json::json;
use tokio::io::AsyncRead;

use super::answer;
use super::input_lines::{InputLine, InputLines};
use super::interrupts::interrupted;
use super::jobs::{JobLine, JobMaker, body_of};
use super::start_time::StartOptions;
use super::{Failure, count, headers, print};

/// Maximum number of jobs in flight. Further ones wait for all of their confirms.
const BATCH: usize = 500;
/// Maximum size of bodies in flight, in bytes, not counting the last job.
const BATCH_BYTES: usize = 4 << 20;
/// The pause of the input after which an incomplete batch is sent.
const PAUSE: Duration = Duration::from_millis(20);

/// Publish jobs to the work queue and wait for RabbitMQ to confirm them
///
/// Publishes one job from the arguments, or one job per line of a file or of standard input:
/// {"tenant":"a","id":"1","body":…,"cost":1,"plan":"pro","headers":{"x-endpoint":"/v1"}}. Only the
/// tenant is required. A string body is sent unchanged, any other body as JSON. Tenant, id, plan
/// and headers are strings or whole numbers. The content type is application/json for a JSON object
/// or list and text/plain for other text, unless content_type names another. Invalid lines are
/// reported with their number; the other lines are published, and the exit status is 1. Ctrl-C or
/// SIGTERM ends the input. Missing queues are created, as by `run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate publish --tenant acme '{\"order\": 7}'
  sluicegate publish --tenant acme --id order-7 --cost 2 hello
  sluicegate publish --tenant acme --wait 30s '{\"order\": 7}'
  sluicegate publish --tenant acme --delay 10m '{\"order\": 7}'
  sluicegate publish --tenant acme --header x-endpoint=/v1/orders '{\"order\": 7}'
  sluicegate publish --tenant acme --content-type application/x-www-form-urlencoded 'order=7'
  sluicegate publish --file jobs.jsonl
  generate-jobs | sluicegate publish --json")]
pub struct PublishArgs {
    /// Tenant of the job
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Id of the job [default: a generated id]
    #[arg(long)]
    id: Option<String>,
    /// Units of quota that the job uses [default: 1]
    #[arg(long, value_name = "UNITS", allow_hyphen_values = true, value_parser = cost)]
    cost: Option<u64>,
    /// Plan of the job's tenant, sent in the header that rate-limiter.plan-header names
    #[arg(long)]
    plan: Option<String>,
    /// Header of the job (repeatable)
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = headers::pair)]
    headers: Vec<(String, String)>,
    /// Content type of the body [default: application/json for a JSON object or list, otherwise
    /// text/plain]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    #[command(flatten)]
    later: StartOptions,
    /// Body of the job [default: empty]
    #[arg(value_name = "BODY")]
    body: Option<String>,
    /// Wait at most this long for the job to end and print the API's answer; requires
    /// dispatch.results.to: reply-to
    ///
    /// The exit status is 0 if the job is done, and 1 if it is a dead letter or no result came in
    /// time. In the last case the job continues.
    #[arg(long, value_name = "TIME", value_parser = wait)]
    wait: Option<Duration>,
    /// File with one JSON job per line (`-`: standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tenant", "id", "cost", "plan", "headers", "content_type", "body", "wait", "delay", "not_before"])]
    file: Option<PathBuf>,
    /// Print the confirmed jobs as JSON
    #[arg(long)]
    json: bool,
}

/// Parses the value of `--cost`.
fn cost(text: &str) -> Result<u64, &'static str> {
    let units = text.parse().ok().filter(|units| *units > 0);
    units.ok_or("a cost must be a whole number of at least 1")
}

/// Parses the value of `--wait`.
fn wait(text: &str) -> Result<Duration, &'static str> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or("a duration must be a number with a unit, at least 1ms: 500ms, 30s, 4m")
}

/// The results of the jobs.
#[derive(Debug, Default)]
struct PublishTally {
    /// Stored by RabbitMQ.
    confirmed: u64,
    /// Input that is not a job.
    bad: u64,
    /// Refused by RabbitMQ.
    refused: u64,
}

/// Runs the command.
pub async fn run(args: PublishArgs, config: &Config) -> Result<ExitCode, Failure> {
    let queue = config.amqp.queue.as_str().into();
    let maker = JobMaker::new(config, &queue).map_err(Failure::Usage)?;
    match args.is_single() {
        true => publish_single(args, config, &maker).await,
        false => publish_lines(args, config, &maker).await,
    }
}

impl PublishArgs {
    /// Returns true if the arguments describe a job. Otherwise jobs are in lines.
    fn is_single(&self) -> bool {
        self.tenant.is_some()
            || self.id.is_some()
            || self.body.is_some()
            || self.wait.is_some()
            || self.later.is_some()
            || self.cost.is_some()
            || self.plan.is_some()
            || self.content_type.is_some()
            || !self.headers.is_empty()
    }
}

/// Publishes the job that the arguments describe.
async fn publish_single(
    args: PublishArgs,
    config: &Config,
    maker: &JobMaker<'_>,
) -> Result<ExitCode, Failure> {
    let (wait, json) = (args.wait, args.json);
    let job = single_job(args, config, maker)?;
    if let Some(time) = wait {
        return answer::wait(job, time, config, json).await;
    }
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect(&config.amqp, &levels).await?;
    let id = job.message.id().unwrap_or_default().to_owned();
    let result = publish(&client, &[job]).await;
    client.close().await;
    let refused = result?;
    if let Some((_, why)) = refused.into_iter().next() {
        return Err(Failure::Failed(format!("the job was not published: {why}")));
    }
    let queue = &config.amqp.queue;
    print(
        json,
        || json!({"queue": queue, "confirmed": 1, "bad": 0, "refused": 0, "id": id}),
        || format!("confirmed 1 job in {queue}: {id}"),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the job that the arguments describe.
fn single_job(
    args: PublishArgs,
    config: &Config,
    maker: &JobMaker<'_>,
) -> Result<Outgoing, Failure> {
    if args.tenant.is_none() && matches!(config.job.tenant, TenantField::Header(_)) {
        return Err(Failure::Usage(
            "the job has no tenant: give --tenant, or --file FILE for jobs in lines".to_owned(),
        ));
    }
    let mut given = headers::of_pairs(args.headers).map_err(Failure::Usage)?;
    (args.later.add(&mut given, config))
        .map_err(|why| Failure::Usage(format!("the job: {why}")))?;
    let (body, kind) = body_of(args.body.as_deref().unwrap_or_default());
    let line = JobLine {
        tenant: args.tenant,
        id: args.id,
        cost: args.cost,
        plan: args.plan,
        headers: given,
        content_type: args.content_type,
        ..JobLine::default()
    };
    (maker.make(line, body, kind)).map_err(|why| Failure::Usage(format!("the job: {why}")))
}

/// Publishes the jobs in the lines of a file or of standard input.
async fn publish_lines(
    args: PublishArgs,
    config: &Config,
    maker: &JobMaker<'_>,
) -> Result<ExitCode, Failure> {
    let lines = InputLines::new(open_input(args.file.as_deref()).await?);
    let levels = DelayLevels::new(config.delay.max_delay);
    let client = Client::connect(&config.amqp, &levels).await?;
    let mut tally = PublishTally::default();
    let progress = progress();
    let result = stream(lines, maker, &client, &mut tally, &progress).await;
    progress.finish_and_clear();
    client.close().await;
    // Confirmed jobs are reported in any case, since they are in the queue.
    let queue = &config.amqp.queue;
    let PublishTally {
        confirmed,
        bad,
        refused,
    } = tally;
    print(
        args.json,
        || json!({"queue": queue, "confirmed": confirmed, "bad": bad, "refused": refused}),
        || format!("confirmed {} in {queue}", count(confirmed, "job")),
    )?;
    result?;
    if bad + refused > 0 {
        let (bad, refused) = (count(bad, "bad line"), count(refused, "job"));
        return Err(Failure::Failed(format!(
            "not published: {bad}, and {refused} refused by RabbitMQ"
        )));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the file at `path`, or standard input.
async fn open_input(path: Option<&Path>) -> Result<Box<dyn AsyncRead + Unpin>, Failure> {
    if let Some(path) = path.filter(|path| path.as_os_str() != "-") {
        return match tokio::fs::File::open(path).await {
            Ok(file) => Ok(Box::new(file)),
            Err(error) => {
                let path = path.display();
                Err(Failure::Usage(format!("{path}: can't be read: {error}")))
            }
        };
    }
    if std::io::stdin().is_terminal() {
        eprintln!(
            "reading one JSON job per line; Ctrl-D ends the input. --help has \
            examples"
        );
    }
    Ok(Box::new(tokio::io::stdin()))
}

/// Jobs that are published together.
#[derive(Debug, Default)]
struct Batch {
    jobs: Vec<Outgoing>,
    /// The jobs' line numbers.
    numbers: Vec<u64>,
    /// Total size of the bodies.
    bytes: usize,
}

/// Publishes jobs in batches, so that an endless input needs no more memory than a batch. Ctrl-C
/// or SIGTERM ends the input.
async fn stream<R: AsyncRead + Unpin>(
    mut lines: InputLines<R>,
    maker: &JobMaker<'_>,
    client: &Client,
    tally: &mut PublishTally,
    progress: &ProgressBar,
) -> Result<(), Failure> {
    let mut stop = pin!(interrupted());
    loop {
        let mut batch = Batch::default();
        // An error is returned only after the jobs before it are published.
        let more = tokio::select! {
            biased;
            () = &mut stop => {
                let words = match lines.number() {
                    0 => "interrupted: no line was read".to_owned(),
                    number => {
                        format!("interrupted: the lines after line {number} are not published")
                    }
                };
                Err(Failure::Failed(words))
            }
            more = fill(&mut batch, &mut lines, maker, tally, progress) => more,
        };
        let Batch { jobs, numbers, .. } = batch;
        let refused = match publish(client, &jobs).await {
            Ok(refused) => refused,
            Err(failure) => {
                if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
                    eprintln!("error: lines {first} to {last} may or may not be in the queue");
                }
                return Err(failure);
            }
        };
        tally.confirmed += (jobs.len() - refused.len()) as u64;
        tally.refused += refused.len() as u64;
        for (at, why) in refused {
            // Each refused job is in the batch, so it has a line number.
            let number = numbers.get(at).copied().unwrap_or_default();
            progress.suspend(|| eprintln!("error: line {number}: not published: {why}"));
        }
        progress.set_position(tally.confirmed);
        if !more? {
            return Ok(());
        }
    }
}

/// Reads jobs into `batch` until it is full or the input pauses. Returns false at the end of the
/// input.
async fn fill<R: AsyncRead + Unpin>(
    batch: &mut Batch,
    lines: &mut InputLines<R>,
    maker: &JobMaker<'_>,
    tally: &mut PublishTally,
    progress: &ProgressBar,
) -> Result<bool, Failure> {
    while batch.jobs.len() < BATCH && batch.bytes < BATCH_BYTES {
        let next = match batch.jobs.is_empty() {
            true => lines.next().await,
            false => match tokio::time::timeout(PAUSE, lines.next()).await {
                Ok(next) => next,
                Err(_) => return Ok(true),
            },
        };
        let next = next.map_err(|error| {
            let number = lines.number() + 1;
            Failure::Failed(format!(
                "line {number}: the input can't be read from here on: {error}"
            ))
        })?;
        let Some(line) = next else {
            return Ok(false);
        };
        let number = line.number;
        if number == 1 {
            refuse_utf16(&line)?;
        }
        match read(maker, line) {
            Ok(None) => {}
            Ok(Some(job)) => {
                batch.bytes += job.message.body.len();
                batch.jobs.push(job);
                batch.numbers.push(number);
            }
            Err(why) => {
                tally.bad += 1;
                progress.suspend(|| eprintln!("error: line {number}: {why}"));
            }
        }
    }
    Ok(true)
}

/// Fails if the input is UTF-16, since each of its lines would be invalid.
fn refuse_utf16(first: &InputLine) -> Result<(), Failure> {
    match first.bytes.as_deref().map(text::decode) {
        Ok(Err(why @ NotText::Utf16)) => {
            Err(Failure::Usage(format!("the input can't be read: {why}")))
        }
        _ => Ok(()),
    }
}

/// Parses the job in `line`, or returns `None` for an empty line.
fn read(maker: &JobMaker<'_>, line: InputLine) -> Result<Option<Outgoing>, String> {
    let Ok(bytes) = line.bytes else {
        return Err("is longer than 16 MiB".to_owned());
    };
    let text = text::decode(&bytes).map_err(|why| why.to_string())?;
    match text.trim_ascii().is_empty() {
        true => Ok(None),
        false => maker.parse_line(text).map(Some),
    }
}

/// Publishes `batch`. Returns the jobs that RabbitMQ refused, with the reasons.
async fn publish(client: &Client, batch: &[Outgoing]) -> Result<Vec<(usize, String)>, Failure> {
    if batch.is_empty() {
        return Ok(Vec::new());
    }
    let answers = client.publish(batch).await?;
    let refused = answers.into_iter().enumerate();
    Ok(refused
        .filter_map(|(at, answer)| Some((at, answer.err()?.to_string())))
        .collect())
}

/// Shows progress on a terminal only.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    // The template is a constant. If it was wrong, the default would do.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} confirmed, {per_sec}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncReadExt as _, ReadBuf};

    use super::*;

    /// An input that can't be read.
    struct Broken;

    impl AsyncRead for Broken {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other("the disk is gone")))
        }
    }

    #[tokio::test]
    async fn jobs_before_a_read_error_are_kept_and_the_next_line_is_named() {
        let config = Config::parse("c.yaml", "", std::iter::empty()).expect("valid");
        let maker = JobMaker::new(&config, &"jobs".into()).expect("a maker");
        let text = b"{\"tenant\":\"a\"}\n\n{\"tenant\":\"a\"}\n{\"ten";
        let mut lines = InputLines::new(text.chain(Broken));
        let (mut batch, mut tally) = (Batch::default(), PublishTally::default());
        let hidden = ProgressBar::hidden();
        let filled = fill(&mut batch, &mut lines, &maker, &mut tally, &hidden).await;
        let why = filled.expect_err("it can't be read").words();
        assert_eq!(
            why,
            "line 4: the input can't be read from here on: the disk is gone"
        );
        assert_eq!((batch.numbers, tally.bad), (vec![1, 3], 0));
    }
}
