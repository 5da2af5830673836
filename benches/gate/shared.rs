//! A partition that all tenants share, with few and with many waiting tenants: the cost of a
//! decision, and the memory per tenant in Redis.

use gate::Question;
use rules::limit::Algorithm;
use rules::scope::Scope;

use crate::bed::{Bed, FRESH, limit};
use crate::{MAX_COUNT, PLAIN, TURN};

/// Numbers of waiting tenants, with one job each.
const WAITING: [usize; 3] = [10, 1000, 100_000];
/// Number of jobs that one tenant asks for at once.
const WAITLIST: usize = 1000;

/// Creates a bed with an exhausted limit of all tenants.
async fn full(max: u64) -> Bed {
    let limit = limit(Algorithm::SlidingWindow, max, 24 * 3600);
    let bed = Bed::start(limit.with_scope(Scope::Global).into(), &PLAIN).await;
    for _ in 0..max / 100 {
        bed.ask("first", &[FRESH; 100]).await;
    }
    bed
}

/// Measures a new job of a waiting tenant, and the first tenant's job that comes back.
async fn decisions(bed: &Bed, first: &str) -> String {
    let ticket = bed.ticket(first).await;
    let back = Question {
        ticket: Some(ticket),
        ..FRESH
    };
    let mut found = Vec::new();
    for (what, tenant, ask) in [("fresh", "fresh", FRESH), ("back", first, back)] {
        let ask = [bed.tenant_ask(tenant, &[ask])];
        let figure = bed.against_floor(TURN / 10, &ask).await;
        let (micros, commands) = bed.work(TURN, &ask[0]).await;
        found.push(format!(
            "{what} {figure}, {micros:.1} us in the script, {commands:.1} commands"
        ));
    }
    found.join("; ")
}

/// Prints all figures.
pub async fn shared() {
    println!("shared: as one, where so many tenants wait for one limit of all, one job each");
    let bed = full(1000).await;
    let mut filled = 0;
    for count in WAITING {
        bed.wait_tenants(filled..count).await;
        filled = count;
        let keys = bed.bytes_of("bench-*:%global:*").await;
        let waitlist = bed.bytes_of("bench-*:tenant-7:line").await;
        let each = keys as f64 / count as f64 + waitlist as f64;
        println!("shared: {count}: {}", decisions(&bed, "tenant-0").await);
        println!(
            "shared: {count}: {each:.0} bytes a tenant that waits, {waitlist} of them its waitlist's"
        );
    }
    println!("shared: as one, where one tenant has a waitlist of so many, and ten others wait");
    let bed = full(1000).await;
    bed.wait_tenants(0..10).await;
    for _ in 0..MAX_COUNT / WAITLIST {
        bed.ask("long", &[FRESH; WAITLIST]).await;
    }
    println!(
        "shared: {MAX_COUNT} of others': {}",
        decisions(&bed, "tenant-0").await
    );
    println!(
        "shared: {MAX_COUNT} of its own: {}",
        decisions(&bed, "long").await
    );
}
