//! Reports how many bytes of a TCP connection the peer's kernel has not acknowledged.
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

use std::os::fd::AsFd;

/// Returns the number of bytes written to the TCP connection `socket` that the peer's kernel has
/// not acknowledged, including bytes that are not sent yet. An acknowledged byte is in the peer's
/// memory, whether or not its program has read it. Returns `None` if the operating system does not
/// report this number, or `socket` is not a TCP connection.
#[cfg(target_os = "linux")]
pub fn unacked(socket: &impl AsFd) -> Option<usize> {
    use std::os::fd::AsRawFd;

    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed and so open, and the kernel writes one int through a
    // pointer to one. The kernel calls this request SIOCOUTQ; it has the same number as TIOCOUTQ.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => usize::try_from(bytes).ok(),
        _ => None,
    }
}

/// Returns `None`: only Linux reports the number.
#[cfg(not(target_os = "linux"))]
pub fn unacked(_socket: &impl AsFd) -> Option<usize> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::unacked;

    #[test]
    fn received_bytes_are_acknowledged_before_they_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has one");
        // The test never accepts the connection.
        let mut client = TcpStream::connect(address).expect("the backlog has room");
        assert_eq!(unacked(&client), Some(0));
        client.write_all(b"hello").expect("there is room");
        let started = Instant::now();
        while unacked(&client) != Some(0) {
            assert!(started.elapsed() < Duration::from_secs(30));
        }
    }

    #[test]
    fn bytes_without_buffer_space_are_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has one");
        let mut client = TcpStream::connect(address).expect("the backlog has room");
        client.set_nonblocking(true).expect("it can be");
        let mut written = 0;
        while let Ok(bytes) = client.write(&[0; 64 * 1024]) {
            written += bytes;
        }
        let left = unacked(&client).expect("it is a connection");
        assert!(0 < left && left < written, "{left} of {written}");
        let (mut server, _) = listener.accept().expect("it is in the backlog");
        let mut read = vec![0; written];
        server.read_exact(&mut read).expect("all of it comes");
        let started = Instant::now();
        while unacked(&client) != Some(0) {
            assert!(started.elapsed() < Duration::from_secs(30));
        }
    }

    #[test]
    fn other_sockets_have_no_acknowledgements() {
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(unacked(&file), None);
    }
}
