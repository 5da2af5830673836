//! Commands for keys of any type, and for strings.

use crate::command::{Words, next, syntax_error};
use crate::db::Db;
use crate::number::integer;
use crate::reply::{Reply, Result};

pub fn del(db: &mut Db, words: Words<'_>) -> Result {
    Ok(Reply::count(
        words.iter().filter(|key| db.delete(key)).count(),
    ))
}

pub fn exists(db: &mut Db, words: Words<'_>) -> Result {
    let there = words.iter().filter(|key| db.data(key).is_some());
    Ok(Reply::count(there.count()))
}

/// TYPE
pub fn kind(db: &mut Db, words: Words<'_>) -> Result {
    let kind = db.data(words[0]).map_or("none", |data| data.kind());
    Ok(Reply::Status(kind.to_owned()))
}

pub fn get(db: &mut Db, words: Words<'_>) -> Result {
    let text = db.get::<Vec<u8>>(words[0])?;
    Ok(Reply::or_nil(text.map(Vec::as_slice)))
}

/// SET KEY VALUE [NX|XX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]
pub fn set(db: &mut Db, words: Words<'_>) -> Result {
    let (key, text, mut rest) = (words[0], words[1], &words[2..]);
    let (mut only, mut expiry, mut keeps) = (None, None, false);
    while let Some(option) = next(&mut rest) {
        let option = option.to_ascii_uppercase();
        match option.as_slice() {
            b"NX" | b"XX" if only.is_none() => only = Some(option == b"XX"),
            b"KEEPTTL" if expiry.is_none() && !keeps => keeps = true,
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if expiry.is_none() && !keeps => {
                let number = next(&mut rest).ok_or_else(syntax_error)?;
                let unit = if option.starts_with(b"P") { 1 } else { 1000 };
                let is_from_now = !option.ends_with(b"AT");
                expiry = Some((number, unit, is_from_now));
            }
            _ => return Err(syntax_error()),
        }
    }
    let at = match expiry {
        None => None,
        Some((number, unit, is_from_now)) => Some(moment(db, number, unit, is_from_now, "set")?),
    };
    let there = db.expires_ms(key);
    if only.is_some_and(|only_if_there| only_if_there != there.is_some()) {
        return Ok(Reply::Nil);
    }
    let old_end = there.flatten().filter(|_| keeps);
    db.set(key, text, at.or(old_end));
    Ok(Reply::ok())
}

/// Returns the time of an expiry, in milliseconds since the Unix epoch.
fn moment(
    db: &Db,
    number: &[u8],
    unit: i64,
    is_from_now: bool,
    command: &str,
) -> std::result::Result<u64, String> {
    let number = integer(number)?;
    let begin = if is_from_now { now_ms(db) } else { 0 };
    let at = number
        .checked_mul(unit)
        .and_then(|ms| ms.checked_add(begin));
    match (at.map(u64::try_from), command) {
        (Some(Ok(at)), "set") if number > 0 => Ok(at),
        (Some(at), "pexpire" | "pexpireat") => Ok(at.unwrap_or(0)),
        _ => Err(format!("ERR invalid expire time in '{command}' command")),
    }
}

fn now_ms(db: &Db) -> i64 {
    i64::try_from(db.now_ms()).unwrap_or(i64::MAX)
}

pub fn pexpire(db: &mut Db, words: Words<'_>) -> Result {
    let at = moment(db, words[1], 1, true, "pexpire")?;
    Ok(Reply::count(usize::from(db.expire(words[0], at))))
}

pub fn pexpireat(db: &mut Db, words: Words<'_>) -> Result {
    let at = moment(db, words[1], 1, false, "pexpireat")?;
    Ok(Reply::count(usize::from(db.expire(words[0], at))))
}

pub fn pttl(db: &mut Db, words: Words<'_>) -> Result {
    let now = now_ms(db);
    Ok(Reply::Integer(match db.expires_ms(words[0]) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => i64::try_from(at).unwrap_or(i64::MAX) - now,
    }))
}

pub fn time(db: &mut Db, _: Words<'_>) -> Result {
    let parts = [db.now_us() / 1_000_000, db.now_us() % 1_000_000];
    let parts = parts.map(|part| Reply::text(part.to_string()));
    Ok(Reply::Array(parts.to_vec()))
}
