//! What the downstream says its own limit is.

use std::cmp::Reverse;
use std::time::Duration;

use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use super::LONGEST;
use super::value::{When, count};

/// The downstream's own limit, as its headers tell; each part may be missing. Of several limits it is the one
/// of which the least remains, for the longest time; where they don't say, the one that allows the least for its
/// window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advertised {
    /// So many calls are allowed in `window`.
    pub limit: Option<u64>,
    /// So many of them were left when the answer was sent.
    pub remaining: Option<u64>,
    /// So long after that there are more.
    pub reset: Option<Duration>,
    /// The limit's window.
    pub window: Option<Duration>,
}

impl Advertised {
    fn says_something(&self) -> bool {
        self.limit.is_some() || self.remaining.is_some()
    }

    /// The smaller, the tighter.
    fn room(&self) -> (u64, Reverse<Option<Duration>>, u128) {
        let most = u64::MAX;
        let rate = match (self.limit, self.window) {
            (Some(limit), Some(window)) => {
                u128::from(limit) * 1_000_000_000 / window.as_millis().max(1)
            }
            // Without a window it can't be compared: any that has one goes first.
            (Some(limit), None) => u128::from(most) * 1_000_000_000 + u128::from(limit),
            (None, _) => u128::MAX,
        };
        (self.remaining.unwrap_or(most), Reverse(self.reset), rate)
    }
}

/// One header of the older forms.
#[derive(Debug)]
pub(super) enum Counter {
    /// `…-Limit`, and its window where one is named.
    Limit(u64, Option<Duration>),
    /// `…-Remaining`, in thousandths.
    RemainingMs(u64),
    /// `…-Reset`
    Reset(When),
}

impl Counter {
    /// A number, or a list as the drafts until -06 have it: `100, 100;w=60`, the limit and then its policies.
    pub(super) fn limit(value: &[u8]) -> Option<Self> {
        if let Some(limit) = count(value) {
            return Some(Self::Limit(limit, None));
        }
        let policies = policies(value);
        let limit = policies.first()?.limit;
        let same = policies
            .iter()
            .find(|policy| policy.limit == limit && policy.window.is_some());
        Some(Self::Limit(limit, same.and_then(|policy| policy.window)))
    }
}

/// What is left of a policy: a member of `RateLimit`.
#[derive(Debug, Default)]
pub(super) struct State {
    name: String,
    /// -07 only.
    limit: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

/// A member of `RateLimit-Policy`.
#[derive(Debug)]
struct Policy {
    name: String,
    limit: u64,
    window: Option<Duration>,
    /// Bytes and requests at a time are limited, too; they are no calls per window.
    counts_calls: bool,
}

/// The members of `RateLimit`; none where one is broken (RFC 9651, 4.2).
pub(super) fn states(field: &[u8]) -> Vec<State> {
    if let Ok(list) = Parser::new(field).parse::<List>() {
        let state = |item: &Item| State {
            name: name(&item.bare_item),
            limit: None,
            remaining: integer(item.params.get("r")),
            reset: seconds(item.params.get("t")),
        };
        return items(&list).map(state).collect();
    }
    let Ok(dictionary) = Parser::new(field).parse::<Dictionary>() else {
        return Vec::new();
    };
    let member = |key: &str| match dictionary.get(key)? {
        ListEntry::Item(item) => Some(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    vec![State {
        name: String::new(),
        limit: integer(member("limit")),
        remaining: integer(member("remaining")),
        reset: seconds(member("reset")),
    }]
}

/// The members of `RateLimit-Policy`: `"name";q=100;w=60`, or `100;w=60` until -07.
fn policies(field: &[u8]) -> Vec<Policy> {
    let Ok(list) = Parser::new(field).parse::<List>() else {
        return Vec::new();
    };
    let policy = |item: &Item| {
        let unit = item.params.get("qu").map(name);
        Some(Policy {
            name: name(&item.bare_item),
            limit: integer(Some(&item.bare_item)).or_else(|| integer(item.params.get("q")))?,
            window: window(&item.params),
            counts_calls: unit.is_none_or(|unit| unit == "requests"),
        })
    };
    items(&list).filter_map(policy).collect()
}

/// The limit with the least room among all that the headers tell of. The structured fields count before the
/// older ones.
pub(super) fn tightest(
    rate_limit: &[u8],
    policy: &[u8],
    counters: &[(String, Counter)],
    now_ms: u64,
) -> Option<Advertised> {
    let policies = policies(policy);
    let mut found = structured(&states(rate_limit), &policies);
    if found.is_empty() {
        found = counted(counters, now_ms);
    }
    if found.is_empty() {
        found = policies
            .iter()
            .filter(|policy| policy.counts_calls)
            .map(|policy| Advertised {
                limit: Some(policy.limit),
                window: policy.window,
                ..Advertised::default()
            })
            .collect();
    }
    found.into_iter().min_by_key(Advertised::room)
}

/// Each state with its policy: the one of its name, or of its limit, or the only one.
fn structured(states: &[State], policies: &[Policy]) -> Vec<Advertised> {
    let state = |state: &State| {
        let own = policies
            .iter()
            .find(|policy| match state.limit {
                Some(limit) => policy.limit == limit,
                None => policy.name == state.name,
            })
            .or_else(|| policies.first().filter(|_| policies.len() == 1));
        if own.is_some_and(|policy| !policy.counts_calls) {
            return None;
        }
        let advertised = Advertised {
            limit: state.limit.or(own.map(|policy| policy.limit)),
            remaining: state.remaining,
            reset: state.reset,
            window: own.and_then(|policy| policy.window),
        };
        advertised.says_something().then_some(advertised)
    };
    states.iter().filter_map(state).collect()
}

/// The older forms, put together by their suffix.
fn counted(counters: &[(String, Counter)], now_ms: u64) -> Vec<Advertised> {
    let mut found: Vec<(&str, Advertised)> = Vec::new();
    for (suffix, counter) in counters {
        let at = found.iter().position(|(of, _)| of == suffix);
        let at = at.unwrap_or_else(|| {
            let advertised = Advertised {
                window: window_of(suffix),
                ..Advertised::default()
            };
            found.push((suffix, advertised));
            found.len() - 1
        });
        let advertised = &mut found[at].1;
        // Several headers of one name: the first counts.
        match counter {
            Counter::Limit(limit, window) => {
                advertised.limit = advertised.limit.or(Some(*limit));
                advertised.window = advertised.window.or(*window);
            }
            Counter::RemainingMs(ms) => {
                advertised.remaining = advertised.remaining.or(Some(ms / 1_000));
            }
            Counter::Reset(when) => {
                let wait = when.wait(now_ms).min(LONGEST);
                advertised.reset = advertised.reset.or(Some(wait));
            }
        }
    }
    let all = found.into_iter().map(|(_, advertised)| advertised);
    all.filter(Advertised::says_something).collect()
}

/// `-minute`: one minute.
fn window_of(suffix: &str) -> Option<Duration> {
    let seconds = match suffix {
        "-second" => 1,
        "-minute" => 60,
        "-hour" => 3_600,
        "-day" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

fn items(list: &List) -> impl Iterator<Item = &Item> {
    list.iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    })
}

/// A name is a string (a token in some drafts); anything else has none.
fn name(item: &BareItem) -> String {
    match item {
        BareItem::String(text) => text.as_str().to_owned(),
        BareItem::Token(token) => token.as_str().to_owned(),
        _ => String::new(),
    }
}

fn window(params: &Parameters) -> Option<Duration> {
    seconds(params.get("w")).filter(|window| !window.is_zero())
}

fn seconds(item: Option<&BareItem>) -> Option<Duration> {
    integer(item).map(|seconds| Duration::from_secs(seconds).min(LONGEST))
}

fn integer(item: Option<&BareItem>) -> Option<u64> {
    match item? {
        BareItem::Integer(n) => u64::try_from(i64::from(*n)).ok(),
        _ => None,
    }
}
