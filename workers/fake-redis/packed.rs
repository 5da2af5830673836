//! The library `struct` of Redis's Lua: packs numbers and texts into one text. It supports the
//! formats that scripts use: `<` and `>`; signed `b`, `h`, `l` and `iN`; unsigned `B`, `H`, `L` and
//! `IN`; and `s`, a text that ends with a zero byte.

/// An unpacked value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    Number(f64),
    Text(&'a [u8]),
}

/// The number of the invalid argument, from 1, and the reason.
pub type PackError = (usize, &'static str);

/// One item of a format.
enum Item {
    Integer { bytes: usize, signed: bool },
    Text,
}

struct Items<'a> {
    format: &'a [u8],
    big_endian: bool,
}

impl<'a> Items<'a> {
    fn of(format: &'a [u8]) -> Self {
        Self {
            format,
            big_endian: false,
        }
    }

    fn next(&mut self) -> Result<Option<Item>, PackError> {
        while let Some((letter, rest)) = self.format.split_first() {
            self.format = rest;
            let (bytes, signed) = match letter {
                b' ' => continue,
                b'<' | b'>' => {
                    self.big_endian = *letter == b'>';
                    continue;
                }
                b's' => return Ok(Some(Item::Text)),
                b'b' | b'B' => (1, *letter == b'b'),
                b'h' | b'H' => (2, *letter == b'h'),
                b'l' | b'L' => (8, *letter == b'l'),
                b'i' | b'I' => (self.size(), *letter == b'i'),
                _ => return Err((1, "invalid format option")),
            };
            if bytes == 0 || bytes > 8 {
                return Err((1, "integral size out of limits"));
            }
            return Ok(Some(Item::Integer { bytes, signed }));
        }
        Ok(None)
    }

    /// Returns the size of an integer in bytes; 4 by default.
    fn size(&mut self) -> usize {
        let digits = self.format.iter().take_while(|byte| byte.is_ascii_digit());
        let count = digits.count();
        let (digits, rest) = self.format.split_at(count);
        self.format = rest;
        if digits.is_empty() {
            return 4;
        }
        let add = |size: usize, digit: &u8| size.saturating_mul(10) + usize::from(digit - b'0');
        digits.iter().fold(0, add)
    }
}

/// Unpacks `data` from byte `position` on, counted from 1. Returns the fields, and the position
/// after them.
pub fn unpack<'a>(
    format: &[u8],
    data: &'a [u8],
    position: usize,
) -> Result<(Vec<Field<'a>>, usize), PackError> {
    let short = (2, "data string too short");
    let mut at = position.checked_sub(1).ok_or(short)?;
    let mut items = Items::of(format);
    let mut fields = Vec::with_capacity(format.len());
    while let Some(item) = items.next()? {
        match item {
            Item::Integer { bytes, signed } => {
                let packed = data.get(at..at + bytes).ok_or(short)?;
                let number = number(packed, items.big_endian, signed);
                fields.push(Field::Number(number));
                at += bytes;
            }
            Item::Text => {
                let rest = data.get(at..).ok_or(short)?;
                let end = rest.iter().position(|byte| *byte == 0);
                let end = end.ok_or((2, "unfinished string in data"))?;
                fields.push(Field::Text(&rest[..end]));
                at += end + 1;
            }
        }
    }
    Ok((fields, at + 1))
}

fn number(packed: &[u8], big_endian: bool, signed: bool) -> f64 {
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    let number = match big_endian {
        true => packed.iter().fold(0, add),
        false => packed.iter().rev().fold(0, add),
    };
    if !signed {
        return number as f64;
    }
    let unused = 64 - 8 * packed.len();
    ((number << unused).cast_signed() >> unused) as f64
}

/// Packs `fields` into a text.
pub fn pack(format: &[u8], fields: &[Field<'_>]) -> Result<Vec<u8>, PackError> {
    let mut items = Items::of(format);
    let mut packed = Vec::with_capacity(64);
    let mut fields = fields.iter().zip(2..);
    while let Some(item) = items.next()? {
        let (field, argument) = match fields.next() {
            Some((field, argument)) => (Some(field), argument),
            None => (None, 2),
        };
        match (item, field) {
            (Item::Integer { bytes, .. }, Some(Field::Number(number))) => {
                let whole = match *number < 0.0 {
                    true => (*number as i64).cast_unsigned(),
                    false => *number as u64,
                };
                match items.big_endian {
                    true => packed.extend(&whole.to_be_bytes()[8 - bytes..]),
                    false => packed.extend(&whole.to_le_bytes()[..bytes]),
                }
            }
            (Item::Integer { .. }, _) => return Err((argument, "number expected")),
            (Item::Text, Some(Field::Text(text))) => {
                packed.extend_from_slice(text);
                packed.push(0);
            }
            (Item::Text, _) => return Err((argument, "string expected")),
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_are_unpacked() {
        let format = b">I6I8i8B<I2sI4";
        let fields = [
            Field::Number(1_700_000_000_000.0),
            Field::Number(9_007_199_254_740_992.0),
            Field::Number(-5.0),
            Field::Number(255.0),
            Field::Number(258.0),
            Field::Text(b"name"),
            Field::Number(4_294_967_295.0),
        ];
        let packed = pack(format, &fields).expect("a good format");
        assert_eq!(packed.len(), 6 + 8 + 8 + 1 + 2 + 5 + 4);
        assert_eq!(packed[23..25], [2, 1]);
        let (unpacked, next) = unpack(format, &packed, 1).expect("whole");
        assert_eq!(unpacked, fields);
        assert_eq!(next, packed.len() + 1);
    }

    #[test]
    fn short_and_unknown_input_is_refused() {
        assert!(unpack(b">I4", &[0; 3], 1).is_err());
        assert!(unpack(b">I4", &[0; 8], 6).is_err());
        assert!(unpack(b"s", b"no end", 1).is_err());
        assert!(unpack(b"d", &[0; 8], 1).is_err());
        assert!(pack(b">I4", &[]).is_err());
    }
}
