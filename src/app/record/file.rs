//! Creates the file of a recording. It is always a new file: existing files stay as they are, and a
//! restarted worker writes next to them.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Number of further names, FILE.1 to FILE.9. This many restarts are recorded before files have to
/// be removed.
const MAX_FURTHER_FILES: u32 = 9;

/// Creates a new file that only its owner may read: at `path`, or at the first free name from
/// `path.1` to `path.9` if a file exists there. Returns the file and its path.
///
/// # Errors
/// All names are taken, `path` is not a regular file, or the file can't be created.
pub(super) fn create(path: &Path) -> io::Result<(File, PathBuf)> {
    for number in 0..=MAX_FURTHER_FILES {
        let path = numbered(path, number);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(file) => return Ok((file, path)),
            Err(why) if why.kind() != ErrorKind::AlreadyExists => return Err(why),
            // A recording next to a device or a pipe would not be found.
            Err(_) if number == 0 && !path.is_file() => {
                let words = "it exists and is not a file; give the name of a new file";
                return Err(io::Error::new(ErrorKind::AlreadyExists, words));
            }
            Err(_) => {}
        }
    }
    let words = format!(
        "it and the files with .1 to .{MAX_FURTHER_FILES} at the end exist; move them away, or \
        give another name"
    );
    Err(io::Error::new(ErrorKind::AlreadyExists, words))
}

/// Returns `path` if `number` is 0, otherwise `path.number`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    if number > 0 {
        name.push(format!(".{number}"));
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn existing_files_are_kept_and_their_number_is_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.jsonl");
        fs::write(&path, "mine").expect("written");
        for number in 1..=MAX_FURTHER_FILES {
            let (mut file, made) = create(&path).expect("a new file");
            assert_eq!(made, folder.path().join(format!("jobs.jsonl.{number}")));
            write!(file, "{number}").expect("written");
        }
        let why = create(&path).expect_err("all are there").to_string();
        assert!(why.contains("the files with .1 to .9 at the end"), "{why}");
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!(
            ["jobs.jsonl", "jobs.jsonl.1", "jobs.jsonl.9"].map(text),
            ["mine", "1", "9"]
        );
        // A name that became free is used again.
        fs::remove_file(folder.path().join("jobs.jsonl.4")).expect("removed");
        let (_, made) = create(&path).expect("a new file");
        assert!(made.ends_with("jobs.jsonl.4"), "{}", made.display());
    }

    #[test]
    fn an_impossible_path_is_reported_and_creates_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let why = create(&folder.path().join("gone/jobs.jsonl")).expect_err("no folder");
        assert_eq!(why.kind(), ErrorKind::NotFound);
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).expect("a folder");
        let why = create(&inner).expect_err("a folder").to_string();
        assert!(why.contains("is not a file"), "{why}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).expect("a link");
        assert!(create(&link).is_err(), "a link is not followed");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2);
    }
}
