//! Counts units per window at an API, with zero tolerance: pure functions over sorted arrivals, in
//! nanoseconds of one clock.

/// An arrival: the time and the units used.
pub type Arrival = (u64, u64);

/// Returns, for each arrival, the units in the window that ends with it. Windows are half-open: an
/// arrival exactly `window` later is in the next one.
pub fn sliding(arrivals: &[Arrival], window: u64) -> Vec<u64> {
    let (mut first, mut units) = (0, 0);
    let mut all = Vec::with_capacity(arrivals.len());
    for (time, used) in arrivals {
        units += used;
        while time - arrivals[first].0 >= window {
            units -= arrivals[first].1;
            first += 1;
        }
        all.push(units);
    }
    all
}
