//! Commands for sorted sets.

use std::ops::Range;

use crate::command::{Words, is_option, next, syntax_error};
use crate::db::Db;
use crate::number::{self, bound, integer, score};
use crate::reply::{Reply, Result};
use crate::zset::Zset;

/// ZADD KEY [NX|XX] [CH] SCORE MEMBER …
pub fn zadd(db: &mut Db, words: Words<'_>) -> Result {
    let (mut only, mut counts_changed, mut rest) = (None, false, &words[1..]);
    while let Some(word) = rest.first() {
        if is_option(word, "CH") {
            counts_changed = true;
        } else if is_option(word, "NX") || is_option(word, "XX") {
            let only_if_there = is_option(word, "XX");
            if only.is_some_and(|known| known != only_if_there) {
                return Err("ERR XX and NX options at the same time are not compatible".to_owned());
            }
            only = Some(only_if_there);
        } else {
            break;
        }
        rest = &rest[1..];
    }
    let (pairs, odd) = rest.as_chunks::<2>();
    if pairs.is_empty() || !odd.is_empty() {
        return Err(syntax_error());
    }
    let scored = pairs
        .iter()
        .map(|[number, member]| Ok((score(number)?, *member)));
    let scored: Vec<(f64, &[u8])> = scored.collect::<std::result::Result<_, String>>()?;
    let add = |zset: &mut Zset| {
        let (mut new, mut changed) = (0, 0);
        for (score, member) in scored {
            let is_there = zset.score(member).is_some();
            if only.is_some_and(|only_if_there| only_if_there != is_there) {
                continue;
            }
            match zset.insert(member, score) {
                None => new += 1,
                Some(before) if before != score => changed += 1,
                Some(_) => {}
            }
        }
        if counts_changed { new + changed } else { new }
    };
    Ok(Reply::count(db.change(words[0], add)?))
}

pub fn zcard(db: &mut Db, words: Words<'_>) -> Result {
    let zset = db.get::<Zset>(words[0])?;
    Ok(Reply::count(zset.map_or(0, Zset::len)))
}

pub fn zscore(db: &mut Db, words: Words<'_>) -> Result {
    let zset = db.get::<Zset>(words[0])?;
    let score = zset.and_then(|zset| zset.score(words[1]));
    Ok(score.map_or(Reply::Nil, |score| Reply::text(number::text(score))))
}

pub fn zcount(db: &mut Db, words: Words<'_>) -> Result {
    let (min, max) = (bound(words[1])?, bound(words[2])?);
    let zset = db.get::<Zset>(words[0])?;
    Ok(Reply::count(
        zset.map_or(0, |zset| zset.between(min, max).len()),
    ))
}

pub fn zrem(db: &mut Db, words: Words<'_>) -> Result {
    let there = db.get::<Zset>(words[0])?;
    if there.is_none_or(|zset| words[1..].iter().all(|member| zset.score(member).is_none())) {
        return Ok(Reply::Integer(0));
    }
    let remove = |zset: &mut Zset| {
        let gone = words[1..].iter().filter(|member| zset.remove(member));
        gone.count()
    };
    Ok(Reply::count(db.change(words[0], remove)?))
}

pub fn zremrangebyscore(db: &mut Db, words: Words<'_>) -> Result {
    let (min, max) = (bound(words[1])?, bound(words[2])?);
    let zset = db.get::<Zset>(words[0])?;
    let ranks = zset.map_or(0..0, |zset| zset.between(min, max));
    let count = ranks.len();
    if count > 0 {
        db.change(words[0], |zset: &mut Zset| zset.remove_range(ranks))?;
    }
    Ok(Reply::count(count))
}

/// ZRANGE KEY START STOP [WITHSCORES]
pub fn zrange(db: &mut Db, words: Words<'_>) -> Result {
    by_rank(db, words, false)
}

/// ZREVRANGE KEY START STOP [WITHSCORES]
pub fn zrevrange(db: &mut Db, words: Words<'_>) -> Result {
    by_rank(db, words, true)
}

fn by_rank(db: &mut Db, words: Words<'_>, is_reversed: bool) -> Result {
    let with_scores = match words[3..] {
        [] => false,
        [option] if is_option(option, "WITHSCORES") => true,
        _ => return Err(syntax_error()),
    };
    let (start, stop) = (integer(words[1])?, integer(words[2])?);
    let Some(zset) = db.get::<Zset>(words[0])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    if !is_reversed {
        return Ok(shown(zset.range(zset.ranks(start, stop)), with_scores));
    }
    let Range { start, end } = zset.ranks(start, stop);
    let ranks = zset.len() - end..zset.len() - start;
    Ok(shown(zset.range(ranks).rev(), with_scores))
}

/// ZRANGEBYSCORE KEY MIN MAX [WITHSCORES] [LIMIT OFFSET COUNT]
pub fn zrangebyscore(db: &mut Db, words: Words<'_>) -> Result {
    let (mut with_scores, mut limit, mut rest) = (false, None, &words[3..]);
    while let Some(option) = next(&mut rest) {
        if is_option(option, "WITHSCORES") {
            with_scores = true;
        } else if is_option(option, "LIMIT") {
            let (Some(offset), Some(count)) = (next(&mut rest), next(&mut rest)) else {
                return Err(syntax_error());
            };
            limit = Some((integer(offset)?, integer(count)?));
        } else {
            return Err(syntax_error());
        }
    }
    let (min, max) = (bound(words[1])?, bound(words[2])?);
    let Some(zset) = db.get::<Zset>(words[0])? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let Range { mut start, mut end } = zset.between(min, max);
    if let Some((offset, count)) = limit {
        // A negative offset is after the last member; a negative count is unlimited.
        start = usize::try_from(offset).map_or(end, |offset| start.saturating_add(offset).min(end));
        end = usize::try_from(count).map_or(end, |count| start.saturating_add(count).min(end));
    }
    Ok(shown(zset.range(start..end), with_scores))
}

fn shown<'a>(members: impl Iterator<Item = (&'a [u8], f64)>, with_scores: bool) -> Reply {
    let texts = members.flat_map(|(member, score)| {
        let score = with_scores.then(|| Reply::text(number::text(score)));
        std::iter::once(Reply::text(member)).chain(score)
    });
    Reply::Array(texts.collect())
}
