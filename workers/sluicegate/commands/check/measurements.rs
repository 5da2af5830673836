//! The measurements of `check`, and their consequences for the guard and for a worker's throughput.
//! Pure.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::findings::Severity;

/// Maximum round-trip time to Redis that workers are built for.
const MAX_ROUND_TRIP: Duration = Duration::from_millis(500);
/// Confirms faster than this don't limit a worker.
const SLOW_CONFIRM: Duration = Duration::from_millis(10);
/// Maximum number of calls per second of a worker's processor core, as computed in docs/SCALING.md.
/// Beyond it, round trips are not the bottleneck.
const A_CORE_CARRIES: u64 = 18_000;

/// Several measurements of one duration, sorted and never empty.
#[derive(Debug, Clone)]
pub(super) struct Times(Vec<Duration>);

impl Times {
    /// Creates the measurements, or returns `None` if there are none.
    pub(super) fn of(mut taken: Vec<Duration>) -> Option<Self> {
        taken.sort_unstable();
        (!taken.is_empty()).then_some(Self(taken))
    }

    fn shortest(&self) -> Duration {
        self.0.first().copied().unwrap_or_default()
    }

    fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    fn worst(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns how many exceed the shortest by more than `more`.
    fn beyond(&self, more: Duration) -> usize {
        let in_time = |took: &Duration| *took <= self.shortest() + more;
        self.0.len() - self.0.partition_point(in_time)
    }

    /// Formats them, such as `0.31 ms (median of 20; 0.25 ms to 0.90 ms)`.
    fn describe(&self) -> String {
        let [least, median, worst] = [self.shortest(), self.median(), self.worst()].map(ms);
        format!("{median} (median of {}; {least} to {worst})", self.0.len())
    }

    fn as_json(&self) -> Json {
        // In steps of a microsecond.
        let ms = |took: Duration| took.as_micros() as f64 / 1_000.0;
        json!({
            "samples": self.0.len(),
            "least_ms": ms(self.shortest()),
            "median_ms": ms(self.median()),
            "worst_ms": ms(self.worst()),
        })
    }
}

/// The connection to the API.
#[derive(Debug)]
pub(super) struct ApiConnection {
    /// The scheme, host and port.
    pub(super) at: String,
    pub(super) proxy: Option<String>,
    pub(super) connect: Times,
    /// The additional time for TLS.
    pub(super) tls: Option<Times>,
    pub(super) is_http2: bool,
}

/// The measurements of one pipeline's servers.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// Round trips to Redis.
    pub(super) redis: Option<Times>,
    pub(super) api: Option<ApiConnection>,
    /// RabbitMQ's confirms.
    pub(super) confirm: Option<Times>,
}

/// The settings that the measurements are judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasurementTerms {
    /// `dispatch.concurrency`
    pub(super) concurrency: usize,
    /// How long a permit lasts beyond the shortest round trip to Redis.
    pub(super) permit: Duration,
    /// Whether a limit has a guard. Without one, a permit lasts just as long.
    pub(super) has_guard: bool,
    /// Maximum number of jobs that a worker publishes before it waits for their confirms.
    pub(super) moved_at_once: usize,
}

impl Measurements {
    /// Judges the round trips to Redis.
    pub(super) fn describe_redis(&self, terms: &MeasurementTerms) -> Option<(Severity, String)> {
        let times = self.redis.as_ref()?;
        let (min, permit) = (times.shortest(), ms(terms.permit));
        let took = format!("a round trip takes {}", times.describe());
        if min > MAX_ROUND_TRIP {
            let text = format!("{took}; workers support at most {}", ms(MAX_ROUND_TRIP));
            return Some((Severity::Warn, text));
        }
        let (late, all) = (times.beyond(terms.permit), times.0.len());
        let lasts = format!("{took}; a permit lasts {permit} longer than the shortest");
        Some(if late == 0 {
            (Severity::Ok, format!("{lasts}: no answer came later"))
        } else if late < all.div_ceil(2) {
            let text = format!(
                "{lasts}: {late} of {all} answers came later. Such permits expire, and their jobs \
                ask again"
            );
            (Severity::Ok, text)
        } else {
            // Half of the guard is for these round trips.
            let wanted = ms((times.worst() - min) * 2);
            let advice = match terms.has_guard {
                true => format!("raise rate-limiter.guard above {wanted}, or move Redis closer"),
                false => "move Redis closer".to_owned(),
            };
            let text = format!(
                "{lasts}: {late} of {all} answers came later. Most permits would expire unused: \
                {advice}"
            );
            (Severity::Warn, text)
        })
    }

    /// Judges RabbitMQ's confirms.
    pub(super) fn describe_confirms(&self, terms: &MeasurementTerms) -> Option<(Severity, String)> {
        let times = self.confirm.as_ref()?;
        let mut text = format!(
            "a publish is confirmed in {}: a job stays in memory that long before it is in a \
            delay queue or a dead letter",
            times.describe()
        );
        if times.median() >= SLOW_CONFIRM {
            let max = rate(terms.moved_at_once, times.median());
            text += &format!(", and a worker moves at most about {max} jobs per second");
        }
        Some((Severity::Ok, text))
    }

    /// Judges the connection to the API.
    pub(super) fn describe_api(&self, terms: &MeasurementTerms) -> Option<(Severity, String)> {
        let api = self.api.as_ref()?;
        let ApiConnection {
            at, proxy, connect, ..
        } = api;
        let tls = match &api.tls {
            Some(tls) => format!(", TLS another {}", tls.describe()),
            None => String::new(),
        };
        let by = match proxy {
            Some(proxy) => format!("a tunnel through {proxy}"),
            None => "TCP".to_owned(),
        };
        let version = match (&api.tls, api.is_http2) {
            (None, _) => "",
            (Some(_), true) => ", over HTTP/2",
            (Some(_), false) => ", over HTTP/1.1",
        };
        let mut text = format!(
            "{at} accepts connections: {by} takes {}{tls}{version}. No request was sent. A call \
            without an open connection waits that long before it asks for its permit, so the \
            wait costs no quota",
            connect.describe()
        );
        let late = connect.beyond(terms.permit);
        // The time to open a tunnel says little about calls.
        if terms.has_guard && proxy.is_none() && late > 0 {
            let all = connect.0.len();
            let permit = ms(terms.permit);
            text += &format!(
                ". {late} of {all} took over {permit} longer than the shortest, which is the \
                share of the guard for the latency to the API: a call that arrives later than its \
                guard covers counts from its arrival"
            );
        }
        Some((Severity::Ok, text))
    }

    /// Returns a worker's maximum throughput over these connections, however fast everything else
    /// is.
    pub(super) fn describe_throughput(&self, terms: &MeasurementTerms) -> Option<String> {
        let min = self.redis.as_ref()?.shortest();
        let redis = format!("a round trip to Redis ({})", ms(min));
        let ways = match self.api_round_trip() {
            Some(api) => format!("{redis} and one to the API ({})", ms(api)),
            None => redis,
        };
        let max = self.max_starts(terms)?;
        if max > A_CORE_CARRIES {
            return Some(format!(
                "latency is not the bottleneck with dispatch.concurrency {}: a worker makes about \
                {A_CORE_CARRIES} calls per second and processor core, fewer if the API is slow \
                (docs/SCALING.md)",
                terms.concurrency
            ));
        }
        Some(format!(
            "latency limits a worker to {} calls per second: with dispatch.concurrency {} each \
            call occupies its worker slot for at least {ways}",
            max, terms.concurrency
        ))
    }

    /// Returns the minimum round-trip time of a call. A connect takes one round trip. Through a
    /// proxy it is unknown.
    fn api_round_trip(&self) -> Option<Duration> {
        let direct = self.api.as_ref().filter(|api| api.proxy.is_none());
        direct.map(|api| api.connect.shortest())
    }

    fn max_starts(&self, terms: &MeasurementTerms) -> Option<u64> {
        let redis = self.redis.as_ref()?.shortest();
        let each = redis + self.api_round_trip().unwrap_or_default();
        Some(rate(terms.concurrency, each))
    }

    pub(super) fn as_json(&self, terms: &MeasurementTerms) -> Json {
        let times = |times: Option<&Times>| times.map(Times::as_json);
        let api = self.api.as_ref();
        json!({
            "redis_round_trip": times(self.redis.as_ref()),
            "permit_lasts_ms": terms.permit.as_millis() as u64,
            "rabbitmq_confirm": times(self.confirm.as_ref()),
            "api_connect": times(api.map(|api| &api.connect)),
            "api_tls": times(api.and_then(|api| api.tls.as_ref())),
            "api_http2": api.map(|api| api.is_http2),
            "most_starts_per_second": self.max_starts(terms),
        })
    }
}

/// Returns the number of completions per second if `at_once` run at once and each takes `each`.
fn rate(at_once: usize, each: Duration) -> u64 {
    (at_once as f64 / each.as_secs_f64().max(1e-6)) as u64
}

/// Formats a time, such as `0.31 ms` or `12 ms`.
fn ms(took: Duration) -> String {
    let ms = took.as_micros() as f64 / 1_000.0;
    match ms {
        _ if ms.fract() == 0.0 => format!("{ms} ms"),
        0.0..10.0 => format!("{ms:.2} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: MeasurementTerms = MeasurementTerms {
        concurrency: 100,
        permit: Duration::from_millis(25),
        has_guard: true,
        moved_at_once: 512,
    };

    fn times(ms: &[u64]) -> Times {
        Times::of(ms.iter().map(|ms| Duration::from_millis(*ms)).collect()).expect("some")
    }

    fn redis(ms: &[u64]) -> Measurements {
        Measurements {
            redis: Some(times(ms)),
            ..Measurements::default()
        }
    }

    fn api(connect: &[u64], proxy: Option<&str>) -> ApiConnection {
        ApiConnection {
            at: "https://api.example.com".to_owned(),
            proxy: proxy.map(str::to_owned),
            connect: times(connect),
            tls: Some(times(&[25])),
            is_http2: true,
        }
    }

    #[test]
    fn times_are_shown_as_exactly_as_they_matter() {
        for (micros, text) in [
            (0, "0 ms"),
            (5, "0.01 ms"),
            (310, "0.31 ms"),
            (9_990, "9.99 ms"),
            (10_400, "10 ms"),
            (25_000, "25 ms"),
            (1_500_000, "1500 ms"),
        ] {
            assert_eq!(ms(Duration::from_micros(micros)), text);
        }
        assert!(Times::of(Vec::new()).is_none());
        let shown = times(&[30, 10, 20, 900]).describe();
        assert_eq!(shown, "30 ms (median of 4; 10 ms to 900 ms)");
    }

    #[test]
    fn latency_to_redis_is_judged_by_its_variation() {
        let says = |ms: &[u64], part: &str, level: Severity| {
            let (found, text) = redis(ms).describe_redis(&TERMS).expect("measured");
            assert!(text.contains(part), "{text}");
            assert_eq!(found, level, "{text}");
        };
        let far = "a permit lasts 25 ms longer than the shortest: no answer came later";
        says(&[400; 20], far, Severity::Ok);
        says(&[1, 26], far, Severity::Ok);
        says(&[1, 1, 1, 27], "1 of 4 answers came later", Severity::Ok);
        let max = "2 of 4 answers came later. Most permits would expire unused: raise \
            rate-limiter.guard above 80 ms";
        says(&[1, 1, 40, 41], max, Severity::Warn);
        let too_far = "takes 700 ms (median of 2; 600 ms to 700 ms); workers support at most 500 \
            ms";
        says(&[600, 700], too_far, Severity::Warn);
        // A guard that does not exist can't be raised.
        let strict = MeasurementTerms {
            permit: Duration::from_secs(1),
            has_guard: false,
            ..TERMS
        };
        let (_, text) = redis(&[1, 1_500])
            .describe_redis(&strict)
            .expect("measured");
        assert!(text.ends_with("unused: move Redis closer"), "{text}");
    }

    #[test]
    fn the_call_rate_is_bounded_by_slots_and_both_latencies() {
        let mut measured = redis(&[40, 55]);
        assert_eq!(measured.max_starts(&TERMS), Some(2_500));
        let text = measured.describe_throughput(&TERMS).expect("measured");
        let expected = "latency limits a worker to 2500 calls per second: with \
            dispatch.concurrency 100 each call occupies its worker slot for at least a round trip \
            to Redis (40 ms)";
        assert_eq!(text, expected);
        measured.api = Some(api(&[12, 10], None));
        assert_eq!(measured.max_starts(&TERMS), Some(2_000));
        let text = measured.describe_throughput(&TERMS).expect("measured");
        assert!(
            text.ends_with("Redis (40 ms) and one to the API (10 ms)"),
            "{text}"
        );
        // A tunnel takes an unknown number of round trips to open.
        measured.api = Some(api(&[10], Some("http://proxy:3128/")));
        assert_eq!(measured.max_starts(&TERMS), Some(2_500));
        // On one machine, round trips are shorter than a call's processor time.
        let text = redis(&[1]).describe_throughput(&TERMS).expect("measured");
        assert!(
            text.starts_with(
                "latency is not the bottleneck with dispatch.concurrency 100: a worker makes"
            ),
            "{text}"
        );
        let nothing = Measurements::default();
        assert!(
            nothing.describe_throughput(&TERMS).is_none(),
            "without Redis"
        );
        // No time was measurable.
        assert!(redis(&[0]).max_starts(&TERMS).is_some());
    }

    #[test]
    fn connect_time_variation_beyond_the_guard_is_reported() {
        let says = |connect: &[u64], proxy, terms: &MeasurementTerms| {
            let measured = Measurements {
                api: Some(api(connect, proxy)),
                ..Measurements::default()
            };
            let (level, text) = measured.describe_api(terms).expect("measured");
            assert_eq!(level, Severity::Ok, "{text}");
            text
        };
        let text = says(&[12, 14, 37], None, &TERMS);
        assert!(
            text.starts_with(
                "https://api.example.com accepts connections: TCP takes 14 ms \
                (median of 3; 12 ms to 37 ms), TLS another 25 ms (median of 1; 25 ms to 25 ms), \
                over HTTP/2. No request was sent."
            ),
            "{text}"
        );
        assert!(text.ends_with("the wait costs no quota"), "{text}");
        let text = says(&[12, 14, 38], None, &TERMS);
        assert!(text.contains("1 of 3 took over 25 ms longer"), "{text}");
        let strict = MeasurementTerms {
            has_guard: false,
            ..TERMS
        };
        let text = says(&[12, 14, 38], None, &strict);
        assert!(!text.contains("guard"), "{text}");
        let text = says(&[12, 14, 38], Some("http://proxy:3128/"), &TERMS);
        assert!(
            text.contains("a tunnel through http://proxy:3128/ takes 14 ms"),
            "{text}"
        );
        assert!(!text.contains("guard"), "{text}");
    }

    #[test]
    fn slow_confirms_bound_the_moves_of_a_worker() {
        let says = |ms: &[u64]| {
            let measured = Measurements {
                confirm: Some(times(ms)),
                ..Measurements::default()
            };
            measured.describe_confirms(&TERMS).expect("measured").1
        };
        assert!(says(&[1, 2, 3]).ends_with("in a delay queue or a dead letter"));
        let slow = says(&[10, 20, 90]);
        assert!(
            slow.ends_with("a worker moves at most about 25600 jobs per second"),
            "{slow}"
        );
    }
}
