//! The source of a running worker's configuration, and whether it has changed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::load::DEFAULT_FILE;
use super::pipelines::Pipelines;
use super::reading::ConfigErrors;
use super::values::pipeline_name::PipelineName;

/// The file and the environment from which a configuration is read.
#[derive(Debug)]
pub struct ConfigSource {
    /// Path, or `None` for [`DEFAULT_FILE`] as long as it has been missing at each look.
    file: Option<PathBuf>,
    /// The pipeline to use, or `None` for all of them.
    only: Option<PipelineName>,
    /// Stamps at the last look and the one before.
    seen: [Option<Stamp>; 2],
    /// Stamp of the last reported change.
    reported: Option<Stamp>,
}

/// Device, inode, length and time of a version of a file, or why there is none. A file that was
/// replaced by a rename is another version.
type Stamp = Result<(u64, u64, u64, i64, i64), ErrorKind>;

impl ConfigSource {
    /// Creates the source for the file at `file`, which may be `None` as in [`Pipelines::load`].
    /// Checks whether the default file exists.
    pub fn new(file: Option<PathBuf>) -> Self {
        let mut source = Self {
            file,
            only: None,
            seen: [None; 2],
            reported: None,
        };
        source.adopt_default(Path::new(DEFAULT_FILE));
        source
    }

    /// Restricts the source to this pipeline.
    pub fn of(mut self, pipeline: PipelineName) -> Self {
        self.only = Some(pipeline);
        self
    }

    /// Keeps the path of the default file once the file exists. From then on its removal is an
    /// error, so that a worker does not run with the defaults.
    fn adopt_default(&mut self, usual: &Path) {
        if self.file.is_none() && usual.exists() {
            self.file = Some(usual.to_owned());
        }
    }

    /// Looks at the file. Returns true once for each change, and once after the first look. A
    /// change counts when the file was the same at two consecutive looks, because it may still be
    /// being written before. Reads the file system.
    pub fn has_changed(&mut self) -> bool {
        self.adopt_default(Path::new(DEFAULT_FILE));
        let path = self.file.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        let now = stamp(path);
        self.seen = [self.seen[1], Some(now)];
        if self.seen[0] != self.seen[1] || self.reported == Some(now) {
            return false;
        }
        self.reported = Some(now);
        true
    }

    /// Reads the configuration again, with this process's environment.
    ///
    /// # Errors
    /// See [`Pipelines::load`].
    pub fn load(&self) -> Result<Pipelines, ConfigErrors> {
        let all = Pipelines::from_env(self.file.as_deref())?;
        Ok(match &self.only {
            Some(name) => all.restrict_to(name),
            None => all,
        })
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).map_err(|why| why.kind())?;
    let (seconds, nanos) = (found.mtime(), found.mtime_nsec());
    Ok((found.dev(), found.ino(), found.len(), seconds, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_the_file_is_stable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sluicegate.yaml");
        fs::write(&path, "log: {level: info}").expect("written");
        let mut source = ConfigSource::new(Some(path.clone()));
        let looks = |source: &mut ConfigSource| [(); 4].map(|()| source.has_changed());
        assert_eq!(looks(&mut source), [false, true, false, false]);

        fs::write(&path, "log: {level: debug}").expect("written");
        assert!(!source.has_changed());
        fs::write(&path, "log: {level: error}\n").expect("written");
        assert_eq!(looks(&mut source), [false, true, false, false]);

        // The file has the same length, and perhaps the same time.
        let other = folder.path().join("other");
        fs::write(&other, "log: {level: debug}\n").expect("written");
        fs::rename(&other, &path).expect("renamed");
        assert_eq!(looks(&mut source), [false, true, false, false]);
        assert_eq!(source.load().expect("valid").log.level, "debug");

        fs::remove_file(&path).expect("removed");
        assert_eq!(looks(&mut source), [false, true, false, false]);
        assert!(source.load().is_err());
    }

    #[test]
    fn the_usual_file_may_be_missing_until_it_was_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let usual = folder.path().join("sluicegate.yaml");
        let mut source = ConfigSource::new(None);
        source.adopt_default(&usual);
        assert!(source.load().is_ok(), "there is none in this folder");
        fs::write(&usual, "log: {level: debug}").expect("written");
        source.adopt_default(&usual);
        assert_eq!(source.load().expect("valid").log.level, "debug");
        fs::remove_file(&usual).expect("removed");
        source.adopt_default(&usual);
        assert!(source.load().is_err());
    }
}
