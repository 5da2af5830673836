//! Checks whether `lapin` can read a message's properties. Properties that it can't read end the
//! connection, and then the message is delivered again and ends the next one. RabbitMQ accepts any
//! bytes in a name or a short text, and any depth of tables.
//!
//! A message with unreadable properties is wrapped: it gets properties of ours that hold the
//! original bytes.

use rules::headers;

/// Maximum depth of nested tables. `lapin` reads them by recursion, and thousands of levels would
/// overflow its stack.
const MAX_DEPTH: usize = 32;
/// Length in bytes of the class, the weight and the body's size, which precede the properties.
pub const PREFIX: usize = 12;
/// The properties in order. Each has one flag bit, from the highest.
const PROPERTIES: [(&str, PropertyKind); 14] = [
    ("content-type", PropertyKind::Short),
    ("content-encoding", PropertyKind::Short),
    ("headers", PropertyKind::Headers),
    ("delivery-mode", PropertyKind::Bytes(1)),
    ("priority", PropertyKind::Bytes(1)),
    ("correlation-id", PropertyKind::Short),
    ("reply-to", PropertyKind::Short),
    ("expiration", PropertyKind::Short),
    ("message-id", PropertyKind::Short),
    ("timestamp", PropertyKind::Bytes(8)),
    ("type", PropertyKind::Short),
    ("user-id", PropertyKind::Short),
    ("app-id", PropertyKind::Short),
    ("cluster-id", PropertyKind::Short),
];
/// The flags of `headers` and `delivery-mode`.
const WRAPPED_FLAGS: u16 = 1 << 13 | 1 << 12;
/// AMQP's delivery mode of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

#[derive(Clone, Copy)]
enum PropertyKind {
    Short,
    Bytes(usize),
    Headers,
}

/// Returns why the content header in `payload` can't be used, or `None` if it can. `max` bounds the
/// bytes of the headers that the publisher set.
pub fn unreadable(payload: &[u8], max: usize) -> Option<String> {
    check(payload, max).err()
}

fn check(payload: &[u8], max: usize) -> Result<(), String> {
    let mut reader = FieldReader(payload);
    reader.take(PREFIX)?;
    let flags = u16::from_be_bytes(reader.array()?);
    // The lowest bit means that more flags follow, but AMQP 0-9-1 has no further properties.
    if flags & 0b11 != 0 {
        return Err("they have flags that AMQP 0-9-1 does not define".to_owned());
    }
    for (position, (name, kind)) in PROPERTIES.into_iter().enumerate() {
        if flags & (0x8000 >> position) == 0 {
            continue;
        }
        match kind {
            PropertyKind::Short => drop(reader.text(name)?),
            PropertyKind::Bytes(count) => drop(reader.take(count)?),
            PropertyKind::Headers => {
                let bytes = headers_of(&mut reader)?;
                if bytes > max {
                    return Err(format!("the headers have {bytes} bytes, above {max}"));
                }
            }
        }
    }
    if reader.0.is_empty() {
        Ok(())
    } else {
        Err("they are longer than their flags indicate".to_owned())
    }
}

/// Reads the headers and returns the size of those that survive a republish: neither ours nor the
/// broker's.
fn headers_of(reader: &mut FieldReader<'_>) -> Result<usize, String> {
    let mut table = reader.block()?;
    let mut bytes = 0;
    while !table.0.is_empty() {
        let before = table.0.len();
        let name = table.text("a header's name")?;
        table.value(MAX_DEPTH)?;
        if !headers::OURS.contains(&name) && !headers::BROKER_HEADERS.contains(&name) {
            bytes += before - table.0.len();
        }
    }
    Ok(bytes)
}

/// The bytes left to read.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = (self.0)
            .split_at_checked(count)
            .ok_or("they are shorter than their length field")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        // `take` returned N bytes, so the copy fits.
        let mut array = [0; N];
        array.copy_from_slice(taken);
        Ok(array)
    }

    /// Reads a long length and as many bytes.
    fn block(&mut self) -> Result<Self, String> {
        let count = u32::from_be_bytes(self.array()?);
        self.take(count as usize).map(FieldReader)
    }

    /// Reads a short text. `what` names it in errors.
    fn text(&mut self, what: &str) -> Result<&'a str, String> {
        let [count] = self.array()?;
        std::str::from_utf8(self.take(usize::from(count))?)
            .map_err(|_| format!("{what} is not UTF-8"))
    }

    /// Reads a value with its type, nested at most `depth` tables or lists deep.
    fn value(&mut self, depth: usize) -> Result<(), String> {
        let [kind] = self.array()?;
        let bytes = match kind {
            b't' | b'b' | b'B' => 1,
            b's' | b'U' | b'u' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'L' | b'l' | b'd' | b'T' => 8,
            b'V' => 0,
            b'S' | b'x' => return self.block().map(drop),
            b'F' | b'A' => {
                let depth = (depth.checked_sub(1)).ok_or_else(|| {
                    format!(
                        "the headers are nested more than {MAX_DEPTH} tables \
                        deep"
                    )
                })?;
                let mut inner = self.block()?;
                while !inner.0.is_empty() {
                    if kind == b'F' {
                        inner.text("a key in a header's table")?;
                    }
                    inner.value(depth)?;
                }
                return Ok(());
            }
            _ => return Err(format!("a header has the unknown type {kind:#04x}")),
        };
        self.take(bytes).map(drop)
    }
}

/// Returns a content header for the same body that contains `why` and the original properties. They
/// are cut so that the headers have at most `max` bytes, because readers of dead letters receive
/// the message again, and it must pass then.
pub fn wrapped(payload: &[u8], why: &str, max: usize) -> Vec<u8> {
    let (prefix, properties) = payload.split_at(PREFIX.min(payload.len()));
    // Each entry has a name and its length, a type, and a value and its length.
    let around =
        headers::UNREADABLE.len() + why.len() + headers::PROPERTIES.len() + 2 * (1 + 1 + 4);
    let start = &properties[..properties.len().min(max.saturating_sub(around))];
    let mut table = Vec::with_capacity(start.len() + around);
    let mut entry = |name: &str, kind: u8, value: &[u8]| {
        // Both names are short constants, and a value is smaller than a frame.
        table.push(name.len() as u8);
        table.extend_from_slice(name.as_bytes());
        table.push(kind);
        table.extend_from_slice(&(value.len() as u32).to_be_bytes());
        table.extend_from_slice(value);
    };
    entry(headers::UNREADABLE, b'S', why.as_bytes());
    entry(headers::PROPERTIES, b'x', start);
    let mut wrapped = prefix.to_vec();
    wrapped.extend_from_slice(&WRAPPED_FLAGS.to_be_bytes());
    wrapped.extend_from_slice(&(table.len() as u32).to_be_bytes());
    wrapped.extend_from_slice(&table);
    wrapped.push(PERSISTENT);
    wrapped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREFIX_BYTES: [u8; PREFIX] = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

    fn with(flags: u16, rest: &[u8]) -> Vec<u8> {
        [&PREFIX_BYTES, &flags.to_be_bytes()[..], rest].concat()
    }

    fn headers(table: &[u8]) -> Vec<u8> {
        let length = (table.len() as u32).to_be_bytes();
        with(1 << 13, &[&length[..], table].concat())
    }

    fn nested(depth: usize) -> Vec<u8> {
        let mut value = vec![b'V'];
        for _ in 0..depth {
            let length = (value.len() as u32).to_be_bytes();
            value = [b"A", &length[..], &value].concat();
        }
        [b"\x01n", &value[..]].concat()
    }

    #[track_caller]
    fn refused(payload: &[u8], part: &str) {
        let why = unreadable(payload, 1000).expect("it can't be read");
        assert!(why.contains(part), "{why:?} should say {part:?}");
    }

    #[test]
    fn readable_and_unreadable_content_are_distinguished() {
        let fine = |payload: &[u8]| assert_eq!(unreadable(payload, 1000), None);
        fine(&with(0, b""));
        fine(&with(1 << 7, b"\x02id"));
        fine(&with(1 << 6 | 1 << 12, b"\x02\0\0\0\0\0\0\0\x07"));
        fine(&headers(b"\x01kS\0\0\0\x02\xff\xfe"));
        fine(&headers(b"\x01df\x7f\xc0\0\0"));
        fine(&headers(&nested(MAX_DEPTH)));
        refused(&headers(&nested(MAX_DEPTH + 1)), "tables deep");
        refused(&headers(&nested(20_000)), "tables deep");
        refused(&headers(b"\x01\xfft\x01"), "a header's name is not UTF-8");
        refused(
            &headers(b"\x01tF\0\0\0\x03\x01\xffV"),
            "a key in a header's table is not UTF-8",
        );
        refused(&with(1 << 7, b"\x02i\xff"), "message-id is not UTF-8");
        refused(&headers(b"\x01k?\0"), "unknown type 0x3f");
        refused(&headers(b"\x01kS\0\0\0\x09\0"), "shorter");
        refused(&with(1 << 7, b"\x02idmore"), "longer");
        refused(&with(1, b""), "flags");
        refused(b"", "shorter");
    }

    #[test]
    fn only_the_publishers_headers_count_for_the_size() {
        let entry = |name: &str| {
            let length = (900_u32).to_be_bytes();
            [
                &[name.len() as u8],
                name.as_bytes(),
                b"S",
                &length,
                &[b'v'; 900],
            ]
            .concat()
        };
        let own = [entry("x-death"), entry(headers::REASON), entry("k")].concat();
        assert_eq!(unreadable(&headers(&own), 1000), None);
        refused(&headers(&[entry("k"), entry("l")].concat()), "above 1000");
    }

    #[test]
    fn wrapped_content_is_readable_and_holds_the_original() {
        let bad = headers(b"\x01\xfft\x01");
        let wrapped = wrapped(&bad, "why", 1000);
        assert_eq!(unreadable(&wrapped, 1000), None);
        assert_eq!(wrapped[..PREFIX], PREFIX_BYTES);
        let held = wrapped.windows(bad.len() - PREFIX);
        assert!(held.into_iter().any(|part| part == &bad[PREFIX..]));
    }

    #[test]
    fn wrapped_content_passes_when_a_dead_letter_returns() {
        let long = [b"\x01kS\0\0\x0f\xff", &[b'v'; 0xfff][..]].concat();
        let why = unreadable(&headers(&long), 1000).expect("it is too long");
        let wrapped = wrapped(&headers(&long), &why, 1000);
        assert_eq!(unreadable(&wrapped, 1000), None);
        assert!(unreadable(&wrapped, 900).is_some(), "what fits is kept");
    }

    proptest! {
        /// Any content header can be checked and wrapped. `tests/untrusted/frames.rs` checks that
        /// `lapin` agrees.
        #[test]
        fn any_bytes_can_be_checked_and_wrapped(flags: u16, rest in prop::collection::vec(any::<u8>(), 0..80)) {
            let payload = with(flags, &rest);
            let why = unreadable(&payload, 60);
            let payload = match &why {
                None => payload,
                Some(why) => wrapped(&payload, why, 60),
            };
            prop_assert_eq!(unreadable(&payload, 1000), None);
        }
    }
}
