//! Redis's replies to our scripts, and a cluster's list of its nodes.

use gate::Answer;
use gate::link::{owned, redirect};
use gate::reply::{acquired, changed, head, inspected};
use redis::{Value, parse_redis_value};
use rules::decision::Sequences;
use rules::slots::SLOTS;

/// Checks a reply. The first byte says how many jobs or limits the request had, and with how many
/// shadow limits; a reply in Redis's protocol follows.
///
/// A valid reply has a part for each of them; anything else must be an error.
pub fn check(data: &[u8]) {
    let Some((&asked, rest)) = data.split_first() else {
        return;
    };
    let (asked, shadows) = (usize::from(asked % 8), usize::from(asked / 8 % 4));
    let Ok(value) = parse_redis_value(rest) else {
        return;
    };
    if let Ok(reply) = acquired(&value, asked, shadows) {
        assert_eq!(reply.answers.len(), asked);
        assert!([0, shadows].contains(&reply.shadows.len()));
        assert_eq!(head(&value), Some((true, reply.now_ms)));
        for answer in reply.answers {
            if let Answer::Start { sequences, .. } = answer {
                let text = sequences.to_string();
                assert_eq!(Sequences::parse(&text), Some(sequences), "{text}");
            }
        }
    }
    if let Ok(found) = inspected(&value, asked, shadows) {
        assert_eq!((found.limits.len(), found.shadows.len()), (asked, shadows));
    }
    let _ = changed(&value);
    if let Ok(slots) = owned(&Value::SimpleString("id".to_owned()), &value) {
        assert!(slots.highest().is_none_or(|slot| slot < SLOTS));
    }
    if let Value::SimpleString(text) | Value::VerbatimString { text, .. } = &value {
        if let Some(address) = redirect(text, "own") {
            assert!(!address.host.is_empty());
        }
        if let Some(sequences) = Sequences::parse(text) {
            let shown = sequences.to_string();
            assert_eq!(Sequences::parse(&shown), Some(sequences));
        }
    }
}
