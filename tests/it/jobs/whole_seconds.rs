//! An API whose windows begin with a tenant's first call, and whose headers give their end in whole
//! seconds, rounded up (express-rate-limit).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kit::api::{Api, Call, Reply};
use kit::{Bed, MS, jobs, until};
use tokio::time::Instant;

use crate::PROGRAM;

const LIMIT: u32 = 20;
const WINDOW: Duration = Duration::from_secs(2);
const JOBS: usize = 120;

/// One tenant's use of its windows.
#[derive(Default)]
struct Window {
    ends: Option<(Instant, SystemTime)>,
    calls: u32,
    /// How long each time the tenant had an unused window and made no call.
    idle: Vec<Duration>,
    refused: u32,
}

impl Window {
    fn call(&mut self) -> Reply {
        let (now, clock) = (Instant::now(), SystemTime::now());
        if self.ends.is_none_or(|(ends, _)| ends <= now) {
            self.idle.extend(self.ends.map(|(ends, _)| now - ends));
            self.ends = Some((now + WINDOW, clock + WINDOW));
            self.calls = 0;
        }
        self.calls += 1;
        let is_refused = self.calls > LIMIT;
        self.refused += u32::from(is_refused);
        let (_, resets) = self.ends.expect("it has begun");
        let resets = resets.duration_since(UNIX_EPOCH).expect("after 1970");
        let resets = (resets.as_millis().div_ceil(1_000)).to_string();
        Reply::status(if is_refused { 429 } else { 200 })
            .header("x-ratelimit-limit", &LIMIT.to_string())
            .header(
                "x-ratelimit-remaining",
                &LIMIT.saturating_sub(self.calls).to_string(),
            )
            .header("x-ratelimit-reset", &resets)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_in_whole_seconds_costs_no_quota() {
    let api = Api::start().await;
    let windows: Arc<Mutex<HashMap<String, Window>>> = Arc::default();
    let seen = Arc::clone(&windows);
    api.answers(move |call: &Call| {
        let mut windows = seen.lock().expect("no panic");
        windows.entry(call.tenant.clone()).or_default().call()
    });
    let bed = Bed::shared();
    let yaml = bed.yaml(
        "max-requests: 20, window-size: 2s, guard: strict",
        &api.url(),
        "",
    );
    let tenants = ["one", "two", "three"];
    bed.publish(&yaml, tenants.iter().flat_map(|tenant| jobs(tenant, JOBS)))
        .await;
    let worker = PROGRAM.start(&yaml);
    until("all calls", || api.count() >= tenants.len() * JOBS).await;
    worker.stop();
    let calls = api.calls();
    assert_eq!(calls.len(), tenants.len() * JOBS, "each job once");
    let windows = windows.lock().expect("no panic");
    let mut gaps: Vec<Duration> = Vec::new();
    for tenant in tenants {
        let Window { idle, refused, .. } = &windows[tenant];
        let of_tenant = || calls.iter().filter(|call| call.tenant == tenant);
        let took =
            of_tenant().next_back().expect("calls").at - of_tenant().next().expect("calls").at;
        println!("{tenant}: {took:?}, {refused} refused, {idle:?} idle between 6 windows");
        assert_eq!(*refused, 0, "{tenant}");
        gaps.extend(idle);
    }
    // 0.1 s between two windows, but up to a second if each header were taken literally. Pauses of
    // the machine make only few gaps longer.
    gaps.sort_unstable();
    assert!(gaps[gaps.len() / 2] < 500 * MS, "{gaps:?}");
}
