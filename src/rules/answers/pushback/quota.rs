//! Reads the limits that an API advertises.

use std::time::Duration;

use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parameters, Parser};

use super::MAX_THROTTLE;
use crate::answers::advertised::{Quota, Quotas};
use crate::answers::value::{HeaderWait, number_ms};

/// One header of the older forms.
#[derive(Debug)]
pub(super) enum CounterHeader {
    /// `…-Limit`: a number, or a list as in the drafts until -06: `100, 100;w=60`, the limit and
    /// then its policies.
    Limit(Vec<Quota>),
    /// `…-Limit` of 0 or less: some APIs send it if there is no limit.
    NoLimit,
    /// `…-Remaining`, in thousandths.
    RemainingMs(u64),
    /// `…-Reset`
    Reset(HeaderWait),
}

impl CounterHeader {
    /// Parses the value of `…-Limit`.
    pub(super) fn limit(value: &[u8]) -> Self {
        let negative = value.trim_ascii().strip_prefix(b"-");
        match number_ms(value) == Some(0) || negative.and_then(number_ms).is_some() {
            true => Self::NoLimit,
            false => Self::Limit(policies(value)),
        }
    }
}

/// The state of a policy: a member of `RateLimit`.
#[derive(Debug, Default)]
pub(super) struct QuotaState {
    /// Only in -07. 0 or less if there is no limit.
    pub(super) limit: Option<i64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<Duration>,
}

impl QuotaState {
    /// Returns true if there is a limit and nothing of it remains.
    pub(super) fn is_used_up(&self) -> bool {
        self.remaining == Some(0) && self.limit.is_none_or(|limit| limit > 0)
    }
}

/// Returns the members of `RateLimit`, or none if one is broken (RFC 9651, 4.2).
pub(super) fn states(field: &[u8]) -> Vec<QuotaState> {
    if field.is_empty() {
        return Vec::new();
    }
    if let Ok(list) = Parser::new(field).parse::<List>() {
        let state = |item: &Item| QuotaState {
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
    vec![QuotaState {
        limit: whole(member("limit")),
        remaining: integer(member("remaining")),
        reset: seconds(member("reset")),
    }]
}

/// Returns the members of `RateLimit-Policy`: `"name";q=100;w=60`, or `100;w=60` until -07. Leaves
/// out limits of bytes or of concurrent requests, which are not calls per window.
pub(super) fn policies(field: &[u8]) -> Vec<Quota> {
    let Ok(list) = Parser::new(field).parse::<List>() else {
        return Vec::new();
    };
    let policy = |item: &Item| {
        let unit = item.params.get("qu").map(name);
        let limit = integer(Some(&item.bare_item)).or_else(|| integer(item.params.get("q")))?;
        let window = window(&item.params);
        (unit.is_none_or(|unit| unit == "requests")).then_some(Quota { limit, window })
    };
    items(&list).filter_map(policy).collect()
}

/// Returns all limits in the headers. The structured fields take precedence over the older ones.
pub(super) fn all(
    rate_limit: &[u8],
    policy: &[u8],
    counters: &[(String, CounterHeader)],
) -> Quotas {
    let states = states(rate_limit).into_iter();
    let left = states.filter_map(|state| {
        let limit = u64::try_from(state.limit?).ok()?;
        Some(Quota {
            limit,
            window: None,
        })
    });
    let structured = Quotas::new(policies(policy).into_iter().chain(left));
    if !structured.is_empty() {
        return structured;
    }
    let counted = counters.iter().flat_map(|(suffix, counter)| {
        let quotas = match counter {
            CounterHeader::Limit(quotas) => quotas.as_slice(),
            _ => &[],
        };
        quotas.iter().map(|quota| Quota {
            window: quota.window.or(window_of(suffix)),
            ..*quota
        })
    });
    Quotas::new(counted)
}

/// Returns the window of a suffix: one minute for `-minute`.
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

/// Returns a name, which is a string (a token in some drafts), or an empty text for anything else.
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
    integer(item).map(|seconds| Duration::from_secs(seconds).min(MAX_THROTTLE))
}

fn integer(item: Option<&BareItem>) -> Option<u64> {
    whole(item).and_then(|n| u64::try_from(n).ok())
}

fn whole(item: Option<&BareItem>) -> Option<i64> {
    match item? {
        BareItem::Integer(n) => Some(i64::from(*n)),
        _ => None,
    }
}
