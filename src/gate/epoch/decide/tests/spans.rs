//! Questions with different look-backs, and a clock that is stepped back.

use super::*;

#[test]
fn each_request_waits_for_its_own_longest_span() {
    let (mut bed, mut a, mut b) = running();
    a.shortest_ms = SHORT;
    bed.fields.clear();
    assert_eq!(
        bed.take_steps(&mut a),
        Some((bed.now + SHORT, EMPTIED.to_owned()))
    );
    bed.pass(SHORT, &mut [&mut a, &mut b]);
    assert_eq!(bed.take_steps(&mut a), None);
    assert!(bed.asks(&mut a, SHORT) && !bed.asks(&mut a, SHORT + 1));
    assert!(bed.take_steps(&mut b).is_some(), "it has no such question");
    bed.pass(SPAN - SHORT, &mut [&mut a, &mut b]);
    assert_eq!(bed.take_steps(&mut b), None);
    assert!(bed.asks(&mut a, SPAN) && bed.asks(&mut b, 10 * SPAN));
}

#[test]
fn a_worker_that_does_not_vouch_delays_short_requests_by_the_timeout() {
    let (mut bed, mut a, _died) = running();
    a.shortest_ms = SHORT;
    bed.memory = restarted();
    let wait = bed.take_steps(&mut a);
    assert_eq!(wait, Some((bed.now + DOUBT_MS, DOUBTED.to_owned())));
    bed.pass(DOUBT_MS, &mut [&mut a]);
    assert_eq!(bed.take_steps(&mut a), None);
    assert!(bed.asks(&mut a, DOUBT_MS) && !bed.asks(&mut a, SPAN));
    bed.pass(SPAN - DOUBT_MS, &mut [&mut a]);
    assert!(bed.asks(&mut a, SPAN));
}

#[test]
fn a_longer_limit_added_during_a_wait_does_not_delay_the_others() {
    let (mut bed, mut a, mut b) = running();
    (a.shortest_ms, b.shortest_ms) = (SHORT, SHORT);
    let snapshot = bed.fields.clone();
    bed.pass(10, &mut [&mut a, &mut b]);
    assert!(bed.pulse(&mut a));
    bed.fields = snapshot;
    bed.memory = restarted();
    assert!(bed.take_steps(&mut a).is_some());
    let lost = bed.stored().lost.map(|(at, _)| at);
    bed.pass(DOUBT_MS / 2, &mut [&mut a, &mut b]);
    // No job was started there since its first sighting.
    a.span_ms = 10 * SPAN;
    assert!(bed.take_steps(&mut a).is_some());
    assert_eq!(bed.stored().lost.map(|(at, _)| at), lost);
    assert!(bed.stored().cold >= bed.now + 9 * SPAN);
    // The answer may have arrived later, though the decision was made before.
    a.idle_ms = Some(0);
    bed.pass(1, &mut [&mut a]);
    assert!(bed.take_steps(&mut a).is_some());
}

#[test]
fn a_short_wait_leaves_the_longer_span_of_the_first_worker() {
    let (mut bed, mut a, _died) = running();
    bed.memory = restarted();
    let until = bed.now + SPAN;
    assert_eq!(bed.take_steps(&mut a), Some((until, DOUBTED.to_owned())));
    let mut short = worker("c", EarlierStarts::Unknown);
    (short.span_ms, short.shortest_ms) = (SHORT, SHORT);
    bed.pass(DOUBT_MS, &mut [&mut a]);
    assert_eq!(bed.take_steps(&mut short), None);
    assert_eq!(bed.take_steps(&mut a), Some((until, DOUBTED.to_owned())));
}

#[test]
fn a_version_with_only_a_duration_closes_the_gate_for_all() {
    let (mut bed, mut a, _) = running();
    a.shortest_ms = SHORT;
    bed.fields
        .insert("lost".to_owned(), format!("1:{}", bed.now));
    let until = bed.now + SPAN;
    bed.fields.insert("cold".to_owned(), until.to_string());
    assert_eq!(bed.take_steps(&mut a).map(|(until, _)| until), Some(until));
}

#[test]
fn a_memory_that_may_evict_delays_short_requests_by_their_own_span() {
    let (mut bed, mut a, _) = running();
    a.shortest_ms = SHORT;
    bed.memory = restarted();
    bed.memory.evicts = true;
    let wait = bed.take_steps(&mut a);
    assert_eq!(wait, Some((bed.now + SHORT, MAY_EVICT.to_owned())));
    bed.pass(SHORT, &mut [&mut a]);
    assert_eq!(bed.take_steps(&mut a), None);
    assert!(bed.asks(&mut a, SHORT) && !bed.asks(&mut a, SPAN));
}

#[test]
fn a_clock_that_is_stepped_back_adds_nothing_to_a_wait() {
    const STEP: u64 = 600_000;
    let waits = |restarts: bool| {
        let (mut bed, mut a, _) = running();
        match restarts {
            true => bed.memory = restarted(),
            false => bed.fields.clear(),
        }
        assert!(bed.take_steps(&mut a).is_some());
        bed.now -= STEP;
        let (until, _) = bed.take_steps(&mut a).expect("it waits");
        until - bed.now
    };
    assert_eq!([waits(false), waits(true)], [SPAN + ROUNDING_MS, SPAN]);
}
