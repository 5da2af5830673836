//! Primaries of a cluster: which slots an epoch claims, and what moves with them.

use super::*;

fn slots(text: &str) -> rules::slots::Slots {
    SlotOwnership::parse(text).slots()
}

/// Puts a worker at a primary with the slots `owned`.
fn at(mut worker: WorkerKnowledge, owned: &str, later: bool) -> WorkerKnowledge {
    worker.shard = Some(Shard {
        owned: slots(owned),
        later,
        whole_ms: 2 * SPAN,
        ..Shard::default()
    });
    worker
}

#[test]
fn an_epoch_speaks_for_the_slots_of_its_primary_and_for_others_after_a_span() {
    let mut bed = EpochBed::new();
    let mut a = at(worker("a", EarlierStarts::Idle), "0-99", false);
    assert_eq!(bed.take_steps(&mut a), None);
    assert_eq!(bed.fields["slots"], "0-99");
    a = at(a, "0-100", false);
    let until = bed.now + SPAN;
    assert_eq!(bed.take_steps(&mut a), None);
    assert_eq!(bed.fields["slots"], format!("0-99 100@{until}"));
    // An emptied server takes precedence.
    bed.fields.clear();
    assert!(bed.take_steps(&mut a).is_some());
    assert_eq!(bed.fields["slots"], "0-100");
    assert_eq!(bed.fields["sure"], bed.now.to_string());
}

#[test]
fn a_primary_that_came_later_has_an_epoch_that_speaks_for_nothing_yet() {
    let mut bed = EpochBed::new();
    let start = EarlierStarts::Idle;
    assert_eq!(bed.take_steps(&mut at(worker("a", start), "7", true)), None);
    assert_eq!(bed.fields["slots"], format!("7@{}", bed.now + SPAN));
    // A new worker of an operator who skips the wait claims all slots.
    let mut fresh = at(worker("b", EarlierStarts::Fresh), "7", false);
    assert_eq!(bed.take_steps(&mut fresh), None);
    assert_eq!(bed.fields["slots"], "7");
}

#[test]
fn a_moved_epoch_replaces_that_of_another_primary() {
    let (mut bed, _, _) = running();
    bed.fields.insert("slots".to_owned(), "50-99".to_owned());
    bed.memory = memory("other", "h7", "0");
    let mut moved = at(worker("c", EarlierStarts::Unknown), "0-10 99", true);
    let sure = bed.now - 5;
    if let Some(shard) = &mut moved.shard {
        shard.handed = vec![HandedClaims {
            slots: slots("0-10"),
            wait_ms: 0,
            sure: Some(sure),
        }];
    }
    assert_eq!(bed.take_steps(&mut moved), None);
    assert_eq!(bed.fields["run"], bed.memory.text());
    let until = bed.now + SPAN;
    assert_eq!(bed.fields["slots"], format!("0-10 99@{until}"));
    assert_eq!(bed.fields["sure"], sure.to_string());
}

#[test]
fn an_epoch_that_moved_with_its_slot_does_not_cover_the_other_slots() {
    let mut bed = EpochBed::new();
    let mut a = at(worker("a", EarlierStarts::Idle), "0-99 200", false);
    assert_eq!(bed.take_steps(&mut a), None);
    assert!(bed.pulse(&mut a));
    // Slot 200 moves to another primary, and the hash with it. No worker there proves that nothing
    // was lost.
    bed.memory = memory("other", "h7", "0");
    for known in [a, worker("b", EarlierStarts::Unknown)] {
        let mut bed = bed.clone();
        let mut there = at(known, "100-200", true);
        assert!(bed.take_steps(&mut there).is_some());
        bed.pass(SPAN, &mut [&mut there]);
        assert_eq!(bed.take_steps(&mut there), None);
        // Otherwise a loss at the first primary in the meantime would go unnoticed.
        let claims = format!("200 100-199@{}", bed.now + SPAN);
        assert_eq!(bed.fields["slots"], claims);
    }
}

#[test]
fn a_primary_that_failed_over_cannot_vouch_for_earlier_starts() {
    let mut bed = EpochBed::new();
    let mut a = at(worker("a", EarlierStarts::Idle), "0-99", false);
    assert_eq!(bed.take_steps(&mut a), None);
    assert_eq!(bed.fields["sure"], (bed.now - 2 * SPAN).to_string());
    assert!(bed.pulse(&mut a));
    bed.memory = restarted();
    assert!(bed.take_steps(&mut a).is_some());
    bed.pass(SETTLE_MS, &mut [&mut a]);
    assert_eq!(bed.take_steps(&mut a), None);
    assert_eq!(bed.fields["sure"], bed.now.to_string());
}
