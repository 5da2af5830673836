//! How several work queues share the prefetch of one worker.

/// Returns the share of `whole` for each of `weights`. Shares are rounded down, so they add up to
/// at most `whole`; then shares of 0 are raised to 1.
pub fn shares(whole: u16, weights: &[u16]) -> Vec<u16> {
    let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
    let share = |weight: &u16| {
        let part = u64::from(whole) * u64::from(*weight) / sum.max(1);
        // A share is not larger than the whole.
        u16::try_from(part).unwrap_or(whole).max(1)
    };
    weights.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_share_is_as_large_as_its_weight_says() {
        for (whole, weights, parts) in [
            (500, vec![1], vec![500]),
            (500, vec![3, 1], vec![375, 125]),
            (10, vec![1, 1, 1], vec![3, 3, 3]),
            (2, vec![1, 100], vec![1, 1]),
            (7, vec![], vec![]),
            (7, vec![0], vec![1]),
        ] {
            assert_eq!(shares(whole, &weights), parts, "{whole} {weights:?}");
        }
    }

    proptest! {
        #[test]
        fn all_have_some_and_together_no_more_than_there_is(
            whole: u16,
            weights in prop::collection::vec(any::<u16>(), 0..20),
        ) {
            let parts = shares(whole, &weights);
            prop_assert!(parts.iter().all(|part| *part > 0));
            let together: u64 = parts.iter().map(|part| u64::from(*part)).sum();
            prop_assert!(together <= u64::from(whole) + parts.len() as u64);
            for (one, other) in weights.iter().zip(&parts).zip(weights.iter().zip(&parts).skip(1)) {
                prop_assert!((one.0 <= other.0) == (one.1 <= other.1) || one.1 == other.1);
            }
        }
    }
}
