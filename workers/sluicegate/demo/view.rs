//! The live view: a bar per tenant on a terminal, otherwise a line per second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::ledger::TenantProgress;
use super::workload::Workload;

/// Interval at which [`ProgressView::show`] should be called.
pub const INTERVAL: Duration = Duration::from_millis(200);
/// Interval between two plain lines.
const LINE: Duration = Duration::from_secs(1);
/// Maximum number of bars, which must fit a terminal.
const BARS: usize = 20;

/// The view. After it is dropped, the last state stays on the screen.
pub enum ProgressView {
    /// Draws bars.
    Bars {
        /// Draws the bars.
        all: MultiProgress,
        /// One bar per tenant, for the first [`BARS`] of them.
        bars: Vec<ProgressBar>,
        /// The start, for the rates.
        start: Instant,
    },
    /// Prints lines.
    Lines {
        /// Whether the lines go to standard error.
        to_stderr: bool,
        /// The start.
        start: Instant,
        /// When the last line was printed, and how many jobs were settled then.
        latest: Option<(Instant, usize)>,
        /// Number of jobs of all tenants.
        total: usize,
    },
}

impl ProgressView {
    /// Creates bars on a terminal, otherwise lines. With `json`, standard output is reserved for
    /// the figures.
    pub fn new(plans: &[Workload], json: bool) -> Self {
        let start = Instant::now();
        let terminal = std::io::stderr().is_terminal() && (json || std::io::stdout().is_terminal());
        if !terminal {
            return Self::Lines {
                to_stderr: json,
                start,
                latest: None,
                total: plans.iter().map(Workload::total).sum(),
            };
        }
        let all = MultiProgress::new();
        // The template is a constant that is known to parse. The fallback only looks different.
        let style =
            ProgressStyle::with_template("{prefix:12} {wide_bar:.green} {pos:>6}/{len} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |(plan, tenant): (&Workload, usize)| {
            let bar = ProgressBar::new(plan.jobs as u64).with_style(style.clone());
            all.add(bar.with_prefix(plan.tenant(tenant)))
        };
        let tenants = plans
            .iter()
            .flat_map(|plan| (0..plan.tenants).map(move |tenant| (plan, tenant)));
        Self::Bars {
            bars: tenants.take(BARS).map(bar).collect(),
            start,
            all,
        }
    }

    /// Prints a text next to the progress.
    pub fn say(&self, text: &str) {
        match self {
            // A terminal that can't be written to shows no bars either.
            Self::Bars { all, .. } => drop(all.println(text)),
            Self::Lines {
                to_stderr: true, ..
            } => eprintln!("{text}"),
            Self::Lines { .. } => println!("{text}"),
        }
    }

    /// Shows the tenants' progress. `confirmed` is the number of jobs published so far.
    pub fn show(&mut self, progress: &[TenantProgress], confirmed: &[usize]) {
        match self {
            Self::Bars { bars, start, .. } => {
                let seconds = start.elapsed().as_secs_f64().max(0.001);
                for ((bar, tenant), confirmed) in bars.iter().zip(progress).zip(confirmed) {
                    bar.set_position(tenant.settled as u64);
                    let rate = tenant.settled as f64 / seconds;
                    let waiting = confirmed.saturating_sub(tenant.settled);
                    bar.set_message(format!(
                        "{rate:5.1}/s  waiting {waiting:6}  429: {}",
                        tenant.throttled
                    ));
                }
            }
            Self::Lines {
                to_stderr,
                start,
                latest,
                total,
            } => {
                let settled: usize = progress.iter().map(|tenant| tenant.settled).sum();
                let (since, before) = latest.unwrap_or((*start, 0));
                let ended = settled == *total;
                if since.elapsed() < LINE && !ended {
                    return;
                }
                let rate = (settled - before) as f64 / since.elapsed().as_secs_f64().max(0.001);
                let waiting = confirmed.iter().sum::<usize>().saturating_sub(settled);
                let throttled: usize = progress.iter().map(|tenant| tenant.throttled).sum();
                let line = format!(
                    "{:6.1} s  {settled:7} of {total} done  {rate:7.1}/s  waiting {waiting:7}  answered 429: {throttled}",
                    start.elapsed().as_secs_f64(),
                );
                if *to_stderr {
                    eprintln!("{line}")
                } else {
                    println!("{line}")
                }
                *latest = Some((Instant::now(), settled));
            }
        }
    }
}

impl Drop for ProgressView {
    fn drop(&mut self) {
        if let Self::Bars { bars, .. } = self {
            for bar in bars {
                bar.abandon();
            }
        }
    }
}
