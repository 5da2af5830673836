//! Tables for people, and repeated output with `--watch`.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

pub use operator::text::Side;
use operator::text::columns;
use rules::report::REPORT_INTERVAL_MS;
use tokio::time::sleep;

use super::Failure;

/// Formats `rows` with headers, one line each.
pub fn table<const N: usize>(heads: [(&str, Side); N], rows: &[[String; N]]) -> String {
    let head = heads.map(|(head, _)| head.to_owned());
    let rows: Vec<&[String; N]> = [&head].into_iter().chain(rows).collect();
    columns(&rows, |column| heads[column].1)
}

/// Runs `look` once, or with `watch` repeatedly until it is interrupted. A later look that fails is
/// reported and then repeated.
///
/// # Errors
/// The error of the first look, or the output can't be written.
pub async fn look_at(
    watch: bool,
    as_json: bool,
    look: impl AsyncFn() -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let clears = watch && !as_json && io::stdout().is_terminal();
    for number in 0_u64.. {
        if clears {
            // Moves the cursor home and clears the rest. Without a flash between two looks, the
            // screen stays readable over a slow line.
            write!(io::stdout(), "\x1b[H\x1b[J")?;
        } else if number > 0 && !as_json {
            writeln!(io::stdout())?;
        }
        let looked = look().await;
        match looked {
            Ok(code) if !watch => return Ok(code),
            Ok(_) => {}
            Err(failure) if number == 0 || matches!(failure, Failure::AlreadyReported) => {
                return Err(failure);
            }
            Err(failure) => {
                // The codes that clear the screen must not follow the error.
                io::stdout().flush()?;
                failure.report();
            }
        }
        io::stdout().flush()?;
        sleep(Duration::from_millis(REPORT_INTERVAL_MS)).await;
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
