//! The cost of a decision of the gate: `cargo bench --bench gate
//! [one|many|tenants|waiting|bytes|shared]`, on a private Redis. Each figure is a ratio to the
//! baseline, an EVALSHA of a script that returns 1 on a connection of the same kind, in turns in
//! the same run; or a number of bytes. No figure fails this bench.

mod bed;
mod shared;

use std::process::ExitCode;

use bed::{Bed, FRESH, PLENTY, limit};
use rules::limit::{Algorithm, Limit};

/// Decisions in one turn.
const TURN: usize = 250;
/// Number of tenants asked for out of many. Each is asked for once in all turns.
const ASKED: usize = 20_000;
/// Jobs in a batch.
const BATCH: usize = 100;
/// Maximum number of tenants and of waiting jobs.
const MAX_COUNT: usize = 1_000_000;

/// The names of the figures.
const NAMES: [&str; 6] = ["one", "many", "tenants", "waiting", "bytes", "shared"];

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let named: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    if let Some(name) = named.iter().find(|name| !NAMES.contains(&name.as_str())) {
        eprintln!("error: there is no {name}: one of {}", NAMES.join(", "));
        return ExitCode::from(2);
    }
    let is_named = |name: &str| named.is_empty() || named.iter().any(|n| n == name);
    if is_named("one") {
        one().await;
    }
    if is_named("many") {
        many().await;
    }
    if is_named("tenants") {
        tenants().await;
    }
    if is_named("waiting") {
        waiting().await;
    }
    if is_named("bytes") {
        bytes().await;
    }
    if is_named("shared") {
        shared::shared().await;
    }
    ExitCode::SUCCESS
}

/// Returns a limit that admits all jobs and one that admits none.
fn both(algorithm: Algorithm) -> [(&'static str, Limit); 2] {
    let starts = limit(algorithm, PLENTY, 3600);
    let starts = match algorithm.has_burst() {
        true => starts.with_burst(PLENTY).expect("in range"),
        false => starts,
    };
    [("starts", starts), ("waits", limit(algorithm, 1, 3600))]
}

/// The default `redis.conf`, without a file of its writes.
const PLAIN: [&str; 1] = ["appendonly no"];

/// Measures one decision per round trip.
async fn one() {
    println!("one: decisions a second, one a round trip, as a part of the floor's");
    for algorithm in Algorithm::ALL {
        for (what, limit) in both(algorithm) {
            let bed = Bed::start(limit.into(), &PLAIN).await;
            let ask = [bed.tenant_ask("t", &[FRESH])];
            let figure = bed.against_floor(TURN, &ask).await;
            let (micros, commands) = bed.work(10 * TURN, &ask[0]).await;
            println!(
                "one: {:21} {what:6} {figure}; {micros:.1} us in the script, which calls {commands:.1} commands",
                algorithm.name()
            );
        }
    }
    let limit = limit(Algorithm::FixedWindow, PLENTY, 3600);
    let bed = Bed::start(limit.clone().into(), &PLAIN)
        .await
        .watching()
        .await;
    let ask = [bed.tenant_ask("t", &[FRESH])];
    let figure = bed.against_floor(TURN, &ask).await;
    println!("one: fixed-window-algo starts, with the pulse: {figure}");
    let bed = Bed::start(limit.into(), &["appendonly yes"]).await;
    let ask = [bed.tenant_ask("t", &[FRESH])];
    let figure = bed.against_floor(TURN, &ask).await;
    println!("one: fixed-window-algo starts, with appendonly yes: {figure}");
}

/// Measures one batch of one tenant per round trip.
async fn many() {
    println!("many: jobs a second in batches of {BATCH}, as a multiple of the floor's calls");
    for algorithm in Algorithm::ALL {
        for (what, limit) in both(algorithm) {
            let bed = Bed::start(limit.into(), &PLAIN).await;
            let ask = [bed.tenant_ask("t", &[FRESH; BATCH])];
            let figure = bed.against_floor(TURN / 10, &ask).await;
            let ratio = figure.ratio() * BATCH as f64;
            println!("many: {:21} {what:6} {ratio:.1}", algorithm.name());
        }
    }
}

/// Measures decisions with few tenants and with many.
async fn tenants() {
    println!("tenants: as one, over so many tenants in turn, each with two starts");
    for algorithm in Algorithm::ALL {
        let bed = Bed::start(limit(algorithm, 5, 24 * 3600).into(), &PLAIN).await;
        let mut figures = Vec::new();
        let mut filled = 0;
        for count in [10, MAX_COUNT] {
            bed.fill_tenants(filled..count).await;
            filled = count;
            let asks: Vec<_> = (0..ASKED)
                .map(|n| {
                    // A large step, so that neighbors in memory are not asked for in sequence.
                    let tenant = n.wrapping_mul(7_654_321) % count;
                    bed.tenant_ask(&tenant.to_string(), &[FRESH])
                })
                .collect();
            let figure = bed.against_floor(TURN, &asks).await;
            figures.push(format!("{count}: {figure}"));
        }
        println!("tenants: {:21} {}", algorithm.name(), figures.join(", "));
    }
}

/// Measures decisions with few waiting jobs and with many.
async fn waiting() {
    println!("waiting: as one, fresh jobs of one tenant behind so many that wait");
    for algorithm in Algorithm::ALL {
        let bed = Bed::start(limit(algorithm, 1000, 24 * 3600).into(), &PLAIN).await;
        bed.ask("t", &[FRESH; 1000]).await;
        let mut figures = Vec::new();
        let mut filled = 0;
        for count in [10, MAX_COUNT] {
            while filled < count {
                let jobs = (count - filled).min(1000);
                bed.ask("t", &vec![FRESH; jobs]).await;
                filled += jobs;
            }
            let ask = [bed.tenant_ask("t", &[FRESH])];
            let figure = bed.against_floor(TURN, &ask).await;
            figures.push(format!("{count}: {figure}"));
        }
        println!("waiting: {:21} {}", algorithm.name(), figures.join(", "));
    }
}

/// Measures the memory that Redis uses for a tenant with an exhausted limit.
async fn bytes() {
    println!(
        "bytes: of Redis for a tenant that used its limit up and has a job waiting: log, waitlist"
    );
    for algorithm in Algorithm::ALL {
        let mut found = Vec::new();
        for max in [10, 100, 1000, 10_000] {
            let limit = limit(algorithm, max, 24 * 3600);
            let bed = Bed::start(limit.into(), &PLAIN).await;
            // One job in the middle, as the totals' digits grow.
            for _ in 0..=max / 10 {
                bed.ask("tenant-1234", &[FRESH; 10]).await;
            }
            let (log, waitlist) = bed.bytes().await;
            let each = log as f64 / max as f64;
            found.push(format!("{max}: {log} ({each:.1} a unit), {waitlist}"));
        }
        println!("bytes: {:21} {}", algorithm.name(), found.join("; "));
    }
}
