//! The picture's file. Only pictures are overwritten.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::commands::Failure;

/// Number of bytes in which a picture identifies itself.
const BEGIN: u64 = 4_096;

/// Checks that the picture may be written to `file`. It must not be an input of the simulation
/// (`inputs`, under any name) or, unless `force`, an existing file that is not a picture.
///
/// # Errors
/// The reason why it must not or can't be written.
pub fn check(file: &Path, inputs: &[&Path], force: bool) -> Result<(), Failure> {
    let shown = file.display();
    let refused = |why: String| Err(Failure::Usage(format!("--svg: {why}")));
    if file.as_os_str() == "-" {
        let why = "standard output is used for the figures; name a file, such as run.svg";
        return refused(why.to_owned());
    }
    let found = match fs::metadata(file) {
        Ok(found) => found,
        Err(why) if why.kind() == ErrorKind::NotFound => {
            let folder = file
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            return match folder.filter(|folder| !folder.is_dir()) {
                Some(folder) => refused(format!("there is no folder {}", folder.display())),
                None => Ok(()),
            };
        }
        Err(why) => return Err(unwritable(file, &why)),
    };
    if found.is_dir() {
        return refused(format!("{shown} is a folder; name a file in it"));
    }
    let id = |it: &Metadata| (it.dev(), it.ino());
    let is_it = |input: &&&Path| fs::metadata(input).is_ok_and(|it| id(&it) == id(&found));
    if let Some(input) = inputs.iter().find(is_it) {
        return refused(format!(
            "{shown} is the input file {}; name another one",
            input.display()
        ));
    }
    // Terminals and pipes accept any text. An empty file has nothing to lose.
    if force || !found.is_file() || found.len() == 0 || is_svg(file) {
        return Ok(());
    }
    refused(format!(
        "{shown} exists and is not an SVG; name another file, or overwrite it with --force"
    ))
}

/// Writes `picture` to `file`.
///
/// # Errors
/// The file can't be written.
pub fn write(file: &Path, picture: &str) -> Result<(), Failure> {
    fs::write(file, picture).map_err(|why| unwritable(file, &why))
}

fn unwritable(file: &Path, why: &io::Error) -> Failure {
    Failure::Failed(format!("{} can't be written: {why}", file.display()))
}

fn is_svg(file: &Path) -> bool {
    let mut begin = Vec::new();
    let read = File::open(file).and_then(|file| file.take(BEGIN).read_to_end(&mut begin));
    read.is_ok() && String::from_utf8_lossy(&begin).contains("<svg")
}
