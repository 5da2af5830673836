//! Behavior that every gate must have, however it keeps its state.

use std::time::Duration;

use gate::{
    Answer, BreakerEvent, BreakerScope, Change, Gate, Question, Rule, TenantAsk, Ticket,
    UsageOfLimit,
};
use rules::algorithms::DefaultBurst;
use rules::answers::Quotas;
use rules::limit::Algorithm;

use super::{FRESH, LONG, LimitedGate, ask, decided, started, tenant, waits};

/// Checks that a gate behaves as every gate must: `long` allows 5 per [`LONG`], `short` 1 per 400
/// ms.
pub async fn conforms(
    algorithm: Algorithm,
    long: LimitedGate<impl Gate>,
    short: LimitedGate<impl Gate>,
) {
    // The limit's worth of jobs starts, in order. The others wait with tickets in order.
    let answers = ask(&long, "a", 10, &[FRESH; 8]).await;
    assert_eq!(started(&answers), 5);
    assert!(matches!(answers[4], Answer::Start { .. }));
    let waiting = waits(&answers);
    assert_eq!(
        waiting.iter().map(|(t, _)| t.number).collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(
        waiting
            .windows(2)
            .all(|pair| pair[0].0.generation == pair[1].0.generation)
    );
    // The counter still sees the last window.
    assert!(waiting.iter().all(|(_, ttl)| (1..=2 * LONG).contains(ttl)));

    // Other tenants are not affected, and a batch is answered in order.
    let batch: Vec<TenantAsk> = ["b", "a", "c"]
        .into_iter()
        .map(|id| long.question(id, 1, &[FRESH]))
        .collect();
    let replies = long.ask(&batch).await.expect("the gate answers");
    assert_eq!(
        [0, 1, 2].map(|index| started(decided(&replies, index))),
        [1, 0, 1]
    );
    assert!(long.ask(&[]).await.expect("the gate answers").is_empty());

    // A question without jobs reads the clock, whether or not jobs wait.
    let batch = ["nobody", "a"].map(|id| long.question(id, 0, &[]));
    let replies = long.ask(&batch).await.expect("the gate answers");
    for reply in replies {
        let reply = reply.expect("the clock");
        assert!(reply.now_ms > 1_700_000_000_000 && reply.answers.is_empty());
    }

    // A ticket keeps its number. A ticket of another generation counts as none.
    let (first, _) = waiting[0];
    let again = ask(
        &long,
        "a",
        1,
        &[Question {
            ticket: Some(first),
            ..FRESH
        }],
    )
    .await;
    assert_eq!(waits(&again)[0].0, first);
    let foreign = Ticket {
        generation: first.generation + 1,
        number: 1,
    };
    let again = ask(
        &long,
        "a",
        1,
        &[Question {
            ticket: Some(foreign),
            ..FRESH
        }],
    )
    .await;
    assert_eq!(waits(&again)[0].0.number, 5);

    // Costs are units. A cost of 0 or above the limit counts as the nearest possible cost.
    let answers = ask(
        &long,
        "costs",
        9,
        &[Question { cost: 3, ..FRESH }, Question { cost: 0, ..FRESH }],
    )
    .await;
    assert!(matches!(
        answers[..],
        [Answer::Start { .. }, Answer::Start { .. }]
    ));
    let answers = ask(&long, "costs", 9, &[Question { cost: 99, ..FRESH }]).await;
    assert_eq!(waits(&answers)[0].0.number, 5);

    // Budget: jobs beyond it that have room are answered `Capacity`, and nothing changes. Fresh
    // jobs behind them take no ticket.
    let answers = ask(&long, "budget", 2, &[FRESH; 7]).await;
    assert_eq!(started(&answers), 2);
    assert!(answers[2..].iter().all(|a| matches!(a, Answer::Capacity)));
    let shown = long
        .inspect(&tenant("budget"))
        .await
        .expect("the gate answers");
    let UsageOfLimit { count, free, .. } = shown.limits[0];
    assert_eq!((count, free, shown.waiting), (2, 3, 0));

    // Closed tenant: no job starts, waits last until it opens, and a shorter block does not open it
    // sooner.
    let closed = tenant("closed");
    let scope = closed.clone().into();
    long.block(&scope, Duration::from_secs(1000), "429 from the downstream")
        .await
        .expect("the gate answers");
    long.block(&scope, Duration::from_secs(10), "shorter")
        .await
        .expect("the gate answers");
    let answers = ask(&long, "closed", 5, &[FRESH]).await;
    assert!(waits(&answers)[0].1 > 990_000);
    let shown = long.inspect(&closed).await.expect("the gate answers");
    assert_eq!(shown.blocked_by, "429 from the downstream");
    assert!(shown.blocked_until_ms > shown.now_ms + 990_000);
    let UsageOfLimit { next_ms, free, .. } = shown.limits[0];
    assert!(next_ms > 990_000 && free == 0 && shown.waiting == 1);

    // Closes a tenant: no job starts, waits last until it opens, and a shorter block does not open
    // it sooner.
    let (all, how) = (BreakerScope::Api, "429 for all");
    (long.block(&all, Duration::from_secs(1000), how).await).expect("the gate answers");
    let report = async |rule, event| {
        let standing = long.report(rule, &[(BreakerScope::Api, event)]).await;
        let standing = standing.expect("the gate answers").remove(0);
        standing.expect("the gate answers")
    };
    let read_standing = async || report(&Rule::NONE, BreakerEvent::Read).await;
    let standing = read_standing().await;
    assert!(standing.named_until_ms > standing.now_ms + 990_000 && !standing.is_open);
    assert_eq!(
        (standing.closed_until_ms, standing.reason.as_str()),
        (standing.named_until_ms, how)
    );
    assert_eq!(started(&ask(&long, "not closed", 5, &[FRESH]).await), 1);
    // It does not open for a probe, either.
    let rule = Rule {
        failures: 1,
        ..Rule::NONE
    };
    let failed = BreakerEvent::Failed {
        started_ms: 0,
        of: String::new(),
        reason: "502".to_owned(),
        jitter: 0,
    };
    assert!(report(&rule, failed).await.is_open);
    assert!(!report(&rule, BreakerEvent::Probe).await.is_granted);
    (long.change(&all, &Change::Resume).await).expect("the gate answers");
    assert_eq!(read_standing().await.named_until_ms, 0);

    // Changes by an operator: a pause, its end, another limit, and a reset of the waitlist.
    let operated = tenant("operated");
    let scope = operated.clone().into();
    let change = async |change| long.change(&scope, &change).await.expect("it answers");
    let duration_ms = 1_000_000;
    assert!(change(Change::Pause { duration_ms }).await > shown.now_ms + 990_000);
    let paused = waits(&ask(&long, "operated", 5, &[FRESH]).await)[0];
    assert!(paused.1 > 990_000);
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert!(shown.blocked_by.contains("operator"), "{shown:?}");
    assert_eq!(change(Change::Resume).await, 0);
    let set = Change::Limit {
        name: "default".to_owned(),
        max: 2,
        duration_ms,
    };
    change(set).await;
    let returned = Question {
        ticket: Some(paused.0),
        ..FRESH
    };
    let answers = ask(&long, "operated", 5, &[returned, FRESH, FRESH]).await;
    // A configured burst is independent of the max and stays.
    let most = match algorithm.facts().default_burst {
        Some(DefaultBurst::One) => 3,
        _ => 2,
    };
    assert_eq!(started(&answers), most);
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert_eq!((shown.limits[0].max, shown.waiting), (2, 3 - most as u64));
    assert!(shown.limits[0].override_until_ms > shown.now_ms + 900_000);
    change(Change::Reset).await;
    let unlimit = Change::Unlimit {
        name: "default".to_owned(),
    };
    change(unlimit).await;
    let shown = long.inspect(&operated).await.expect("the gate answers");
    assert_eq!((shown.limits[0].max, shown.waiting), (5, 0));
    assert_eq!(shown.limits[0].override_until_ms, 0);

    // Jobs that a lower limit denies have their turns when that limit ends, not in months, or as the
    // bucket is then refilled.
    let duration_ms = 1_000_000;
    let lower = Change::Limit {
        name: "default".to_owned(),
        max: 1,
        duration_ms,
    };
    let lowered = tenant("lowered");
    (long.change(&lowered.clone().into(), &lower).await).expect("the gate answers");
    let waiting = waits(&ask(&long, "lowered", 5, &[FRESH; 4]).await);
    assert_eq!(waiting.len(), if most == 3 { 0 } else { 3 });
    let longest = |units: u64| match algorithm.has_burst() {
        true => units * LONG / 5 + 1_000,
        false => duration_ms,
    };
    let in_time = |(ticket, ttl): &(Ticket, u64)| *ttl <= longest(ticket.number);
    assert!(waiting.iter().all(in_time), "{algorithm:?}: {waiting:?}");
    let shown = long.inspect(&lowered).await.expect("the gate answers");
    assert!(shown.waitlist_end_ms <= longest(3), "{shown:?}");
    assert!(shown.turn_ms <= longest(4), "{shown:?}");
    assert!(shown.limits[0].next_ms <= longest(1), "{shown:?}");

    // Limits that the downstream advertises are shown and decide nothing.
    let advertised = |text| [(tenant("advertised"), Quotas::read(text))];
    for text in ["7/1", "1/1,100/60,5/0"] {
        long.advertised(&advertised(text))
            .await
            .expect("the gate answers");
        let shown = long.inspect(&tenant("advertised")).await;
        let shown = shown.expect("the gate answers");
        assert_eq!(shown.quotas.text(), text);
        assert!((1..=shown.now_ms).contains(&shown.quotas_at_ms));
    }
    assert_eq!(started(&ask(&long, "advertised", 9, &[FRESH; 6]).await), 5);
    let shown = long.inspect(&tenant("advertised")).await;
    assert!(!shown.expect("the gate answers").quotas.is_empty());
    let shown = long.inspect(&closed).await.expect("the gate answers");
    assert_eq!((shown.quotas.is_empty(), shown.quotas_at_ms), (true, 0));

    // The wait is long enough: a job that comes back after it starts.
    let id = "time";
    let (ticket, ttl) = waits(&ask(&short, id, 9, &[FRESH; 3]).await)[0];
    // The sliding counter's windows are longer by the lateness that it forgives.
    assert!(
        ttl <= 2 * short.limits[0].span() + 1,
        "{algorithm:?}: {ttl}"
    );
    tokio::time::sleep(Duration::from_millis(ttl)).await;
    let answers = ask(
        &short,
        id,
        9,
        &[Question {
            ticket: Some(ticket),
            ..FRESH
        }],
    )
    .await;
    assert_eq!(started(&answers), 1, "{algorithm:?}: {answers:?}");
}
