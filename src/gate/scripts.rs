//! The Lua scripts, put together from the files in `lua/` at compile time and called by their SHA.

use std::sync::LazyLock;

use crate::rules::limit::Algorithm;

/// One script as Redis gets it.
#[derive(Debug)]
pub struct Script {
    /// The name of its entry file without `.lua`, for messages.
    pub name: &'static str,
    /// The whole text.
    pub source: &'static str,
    /// Its SHA-1 in hex, the name under which Redis caches it.
    pub sha: String,
}

impl Script {
    fn new(name: &'static str, source: &'static str) -> Self {
        let sha = ::redis::Script::new(source).get_hash().to_owned();
        Self { name, source, sha }
    }
}

/// The text of a script: the shared parts, an algorithm, and the entry file.
macro_rules! source {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../lua/", $file, ".lua")), "\n"),+)
    };
}

/// Decides for the jobs of one tenant.
pub fn acquire(algorithm: Algorithm) -> &'static Script {
    static FIXED: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "acquire",
            source!("clock", "line", "fixed_window", "acquire"),
        )
    });
    static SLIDING: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "acquire",
            source!("clock", "line", "sliding_window", "acquire"),
        )
    });
    match algorithm {
        Algorithm::FixedWindow => &FIXED,
        Algorithm::SlidingWindow => &SLIDING,
    }
}

/// Shows the state of one tenant.
pub fn inspect(algorithm: Algorithm) -> &'static Script {
    static FIXED: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "inspect",
            source!("clock", "line", "fixed_window", "inspect"),
        )
    });
    static SLIDING: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "inspect",
            source!("clock", "line", "sliding_window", "inspect"),
        )
    });
    match algorithm {
        Algorithm::FixedWindow => &FIXED,
        Algorithm::SlidingWindow => &SLIDING,
    }
}

/// Closes one tenant.
pub fn block() -> &'static Script {
    static BLOCK: LazyLock<Script> =
        LazyLock::new(|| Script::new("block", source!("clock", "line", "block")));
    &BLOCK
}
