//! Commands for hashes.

use crate::command::{Words, is_option, syntax_error, wrong_number};
use crate::db::{Db, Hash};
use crate::number::{NO_INTEGER, integer};
use crate::reply::{Reply, Result};

pub fn hget(db: &mut Db, words: Words<'_>) -> Result {
    let hash = db.get::<Hash>(words[0])?;
    let value = hash.and_then(|hash| hash.get(words[1]));
    Ok(Reply::or_nil(value.map(Vec::as_slice)))
}

pub fn hmget(db: &mut Db, words: Words<'_>) -> Result {
    let hash = db.get::<Hash>(words[0])?;
    let value = |field: &&[u8]| {
        let value = hash.and_then(|hash| hash.get(*field));
        Reply::or_nil(value.map(Vec::as_slice))
    };
    Ok(Reply::Array(words[1..].iter().map(value).collect()))
}

pub fn hset(db: &mut Db, words: Words<'_>) -> Result {
    let (pairs, rest) = words[1..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(wrong_number("hset"));
    }
    let set = |hash: &mut Hash| {
        let new = pairs
            .iter()
            .filter(|[field, value]| match hash.get_mut(*field) {
                Some(known) => {
                    (*value).clone_into(known);
                    false
                }
                None => hash.insert(field.to_vec(), value.to_vec()).is_none(),
            });
        new.count()
    };
    Ok(Reply::count(db.change(words[0], set)?))
}

pub fn hdel(db: &mut Db, words: Words<'_>) -> Result {
    let there = db.get::<Hash>(words[0])?;
    if there.is_none_or(|hash| words[1..].iter().all(|field| !hash.contains_key(*field))) {
        return Ok(Reply::Integer(0));
    }
    let delete = |hash: &mut Hash| {
        let gone = words[1..]
            .iter()
            .filter(|field| hash.swap_remove(**field).is_some());
        gone.count()
    };
    Ok(Reply::count(db.change(words[0], delete)?))
}

pub fn hgetall(db: &mut Db, words: Words<'_>) -> Result {
    let pairs = db.get::<Hash>(words[0])?.into_iter().flatten();
    let texts = pairs.flat_map(|(field, value)| [field, value]);
    Ok(Reply::Array(
        texts.map(|text| Reply::text(text.as_slice())).collect(),
    ))
}

pub fn hkeys(db: &mut Db, words: Words<'_>) -> Result {
    let fields = db.get::<Hash>(words[0])?.into_iter().flat_map(Hash::keys);
    Ok(Reply::Array(
        fields.map(|field| Reply::text(field.as_slice())).collect(),
    ))
}

/// HRANDFIELD KEY [COUNT [WITHVALUES]]: returns random fields, picked by `random`. As on a server,
/// fields repeat only if COUNT is negative.
pub fn hrandfield(db: &mut Db, words: Words<'_>, mut random: impl FnMut(usize) -> usize) -> Result {
    let count = words.get(1).map(|word| integer(word)).transpose()?;
    let with_values = match words.get(2..).unwrap_or_default() {
        [] => false,
        [option] if is_option(option, "WITHVALUES") => true,
        _ => return Err(syntax_error()),
    };
    let empty = Hash::default();
    let hash = db.get::<Hash>(words[0])?.unwrap_or(&empty);
    let Some(count) = count else {
        let any = (!hash.is_empty()).then(|| random(hash.len()));
        let any = any.and_then(|index| hash.get_index(index));
        return Ok(Reply::or_nil(any.map(|(field, _)| field.as_slice())));
    };
    let many = usize::try_from(count.unsigned_abs()).map_err(|_| NO_INTEGER.to_owned())?;
    let picked: Vec<usize> = if hash.is_empty() {
        Vec::new()
    } else if count < 0 {
        (0..many).map(|_| random(hash.len())).collect()
    } else if many >= hash.len() {
        (0..hash.len()).collect()
    } else {
        // Floyd's algorithm: each set of `many` fields is equally likely.
        let mut picked = Vec::with_capacity(many);
        for last in hash.len() - many..hash.len() {
            let any = random(last + 1);
            picked.push(if picked.contains(&any) { last } else { any });
        }
        picked
    };
    let pairs = picked.iter().filter_map(|index| hash.get_index(*index));
    let texts = pairs.flat_map(|(field, value)| {
        let value = with_values.then(|| Reply::text(value.as_slice()));
        std::iter::once(Reply::text(field.as_slice())).chain(value)
    });
    Ok(Reply::Array(texts.collect()))
}
