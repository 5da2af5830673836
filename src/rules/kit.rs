//! Values for unit tests.

use std::time::Duration;

use crate::limit::{Algorithm, Limit};
use crate::tenant::Tenant;

/// A millisecond.
pub const MS: Duration = Duration::from_millis(1);
/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// Returns the tenant with this name or number.
pub fn tenant(name: impl ToString) -> Tenant {
    Tenant::parse(&name.to_string()).expect("a tenant")
}

/// Returns a limit without a guard.
pub fn limit(name: &str, algorithm: Algorithm, max: u64, window: Duration) -> Limit {
    Limit::new(name, algorithm, max, window, Duration::ZERO).expect("in range")
}

/// Returns a limit with a guard of 50 ms.
pub fn guarded(name: &str, algorithm: Algorithm, max: u64, window: Duration) -> Limit {
    Limit::new(name, algorithm, max, window, 50 * MS).expect("in range")
}
