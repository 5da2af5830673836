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
        let environment = Environment(of);
        let configured = environment.endpoint();
        if !environment.wants_traces(configured.is_some())? {
            return Ok(None);
        }
        environment.check_formats()?;
        let endpoint = configured.unwrap_or_default().parse()?;
        let queue = environment.number(
            "OTEL_BSP_MAX_QUEUE_SIZE",
            DEFAULT_QUEUE as u64,
            MAX_QUEUE as u64,
        )?;
        let usual = environment.number(
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            DEFAULT_TIMEOUT_MS,
            MAX_TIMEOUT_MS,
        )?;
        let timeout =
            environment.number("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", usual, MAX_TIMEOUT_MS)?;
        let sampler = environment.get("OTEL_TRACES_SAMPLER");
        let sampler = sampler.as_deref().unwrap_or("parentbased_always_on");
        let argument = environment.get("OTEL_TRACES_SAMPLER_ARG");
        Ok(Some(Self {
            endpoint,
            sampler: Sampler::parse(sampler, argument.as_deref())?,
            queue: usize::try_from(queue).unwrap_or(DEFAULT_QUEUE),
            timeout: Duration::from_millis(timeout),
            ca_file: environment.first([
                "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
                "OTEL_EXPORTER_OTLP_CERTIFICATE",
            ]),
            has_no_name: !environment.names_service(),
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

/// A collector's URL as configured.
struct ConfiguredEndpoint {
    /// The variable that names it.
    variable: &'static str,
    url: String,
    /// Appended to the URL.
    path: &'static str,
}

impl Default for ConfiguredEndpoint {
    fn default() -> Self {
        Self {
            variable: ENDPOINT,
            url: DEFAULT_ENDPOINT.to_owned(),
            path: "/v1/traces",
        }
    }
}

impl ConfiguredEndpoint {
    fn parse(self) -> Result<Url, String> {
        let whole = format!(
            "{}{}",
            if self.path.is_empty() {
                &self.url
            } else {
                self.url.trim_end_matches('/')
            },
            self.path
        );
        let endpoint = Url::parse(&whole)
            .ok()
            .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
        endpoint.ok_or_else(|| {
            format!(
                "{} is not the URL of a collector, such as http://collector:4318",
                self.variable
            )
        })
    }
}

/// Environment variables, looked up by name.
struct Environment<F>(F);

impl<F: Fn(&str) -> Option<String>> Environment<F> {
    /// Returns the trimmed value of a variable, or `None` if it is missing or empty.
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }

    /// Returns the value of the first of these variables that has one.
    fn first(&self, names: [&str; 2]) -> Option<String> {
        names.into_iter().find_map(|name| self.get(name))
    }

    /// Returns a variable's number, which must be from 1 to `max`. `usual` is the default.
    fn number(&self, name: &str, usual: u64, max: u64) -> Result<u64, String> {
        match self.get(name) {
            None => Ok(usual),
            Some(text) => match text.parse::<u64>() {
                Ok(number) if (1..=max).contains(&number) => Ok(number),
                _ => Err(format!("{name}: {text:?} is not a number from 1 to {max}")),
            },
        }
    }

    /// Returns the collector's URL, or `None` if no variable names one.
    fn endpoint(&self) -> Option<ConfiguredEndpoint> {
        let endpoint = self.get(TRACES_ENDPOINT).map(|url| ConfiguredEndpoint {
            variable: TRACES_ENDPOINT,
            url,
            path: "",
        });
        endpoint.or_else(|| {
            self.get(ENDPOINT).map(|url| ConfiguredEndpoint {
                url,
                ..ConfiguredEndpoint::default()
            })
        })
    }

    /// Returns true if traces are wanted.
    fn wants_traces(&self, has_endpoint: bool) -> Result<bool, String> {
        let is_disabled =
            (self.get("OTEL_SDK_DISABLED")).is_some_and(|text| text.eq_ignore_ascii_case("true"));
        let is_requested = match self.get("OTEL_TRACES_EXPORTER").as_deref() {
            None => has_endpoint,
            Some("otlp") => true,
            Some("none") => false,
            Some(_) => return Err("OTEL_TRACES_EXPORTER: use otlp or none".to_owned()),
        };
        Ok(is_requested && !is_disabled)
    }

    /// Refuses a protocol or a compression that is not supported.
    fn check_formats(&self) -> Result<(), String> {
        let protocol = [
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ];
        if (self.first(protocol)).is_some_and(|text| text != "http/protobuf") {
            return Err("OTEL_EXPORTER_OTLP_PROTOCOL: only http/protobuf is supported".to_owned());
        }
        let compression = [
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
        ];
        if (self.first(compression)).is_some_and(|text| text != "none") {
            return Err("OTEL_EXPORTER_OTLP_COMPRESSION: only none is supported".to_owned());
        }
        Ok(())
    }

    /// Returns true if a variable names this service.
    fn names_service(&self) -> bool {
        let attributes = self.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let mut attributes = attributes.split(',');
        attributes.any(|pair| pair.trim_start().starts_with("service.name="))
            || self.get("OTEL_SERVICE_NAME").is_some()
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
