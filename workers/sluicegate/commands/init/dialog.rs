//! A dialog with the user of `init`.

use std::io::{BufRead, Read as _, Write};

use crate::commands::Failure;

/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 4096;
/// Maximum number of times that a question is asked.
const MAX_ATTEMPTS: usize = 5;

/// A dialog with the user.
pub struct Dialog<R, W> {
    pub answers: R,
    pub questions: W,
}

impl<R: BufRead, W: Write> Dialog<R, W> {
    /// Asks until the answer `fits`. An empty answer means `usual`.
    pub fn ask<T>(
        &mut self,
        question: &str,
        usual: Option<&str>,
        fits: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        for _ in 0..MAX_ATTEMPTS {
            let shown = usual.map_or(String::new(), |usual| format!(" [{usual}]"));
            write!(self.questions, "{question}{shown}: ")?;
            self.questions.flush()?;
            let mut line = String::new();
            let mut answers = (&mut self.answers).take(MAX_ANSWER_BYTES);
            let read = answers.read_line(&mut line);
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    return Err(Failure::Usage(format!("the answer can't be read: {error}")));
                }
            }
            let answer = match (line.trim(), usual) {
                ("", Some(usual)) => usual,
                (answer, _) => answer,
            };
            match fits(answer) {
                Ok(value) => return Ok(value),
                Err(why) => writeln!(self.questions, "  {why}")?,
            }
        }
        Err(Failure::Usage(
            "no valid answer was given; sluicegate init --help lists the options for all questions"
                .to_owned(),
        ))
    }
}
