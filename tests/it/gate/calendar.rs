//! Days and months of the calendar on a real Redis, on the model and on a fake Redis, where the
//! clocks change. The clock jumps, so that each worker's estimate of it is wrong again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use gate::{Answer, Gate};
use kit::gate::{BEGIN_US, FRESH, asking, decided, three};
use rules::calendar::{Calendar, Zone};
use rules::limit::Limit;

const MINUTE_US: u64 = 60_000_000;
const DAY_MINUTES: u64 = 24 * 60;

/// Asks on all three gates every `minutes` for `days`, from the day `first` of 2100 on. Returns the
/// units that started in each window on Redis and on the model. The clock of Redis is far behind, so
/// that its waitlist does not expire as the others do: its tickets differ.
async fn starts(limit: &Limit, first: u64, days: u64, minutes: usize) -> [BTreeMap<u64, u64>; 2] {
    let gates = three("calendar");
    let mut started = [BTreeMap::new(), BTreeMap::new()];
    for at in (first * DAY_MINUTES..(first + days) * DAY_MINUTES).step_by(minutes) {
        let micros = BEGIN_US + at * MINUTE_US;
        gates.set_clock(micros);
        let ask = [asking("acme", &limit.clone().into(), &[FRESH; 3])];
        let redis = gates.redis.ask(&ask).await.expect("it answers");
        let model = gates.model.ask(&ask).await.expect("it answers");
        let fake = gates.fake.ask(&ask).await.expect("it answers");
        assert_eq!(decided(&model, 0), decided(&fake, 0), "minute {at}");
        let window = limit.window_start(micros / 1_000);
        for (started, replies) in started.iter_mut().zip([&redis, &model]) {
            let answers = decided(replies, 0).iter();
            let starts = answers.filter(|answer| matches!(answer, Answer::Start { .. }));
            *started.entry(window).or_default() += starts.count() as u64;
        }
    }
    started
}

#[tokio::test]
async fn no_window_has_more_than_its_units_where_the_clocks_change() {
    let zone = Zone::find("America/Los_Angeles").expect("a zone");
    // In 2100, daylight saving begins on March 14, the 73rd day, and ends on November 7.
    for (period, begin, first, days, minutes) in [
        ("day", "00:00", 70, 7, 37),
        ("day", "02:30", 308, 5, 53),
        ("week", "sunday 12:00", 60, 40, 700),
        ("month", "31", 0, 150, 1_700),
    ] {
        let calendar = Calendar::parse(period, zone, Some(begin)).expect("a calendar");
        let guard = Duration::from_millis(50);
        let limit = Limit::calendar("default", 10, calendar, guard).expect("in range");
        for started in starts(&limit, first, days, minutes).await {
            assert!(started.len() >= 5, "{started:?}");
            assert!(started.values().all(|units| *units <= 10), "{started:?}");
            let full = started.values().filter(|units| **units == 10).count();
            assert!(full + 2 >= started.len(), "{started:?}");
        }
    }
}
