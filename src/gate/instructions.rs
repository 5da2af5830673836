//! Instructions of operators: posts them to the boards, and reads them in workers. Each primary of
//! a cluster has its own board next to its policy registry. A worker starts jobs at a primary only
//! while it knows the instructions in force there.

use ::redis::Value;
use futures_util::future::join_all;

use crate::GateError;
use crate::redis::RedisGate;
use crate::reply::{number, text};
use rules::steering::{Instruction, MAX_INSTRUCTIONS, Steering};

/// How long after its last look a worker counts as alive, in milliseconds. A worker that was silent
/// for longer must look again before it starts a job, since agreements on limits are shorter.
pub const LIVE_MS: u64 = 10_000;

/// A worker that was silent for this long, in milliseconds, is forgotten.
const SILENT_MS: u64 = 60_000;
/// How long the board is kept after its last change, in milliseconds: longer than any instruction
/// lasts.
const KEPT_MS: u64 = 400 * 86_400_000;

/// An instruction without its name. Times are in milliseconds of the store's clock.
#[derive(Debug)]
struct PostedInstruction {
    until_ms: u64,
    text: String,
}

/// A worker's last look at the board.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Follower {
    /// When it looked.
    pub at_ms: u64,
    /// The version that it follows.
    pub follows: u64,
    /// Its report on itself.
    pub says: String,
}

/// A worker's copy of one board.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoardCopy {
    pub(crate) version: u64,
    posted: Vec<(Instruction, u64)>,
    /// The version that the worker has applied.
    pub(crate) follows: u64,
}

impl BoardCopy {
    /// Returns the instructions in force at `now_ms` by the store's clock.
    pub(crate) fn in_force(&self, now_ms: u64) -> impl Iterator<Item = Instruction> {
        let posted = self.posted.iter();
        let posted = posted.filter(move |(_, until_ms)| *until_ms > now_ms);
        posted.map(|(instruction, _)| instruction.clone())
    }

    /// Reads `board` for the worker `name`, and stores its report `says` there.
    pub(crate) async fn refresh(
        mut self,
        gate: &RedisGate,
        board: &str,
        (name, says): (&str, &str),
    ) -> Result<Self, GateError> {
        let BoardSnapshot {
            version, posted, ..
        } = read_board(gate, board, self.version, (name, self.follows, says)).await?;
        if let Some(posted) = posted {
            (self.version, self.posted) = (version, known(posted));
        }
        Ok(self)
    }
}

/// Returns the last report ([`Follower::says`]) of each worker that looked at the board within the
/// last `within_ms`.
///
/// # Errors
/// [`GateError`]: the board can't be read.
pub(crate) async fn recent_reports(
    gate: &RedisGate,
    board: &str,
    within_ms: u64,
) -> Result<Vec<String>, GateError> {
    let looked = read_board(gate, board, 0, ("", 0, "")).await?;
    let lately = |worker: &Follower| worker.at_ms.saturating_add(within_ms) >= looked.now_ms;
    let workers = looked.workers.into_iter().map(|(_, worker)| worker);
    Ok(workers.filter(lately).map(|worker| worker.says).collect())
}

/// Parses instructions and drops those that this version does not know.
fn known(posted: Vec<(String, PostedInstruction)>) -> Vec<(Instruction, u64)> {
    let read = |(name, PostedInstruction { until_ms, text }): (String, PostedInstruction)| {
        Some((Instruction::read(&name, &text)?, until_ms))
    };
    posted.into_iter().filter_map(read).collect()
}

/// One board as an operator sees it.
#[derive(Debug, Clone, Default)]
pub struct BoardView {
    /// The board's key.
    pub board: String,
    /// Redis's clock, in milliseconds.
    pub now_ms: u64,
    /// The board's version.
    pub version: u64,
    /// The instructions in force and when each ends, in milliseconds.
    pub posted: Vec<(Instruction, u64)>,
    /// The live workers by name.
    pub workers: Vec<(String, Follower)>,
}

/// Reads all boards.
///
/// # Errors
/// The first error of any primary.
pub async fn see(gate: &RedisGate) -> Result<Vec<BoardView>, GateError> {
    see_each(gate).await?.into_iter().collect()
}

/// Reads all boards. Each entry is a board, or the reason it could not be read.
///
/// # Errors
/// [`GateError`] if the primaries are not known.
pub async fn see_each(gate: &RedisGate) -> Result<Vec<Result<BoardView, GateError>>, GateError> {
    let primaries = gate.registries().await?;
    let looks = primaries.iter().map(async |primary| {
        let board = &primary.board;
        let looked = read_board(gate, board, 0, ("", 0, "")).await?;
        let live = |(_, worker): &(String, Follower)| {
            worker.at_ms.saturating_add(LIVE_MS) >= looked.now_ms
        };
        Ok(BoardView {
            board: board.clone(),
            now_ms: looked.now_ms,
            version: looked.version,
            posted: known(looked.posted.unwrap_or_default()),
            workers: looked.workers.into_iter().filter(live).collect(),
        })
    });
    Ok(join_all(looks).await)
}

/// Returns all instructions in force at `seen`.
pub fn in_force(seen: &[BoardView]) -> Steering {
    let posted = seen.iter().flat_map(|board| &board.posted);
    Steering::of(posted.map(|(instruction, _)| instruction.clone()))
}

/// The version that an instruction has at each board, by the board's key.
pub type Versions = Vec<(String, u64)>;

/// Returns the names of all live workers at `seen`, and of the live workers that don't follow
/// `versions` yet.
pub fn followers(seen: &[BoardView], versions: &Versions) -> (Vec<String>, Vec<String>) {
    let (mut all, mut not_yet) = (Vec::new(), Vec::new());
    for board in seen {
        let version = versions.iter().find(|(key, _)| *key == board.board);
        let version = version.map_or(0, |(_, version)| *version);
        for (name, worker) in &board.workers {
            all.push(name.clone());
            if worker.follows < version {
                not_yet.push(name.clone());
            }
        }
    }
    for names in [&mut all, &mut not_yet] {
        names.sort_unstable();
        names.dedup();
    }
    (all, not_yet)
}

/// Posts `instruction` to all boards for `for_ms` milliseconds from now.
///
/// # Errors
/// The first error of any primary. Other primaries may have the instruction by then; posting it
/// again is harmless.
pub async fn put(
    gate: &RedisGate,
    instruction: &Instruction,
    for_ms: u64,
) -> Result<Versions, GateError> {
    put_instead(gate, None, instruction, for_ms).await
}

/// An instruction that ends when another is posted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndInstruction {
    /// The instruction's name.
    pub name: String,
    /// Ends the instruction only if it has this text. `None` ends it in any case.
    pub text: Option<String>,
}

/// Posts like [`put`], and removes `ends` from each board in the same step.
///
/// # Errors
/// Like [`put`].
pub async fn put_instead(
    gate: &RedisGate,
    ends: Option<EndInstruction>,
    instruction: &Instruction,
    for_ms: u64,
) -> Result<Versions, GateError> {
    let (ended, its_text) = match ends {
        Some(EndInstruction { name, text }) => (name, text.unwrap_or_default()),
        None => (String::new(), String::new()),
    };
    let words = vec![
        "put".to_owned(),
        instruction.name(),
        for_ms.to_string(),
        instruction.text(),
        MAX_INSTRUCTIONS.to_string(),
        SILENT_MS.to_string(),
        KEPT_MS.to_string(),
        ended,
        its_text,
    ];
    change(gate, words).await
}

/// Removes the instructions with these names from all boards.
///
/// # Errors
/// Like [`put`].
pub async fn drop_all(gate: &RedisGate, names: &[String]) -> Result<Versions, GateError> {
    let words = [&["drop".to_owned()], names].concat();
    change(gate, words).await
}

/// Removes `instruction` from the boards where no other one with its name has replaced it.
///
/// # Errors
/// Like [`put`].
pub async fn drop_own(gate: &RedisGate, instruction: &Instruction) -> Result<Versions, GateError> {
    let words = vec!["end".to_owned(), instruction.name(), instruction.text()];
    change(gate, words).await
}

async fn change(gate: &RedisGate, words: Vec<String>) -> Result<Versions, GateError> {
    let primaries = gate.registries().await?;
    let changes = primaries.iter().map(async |primary| {
        let reply = gate.run_board(&primary.board, words.clone()).await?;
        let (head, _) = head(&reply).ok_or_else(broken)?;
        match head.is_full {
            true => Err(GateError::Refused(format!(
                "{MAX_INSTRUCTIONS} instructions are in force, which is the maximum; end some, or \
                stop a whole tenant with tenant pause"
            ))),
            false => Ok((primary.board.clone(), head.version)),
        }
    });
    join_all(changes).await.into_iter().collect()
}

struct BoardSnapshot {
    now_ms: u64,
    version: u64,
    /// The board's instructions, or `None` if the known version is still current.
    posted: Option<Vec<(String, PostedInstruction)>>,
    workers: Vec<(String, Follower)>,
}

async fn read_board(
    gate: &RedisGate,
    board: &str,
    version: u64,
    (name, follows, says): (&str, u64, &str),
) -> Result<BoardSnapshot, GateError> {
    let words = vec![
        "look".to_owned(),
        version.to_string(),
        name.to_owned(),
        follows.to_string(),
        says.to_owned(),
        SILENT_MS.to_string(),
        KEPT_MS.to_string(),
    ];
    let reply = gate.run_board(board, words).await?;
    decode(&reply).ok_or_else(broken)
}

struct BoardHead {
    now_ms: u64,
    is_full: bool,
    version: u64,
}

fn head(reply: &Value) -> Option<(BoardHead, &[Value])> {
    let Value::Array(values) = reply else {
        return None;
    };
    let [_, now, word, version, rest @ ..] = values.as_slice() else {
        return None;
    };
    let head = BoardHead {
        now_ms: number(now)?,
        is_full: text(word)? == "full",
        version: number(version)?,
    };
    Some((head, rest))
}

fn decode(reply: &Value) -> Option<BoardSnapshot> {
    let (head, rest) = head(reply)?;
    let (count, rest) = rest.split_first()?;
    let mut looked = BoardSnapshot {
        now_ms: head.now_ms,
        version: head.version,
        posted: None,
        workers: Vec::new(),
    };
    if *count == Value::Int(-1) {
        return Some(looked);
    }
    let count = usize::try_from(number(count)?).ok()?;
    let (posted, workers) = rest.split_at_checked(count.checked_mul(3)?)?;
    let posted = posted
        .as_chunks::<3>()
        .0
        .iter()
        .map(|[name, until, words]| {
            let until_ms = number(until)?;
            let text = text(words)?;
            Some((self::text(name)?, PostedInstruction { until_ms, text }))
        });
    looked.posted = Some(posted.collect::<Option<_>>()?);
    let (workers, []) = workers.as_chunks::<4>() else {
        return None;
    };
    let workers = workers.iter().map(|[name, at, follows, says]| {
        let worker = Follower {
            at_ms: number(at)?,
            follows: number(follows)?,
            says: text(says)?,
        };
        Some((text(name)?, worker))
    });
    looked.workers = workers.collect::<Option<_>>()?;
    Some(looked)
}

fn broken() -> GateError {
    GateError::Refused("the board of instructions: the reply has an unknown form".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_worker_that_does_not_follow_yet_is_named_once() {
        let worker = |follows| Follower {
            at_ms: 5,
            follows,
            says: String::new(),
        };
        let board = |key: &str, workers: &[(&str, u64)]| BoardView {
            board: key.to_owned(),
            workers: workers
                .iter()
                .map(|(name, follows)| ((*name).to_owned(), worker(*follows)))
                .collect(),
            ..BoardView::default()
        };
        let seen = [
            board("one", &[("a", 7), ("b", 6)]),
            board("two", &[("a", 2), ("b", 3), ("c", 3)]),
        ];
        let versions = vec![("one".to_owned(), 7), ("two".to_owned(), 3)];
        let (all, not_yet) = followers(&seen, &versions);
        assert_eq!(all, ["a", "b", "c"]);
        assert_eq!(not_yet, ["a", "b"]);
    }
}
