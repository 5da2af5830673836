//! Explains why there is no connection or no answer, with advice if our TLS configuration can help.

use std::error::Error;

use super::call::CallFailure;
use super::text::explain;
use runtime::{shortage, tls};

/// Section of the configuration that has the TLS keys.
const SECTION: &str = "dispatch.http";

/// Explains why a connection could not be opened. `encrypted` says whether it was to have TLS.
pub(super) fn no_connection(why: &(dyn Error + 'static), encrypted: bool) -> String {
    let advice = match (shortage::of(why), encrypted) {
        (Some(missing), _) => Some(missing.to_owned()),
        (None, true) => tls::setup_advice(why, SECTION),
        (None, false) => None,
    };
    with_advice(why, advice)
}

/// Explains why a request has no answer.
pub(super) fn no_answer(why: &CallFailure) -> String {
    with_advice(why, tls::advice(why, SECTION))
}

/// Formats the error with its advice.
fn with_advice(why: &(dyn Error + 'static), advice: Option<String>) -> String {
    let words = explain(why);
    match advice {
        Some(advice) => format!("{words} ({advice})"),
        None => words,
    }
}
