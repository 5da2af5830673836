//! Which memory a server has, as `INFO` and the hash tell it.

/// Which memory a server has, and what it threw away: that changes whenever writes may have been lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `run_id`: another one for each process.
    pub process: String,
    /// `master_replid`: another one for each process and each promotion, and when replication begins or ends.
    pub history: String,
    /// `master_replid2`: another one for each promotion.
    pub before: String,
    /// `evicted_keys`: so many it has thrown away since its process began.
    pub evicted: u64,
    /// By `maxmemory` and `maxmemory_policy` it throws keys away where room is scarce.
    pub evicts: bool,
}

impl Memory {
    /// What `INFO` says; `None` when it lacks one of the three names.
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

    /// As it stands in the hash.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.process, self.history, self.before)
    }

    /// As the hash has it: what the process had thrown away when that was last made good; empty: nothing.
    pub fn evicted_text(&self) -> String {
        match self.evicted {
            0 => String::new(),
            number => format!("{}:{number}", self.process),
        }
    }

    /// The process threw keys away since `text` was written ([`Memory::evicted_text`]), or did so before anybody looked. A number
    /// that went down was reset, and says nothing of what came before.
    pub(super) fn evicted_since(&self, text: &str) -> bool {
        let known = text.split_once(':').filter(|(who, _)| *who == self.process);
        known.map_or("0", |(_, number)| number) != self.evicted.to_string()
    }

    /// For so long the process has lost nothing, in milliseconds: since it began, unless it was promoted since or threw keys
    /// away. From the same `info`.
    pub fn whole_ms(&self, info: &str) -> u64 {
        let uptime = field(info, "uptime_in_seconds");
        let seconds: Option<u64> = uptime.and_then(|text| text.parse().ok());
        let never_promoted = self.before.bytes().all(|digit| digit == b'0');
        seconds
            .filter(|_| never_promoted && self.evicted == 0)
            .map_or(0, |seconds| seconds * 1000)
    }

    /// The same process, never promoted since `text` was written: replication began or ended, and nothing was lost.
    pub(super) fn continues(&self, text: &str) -> bool {
        let mut words = text.split(' ');
        words.next() == Some(&self.process) && words.nth(1) == Some(&self.before)
    }
}

/// The `maxmemory-policy` with which nothing is thrown away.
pub const NO_EVICTION: &str = "noeviction";

/// What `INFO` says of `maxmemory_policy`.
pub fn policy(info: &str) -> Option<&str> {
    field(info, "maxmemory_policy")
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut values = (info.lines()).filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next().map(str::trim)
}
