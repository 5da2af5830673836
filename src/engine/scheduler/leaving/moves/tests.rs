use super::due::DueMoves;
use super::*;
use broker::DeliverySource;
use kit::SECOND;

const PREFETCH: usize = 80;

fn tag(source: DeliverySource, tag: u64) -> Tag {
    Tag {
        session: 1,
        source,
        tag,
    }
}

fn message() -> Message {
    Message {
        routing_key: "jobs".to_owned(),
        properties: Default::default(),
        body: Default::default(),
    }
}

fn to(queue: &str) -> Outgoing {
    Outgoing {
        queue: queue.into(),
        message: message(),
    }
}

fn result(queue: &str) -> Option<Box<ExternalMessage>> {
    let result = ExternalMessage {
        exchange: "".into(),
        routing_key: queue.into(),
        message: message(),
    };
    Some(Box::new(result))
}

/// Moves, and the current time.
struct Desk {
    moves: Moves,
    now: Duration,
    last: u64,
}

impl Desk {
    fn new(are_targets_named: bool) -> Self {
        Self {
            moves: Moves::new(PREFETCH, "jobs.dead".into(), are_targets_named),
            now: SECOND,
            last: 0,
        }
    }

    fn begin_from(
        &mut self,
        source: DeliverySource,
        tenant: Option<&str>,
        result: Option<Box<ExternalMessage>>,
        outgoing: Option<Outgoing>,
    ) -> (JobKey, Option<MoveStep>) {
        self.last += 1;
        let of = Move {
            tag: tag(source, self.last),
            delivered: self.now,
            tenant: tenant.map(|name| Tenant::parse(name).expect("a tenant")),
            result,
            outgoing,
            since: self.now,
        };
        let key = JobKey(self.last);
        (key, self.moves.begin(self.now, key, of))
    }

    fn begin(&mut self, outgoing: Outgoing) -> (JobKey, Option<MoveStep>) {
        self.begin_from(DeliverySource::Fresh, None, None, Some(outgoing))
    }

    fn result(&mut self, tenant: &str, queue: &str) -> (JobKey, Option<MoveStep>) {
        self.begin_from(DeliverySource::Fresh, Some(tenant), result(queue), None)
    }

    fn failed(&mut self, key: JobKey) -> Option<bool> {
        self.moves.failed(self.now, key, &PublishError::Nacked)
    }

    fn must_fail(&mut self, key: JobKey) {
        assert!(self.failed(key).is_some());
    }

    /// Advances the time until something is due.
    fn due(&mut self) -> DueMoves {
        self.now = self.moves.next().expect("something is due").max(self.now);
        self.moves.due(self.now)
    }

    /// Returns the keys of published messages.
    fn sent(next: &[MoveStep]) -> Vec<JobKey> {
        let key = |next: &MoveStep| match next {
            MoveStep::PublishResult((key, _)) | MoveStep::Publish((key, _)) => *key,
            MoveStep::Ack(tag) => panic!("{tag:?} is acked"),
        };
        next.iter().map(key).collect()
    }
}

#[test]
fn one_message_at_a_time_tries_a_stuck_queue_after_longer_and_longer_pauses() {
    let mut desk = Desk::new(true);
    let (first, _) = desk.begin(to("jobs.dead"));
    assert_eq!(desk.failed(first), Some(true));
    let (second, next) = desk.begin(to("jobs.dead"));
    assert!(next.is_none(), "it waits behind the other: {next:?}");
    let (other, next) = desk.begin(to("jobs.delay.from-0"));
    assert!(next.is_some(), "another queue is open");
    assert_eq!(
        desk.moves.confirmed(desk.now, other).map(|it| it.0.tag),
        Some(3)
    );
    let mut failed_at = desk.now;
    let mut pauses = Vec::new();
    for tries in 0..6 {
        let mut due = desk.due();
        while due.next.is_empty() {
            due = desk.due();
        }
        let sent = Desk::sent(&due.next);
        // The messages take turns: a faulty message does not mean a faulty queue.
        assert_eq!(sent, [[first, second][tries % 2]]);
        pauses.push((desk.now - failed_at).as_millis());
        assert_eq!(desk.failed(sent[0]), Some(false));
        failed_at = desk.now;
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200]);
    let due = loop {
        let due = desk.due();
        if !due.next.is_empty() {
            break due;
        }
    };
    let [key] = Desk::sent(&due.next)[..] else {
        panic!("{due:?}")
    };
    let (_, next) = desk.moves.confirmed(desk.now, key).expect("it was sent");
    assert_eq!(next.len(), 1, "the other one goes on at once");
    assert!(!desk.moves.is_stuck(&"jobs.dead".into()));
}

#[test]
fn an_eighth_of_the_prefetch_waits_for_one_target_and_for_one_tenant_and_half_for_all() {
    let share = PREFETCH / 8;
    // One target.
    let mut desk = Desk::new(true);
    let keys: Vec<JobKey> = (0..30)
        .map(|n| desk.result(&format!("t{n}"), "asker").0)
        .collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    let due = desk.due();
    assert_eq!(due.overdue, keys[..30 - share], "the oldest");
    // One tenant, many targets.
    let mut desk = Desk::new(true);
    let keys: Vec<JobKey> = (0..30)
        .map(|n| desk.result("evil", &format!("q{n}")).0)
        .collect();
    let (good, _) = desk.result("good", "q");
    keys.iter().for_each(|key| desk.must_fail(*key));
    desk.failed(good);
    assert_eq!(desk.due().overdue, keys[..30 - share]);
    // Many of both.
    let mut desk = Desk::new(true);
    let result = |desk: &mut Desk, n: u32| desk.result(&format!("t{n}"), &format!("q{n}")).0;
    let keys: Vec<JobKey> = (0..60).map(|n| result(&mut desk, n)).collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    assert_eq!(desk.due().overdue, keys[..60 - PREFETCH / 2]);
    // Results for the operator's exchange are never too many.
    let mut desk = Desk::new(false);
    let keys: Vec<JobKey> = (0..60).map(|n| result(&mut desk, n)).collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    assert!(desk.due().overdue.is_empty());
}

fn direct(n: usize) -> String {
    format!("amq.rabbitmq.reply-to.{n}")
}

#[test]
fn late_results_for_direct_targets_are_bounded_though_no_target_is_stuck() {
    let share = PREFETCH / 8;
    let mut desk = Desk::new(true);
    // The oldest of all, but few.
    (0..5).for_each(|n| _ = desk.result("good", &direct(n)));
    assert_eq!(desk.moves.next(), None, "too few for a check");
    let keys: Vec<JobKey> = (0..60).map(|n| desk.result("evil", &direct(n)).0).collect();
    // A queue or an exchange may be slow.
    (0..60).for_each(|n| _ = desk.result("evil", &format!("q{n}")));
    let early = desk.now + SECOND - Duration::from_millis(1);
    assert!(desk.moves.due(early).overdue.is_empty());
    let due = desk.due();
    assert_eq!(
        (desk.now, &due.overdue[..]),
        (2 * SECOND, &keys[..60 - share])
    );
    for key in due.overdue {
        let (_, next) = desk
            .moves
            .result_ended(desk.now, key, false)
            .expect("it waits");
        assert!(matches!(next[..], [MoveStep::Ack(_)]), "{next:?}");
        // A late answer changes nothing.
        assert!(desk.moves.result_ended(desk.now, key, true).is_none());
        assert!(desk.failed(key).is_none());
    }
    assert!(desk.due().overdue.is_empty());
    // A result whose connection was lost is as late as before.
    let down = PublishError::Down("cut".to_owned());
    let last = keys[59];
    assert_eq!(desk.moves.failed(desk.now, last, &down), Some(true));
    let (more, _) = desk.result("evil", &direct(60));
    desk.now += SECOND;
    let due = desk.moves.due(desk.now);
    assert_eq!(Desk::sent(&due.next), [last]);
    assert_eq!(due.overdue, keys[60 - share..=60 - share]);
    // Few are left.
    for key in keys[60 - share..].iter().chain([&more]) {
        assert!(desk.moves.result_ended(desk.now, *key, false).is_some());
    }
    assert_eq!(desk.moves.direct.len(), 5);
}

#[test]
fn late_results_for_direct_targets_count_with_waiting_ones_and_half_of_the_prefetch_is_for_all() {
    let share = PREFETCH / 8;
    let mut desk = Desk::new(true);
    let mut keys: Vec<JobKey> = (0..share).map(|_| desk.result("evil", "q").0).collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    keys.extend((0..=share).map(|n| desk.result("evil", &direct(n)).0));
    desk.now += SECOND;
    let due = desk.moves.due(desk.now);
    assert_eq!(Desk::sent(&due.next), keys[..1]);
    assert_eq!(due.overdue, keys[1..=share]);
    let mut desk = Desk::new(true);
    let result = |desk: &mut Desk, n: usize| desk.result(&format!("t{}", n / 5), &direct(n)).0;
    let keys: Vec<JobKey> = (0..60).map(|n| result(&mut desk, n)).collect();
    // It would be tried at the time at which it is given up.
    let down = PublishError::Down("cut".to_owned());
    let cut = desk.now + SECOND - Duration::from_millis(50);
    assert_eq!(desk.moves.failed(cut, keys[0], &down), Some(true));
    desk.now += 2 * SECOND;
    let due = desk.moves.due(desk.now);
    assert!(due.next.is_empty(), "{due:?}");
    assert_eq!(due.overdue, keys[..60 - PREFETCH / 2]);
    // No publisher named these targets.
    let mut desk = Desk::new(false);
    (0..60).for_each(|n| _ = result(&mut desk, n));
    assert_eq!(desk.moves.next(), None);
}

#[test]
fn surplus_dead_letters_take_another_queue_and_delayed_ones_at_once() {
    let mut desk = Desk::new(true);
    let keys: Vec<JobKey> = (0..30).map(|_| desk.begin(to("jobs.dead")).0).collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    let due = desk.due();
    assert_eq!(due.overdue, keys[..30 - PREFETCH / 8]);
    for key in &due.overdue {
        let outgoing = to("jobs.delay.from-50800");
        let next = desk.moves.reroute(desk.now, *key, outgoing);
        assert!(matches!(next, Some(MoveStep::Publish(_))), "{next:?}");
    }
    let source = DeliverySource::Delay(3);
    let (back, next) = desk.begin_from(source, None, None, Some(to("jobs.dead")));
    assert!(next.is_none());
    assert!(desk.due().overdue.contains(&back));
}

#[test]
fn one_message_stays_to_try_a_queue_of_ours_for_ten_minutes_at_most() {
    let mut desk = Desk::new(true);
    let keys = [desk.begin(to("jobs.dead")).0, desk.begin(to("jobs.dead")).0];
    keys.iter().for_each(|key| desk.must_fail(*key));
    let mut over = Vec::new();
    while over.len() < 2 {
        let due = desk.due();
        Desk::sent(&due.next).into_iter().for_each(|key| {
            desk.failed(key);
        });
        for key in due.overdue {
            let next = desk.moves.reroute(desk.now, key, to("jobs.delay.from-0"));
            assert!(next.is_some());
            over.push((desk.now - SECOND).as_secs());
        }
        assert!(desk.now < 1000 * SECOND, "{over:?}");
    }
    assert!(
        (30..50).contains(&over[0]) && (600..700).contains(&over[1]),
        "{over:?}"
    );
}

#[test]
fn a_message_that_rabbitmq_closes_the_channel_for_makes_no_queue_stuck() {
    let mut desk = Desk::new(true);
    let (key, _) = desk.begin(to("jobs.dead"));
    let refused = PublishError::Refused("540".to_owned());
    assert_eq!(desk.moves.failed(desk.now, key, &refused), Some(true));
    let (_, next) = desk.begin(to("jobs.dead"));
    assert!(next.is_some());
    assert_eq!(Desk::sent(&desk.due().next), [key]);
}

#[test]
fn unanswered_moves_do_not_keep_a_worker_and_stuck_targets_are_reported_by_kind() {
    let mut desk = Desk::new(true);
    let of = Move {
        tag: tag(DeliverySource::Delay(1), 9),
        delivered: desk.now,
        tenant: None,
        result: None,
        outgoing: Some(to("jobs.dead")),
        since: desk.now,
    };
    let at = desk.now + 60 * SECOND;
    desk.moves.begin_later(JobKey(99), at, of);
    assert_eq!((desk.moves.len(), desk.moves.busy()), (1, 0));
    assert_eq!(desk.moves.next(), Some(at));
    let (one, _) = desk.result("a", "asker");
    desk.failed(one);
    let (letter, _) = desk.begin(to("jobs.dead"));
    desk.failed(letter);
    let long = 10 * SECOND;
    assert_eq!(desk.moves.standstills(desk.now, long), [None, None, None]);
    let [results, letters, jobs] = desk.moves.standstills(desk.now + long, long);
    assert_eq!(
        results.map(|it| (it.messages, it.key)),
        Some((1, "asker".into()))
    );
    assert_eq!(letters.map(|it| it.messages), Some(1));
    assert_eq!(jobs, None);
}

#[test]
fn a_lost_connection_is_not_the_targets_fault_and_a_worker_that_ends_waits_for_no_result() {
    let mut desk = Desk::new(true);
    let down = PublishError::Down("cut".to_owned());
    let letters: Vec<JobKey> = (0..30).map(|_| desk.begin(to("jobs.dead")).0).collect();
    let results: Vec<JobKey> = (0..5).map(|_| desk.result("a", "asker").0).collect();
    for key in letters.iter().chain(&results) {
        desk.moves.failed(desk.now, *key, &down);
    }
    assert!(desk.due().overdue.is_empty());
    desk.moves.stop();
    assert_eq!(desk.due().overdue, results);
}

#[test]
fn any_number_of_results_for_the_configured_exchange_waits_for_ten_minutes_even_in_a_worker_that_ends()
 {
    let mut desk = Desk::new(false);
    let keys: Vec<JobKey> = (0..PREFETCH).map(|_| desk.result("a", "asker").0).collect();
    keys.iter().for_each(|key| desk.must_fail(*key));
    desk.moves.stop();
    let mut over = Vec::new();
    while over.is_empty() {
        let due = desk.due();
        for key in Desk::sent(&due.next) {
            desk.must_fail(key);
        }
        over = due.overdue;
    }
    assert_eq!((desk.now - SECOND).as_secs(), 600);
    assert!(over.len() >= PREFETCH - 1, "{}", over.len());
}

#[test]
fn a_move_is_forgotten_with_its_session() {
    let mut desk = Desk::new(true);
    let (key, _) = desk.begin(to("jobs.dead"));
    desk.moves.clear();
    assert!(desk.moves.confirmed(desk.now, key).is_none() && desk.failed(key).is_none());
}
