//! Why there is no connection, or no answer, and what to do about it where our configuration of TLS can help.

use std::error::Error;

use super::call::Failure;
use super::text::explain;
use crate::{shortage, tls};

/// Where the keys of TLS stand in the configuration.
const SECTION: &str = "dispatch.http";

/// Why a connection could not be opened; `encrypted`: it was to have TLS.
pub(super) fn no_connection(why: &(dyn Error + 'static), encrypted: bool) -> String {
    let advice = match (shortage::of(why), encrypted) {
        (Some(missing), _) => Some(missing.to_owned()),
        (None, true) => tls::setup_advice(why, SECTION),
        (None, false) => None,
    };
    told(why, advice)
}

/// Why a request has no answer.
pub(super) fn no_answer(why: &Failure) -> String {
    told(why, tls::advice(why, SECTION))
}

/// The error, and what to do about it.
fn told(why: &(dyn Error + 'static), advice: Option<String>) -> String {
    let words = explain(why);
    match advice {
        Some(advice) => format!("{words} ({advice})"),
        None => words,
    }
}
