//! Limits that the API advertises, compared with the configured ones.

use std::fmt::Write as _;
use std::time::Duration;

use config::show_duration;
use gate::Inspection;
use rules::answers::{Excess, Quota};
use rules::limit::{Limit, floor_ms};

use super::answer::{Omittable, answers};
use super::text::grouped;
use super::times::at;

answers! {
    /// One advertised limit.
    pub struct AdvertisedLimit {
        pub limit: u64,
        /// Its window, or `None` if the API names none. The configured limits can't be compared
        /// with it then.
        pub window_ms: Option<u64>,
        /// How the configured limits let more calls through in that window, if they do.
        pub exceeded: Omittable<ExceededLimit>,
    }

    /// How the configured limits let more calls through than the API allows.
    pub struct ExceededLimit {
        /// Calls that the configured limits allow; `None` if no limit bounds a tenant's calls.
        pub allowed: Option<u64>,
        pub limit: Option<String>,
        pub max_requests: Option<u64>,
        pub warning: String,
    }
}

/// Compares the limits that the API advertised last with `ours`, the effective limits.
pub fn compare(found: &Inspection, ours: &[Limit]) -> Vec<AdvertisedLimit> {
    let one = |quota: Quota| AdvertisedLimit {
        limit: quota.limit,
        window_ms: quota.window.map(floor_ms),
        exceeded: Omittable(Excess::of(ours, quota).map(|excess| ExceededLimit {
            allowed: excess.allowed(),
            limit: excess.limit().map(|limit| limit.name().to_owned()),
            max_requests: excess.max_requests(),
            warning: excess.to_string(),
        })),
    };
    found.quotas.iter().map(one).collect()
}

impl AdvertisedLimit {
    /// Describes the limit for people: `4 in 1m`.
    pub fn describe(&self) -> String {
        let limit = grouped(self.limit);
        match self.window_ms {
            Some(ms) => format!("{limit} in {}", show_duration(Duration::from_millis(ms))),
            None => format!("{limit} in a window that it does not name"),
        }
    }
}

/// Describes the advertised limits for people; empty if the API advertised none.
pub fn describe(found: &Inspection, advertised: &[AdvertisedLimit]) -> String {
    if advertised.is_empty() {
        return String::new();
    }
    let all: Vec<String> = advertised.iter().map(AdvertisedLimit::describe).collect();
    let mut text = format!(
        "api       says that it takes {} (noted {})\n",
        all.join(", "),
        at(found.quotas_at_ms)
    );
    for exceeded in advertised
        .iter()
        .filter_map(|advertised| advertised.exceeded.0.as_ref())
    {
        // Writing to a String can't fail.
        let _ = writeln!(text, "warning   {}", exceeded.warning);
    }
    text
}
