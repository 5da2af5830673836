//! A minimal AMQP 0-9-1 publisher. It sends the bytes it is given, which a client library would
//! refuse.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// RabbitMQ's maximum frame size. Bodies are smaller here.
const FRAME_MAX: u32 = 128 << 10;

/// A connection with one channel in confirm mode.
pub struct Raw(TcpStream);

impl Raw {
    pub fn connect(url: &str) -> Self {
        let url = url::Url::parse(url).expect("a URL");
        let address = (url.host_str().expect("a host"), url.port().expect("a port"));
        let stream = TcpStream::connect(address).expect("it listens");
        (stream.set_read_timeout(Some(Duration::from_secs(60)))).expect("not zero");
        let mut raw = Self(stream);
        raw.0.write_all(b"AMQP\0\0\x09\x01").expect("sent");
        raw.expect(10, 10);
        let login = [
            &[0, 0, 0, 0][..],
            &short(b"PLAIN"),
            &long(b"\0guest\0guest"),
            &short(b"en_US"),
        ];
        raw.method(0, 10, 11, &login.concat());
        raw.expect(10, 30);
        // One channel, no heartbeats.
        let tuned = [&[0, 1][..], &FRAME_MAX.to_be_bytes(), &[0, 0]];
        raw.method(0, 10, 31, &tuned.concat());
        raw.call(0, (10, 40), (10, 41), &[&short(b"/")[..], &[0, 0]].concat());
        raw.call(1, (20, 10), (20, 11), &[0]);
        raw.call(1, (85, 10), (85, 11), &[0]);
        raw
    }

    /// Publishes to `exchange` and waits for the confirm. `properties` are the flags and values.
    pub fn publish(&mut self, exchange: &str, key: &[u8], properties: &[u8], body: &[u8]) {
        let to = [&[0, 0][..], &short(exchange.as_bytes()), &short(key), &[0]];
        self.method(1, 60, 40, &to.concat());
        let size = (body.len() as u64).to_be_bytes();
        let header = [&[0, 60, 0, 0][..], &size, properties].concat();
        self.frame(HEADER, 1, &header);
        self.frame(BODY, 1, body);
        self.expect(60, 80);
    }

    /// Binds `queue` to `exchange` with `#`.
    pub fn bind(&mut self, queue: &str, exchange: &str) {
        let arguments = [
            &[0, 0][..],
            &short(queue.as_bytes()),
            &short(exchange.as_bytes()),
            &short(b"#"),
            &[0, 0, 0, 0, 0],
        ];
        self.call(1, (50, 20), (50, 21), &arguments.concat());
    }

    fn call(&mut self, channel: u16, ask: (u16, u16), answer: (u16, u16), arguments: &[u8]) {
        self.method(channel, ask.0, ask.1, arguments);
        self.expect(answer.0, answer.1);
    }

    fn method(&mut self, channel: u16, class: u16, method: u16, arguments: &[u8]) {
        let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
        self.frame(METHOD, channel, &payload);
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let channel = channel.to_be_bytes();
        let frame = [&[kind][..], &channel, &long(payload), &[0xce]].concat();
        self.0.write_all(&frame).expect("sent");
    }

    fn expect(&mut self, class: u16, method: u16) {
        let mut head = [0; 7];
        self.0.read_exact(&mut head).expect("an answer");
        let [.., a, b, c, d] = head;
        let mut rest = vec![0; u32::from_be_bytes([a, b, c, d]) as usize + 1];
        self.0.read_exact(&mut rest).expect("a whole frame");
        let wanted = [class.to_be_bytes(), method.to_be_bytes()].concat();
        let text = String::from_utf8_lossy(&rest);
        assert!(rest.starts_with(&wanted), "not {class}.{method}: {text}");
    }
}

pub fn short(text: &[u8]) -> Vec<u8> {
    let length = u8::try_from(text.len()).expect("a short text");
    [&[length], text].concat()
}

pub fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short enough");
    [&length.to_be_bytes(), bytes].concat()
}
