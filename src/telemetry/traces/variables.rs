//! The OpenTelemetry environment variables that Sluicegate reads. The OpenTelemetry libraries read
//! the others (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_BSP_*`).

use std::time::Duration;

use url::Url;

use rules::trace::Sampler;

/// Variables that name the collector. `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` takes precedence and is
/// used unchanged; `/v1/traces` is appended to `OTEL_EXPORTER_OTLP_ENDPOINT`.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Collector URL if no variable names one.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// Default of the maximum number of spans that wait to be sent (`OTEL_BSP_MAX_QUEUE_SIZE`).
const DEFAULT_QUEUE: usize = 2048;
/// Upper bound of that number.
const MAX_QUEUE: usize = 65_536;
/// Default of the time limit of a request to the collector, answer included.
const DEFAULT_TIMEOUT_MS: u64 = 10_000;
/// Upper bound of that time limit.
const MAX_TIMEOUT_MS: u64 = 60_000;

/// Values of the variables.
#[derive(Debug, PartialEq)]
pub(super) struct OtelVariables {
    pub(super) endpoint: Url,
    pub(super) sampler: Sampler,
    pub(super) queue: usize,
    pub(super) timeout: Duration,
    /// Certificate file of the authority that signs the collector's certificate, or `None` to trust
    /// the system's authorities.
    pub(super) ca_file: Option<String>,
    /// Whether no variable names this service.
    pub(super) has_no_name: bool,
}

impl OtelVariables {
    /// Reads and checks the variables; `of` looks one up by name. Returns `None` if traces are not
    /// wanted.
    ///
    /// # Errors
    /// A message for the operator, without values that may be secret.
    pub(super) fn read(of: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let of = |name: &str| {
            of(name)
                .map(|text| text.trim().to_owned())
                .filter(|text| !text.is_empty())
        };
        let is_disabled =
            of("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let endpoint = of(TRACES_ENDPOINT).map(|text| (TRACES_ENDPOINT, text, ""));
        let endpoint = endpoint.or_else(|| of(ENDPOINT).map(|text| (ENDPOINT, text, "/v1/traces")));
        let is_requested = match of("OTEL_TRACES_EXPORTER").as_deref() {
            None => endpoint.is_some(),
            Some("otlp") => true,
            Some("none") => false,
            Some(_) => return Err("OTEL_TRACES_EXPORTER: use otlp or none".to_owned()),
        };
        if is_disabled || !is_requested {
            return Ok(None);
        }
        let first = |names: [&str; 2]| names.into_iter().find_map(&of);
        let protocol = [
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ];
        if first(protocol).is_some_and(|text| text != "http/protobuf") {
            return Err("OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is supported".to_owned());
        }
        let compression = [
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ];
        if first(compression).is_some_and(|text| text != "none") {
            return Err("OTEL_EXPORTER_OTLP_COMPRESSION: only none is supported".to_owned());
        }
        let (name, text, path) =
            endpoint.unwrap_or((ENDPOINT, DEFAULT_ENDPOINT.to_owned(), "/v1/traces"));
        let whole = format!(
            "{}{path}",
            if path.is_empty() {
                &text
            } else {
                text.trim_end_matches('/')
            }
        );
        let endpoint = Url::parse(&whole)
            .ok()
            .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        let endpoint = endpoint.ok_or_else(|| {
            format!("{name} is not the URL of a collector, such as http://collector:4318")
        })?;
        let number = |name: &str, usual: u64, max: u64| match of(name) {
            None => Ok(usual),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if (1..=max).contains(&number) => Ok(number),
                _ => Err(format!("{name}: {text:?} is not a number from 1 to {max}")),
            },
        };
        let queue = number(
            "OTEL_BSP_MAX_QUEUE_SIZE",
            DEFAULT_QUEUE as u64,
            MAX_QUEUE as u64,
        )?;
        let usual = number(
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            DEFAULT_TIMEOUT_MS,
            MAX_TIMEOUT_MS,
        )?;
        let timeout = number("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", usual, MAX_TIMEOUT_MS)?;
        let sampler = of("OTEL_TRACES_SAMPLER");
        let sampler = sampler.as_deref().unwrap_or("parentbased_always_on");
        let certificate = [
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
        ];
        let attributes = of("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let mut attributes = attributes.split(',');
        let is_named = attributes.any(|pair| pair.trim_start().starts_with("service.name="));
        Ok(Some(Self {
            endpoint,
            sampler: Sampler::parse(sampler, of("OTEL_TRACES_SAMPLER_ARG").as_deref())?,
            queue: usize::try_from(queue).unwrap_or(DEFAULT_QUEUE),
            timeout: Duration::from_millis(timeout),
            ca_file: first(certificate),
            has_no_name: !is_named && of("OTEL_SERVICE_NAME").is_none(),
        }))
    }

    /// Returns the endpoint for the log, without parts that may be secret.
    pub(super) fn shown(&self) -> String {
        let url = &self.endpoint;
        format!(
            "{}://{}{}",
            url.scheme(),
            &url[url::Position::BeforeHost..url::Position::AfterPort],
            url.path()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Option<OtelVariables>, String> {
        let of = |name: &str| {
            let (_, text) = set.iter().find(|(set, _)| *set == name)?;
            Some((*text).to_owned())
        };
        OtelVariables::read(of)
    }

    fn on(set: &[(&str, &str)]) -> OtelVariables {
        read(set).expect("fine").expect("wanted")
    }

    #[test]
    fn nothing_is_sent_unless_configured() {
        for set in [
            &[][..],
            &[(ENDPOINT, " ")],
            &[(ENDPOINT, "http://c:4318"), ("OTEL_SDK_DISABLED", "TRUE")],
            &[
                (ENDPOINT, "http://c:4318"),
                ("OTEL_TRACES_EXPORTER", "none"),
            ],
            &[("OTEL_SERVICE_NAME", "x")],
        ] {
            assert_eq!(read(set), Ok(None), "{set:?}");
        }
        let usual = on(&[("OTEL_TRACES_EXPORTER", "otlp")]);
        assert_eq!(usual.shown(), "http://localhost:4318/v1/traces");
        assert_eq!(
            (usual.queue, usual.timeout),
            (2048, Duration::from_secs(10))
        );
        assert!(usual.has_no_name && usual.sampler.follows_parent);
    }

    #[test]
    fn the_traces_endpoint_is_used_unchanged_and_shown_without_secrets() {
        let shown = |name, text| on(&[(name, text)]).shown();
        assert_eq!(shown(ENDPOINT, "http://c:4318/"), "http://c:4318/v1/traces");
        assert_eq!(
            shown(ENDPOINT, "https://c/otel"),
            "https://c/otel/v1/traces"
        );
        let own = shown(TRACES_ENDPOINT, "https://user:pass@c/traces?key=secret");
        assert_eq!(own, "https://c/traces");
        let both = on(&[(ENDPOINT, "http://a"), (TRACES_ENDPOINT, "http://b/x")]);
        assert_eq!(both.shown(), "http://b/x");
        let named = [
            ("OTEL_RESOURCE_ATTRIBUTES", "a=b, service.name=gate"),
            (ENDPOINT, "http://a"),
        ];
        assert!(!on(&named).has_no_name);
    }

    #[test]
    fn invalid_variables_are_refused_without_secret_values() {
        let on = (ENDPOINT, "http://c");
        for (set, part) in [
            (
                &[(ENDPOINT, "c:4318/secret")][..],
                "not the URL of a collector",
            ),
            (
                &[(TRACES_ENDPOINT, "ftp://secret")],
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            ),
            (
                &[on, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
                "http/protobuf",
            ),
            (&[on, ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")], "none"),
            (&[on, ("OTEL_TRACES_EXPORTER", "zipkin")], "otlp or none"),
            (&[on, ("OTEL_BSP_MAX_QUEUE_SIZE", "0")], "1 to 65536"),
            (&[on, ("OTEL_EXPORTER_OTLP_TIMEOUT", "x")], "1 to 60000"),
            (
                &[on, ("OTEL_TRACES_SAMPLER", "xray")],
                "OTEL_TRACES_SAMPLER",
            ),
        ] {
            let why = read(set).expect_err(part);
            assert!(why.contains(part) && !why.contains("secret"), "{why}");
        }
    }
}
