//! Incoming AMQP 0-9-1 frames, which are screened before `lapin` reads them.

use broker::amqp::screen::Screen;
use lapin::protocol::basic::parse_properties;

/// Type of a content header frame.
const HEADER: u8 = 2;
/// Length of a frame's head: type, channel and size. An end mark of one byte follows the payload.
const FRAME_HEAD: usize = 7;
/// Bytes before the properties: class, weight and body size.
const PREFIX: usize = 12;
/// Maximum number of bytes that wrapping adds to a frame: names and the reason.
const WRAPPING: usize = 512;

/// Checks the screen. Its output must not depend on how the input is split, must pass a second time
/// unchanged, must be hardly longer than the input, and `lapin` must be able to read its
/// properties.
pub fn check(data: &[u8]) {
    let out = screened(data, data.len().max(1));
    for size in [1, 7, 13] {
        assert_eq!(screened(data, size), out, "in pieces of {size}");
    }
    assert_eq!(screened(&out, out.len().max(1)), out, "screened again");
    let mut rest = &out[..];
    let mut frames = 1;
    while let Some((kind, payload, behind)) = frame(rest) {
        if !matches!(kind, 1 | 2 | 3 | 8) {
            break;
        }
        // A payload that is too short for the prefix is no message.
        if let Some(properties) = payload.get(PREFIX..).filter(|_| kind == HEADER) {
            let (unread, _) = parse_properties(properties).expect("lapin can read it");
            assert!(unread.is_empty(), "lapin leaves {unread:?}");
        }
        rest = behind;
        frames += 1;
    }
    assert!(out.len() <= data.len() + frames * WRAPPING);
}

fn screened(data: &[u8], piece: usize) -> Vec<u8> {
    let mut screen = Screen::default();
    data.chunks(piece).for_each(|piece| screen.feed(piece));
    screen.ready().to_vec()
}

/// Returns a frame's type, its payload and the bytes after it.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEAD)?;
    let size = u32::from_be_bytes(head[3..].try_into().expect("four bytes"));
    let (payload, rest) = rest.split_at_checked(usize::try_from(size).ok()?)?;
    Some((head[0], payload, rest.get(1..)?))
}
