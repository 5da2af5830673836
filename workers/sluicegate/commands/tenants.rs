//! `sluicegate tenants`: who waits, who is denied, and who is suspended, at all workers.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use sluicegate::config::Pipelines;
use sluicegate::gate::reports::Fleet;
use sluicegate::rules::report::MOST_TENANTS;
use sluicegate::rules::report::view::{Row, Sort};

use super::table::{Side, look_at, table};
use super::times::span;
use super::together::{Said, Together};
use super::{Failure, count, fleet, plain};

/// Show the busiest tenants: what waits, starts and is denied, who is suspended, and until when
///
/// Put together of what each worker says every 2 s in Redis. A worker names 100 tenants at most, the first in each of the orders below,
/// and sums up the others. Of several pipelines all are shown, unless --pipeline names one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  sluicegate tenants
  sluicegate tenants --sort closed --limit 50
  sluicegate tenants --sort denied --watch
  sluicegate tenants --json | jq -r '.tenants[] | select(.closed_until_ms > 0) | .tenant'

WAITING are jobs in the workers' memory, of those that wait; inspect TENANT counts those in delay queues, too. N+: a worker does not name
the tenant, and may have more of it. STARTS and DENIED are in a second; a job that waits may be denied several times. CLOSED: for so long
a pause, a 429 or the breaker stops the tenant. LINE ENDS: then the last job has its turn, as far as workers were told. LIMIT: which
one made a job wait last.")]
pub struct TenantsArgs {
    /// What comes first
    #[arg(long, value_enum, default_value_t = By::Waiting)]
    sort: By,
    /// How many to show
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Look again every 2 s, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// Print JSON; with --watch a line each time
    #[arg(long)]
    json: bool,
}

/// What comes first.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    /// The most jobs that wait; of these, the longest line
    Waiting,
    /// The most denials
    Denied,
    /// The longest suspension
    Closed,
    /// The most starts
    Starts,
}

impl From<By> for Sort {
    fn from(by: By) -> Self {
        match by {
            By::Waiting => Self::Waiting,
            By::Denied => Self::Denied,
            By::Closed => Self::Closed,
            By::Starts => Self::Starts,
        }
    }
}

/// Shows them.
pub async fn run(
    args: TenantsArgs,
    all: &Pipelines,
    name: Option<&str>,
) -> Result<ExitCode, Failure> {
    let (sort, most) = (Sort::from(args.sort), args.limit as usize);
    look_at(args.watch, args.json, async || {
        let seen = Together::new(all, name)?.then(async |at, ()| {
            let fleet = fleet::of(at).await?;
            Ok(Said {
                json: as_json(&fleet, sort, most),
                text: in_words(&fleet, sort, most),
                failure: None,
            })
        });
        seen.await.end(args.json)
    })
    .await
}

const HEADS: [(&str, Side); 8] = [
    ("TENANT", Side::Left),
    ("WAITING", Side::Right),
    ("RUNNING", Side::Right),
    ("STARTS/S", Side::Right),
    ("DENIED/S", Side::Right),
    ("CLOSED", Side::Right),
    ("LINE ENDS", Side::Right),
    ("LIMIT", Side::Left),
];

fn in_words(fleet: &Fleet, sort: Sort, most: usize) -> String {
    let mut text = fleet::held(fleet);
    if fleet::is_empty(fleet) {
        return text + fleet::NOBODY + &fleet::gaps(fleet);
    }
    let view = &fleet.view;
    let sorted = view.sorted(sort);
    let rows: Vec<_> = (sorted.iter().take(most))
        .map(|row| cells(row, view.now_ms))
        .collect();
    let workers = count(view.workers.len() as u64, "worker");
    if rows.is_empty() {
        text += &format!("no tenant has jobs at {workers}\n");
    } else {
        text += &table(HEADS, &rows);
    }
    if sorted.len() > rows.len() {
        text += &format!(
            "{} of {}: --limit shows more\n",
            rows.len(),
            count(sorted.len() as u64, "tenant")
        );
    }
    text + &left_out(fleet) + &fleet::gaps(fleet)
}

/// What the workers leave out, in a line; empty: nothing.
fn left_out(fleet: &Fleet) -> String {
    let others = &fleet.view.left_out;
    if *others == Default::default() {
        return String::new();
    }
    let tenants = match others.uncounted {
        true => "others".to_owned(),
        false => format!("up to {} others", others.tenants),
    };
    format!(
        "a worker names {MOST_TENANTS} tenants at most; {tenants} have {}, {} in flight, {:.1} starts and {:.1} denials a second\n",
        count(others.waiting, "waiting job"),
        count(others.running, "call"),
        others.starts,
        others.denials
    )
}

fn cells(row: &Row, now_ms: u64) -> [String; 8] {
    let more = if row.at_least { "+" } else { "" };
    let until = |until_ms: u64| match until_ms.saturating_sub(now_ms) {
        0 => "-".to_owned(),
        left_ms => span(left_ms),
    };
    [
        plain(row.tenant.as_str(), 40),
        format!("{}{more}", row.waiting),
        format!("{}{more}", row.running),
        format!("{:.1}{more}", row.starts),
        format!("{:.1}{more}", row.denials),
        until(row.closed_until_ms),
        until(row.line_ends_ms),
        match row.waits_for.as_str() {
            "" => "-".to_owned(),
            limit => plain(limit, 64),
        },
    ]
}

fn as_json(fleet: &Fleet, sort: Sort, most: usize) -> Value {
    let view = &fleet.view;
    let sorted = view.sorted(sort);
    let row = |row: &&Row| {
        json!({
            "tenant": row.tenant.as_str(),
            "waiting": row.waiting,
            "running": row.running,
            "starts_per_s": row.starts,
            "denials_per_s": row.denials,
            "closed_until_ms": row.closed_until_ms,
            "line_ends_ms": row.line_ends_ms,
            "limit": (!row.waits_for.is_empty()).then_some(&row.waits_for),
            "workers": row.workers,
            "at_least": row.at_least,
        })
    };
    let others = &view.left_out;
    json!({
        "now_ms": view.now_ms,
        "workers": view.workers.len(),
        "tenants": sorted.iter().take(most).map(row).collect::<Vec<_>>(),
        "tenants_not_shown": sorted.len().saturating_sub(most),
        "left_out": {
            "tenants_at_most": (!others.uncounted).then_some(others.tenants),
            "waiting": others.waiting,
            "running": others.running,
            "starts_per_s": others.starts,
            "denials_per_s": others.denials,
        },
        "not_known": fleet::gaps_as_json(fleet),
    })
}

#[cfg(test)]
mod tests {
    use sluicegate::rules::report::view::View;
    use sluicegate::rules::report::{LeftOut, OfTenant, Report};
    use sluicegate::rules::tenant::Tenant;

    use super::*;

    const NOW: u64 = 1_700_000_000_000;

    fn tenant(name: &str, change: impl FnOnce(&mut OfTenant)) -> OfTenant {
        let mut one = OfTenant::new(Tenant::parse(name).expect("a tenant"));
        change(&mut one);
        one
    }

    fn fleet(reports: Vec<Report>) -> Fleet {
        let names = ('a'..).map(String::from);
        let said = names.zip(reports.into_iter().map(|it| Some(Ok(it))));
        Fleet {
            view: View::of(NOW, said.collect()),
            ..Fleet::default()
        }
    }

    #[test]
    fn tenants_are_in_columns_and_what_is_left_out_is_said() {
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
            left_out: LeftOut {
                tenants: 1_200,
                waiting: 1,
                starts: 3,
                ..LeftOut::default()
            },
            ..Report::default()
        };
        let whole = Report {
            over_ms: 2_000,
            tenants: vec![tenant(hostile, |it| it.waiting = 2)],
            ..Report::default()
        };
        let fleet = fleet(vec![cut, whole]);
        assert_eq!(
            in_words(&fleet, Sort::Waiting, 9),
            "TENANT                WAITING  RUNNING  STARTS/S  DENIED/S  CLOSED  LINE ENDS  LIMIT\n\
             acme                      240        3      12.5       3.5       -      2m 5s  hour\n\
             \\u{202e}evil\\u{200b}       2+       0+      0.0+      0.0+       -          -  -\n\
             beta                        0        0       0.0       0.0   1m 0s          -  -\n\
             a worker names 100 tenants at most; up to 1200 others have 1 waiting job, 0 calls in flight, 1.5 starts and 0.0 denials a second\n"
        );
        let first = in_words(&fleet, Sort::Closed, 1);
        assert!(
            first.contains("\nbeta ") && !first.contains("acme"),
            "{first}"
        );
        assert!(
            first.contains("\n1 of 3 tenants: --limit shows more\n"),
            "{first}"
        );
        let json = as_json(&fleet, Sort::Waiting, 2);
        assert_eq!(json["tenants"][1]["tenant"], hostile);
        assert_eq!(json["tenants"][1]["at_least"], true);
        assert_eq!(
            (&json["tenants_not_shown"], &json["workers"]),
            (&json!(1), &json!(2))
        );
    }

    #[test]
    fn where_there_is_nothing_that_is_said() {
        assert_eq!(
            in_words(&fleet(Vec::new()), Sort::Waiting, 9),
            fleet::NOBODY
        );
        let idle = fleet(vec![Report::default()]);
        let text = in_words(&idle, Sort::Waiting, 9);
        assert_eq!(text, "no tenant has jobs at 1 worker\n");
    }
}
