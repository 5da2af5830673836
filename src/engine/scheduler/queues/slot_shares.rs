//! Shares the free worker slots among the tenants that want to run jobs.

/// Gives each tenant at most its demand and all together at most `free`: first its run, in the
/// order of the tenants, because the jobs of one tenant share a question; then one slot at a time
/// in turn, so that a small demand is met before a large one takes the rest.
pub fn share(free: usize, demands: &[usize], runs: &[usize]) -> Vec<u32> {
    let mut free = free.min(demands.iter().sum());
    let run = |(demand, run): (&usize, &usize)| {
        let given = (*run).min(*demand).min(free);
        free -= given;
        given
    };
    let mut shares: Vec<usize> = demands.iter().zip(runs).map(run).collect();
    while free > 0 {
        let hungry = shares.iter().zip(demands).filter(|(s, d)| s < d).count();
        // `free` is at most the unmet demand, so `hungry` is not 0 while `free` is above 0.
        let each = (free / hungry).max(1);
        for (share, &demand) in shares.iter_mut().zip(demands) {
            let given = each.min(demand - *share).min(free);
            *share += given;
            free -= given;
        }
    }
    shares
        .into_iter()
        .map(|s| u32::try_from(s).unwrap_or(u32::MAX))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::share;
    use proptest::prelude::*;

    #[test]
    fn a_small_demand_is_met_before_a_large_one_takes_the_rest() {
        assert_eq!(share(10, &[100, 2, 3], &[1; 3]), [5, 2, 3]);
        assert_eq!(share(2, &[9, 9, 9], &[1; 3]), [1, 1, 0]);
        assert_eq!(share(0, &[1], &[1]), [0]);
        assert_eq!(share(5, &[], &[]), Vec::<u32>::new());
    }

    #[test]
    fn the_first_tenants_get_their_runs_if_there_are_too_few_slots_for_all() {
        assert_eq!(share(10, &[9, 2, 9, 9], &[4; 4]), [4, 2, 4, 0]);
        assert_eq!(share(3, &[9, 9], &[4; 2]), [3, 0]);
        assert_eq!(share(10, &[9, 9, 9], &[1, 8, 8]), [1, 8, 1]);
        assert_eq!(share(100, &[9, 60, 60], &[4; 3]), [9, 46, 45]);
    }

    proptest! {
        #[test]
        fn nothing_is_wasted_or_overdrawn(
            free in 0_usize..200,
            demands in prop::collection::vec(0_usize..50, 0..20),
            run in 1_usize..10,
        ) {
            let shares = share(free, &demands, &vec![run; demands.len()]);
            let total: u32 = shares.iter().sum();
            prop_assert_eq!(total as usize, free.min(demands.iter().sum()));
            let mut smallest_demand = u32::MAX;
            for (s, d) in shares.iter().zip(&demands) {
                prop_assert!(*s as usize <= *d);
                if (*s as usize) < *d { smallest_demand = smallest_demand.min(*s); }
            }
            // No tenant has more than a run above another tenant that wanted more.
            let max = smallest_demand.saturating_add(u32::try_from(run).expect("small"));
            for s in &shares { prop_assert!(*s <= max); }
        }
    }
}
