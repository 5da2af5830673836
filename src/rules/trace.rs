//! Trace contexts of jobs (W3C Trace Context), and which traces are recorded. A context only names
//! spans: a publisher that makes one up gets a wrong trace, but no other effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::limit::Limits;
use crate::tenant::Tenant;

/// Length of a `traceparent` of version 00, in bytes.
const LENGTH: usize = 55;

/// The identity of a span for other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// The ID of its trace; not 0.
    pub trace: u128,
    /// The ID of the span; not 0.
    pub span: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl Context {
    /// Parses a `traceparent`. Returns `None` if it is anything else. Of later versions, only the
    /// fields of version 00 are read.
    pub fn parse(text: &str) -> Option<Self> {
        let (version, rest) = text.split_at_checked(2)?;
        let version = hex(version)?;
        let fits = match version {
            0 => text.len() == LENGTH,
            // The standard forbids this version.
            0xff => false,
            _ => text.len() == LENGTH || text.as_bytes().get(LENGTH) == Some(&b'-'),
        };
        let mut parts = rest.get(..LENGTH - 2)?.split('-').skip(1);
        let mut part = |length: usize| hex(parts.next().filter(|part| part.len() == length)?);
        let (trace, span, flags) = (part(32)?, part(16)?, part(2)?);
        let span = u64::try_from(span).ok()?;
        (fits && trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }

    /// Returns another span of the same trace.
    pub fn beside(self, span: u64) -> Self {
        Self { span, ..self }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace,
            span,
            sampled,
        } = self;
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", u8::from(*sampled))
    }
}

/// Parses a hexadecimal number in lower case only, as the standard demands.
fn hex(text: &str) -> Option<u128> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let all = text.bytes().all(is_digit);
    all.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// The trace data in a job's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceClaim {
    /// The parent of the job's spans: the publisher's span, or the first of ours.
    pub parent: Context,
    /// The span of its first call.
    pub first_call: Option<u64>,
}

impl TraceClaim {
    /// Parses the text that [`Display`](fmt::Display) writes. Returns `None` if it is anything
    /// else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (parent, first_call) = match text.split_once(':') {
            None => (text, None),
            Some((parent, first)) => {
                let span = (first.len() == 16).then(|| hex(first)).flatten()?;
                (
                    parent,
                    Some(u64::try_from(span).ok().filter(|span| *span != 0)?),
                )
            }
        };
        let parent = Context::parse(parent)?;
        Some(Self { parent, first_call })
    }
}

impl fmt::Display for TraceClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.parent)?;
        match self.first_call {
            Some(span) => write!(f, ":{span:016x}"),
            None => Ok(()),
        }
    }
}

/// Decides which traces are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Whether to follow the decision of publishers. Traces without a publisher's context are
    /// sampled by `share`.
    pub follows_parent: bool,
    /// The share of traces that are recorded if no publisher decides, from 0 to 1.
    pub share: f64,
}

impl Sampler {
    /// Parses the values of `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.
    ///
    /// # Errors
    /// Returns a text that says which variable is invalid, and how.
    pub fn parse(name: &str, share: Option<&str>) -> Result<Self, String> {
        let ratio = || match share.map(str::trim).filter(|text| !text.is_empty()) {
            None => Ok(1.0),
            Some(text) => match text.parse::<f64>() {
                Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
                _ => Err(format!(
                    "OTEL_TRACES_SAMPLER_ARG: {text:?} is not a share from 0 to 1"
                )),
            },
        };
        let (root, follows_parent) = match name.strip_prefix("parentbased_") {
            Some(root) => (root, true),
            None => (name, false),
        };
        let share = match root {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => ratio()?,
            _ => {
                return Err(format!(
                    "OTEL_TRACES_SAMPLER: {name:?} is unknown; use always_on, always_off or \
                    traceidratio, optionally prefixed with parentbased_"
                ));
            }
        };
        Ok(Self {
            follows_parent,
            share,
        })
    }

    /// Returns true if the trace with this ID is recorded. `parent` is the publisher's decision, if
    /// there is one. All workers decide alike: without a publisher's decision the ID decides, as in
    /// other libraries.
    pub fn takes(&self, trace: u128, parent: Option<bool>) -> bool {
        if let (true, Some(sampled)) = (self.follows_parent, parent) {
            return sampled;
        }
        let low = u64::try_from(trace & u128::from(u64::MAX)).unwrap_or(u64::MAX) >> 1;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let bound = (self.share * (1_u64 << 63) as f64) as u64;
        low < bound
    }
}

/// A denial of a job, which then has to wait.
#[derive(Debug, Clone)]
pub struct TracedDenial {
    /// When the job was denied (the scheduler's time).
    pub at: Duration,
    /// The job's limits.
    pub limits: Limits,
    /// The index of the limit that the job waits for.
    pub limit: usize,
    /// The wait, in milliseconds.
    pub ttl_ms: u64,
}

/// The subject of a span.
#[derive(Debug, Clone)]
pub enum SpanSubject {
    /// The wait of a job, which may be denied several times.
    Wait {
        /// The first denials.
        denials: Vec<TracedDenial>,
        /// The number of further denials.
        more: u32,
    },
    /// A call of the API, or of a program or worker in its place.
    Call {
        /// The outcome in one word.
        outcome: &'static str,
        /// The reason, if the call did not succeed.
        reason: Option<String>,
    },
    /// The publishing of the job's result.
    Result,
}

/// A span of a job that has ended. Times are the scheduler's.
#[derive(Debug, Clone)]
pub struct Span {
    /// The subject.
    pub about: SpanSubject,
    /// The identity of the span.
    pub context: Context,
    /// The parent.
    pub parent: Option<Context>,
    /// The first call of a job that is called again.
    pub first_call: Option<u64>,
    /// When the span began.
    pub began: Duration,
    /// Time before that which the job spent in a delay queue; part of the span.
    pub before: Duration,
    /// When the span ended.
    pub ended: Duration,
    /// The job's ID.
    pub id: String,
    /// The job's tenant.
    pub tenant: Tenant,
    /// The work queue.
    pub queue: Arc<str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_contexts_of_the_standard_are_accepted() {
        let context = Context::parse(GOOD).expect("a context");
        assert_eq!(context.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(
            (context.span, context.sampled),
            (0x00f0_67aa_0ba9_02b7, true)
        );
        assert_eq!(context.to_string(), GOOD);
        let flags = |flags: &str| GOOD.replace("-01", flags);
        for (text, sampled) in [
            (flags("-00"), false),
            (flags("-02"), false),
            (flags("-ff"), true),
        ] {
            assert_eq!(
                Context::parse(&text).map(|it| it.sampled),
                Some(sampled),
                "{text}"
            );
        }
        let later = format!("cc{}-what-comes-later", &GOOD[2..]);
        assert_eq!(Context::parse(&later), Some(context));
        assert_eq!(Context::parse(&later[..LENGTH]), Some(context));
        for text in [
            "",
            "00",
            "00-",
            &GOOD[..54],
            &format!("{GOOD}-"),
            &format!("{GOOD} "),
            &format!(" {GOOD}"),
            &format!("ff{}", &GOOD[2..]),
            &format!("01{}x", &GOOD[2..]),
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &GOOD.replace("4b", "+b"),
            &GOOD.replace("4b", "é"),
            "00-4bf92f3577b34da6a3ce929d0e0e473600f067aa0ba902b701------",
        ] {
            assert_eq!(Context::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_jobs_trace_context_survives_a_round_trip() {
        let parent = Context::parse(GOOD).expect("a context");
        for first_call in [None, Some(1), Some(u64::MAX)] {
            let claim = TraceClaim { parent, first_call };
            assert_eq!(TraceClaim::parse(&claim.to_string()), Some(claim));
        }
        for end in [
            ":",
            ":0",
            ":0000000000000000",
            ":xxxxxxxxxxxxxxxx",
            ":00f067aa0ba902b7:",
        ] {
            assert_eq!(TraceClaim::parse(&format!("{GOOD}{end}")), None, "{end}");
        }
    }

    #[test]
    fn the_sampler_or_the_publisher_decides_which_traces_are_recorded() {
        let sampler = |name, share| Sampler::parse(name, share).expect("a sampler");
        let low = |part: f64| (part * 2.0_f64.powi(64)) as u128;
        let quarter = sampler("traceidratio", Some("0.25"));
        assert!(quarter.takes(low(0.24), Some(false)) && !quarter.takes(low(0.26), Some(true)));
        let parents = sampler("parentbased_traceidratio", Some("0.25"));
        assert!(parents.takes(low(0.9), Some(true)) && !parents.takes(1, Some(false)));
        assert!(parents.takes(low(0.1), None) && !parents.takes(low(0.3), None));
        let (on, off) = (sampler("always_on", None), sampler("always_off", Some("x")));
        assert!(on.takes(u128::MAX, Some(false)) && !off.takes(1, Some(true)));
        for (name, share) in [
            ("", None),
            ("parentbased_", None),
            ("xray", None),
            ("traceidratio", Some("1.5")),
            ("traceidratio", Some("NaN")),
        ] {
            assert!(Sampler::parse(name, share).is_err(), "{name} {share:?}");
        }
    }
}
