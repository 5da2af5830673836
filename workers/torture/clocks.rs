//! Wall clocks that are wrong, by libfaketime: each worker's own, read from a file that can change.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::Failure;

/// Where Debian's package has it, below the folder of the architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The library that has been found.
#[derive(Debug)]
pub struct Clocks(PathBuf);

impl Clocks {
    /// # Errors
    /// It is not installed.
    pub fn find() -> Result<Self, Failure> {
        let folders = std::fs::read_dir("/usr/lib")
            .into_iter()
            .flatten()
            .flatten();
        let found = folders
            .map(|folder| folder.path().join(LIBRARY))
            .find(|file| file.is_file());
        let missing = "worker-clock needs libfaketime (Debian's package is called faketime); \
                       install it, or leave that fault out: --faults all,-worker-clock";
        found
            .map(Self)
            .ok_or_else(|| Failure::new(missing.to_owned()))
    }

    /// What a process is started with: its wall clock is off by what `file` says, its monotonic clock is true.
    pub fn variables(&self, file: &Path) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", self.0.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", file.into()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}
