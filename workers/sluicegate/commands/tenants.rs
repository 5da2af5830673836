//! `sluicegate tenants`: waiting, denied and suspended tenants of all workers.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use config::Pipelines;
use gate::reports::Fleet;
use operator::answer::Answer as _;
use operator::fleet::{BusiestTenants, NO_WORKER, is_empty};
use operator::overview::TenantSelection;
use rules::report::MAX_TENANTS;
use rules::report::view::{OmittedTenants, Row, Sort};

use super::per_pipeline::{PerPipeline, PipelineOutput};
use super::table::{Side, look_at, table};
use super::times::span;
use super::{Failure, count, fleet, plain};

/// Show the busiest tenants: waiting, started and denied jobs, and suspensions
///
/// Combines the reports that workers write to Redis every 2 s with the gate's state of these
/// tenants. A worker names at most 100 tenants, the first ones in each sort order, and sums up the
/// others. Shows all pipelines unless --pipeline names one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate tenants
  sluicegate tenants --sort closed --limit 50
  sluicegate tenants --sort denied --watch
  sluicegate tenants --json | jq -r '.tenants[] | select(.suspended_until_ms > 0) | .tenant'

LINE: jobs or units of cost in the tenant's waitlist; - if it has one waitlist per value of a header or routing key.
MEMORY: jobs that wait in workers' memory. CALLS: calls in flight. N+: a worker that does not name the tenant may have more.
DENIED: denials; a job counts each time it asks. CLOSED: time until a pause, a 429 or the breaker ends. ENDS IN: time until the last
waiting job starts. WHY: what stops the tenant, or the limit whose next unit is available last.")]
pub struct TenantsArgs {
    /// Sort order
    #[arg(long, value_enum, default_value_t = TenantOrder::Waiting)]
    sort: TenantOrder,
    /// Maximum number to show
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Refresh every 2 s until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON; with --watch, one line per refresh
    #[arg(long)]
    json: bool,
}

/// Sort order.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum TenantOrder {
    /// Most waiting jobs
    Waiting,
    /// Most denials
    Denied,
    /// Longest suspension
    Closed,
    /// Most starts
    Starts,
}

impl From<TenantOrder> for Sort {
    fn from(by: TenantOrder) -> Self {
        match by {
            TenantOrder::Waiting => Self::Waiting,
            TenantOrder::Denied => Self::Denied,
            TenantOrder::Closed => Self::Closed,
            TenantOrder::Starts => Self::Starts,
        }
    }
}

/// Runs the command.
pub async fn run(
    args: TenantsArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let selection = TenantSelection {
        sort: args.sort.into(),
        max: args.limit as usize,
        name: String::new(),
    };
    look_at(args.watch, args.json, async || {
        let seen = PerPipeline::new(all, name)?.then(async |at, ()| {
            let mut seen = fleet::of(at, Some(&selection)).await?;
            let shown = seen.shown.take().unwrap_or_default();
            Ok(PipelineOutput {
                json: shown.answer(&seen.fleet).as_json(),
                text: fleet::notices(&seen) + &describe(&seen.fleet, &shown),
                failure: None,
            })
        });
        seen.await.end(args.json)
    })
    .await
}

/// The headers of [`cells`].
pub const HEADS: [(&str, Side); 9] = [
    ("TENANT", Side::Left),
    ("LINE", Side::Right),
    ("MEMORY", Side::Right),
    ("CALLS", Side::Right),
    ("STARTS/S", Side::Right),
    ("DENIED/S", Side::Right),
    ("CLOSED", Side::Right),
    ("ENDS IN", Side::Right),
    ("WHY", Side::Left),
];

fn describe(fleet: &Fleet, shown: &BusiestTenants) -> String {
    if is_empty(fleet) {
        return format!("{NO_WORKER}\n{}", fleet::gaps(fleet));
    }
    let mut text = String::new();
    let view = &fleet.view;
    let rows: Vec<_> = (shown.rows.iter())
        .map(|row| cells(row, view.now_ms, span))
        .collect();
    if rows.is_empty() {
        let workers = count(view.workers.len() as u64, "worker");
        text += &format!("no tenant has jobs at {workers}\n");
    } else {
        text += &table(HEADS, &rows);
    }
    if shown.more > 0 {
        let all = count((rows.len() + shown.more) as u64, "tenant");
        text += &format!("{} of {all}: --limit shows more\n", rows.len());
    }
    if let Some(words) = gate_failure(shown) {
        text += &format!("{words}\n");
    }
    text + &left_out(fleet) + &fleet::gaps(fleet)
}

/// Describes why the gate's state of some tenants is missing, or returns `None` if it is not.
pub fn gate_failure(shown: &BusiestTenants) -> Option<String> {
    let why = plain(shown.gate_failure.as_deref()?, 200);
    Some(format!(
        "the gate's state of some tenants is unknown: {why}"
    ))
}

/// Returns what the workers' reports omit in a line, or an empty text.
fn left_out(fleet: &Fleet) -> String {
    let others = &fleet.view.left_out;
    let waiting = omitted(others);
    if waiting.is_empty() {
        return waiting;
    }
    format!(
        "a worker names at most {MAX_TENANTS} tenants; {waiting}, {} in flight, {:.1} starts and \
        {:.1} denials per second\n",
        count(others.running, "call"),
        others.starts,
        others.denials
    )
}

/// Describes the waiting jobs of omitted tenants: `up to 3 others have 2 waiting jobs`. Empty if no
/// tenant is omitted.
pub fn omitted(others: &OmittedTenants) -> String {
    let tenants = match others.uncounted {
        _ if *others == OmittedTenants::default() => return String::new(),
        true => "others".to_owned(),
        false => format!("up to {} others", others.tenants),
    };
    format!("{tenants} have {}", count(others.waiting, "waiting job"))
}

/// Returns the cells of a tenant. `span` formats the time that is left.
pub fn cells(row: &Row, now_ms: u64, span: fn(u64) -> String) -> [String; 9] {
    let more = if row.at_least { "+" } else { "" };
    let until = |until_ms: u64| match until_ms.saturating_sub(now_ms) {
        0 => "-".to_owned(),
        left_ms => span(left_ms),
    };
    [
        plain(row.tenant.as_str(), 40),
        (row.waitlist_units).map_or_else(|| "-".to_owned(), |units| units.to_string()),
        format!("{}{more}", row.waiting),
        format!("{}{more}", row.running),
        format!("{:.1}{more}", row.starts),
        format!("{:.1}{more}", row.denials),
        until(row.closed_until_ms),
        until(row.line_ends_ms),
        match (row.closed_until_ms > now_ms, row.waits_for.as_str()) {
            (true, _) if row.closed_by.is_empty() => "suspended".to_owned(),
            (true, _) => plain(&row.closed_by, 80),
            (false, "") => "-".to_owned(),
            (false, limit) => format!("limit {}", plain(limit, 64)),
        },
    ]
}

#[cfg(test)]
mod tests {
    use rules::report::view::{FleetReport, WaitlistState};
    use rules::report::{Report, ReportedTenant, UnnamedTenants};
    use rules::tenant::Tenant;
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn tenant(name: &str, change: impl FnOnce(&mut ReportedTenant)) -> ReportedTenant {
        let mut one = ReportedTenant::new(Tenant::parse(name).expect("a tenant"));
        change(&mut one);
        one
    }

    fn fleet(reports: Vec<Report>) -> Fleet {
        let names = ('a'..).map(String::from);
        let named = names.zip(reports.into_iter().map(|it| Some(Ok(it))));
        Fleet {
            view: FleetReport::of(NOW, named.collect()),
            ..Fleet::default()
        }
    }

    /// Returns the rows without the gate's state.
    fn shown(fleet: &Fleet, sort: Sort, max: usize) -> BusiestTenants {
        let shown = BusiestTenants {
            rows: fleet.view.first(sort, max),
            ..BusiestTenants::default()
        };
        shown.sorted(sort, max, fleet.view.tenants.len())
    }

    #[test]
    fn tenants_are_in_columns_with_a_count_of_omitted_ones() {
        let hostile = "\u{202e}evil\u{200b}";
        let cut = Report {
            over_ms: 2_000,
            tenants: vec![
                tenant("acme", |it| {
                    (it.waiting, it.running, it.starts, it.denials) = (240, 3, 25, 7);
                    (it.line_ends_ms, it.waits_for) = (NOW + 125_000, "hour".to_owned());
                }),
                tenant("beta", |it| it.closed_until_ms = NOW + 60_500),
            ],
            left_out: UnnamedTenants {
                tenants: 1_200,
                waiting: 1,
                starts: 3,
                ..UnnamedTenants::default()
            },
            ..Report::default()
        };
        let whole = Report {
            over_ms: 2_000,
            tenants: vec![tenant(hostile, |it| it.waiting = 2)],
            ..Report::default()
        };
        let fleet = fleet(vec![cut, whole]);
        let mut shown = shown(&fleet, Sort::Waiting, 9);
        assert_eq!(
            describe(&fleet, &shown),
            "TENANT                LINE  MEMORY  CALLS  STARTS/S  DENIED/S  CLOSED  ENDS IN  WHY\n\
             acme                     -     240      3      12.5       3.5       -    2m 5s  limit hour\n\
             \\u{202e}evil\\u{200b}     -      2+     0+      0.0+      0.0+       -        -  -\n\
             beta                     -       0      0       0.0       0.0   1m 0s        -  suspended\n\
             a worker names at most 100 tenants; up to 1200 others have 1 waiting job, 0 calls in flight, 1.5 starts and 0.0 denials per second\n"
        );
        let beta = WaitlistState {
            waiting: Some(700),
            ends_ms: NOW + 3_600_000,
            closed_until_ms: NOW + 61_000,
            closed_by: "429 from the\nAPI".to_owned(),
        };
        shown.rows[2].update(beta);
        shown.gate_failure = Some("Redis is\taway".to_owned());
        let shown = shown.sorted(Sort::Waiting, 1, 3);
        let text = describe(&fleet, &shown);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..4],
            [
                "beta     700       0      0       0.0       0.0   1m 1s    1h 0m  429 from the\\nAPI",
                "1 of 3 tenants: --limit shows more",
                "the gate's state of some tenants is unknown: Redis is\\taway",
            ]
        );
        let json = shown.answer(&fleet).as_json();
        let first = &json["tenants"][0];
        assert_eq!(
            (&first["waiting"], &first["waiting_in_memory"]),
            (&json!(700), &json!(0))
        );
        assert_eq!(first["suspended_by"], "429 from the\nAPI");
        assert_eq!(
            (&json["tenants_not_shown"], &json["workers"]),
            (&json!(2), &json!(2))
        );
    }

    #[test]
    fn an_empty_list_has_a_message() {
        let nobody = fleet(Vec::new());
        let text = describe(&nobody, &BusiestTenants::default());
        assert_eq!(text, format!("{NO_WORKER}\n"));
        let idle = fleet(vec![Report::default()]);
        let text = describe(&idle, &BusiestTenants::default());
        assert_eq!(text, "no tenant has jobs at 1 worker\n");
    }
}
