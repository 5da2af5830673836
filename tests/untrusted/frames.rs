//! Frames of AMQP 0-9-1 as they arrive, which are screened before `lapin` reads them.

use lapin::protocol::basic::parse_properties;
use sluicegate::untrusted::Screen;

/// The type of a content header's frame.
const HEADER: u8 = 2;
/// Type, channel and size; the end mark behind the payload.
const FRAME_HEAD: usize = 7;
/// Class, weight and body size, before the properties.
const PREFIX: usize = 12;
/// What a wrapped frame has beyond the bytes that came: names, and why.
const WRAPPING: usize = 512;

/// The same comes out in whatever pieces it arrives; what comes out needs no further change, is hardly longer, and
/// its properties can be read by `lapin`.
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
        // What is too short for a head is no message.
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
    screen.into_ready()
}

/// A frame's type and payload, and what follows it.
fn frame(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(FRAME_HEAD)?;
    let size = u32::from_be_bytes(head[3..].try_into().expect("four bytes"));
    let (payload, rest) = rest.split_at_checked(usize::try_from(size).ok()?)?;
    Some((head[0], payload, rest.get(1..)?))
}
