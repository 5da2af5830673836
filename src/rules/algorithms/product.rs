//! Products of units and times that exceed an integer: 10^12 units in 31 days are 2.7 * 10^21.
//! `muldiv` in `lua/muldiv.lua` computes the same without integers of 128 bits.

/// The latest time of a turn or of a full bucket, in milliseconds since the epoch, and the longest
/// duration. A large burst that is refilled by one unit a month would be full later.
pub const LATEST_MS: u64 = (1 << 48) - 1;

/// Returns `a * b / c`, rounded down.
pub(super) fn muldiv(a: u64, b: u64, c: u64) -> u64 {
    let quotient = u128::from(a) * u128::from(b) / u128::from(c);
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

/// Returns `a * b / c`, rounded up.
pub(super) fn ceil_muldiv(a: u64, b: u64, c: u64) -> u64 {
    let quotient = (u128::from(a) * u128::from(b)).div_ceil(u128::from(c));
    u64::try_from(quotient).unwrap_or(u64::MAX)
}

/// Returns the duration of `laps` turns of `lap_ms` each, at most [`LATEST_MS`].
pub(super) fn laps_ms(laps: u64, lap_ms: u64) -> u64 {
    laps.saturating_mul(lap_ms).min(LATEST_MS)
}
