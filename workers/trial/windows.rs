//! Counts units per window at an API, with zero tolerance: pure functions over arrivals that are
//! sorted by one clock, in any unit of time.

/// An arrival: the time and the units used.
pub type Arrival = (u64, u64);

/// Returns, for each arrival, the units in the window that ends with it. Windows are half-open: an
/// arrival exactly `window` later is in the next one.
pub fn sliding(arrivals: &[Arrival], window: u64) -> Vec<u64> {
    let (mut first, mut units) = (0, 0);
    let mut all = Vec::with_capacity(arrivals.len());
    for (time, used) in arrivals {
        units += used;
        while time.saturating_sub(arrivals[first].0) >= window {
            units -= arrivals[first].1;
            first += 1;
        }
        all.push(units);
    }
    all
}

/// Returns, for each arrival, the units so far in its window, with windows aligned to the Unix
/// epoch.
pub fn aligned(arrivals: &[Arrival], window: u64) -> Vec<u64> {
    let so_far = |arrivals: &[Arrival]| {
        let add = |units: &mut u64, (_, used): &Arrival| {
            *units += used;
            Some(*units)
        };
        arrivals.iter().scan(0, add).collect::<Vec<_>>()
    };
    (arrivals.chunk_by(|a, b| a.0 / window == b.0 / window))
        .flat_map(so_far)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted_arrivals() -> impl Strategy<Value = Vec<Arrival>> {
        proptest::collection::vec((0..300_u64, 1..4_u64), 0..60).prop_map(|mut arrivals| {
            arrivals.sort_unstable();
            arrivals
        })
    }

    proptest! {
        #[test]
        fn sliding_units_match_the_definition(arrivals in sorted_arrivals(), window in 1..80_u64) {
            let before = |last: usize| -> u64 {
                let within = |other: &&Arrival| arrivals[last].0 - other.0 < window;
                arrivals[..=last].iter().filter(within).map(|(_, units)| units).sum()
            };
            let expected: Vec<u64> = (0..arrivals.len()).map(before).collect();
            prop_assert_eq!(sliding(&arrivals, window), expected);
        }

        #[test]
        fn aligned_units_match_the_definition(arrivals in sorted_arrivals(), window in 1..80_u64) {
            let before = |last: usize| -> u64 {
                let same = |other: &&Arrival| other.0 / window == arrivals[last].0 / window;
                arrivals[..=last].iter().filter(same).map(|(_, units)| units).sum()
            };
            let expected: Vec<u64> = (0..arrivals.len()).map(before).collect();
            prop_assert_eq!(aligned(&arrivals, window), expected);
        }
    }
}
