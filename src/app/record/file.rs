//! The file of a recording: always a new one. What is there stays as it is, and a worker that starts again writes beside it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Beside FILE there are FILE.1 to FILE.9: so many starts of a worker are recorded before somebody has to take files away.
const MOST_FURTHER: u32 = 9;

/// Makes a new file, which only its owner may read: at `path`, or, where a file is already, at the first of `path.1` to `path.9` that
/// is not there. Returns it with its path.
///
/// # Errors
/// All of them are there, something else than a file is at `path`, or none can be made.
pub(super) fn make(path: &Path) -> io::Result<(File, PathBuf)> {
    for number in 0..=MOST_FURTHER {
        let path = numbered(path, number);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(file) => return Ok((file, path)),
            Err(why) if why.kind() != ErrorKind::AlreadyExists => return Err(why),
            // Beside a device or a pipe nobody looks for a recording.
            Err(_) if number == 0 && !path.is_file() => {
                let words = "it is there, and is no file; a recording is a new file";
                return Err(io::Error::new(ErrorKind::AlreadyExists, words));
            }
            Err(_) => {}
        }
    }
    let words = format!(
        "it is there, and so are those with .1 to .{MOST_FURTHER} at the end; move them away, or give another name"
    );
    Err(io::Error::new(ErrorKind::AlreadyExists, words))
}

/// `path` itself, or `path.1` and so on.
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
    fn what_is_there_stays_and_the_number_of_files_is_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jobs.jsonl");
        fs::write(&path, "mine").expect("written");
        for number in 1..=MOST_FURTHER {
            let (mut file, made) = make(&path).expect("a new file");
            assert_eq!(made, folder.path().join(format!("jobs.jsonl.{number}")));
            write!(file, "{number}").expect("written");
        }
        let why = make(&path).expect_err("all are there").to_string();
        assert!(why.contains("those with .1 to .9 at the end"), "{why}");
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!(
            ["jobs.jsonl", "jobs.jsonl.1", "jobs.jsonl.9"].map(text),
            ["mine", "1", "9"]
        );
        // One that was taken away can be made again.
        fs::remove_file(folder.path().join("jobs.jsonl.4")).expect("removed");
        let (_, made) = make(&path).expect("a new file");
        assert!(made.ends_with("jobs.jsonl.4"), "{}", made.display());
    }

    #[test]
    fn where_no_file_can_be_it_says_so_and_makes_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let why = make(&folder.path().join("gone/jobs.jsonl")).expect_err("no folder");
        assert_eq!(why.kind(), ErrorKind::NotFound);
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).expect("a folder");
        let why = make(&inner).expect_err("a folder").to_string();
        assert!(why.contains("is no file"), "{why}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).expect("a link");
        assert!(make(&link).is_err(), "a link is not followed");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2);
    }
}
