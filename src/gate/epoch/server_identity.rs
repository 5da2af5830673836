//! The identity of a server's dataset, according to `INFO` and the hash.

/// The identity of a server's dataset and its evictions. It changes whenever writes may have been
/// lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// `run_id`: changes with each process.
    pub process: String,
    /// `master_replid`: changes with each process and each promotion, and when replication begins
    /// or ends.
    pub history: String,
    /// `master_replid2`: changes with each promotion.
    pub before: String,
    /// `evicted_keys`: the number of keys evicted since the process began.
    pub evicted: u64,
    /// Whether `maxmemory` and `maxmemory_policy` allow evictions when memory is short.
    pub evicts: bool,
}

impl ServerIdentity {
    /// Parses the reply of `INFO`. Returns `None` if it lacks one of the three IDs.
    pub fn parse(info: &str) -> Option<Self> {
        let name = |name: &str| {
            let value = field(info, name)?;
            let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
            plain.then(|| value.to_owned())
        };
        let evicted = field(info, "evicted_keys").and_then(|number| number.parse().ok());
        let bounded = field(info, "maxmemory").is_none_or(|bytes| bytes != "0");
        Some(Self {
            process: name("run_id")?,
            history: name("master_replid")?,
            before: name("master_replid2")?,
            evicted: evicted.unwrap_or(0),
            evicts: bounded && policy(info).is_some_and(|policy| policy != NO_EVICTION),
        })
    }

    /// Returns the identity in the hash's format.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.process, self.history, self.before)
    }

    /// Returns the evictions in the hash's format: the process and its count when the loss was last
    /// handled. Empty if there were none.
    pub fn evicted_text(&self) -> String {
        match self.evicted {
            0 => String::new(),
            number => format!("{}:{number}", self.process),
        }
    }

    /// Returns true if the process evicted keys since `text` ([`ServerIdentity::evicted_text`]) was
    /// written, or before any worker looked. A count that went down was reset and proves nothing
    /// about earlier evictions.
    pub(super) fn evicted_since(&self, text: &str) -> bool {
        let known = text.split_once(':').filter(|(who, _)| *who == self.process);
        known.map_or("0", |(_, number)| number) != self.evicted.to_string()
    }

    /// Returns for how long, in milliseconds, the process has lost nothing: its uptime, or 0 if it
    /// was promoted or evicted keys. `info` must be the reply that `self` was parsed from.
    pub fn whole_ms(&self, info: &str) -> u64 {
        let uptime = field(info, "uptime_in_seconds");
        let seconds: Option<u64> = uptime.and_then(|text| text.parse().ok());
        let never_promoted = self.before.bytes().all(|digit| digit == b'0');
        seconds
            .filter(|_| never_promoted && self.evicted == 0)
            .map_or(0, |seconds| seconds * 1000)
    }

    /// Returns true if this is the process in `text`, not promoted since: replication began or
    /// ended, but nothing was lost.
    pub(super) fn continues(&self, text: &str) -> bool {
        let mut words = text.split(' ');
        words.next() == Some(&self.process) && words.nth(1) == Some(&self.before)
    }
}

/// The `maxmemory-policy` without evictions.
pub const NO_EVICTION: &str = "noeviction";

/// Returns the `maxmemory_policy` in the reply of `INFO`.
pub fn policy(info: &str) -> Option<&str> {
    field(info, "maxmemory_policy")
}

/// Returns a field of the reply of `INFO`.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut values = (info.lines()).filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().map(str::trim)
}
