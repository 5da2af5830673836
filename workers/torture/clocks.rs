//! Wrong wall clocks, by libfaketime. Each process reads its own time offset from a file that can
//! change.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use std::{fs, io};

use crate::RunFailure;

/// Path of the library in Debian's package, below the folder of the architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Interval at which a process reads its file.
pub const READ: Duration = Duration::from_secs(1);

/// The path of the library.
#[derive(Debug, Clone)]
pub struct Clocks(PathBuf);

impl Clocks {
    /// Looks for the library.
    ///
    /// # Errors
    /// Returns an error if it is not installed.
    pub fn find() -> Result<Self, RunFailure> {
        let folders = std::fs::read_dir("/usr/lib")
            .into_iter()
            .flatten()
            .flatten();
        let found = folders
            .map(|folder| folder.path().join(LIBRARY))
            .find(|file| file.is_file());
        let missing = "worker-clock and redis-clock need libfaketime (Debian's package is called faketime); \
                       install it, or leave them out: --faults all,-worker-clock,-redis-clock";
        found
            .map(Self)
            .ok_or_else(|| RunFailure::new(missing.to_owned()))
    }

    /// Returns the environment for a process whose wall clock is off by the offset in `file`, and
    /// whose monotonic clock is right.
    pub fn variables(&self, file: &Path) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", self.0.clone().into()),
            ("FAKETIME_TIMESTAMP_FILE", file.into()),
            ("FAKETIME_CACHE_DURATION", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

/// The clock of one process, which is only ever stepped back. Setting it right again would step it
/// forward for all data written meanwhile, and the limits can't withstand such a step
/// (docs/GUARANTEES.md, P2).
#[derive(Debug)]
pub struct ProcessClock {
    clocks: Clocks,
    file: PathBuf,
    /// Milliseconds by which the clock is behind.
    behind: AtomicI64,
}

impl ProcessClock {
    /// Creates a correct clock.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub fn new(clocks: Clocks, file: PathBuf) -> io::Result<Self> {
        step(&file, 0)?;
        Ok(Self {
            clocks,
            file,
            behind: AtomicI64::new(0),
        })
    }

    /// Returns the environment of the process. Redis's jemalloc asks for the time before
    /// libfaketime is ready, so the allocator of the C library replaces it.
    pub fn variables(&self) -> [(&'static str, OsString); 4] {
        let mut variables = self.clocks.variables(&self.file);
        variables[0].1.push(":libc.so.6");
        variables
    }

    /// Steps the clock back. The process notices within [`READ`].
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub fn step_back(&self, by: Duration) -> io::Result<()> {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        let before = self.behind.fetch_add(by, Ordering::Relaxed);
        step(&self.file, -(before + by))
    }
}

/// Sets the offset of the clocks that read `file`, in milliseconds from the true time.
///
/// # Errors
/// Returns an error if the file can't be written.
pub fn step(file: &Path, millis: i64) -> io::Result<()> {
    let (sign, millis) = (if millis < 0 { '-' } else { '+' }, millis.unsigned_abs());
    replace(
        file,
        &format!("{sign}{}.{:03}\n", millis / 1000, millis % 1000),
    )
}

/// Replaces a file by a rename, so that a reader sees either the old content or the new one.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_only_stepped_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("clock");
        let content = || fs::read_to_string(&file).expect("it is there");
        let clock = ProcessClock::new(Clocks(PathBuf::new()), file.clone()).expect("a clock");
        assert_eq!(content(), "+0.000\n");
        clock
            .step_back(Duration::from_millis(1250))
            .expect("stepped");
        assert_eq!(content(), "-1.250\n");
        clock.step_back(Duration::from_secs(3600)).expect("stepped");
        assert_eq!(content(), "-3601.250\n");
    }
}
