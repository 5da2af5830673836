//! Which memory a server has, as `INFO` and the hash tell it.

/// Which memory a server has: it changes whenever writes may have been lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `run_id`: another one for each process.
    pub process: String,
    /// `master_replid`: another one for each process and each promotion, and when replication begins or ends.
    pub history: String,
    /// `master_replid2`: another one for each promotion.
    pub before: String,
}

impl Memory {
    /// What `INFO` says; `None` when it lacks one of the three.
    pub fn parse(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let value = info
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
                .trim();
            let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric());
            plain.then(|| value.to_owned())
        };
        Some(Self {
            process: field("run_id")?,
            history: field("master_replid")?,
            before: field("master_replid2")?,
        })
    }

    /// As it stands in the hash.
    pub fn text(&self) -> String {
        format!("{} {} {}", self.process, self.history, self.before)
    }

    /// For so long the process has lost nothing, in milliseconds: since it began, unless it was promoted since. From
    /// the same `info`.
    pub fn whole_ms(&self, info: &str) -> u64 {
        let uptime = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        let seconds: Option<u64> = uptime.and_then(|text| text.trim().parse().ok());
        let never_promoted = self.before.bytes().all(|digit| digit == b'0');
        seconds
            .filter(|_| never_promoted)
            .map_or(0, |seconds| seconds * 1000)
    }

    /// The same process, never promoted since `text` was written: replication began or ended, and nothing was lost.
    pub(super) fn continues(&self, text: &str) -> bool {
        let mut words = text.split(' ');
        words.next() == Some(&self.process) && words.nth(1) == Some(&self.before)
    }
}
