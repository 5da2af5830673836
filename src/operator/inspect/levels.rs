//! The waitlists of a tenant whose jobs have levels (`job.priorities`): inspected one by one, shown
//! as one.

use futures_util::future::try_join_all;
use gate::redis::RedisGate;
use gate::{Gate as _, GateError, Inspection};
use rules::job::priority::{NORMAL, Priorities};
use rules::limit::Limits;
use rules::scope::Labels;
use rules::tenant::Tenant;

/// Units that wait, for each level.
pub(super) type Levels = Vec<(String, u64)>;

/// Inspects the tenant as a job without a level sees it, but with everything that waits on all
/// levels.
pub(super) async fn inspect(
    gate: &RedisGate,
    tenant: &Tenant,
    labels: &Labels,
    limits: &Limits,
    priorities: &Priorities,
) -> Result<(Inspection, Levels), GateError> {
    // The number of waitlists is bounded: it is the sum of the weights.
    let looks = priorities.waitlists().map(async |(level, waitlist)| {
        let labels = labels.clone().with_level(waitlist);
        let found = gate.inspect(tenant, &labels, limits).await?;
        Ok::<_, GateError>((level, found))
    });
    match merged(try_join_all(looks).await?) {
        Some(found) => Ok(found),
        None => Ok((gate.inspect(tenant, labels, limits).await?, Levels::new())),
    }
}

/// Merges the inspections of all waitlists. Returns `None` if there are no levels.
fn merged(found: Vec<(&str, Inspection)>) -> Option<(Inspection, Levels)> {
    let mut levels = Levels::new();
    for (name, it) in &found {
        match levels.last_mut().filter(|(last, _)| last == name) {
            Some((_, waiting)) => *waiting += it.waiting,
            None => levels.push(((*name).to_owned(), it.waiting)),
        }
    }
    let waiting = found.iter().map(|(_, it)| it.waiting).sum();
    let widest = found.iter().map(|(_, it)| it.widest).max()?;
    let waitlist_end_ms = found.iter().map(|(_, it)| it.waitlist_end_ms).max()?;
    let normal = found.into_iter().find(|(name, _)| *name == NORMAL)?.1;
    let all = Inspection {
        waiting,
        widest,
        waitlist_end_ms,
        ..normal
    };
    Some((all, levels))
}

/// Formats the levels as ` (3 high, 2 low)`; empty if none waits.
pub(super) fn describe(levels: &Levels) -> String {
    let waiting = levels.iter().filter(|(_, waiting)| *waiting > 0);
    let words: Vec<String> = waiting
        .map(|(name, waiting)| format!("{waiting} {name}"))
        .collect();
    match words.as_slice() {
        [] => String::new(),
        words => format!(" ({})", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::answers::Quotas;

    fn found(waiting: u64, waitlist_end_ms: u64, turn_ms: u64) -> Inspection {
        Inspection {
            now_ms: 7,
            limits: Vec::new(),
            shadows: Vec::new(),
            waiting,
            widest: waiting,
            waitlist_end_ms,
            turn_ms,
            blocked_until_ms: 0,
            blocked_by: String::new(),
            quotas: Quotas::default(),
            quotas_at_ms: 0,
        }
    }

    #[test]
    fn the_waitlists_of_all_levels_are_shown_as_one() {
        assert!(merged(Vec::new()).is_none());
        let all = vec![
            ("high", found(2, 50, 1)),
            ("high", found(1, 90, 2)),
            ("low", found(0, 0, 3)),
            ("normal", found(4, 60, 4)),
        ];
        let (all, levels) = merged(all).expect("there are levels");
        assert_eq!((all.waiting, all.waitlist_end_ms, all.turn_ms), (7, 90, 4));
        assert_eq!(describe(&levels), " (3 high, 4 normal)");
        assert_eq!(describe(&Levels::new()), "");
    }
}
