//! A zoo of limiters: a worker, configured as docs/LIMITS.md recommends, calls APIs behind limiters
//! of other projects. Each allows 20 calls in 2 s to each tenant (nginx without a burst: 10 a
//! second).
//!
//! `cargo test --test it zoo:: -- --nocapture` prints the figures of docs/LIMITS.md. Packages from
//! npm and PyPI are pinned, and installed into `target/zoo`.

mod servers;

use std::time::Duration;

use kit::{Bed, MS, SECOND, jobs, until};

use self::servers::{Kind, Limiter, LimiterCall};
use crate::PROGRAM;

/// A tenant may have one call in this number refused: one burst, if a limiter stood still and saw
/// it too close to the last one. A limiter that the configuration does not fit refuses a quarter or
/// more.
const MIN_CALLS_PER_REFUSAL: usize = 6;
/// Maximum makespan without the waits after refusals, as a multiple of the shortest one that the
/// limiter allows. docs/LIMITS.md has measured values. This bound is wide because jobs start late
/// on a busy machine; it only detects lost quota.
const MAX_RATIO: f64 = 2.5;
/// Maximum distance of the two closest calls, as a multiple of the average distance in the shortest
/// makespan. It shows what the worker keeps between calls, on a machine of any speed: a busy one
/// makes some calls late, and then others closer.
const MAX_CLOSEST: f64 = 1.05;
const TWO_SECONDS: Duration = Duration::from_secs(2);
const TENANTS: [&str; 3] = ["a", "b", "c"];

/// A limiter, and the load on it.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Kind,
    /// The value of `rate-limiter`.
    limits: &'static str,
    /// How long a tenant waits after a refusal that names no time.
    pause: Duration,
    /// Jobs of each tenant.
    jobs: usize,
    /// The shortest makespan without a refusal.
    min: Duration,
}

/// An API that counts calls in windows: 20 at once in each.
const WINDOWS: Case = Case {
    kind: Kind::Node("flexible"),
    limits: "use-algo: sliding-window-algo, max-requests: 20, window-size: 2s",
    pause: TWO_SECONDS,
    jobs: 120,
    min: Duration::from_secs(10),
};

/// An API that wants 10 calls a second, evenly.
const EVEN: Case = Case {
    kind: Kind::Nginx("10r/s", ""),
    limits: "use-algo: leaky-bucket-algo, max-requests: 20, window-size: 2s",
    pause: Duration::from_millis(100),
    jobs: 120,
    min: Duration::from_millis(11_900),
};

/// An API with a bucket of 20.
const BUCKET: Case = Case {
    kind: Kind::Nginx("10r/s", " burst=19 nodelay"),
    limits: "use-algo: token-bucket-algo, max-requests: 20, window-size: 2s",
    ..WINDOWS
};

/// One tenant's calls as a limiter saw them.
#[derive(Debug, Clone, Copy)]
struct Figures {
    refused: usize,
    /// The makespan as a multiple of the shortest one.
    ratio: f64,
    /// The distance of the two closest calls that were not refused, in milliseconds.
    closest_ms: u64,
}

impl Case {
    const fn with(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    const fn with_limits(self, limits: &'static str) -> Self {
        Self { limits, ..self }
    }

    /// Runs the load. Asserts that all jobs are done and few calls were refused.
    async fn holds(self, tenants: &[&str]) {
        let few = self.jobs / MIN_CALLS_PER_REFUSAL;
        let distance_ms = 1000.0 * self.min.as_secs_f64() / (self.jobs - 1) as f64;
        for figures in self.run(tenants).await {
            let waits = self.pause.div_duration_f64(self.min) * figures.refused as f64;
            assert!(
                figures.refused <= few && figures.ratio - waits <= MAX_RATIO,
                "{self:?}: {figures:?}"
            );
            // A refusal makes the worker keep more distance.
            let is_close = figures.closest_ms as f64 <= MAX_CLOSEST * distance_ms;
            assert!(is_close || figures.refused > 0, "{self:?}: {figures:?}");
        }
    }

    async fn run(self, tenants: &[&str]) -> Vec<Figures> {
        let limiter = Limiter::start(self.kind).await;
        let bed = Bed::shared();
        let yaml = bed.yaml(self.limits, &limiter.url, "");
        let all = tenants.iter().flat_map(|tenant| jobs(tenant, self.jobs));
        bed.publish(&yaml, all).await;
        let worker = PROGRAM.start(&yaml);
        let total = tenants.len() * self.jobs;
        until("all calls", || limiter.admitted() >= total).await;
        worker.stop();
        let seen = limiter.seen();
        let figures = |tenant: &&str| self.figures(tenant, &seen);
        tenants.iter().map(figures).collect()
    }

    fn figures(self, tenant: &str, seen: &[LimiterCall]) -> Figures {
        let times = |status| {
            let of = move |call: &&LimiterCall| call.tenant == tenant && call.status == status;
            seen.iter().filter(of).map(|call| call.at_ms)
        };
        assert_eq!(times(200).count(), self.jobs, "{tenant}: {seen:?}");
        let mut admitted: Vec<u64> = times(200).collect();
        admitted.sort_unstable();
        let took = admitted[self.jobs - 1] - admitted[0];
        let took = MS * u32::try_from(took).expect("minutes");
        let distances = admitted.windows(2).map(|pair| pair[1] - pair[0]);
        let figures = Figures {
            refused: times(429).count(),
            ratio: took.as_secs_f64() / self.min.as_secs_f64(),
            closest_ms: distances.min().expect("two calls"),
        };
        println!(
            "{:?}, {}: {tenant}: {took:?} for {:?}: {figures:.3?}",
            self.kind, self.limits, self.min
        );
        figures
    }
}

/// Defines a test for each case, so that the cases run one by one.
macro_rules! zoo {
    ($($name:ident: $case:expr;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $case.holds(&TENANTS).await;
            }
        )+
    };
}

zoo! {
    nginx_without_burst: EVEN;
    nginx_with_burst: BUCKET;
    haproxy: EVEN.with(Kind::Haproxy);
    express_legacy: WINDOWS.with(Kind::Node("express-legacy"));
    express_draft_6: WINDOWS.with(Kind::Node("express-draft-6"));
    express_draft_7: WINDOWS.with(Kind::Node("express-draft-7"));
    express_draft_8: WINDOWS.with(Kind::Node("express-draft-8"));
    flexible: WINDOWS;
    fastify: WINDOWS.with(Kind::Node("fastify"));
    limits_fixed: WINDOWS.with(Kind::Python("fixed-window"));
    limits_moving: WINDOWS.with(Kind::Python("moving-window"));
    limits_counter: EVEN.with(Kind::Python("sliding-window-counter"));
}

/// One tenant of nginx without a burst, whose calls must keep their distance.
mod even {
    use super::*;

    const SIXTY_A_MINUTE: Case = Case {
        kind: Kind::Nginx("60r/m", ""),
        pause: SECOND,
        jobs: 15,
        min: SECOND.saturating_mul(14),
        ..EVEN
    };

    const TEN_A_SECOND: Case = Case {
        jobs: 60,
        min: Duration::from_millis(5_900),
        ..EVEN
    };

    #[tokio::test(flavor = "multi_thread")]
    async fn leaky_ten_a_second() {
        let limits = "use-algo: leaky-bucket-algo, max-requests: 10, window-size: 1s";
        TEN_A_SECOND.with_limits(limits).holds(&["a"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn token_ten_a_second() {
        let limits = "use-algo: token-bucket-algo, burst: 1, max-requests: 10, window-size: 1s";
        TEN_A_SECOND.with_limits(limits).holds(&["a"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn leaky_sixty_a_minute() {
        let limits = "use-algo: leaky-bucket-algo, max-requests: 60, window-size: 1m";
        SIXTY_A_MINUTE.with_limits(limits).holds(&["a"]).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn token_sixty_a_minute() {
        let limits = "use-algo: token-bucket-algo, burst: 1, max-requests: 60, window-size: 1m";
        SIXTY_A_MINUTE.with_limits(limits).holds(&["a"]).await;
    }
}
