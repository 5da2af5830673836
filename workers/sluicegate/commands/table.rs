//! Columns for people, and a look that is taken again and again.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::sleep;

use super::Failure;

/// Workers say something new so often.
const EVERY: Duration = Duration::from_secs(2);

/// Which end of a column its texts stand at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// `rows` under their heads, a line each. The last column is as wide as it happens to be.
pub fn table<const N: usize>(heads: [(&str, Side); N], rows: &[[String; N]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].0.len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: [&str; N]| {
        let cells = cells.into_iter().zip(&widths).zip(heads);
        let cells = cells.map(|((cell, &wide), (_, side))| match side {
            Side::Left => format!("{cell:wide$}"),
            Side::Right => format!("{cell:>wide$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    let mut text = line(heads.map(|(head, _)| head));
    for row in rows {
        text += &line(row.each_ref().map(String::as_str));
    }
    text
}

/// Looks once, or again and again until somebody ends it: with `watch`. A later look that fails is told of, and the next one taken.
///
/// # Errors
/// The first look's, or the output can't be written.
pub async fn look_at(
    watch: bool,
    as_json: bool,
    look: impl AsyncFn() -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let clears = watch && !as_json && io::stdout().is_terminal();
    for number in 0_u64.. {
        if clears {
            // Home, and nothing below: without a flash between two looks the screen of a slow line stays readable.
            write!(io::stdout(), "\x1b[H\x1b[J")?;
        } else if number > 0 && !as_json {
            writeln!(io::stdout())?;
        }
        let looked = look().await;
        match looked {
            Ok(code) if !watch => return Ok(code),
            Ok(_) => {}
            Err(failure) if number == 0 || matches!(failure, Failure::Said) => return Err(failure),
            Err(failure) => drop(failure.report()),
        }
        io::stdout().flush()?;
        sleep(EVERY).await;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let heads = [
            ("NAME", Side::Left),
            ("JOBS", Side::Right),
            ("WHY", Side::Left),
        ];
        let rows = [["é", "7", "a b"], ["alice", "12345", ""]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            table(heads, &rows),
            "NAME    JOBS  WHY\né          7  a b\nalice  12345\n"
        );
        assert_eq!(table(heads, &[]), "NAME  JOBS  WHY\n");
    }
}
