//! Encodes the properties of a queued message as bytes, a fifth of their size as values.
//!
//! The usual properties of a job have an encoding of their own, because they are read at each
//! delivery, and lapin's parser took most of a simulation's time. All others are written and read
//! by lapin.

use lapin::BasicProperties;
use lapin::protocol::basic::{gen_properties, parse_properties};
use lapin::types::{AMQPValue, FieldTable, ShortString};

/// The flags of properties that have headers, a delivery mode and an ID, and nothing else.
const USUAL: u16 = 1 << 13 | 1 << 12 | 1 << 7;
/// AMQP's delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;
/// Values of the first byte.
const BY_LAPIN: u8 = 0;
const BY_HAND: u8 = 1;
/// The type byte after a header's name.
const TEXT: u8 = b'S';
const INT: u8 = b'l';
const UINT: u8 = b'i';

/// Appends `properties` to `paper`.
pub(super) fn write(properties: &BasicProperties, paper: &mut Vec<u8>) {
    let start = paper.len();
    paper.push(BY_HAND);
    if write_by_hand(properties, paper).is_some() {
        return;
    }
    paper.truncate(start);
    paper.push(BY_LAPIN);
    let written = gen_properties(properties)(std::mem::take(paper).into());
    *paper = written.expect("a vector takes whatever is written").write;
}

/// Writes the usual properties. Returns `None` if `properties` are different.
fn write_by_hand(properties: &BasicProperties, paper: &mut Vec<u8>) -> Option<()> {
    if properties.bitmask() != USUAL || *properties.delivery_mode() != Some(PERSISTENT) {
        return None;
    }
    write_short(properties.message_id().as_ref()?, paper)?;
    for (name, value) in properties.headers().as_ref()? {
        write_short(name, paper)?;
        match value {
            AMQPValue::LongString(text) => {
                paper.push(TEXT);
                paper.extend(u32::try_from(text.len()).ok()?.to_be_bytes());
                paper.extend_from_slice(text.as_bytes());
            }
            AMQPValue::LongLongInt(number) => {
                paper.push(INT);
                paper.extend(number.to_be_bytes());
            }
            AMQPValue::LongUInt(number) => {
                paper.push(UINT);
                paper.extend(number.to_be_bytes());
            }
            _ => return None,
        }
    }
    Some(())
}

fn write_short(text: &ShortString, paper: &mut Vec<u8>) -> Option<()> {
    paper.push(u8::try_from(text.as_str().len()).ok()?);
    paper.extend_from_slice(text.as_str().as_bytes());
    Some(())
}

/// Reads properties that [`write`] wrote. `bytes` must hold nothing else.
pub(super) fn read(bytes: &[u8]) -> BasicProperties {
    let read = match bytes {
        [BY_HAND, bytes @ ..] => read_by_hand(bytes),
        [_, bytes @ ..] => parse_properties(bytes)
            .ok()
            .map(|(_, properties)| properties),
        [] => None,
    };
    read.expect("what was written is read")
}

fn read_by_hand(bytes: &[u8]) -> Option<BasicProperties> {
    let mut rest = bytes;
    let id = read_short(&mut rest)?;
    let mut headers = FieldTable::default();
    while !rest.is_empty() {
        let (name, value) = read_header(&mut rest)?;
        headers.insert(name, value);
    }
    let properties = BasicProperties::default().with_message_id(id);
    Some((properties.with_delivery_mode(PERSISTENT)).with_headers(headers))
}

fn read_header(rest: &mut &[u8]) -> Option<(ShortString, AMQPValue)> {
    let name = read_short(rest)?;
    let value = match *rest.split_off_first()? {
        TEXT => {
            let count = u32::from_be_bytes(*read_array(rest)?);
            let text = rest.split_off(..usize::try_from(count).ok()?)?;
            AMQPValue::LongString(text.to_vec().into())
        }
        INT => AMQPValue::LongLongInt(i64::from_be_bytes(*read_array(rest)?)),
        _ => AMQPValue::LongUInt(u32::from_be_bytes(*read_array(rest)?)),
    };
    Some((name, value))
}

fn read_short(rest: &mut &[u8]) -> Option<ShortString> {
    let count = usize::from(*rest.split_off_first()?);
    let text = std::str::from_utf8(rest.split_off(..count)?).ok()?;
    ShortString::try_new(text).ok()
}

fn read_array<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    rest.split_off(..N)?.first_chunk()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn table<const N: usize>(headers: [(&str, AMQPValue); N]) -> BasicProperties {
        let headers = headers.map(|(name, value)| (ShortString::from(name), value));
        BasicProperties::default().with_headers(BTreeMap::from(headers).into())
    }

    #[track_caller]
    fn assert_round_trip(properties: &BasicProperties, how: u8) {
        let mut paper = b"before".to_vec();
        write(properties, &mut paper);
        let written = &paper[b"before".len()..];
        assert_eq!((&read(written), written[0]), (properties, how));
    }

    #[test]
    fn a_job_s_properties_are_written_by_hand_and_come_back() {
        let text = |bytes: &[u8]| AMQPValue::LongString(bytes.to_vec().into());
        let usual = |properties: BasicProperties| {
            let properties = properties.with_delivery_mode(PERSISTENT);
            properties.with_message_id("17".into())
        };
        let job = usual(table([
            ("x-tenant", text(b"acme")),
            ("x-cost", AMQPValue::LongUInt(u32::MAX)),
            ("a", AMQPValue::LongLongInt(-1)),
            ("", text(b"")),
            ("z", text(&[0xff; 70_000])),
        ]));
        assert_round_trip(&job, BY_HAND);
        assert_round_trip(&usual(table([])), BY_HAND);
        // lapin writes anything else.
        assert_round_trip(&job.clone().with_priority(3), BY_LAPIN);
        assert_round_trip(&job.clone().with_delivery_mode(1), BY_LAPIN);
        assert_round_trip(
            &usual(table([("flag", AMQPValue::Boolean(true))])),
            BY_LAPIN,
        );
        assert_round_trip(&usual(table([("nothing", AMQPValue::Void)])), BY_LAPIN);
        assert_round_trip(&BasicProperties::default(), BY_LAPIN);
        assert_round_trip(&job.with_message_id("".into()), BY_HAND);
    }
}
