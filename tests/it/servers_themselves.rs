//! The private servers do what tests rely on: they keep their data, freeze, come back, and leave
//! nothing behind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use kit::servers::{Rabbit, Redis, Server};

/// A frozen server accepts connections (its kernel does) and answers nothing. Once resumed, it
/// answers.
fn frozen_then_answering(url: &str, hello: &[u8], pause: impl Fn(), resume: impl Fn()) {
    let url = url::Url::parse(url).expect("the scripts print a URL");
    let address = (url.host_str().expect("a host"), url.port().expect("a port"));
    pause();
    let mut stream = TcpStream::connect(address).expect("the kernel accepts");
    stream.write_all(hello).expect("the kernel buffers");
    let mut byte = [0];
    stream
        .set_read_timeout(Some(Duration::from_millis(300)))
        .expect("not zero");
    assert!(stream.read(&mut byte).is_err(), "a frozen server answered");
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .expect("not zero");
    resume();
    assert_eq!(stream.read(&mut byte).expect("a thawed server answers"), 1);
}

#[test]
fn a_killed_redis_comes_back_with_its_data_and_leaves_nothing_behind() {
    let redis = Redis::start();
    redis.ctl(&["set", "k", "v"]);
    frozen_then_answering(
        redis.url(),
        b"PING\r\n",
        || redis.pause(),
        || redis.resume(),
    );
    for end in [Server::kill, Server::stop] {
        end(&redis);
        assert_eq!(redis.try_ctl(&["ping"]), None);
        redis.restart();
        assert_eq!(redis.try_ctl(&["get", "k"]).as_deref(), Some("v"));
    }
    redis.restart_empty();
    assert_eq!(redis.ctl(&["get", "k"]), "");
    let folder = redis.folder().to_owned();
    assert!(folder.exists());
    drop(redis);
    assert!(!folder.exists());
}

#[test]
fn a_killed_rabbitmq_comes_back_with_its_data_and_leaves_nothing_behind() {
    let rabbit = Rabbit::start();
    rabbit.ctl(&["add_vhost", "kept"]);
    frozen_then_answering(
        rabbit.url(),
        b"AMQP\0\0\x09\x01",
        || rabbit.pause(),
        || rabbit.resume(),
    );
    rabbit.kill();
    rabbit.restart();
    assert!(rabbit.ctl(&["list_vhosts"]).contains("kept"));
    rabbit.stop();
    rabbit.restart();
    assert!(rabbit.ctl(&["list_vhosts"]).contains("kept"));
    let folder = rabbit.folder().to_owned();
    assert!(folder.exists());
    drop(rabbit);
    assert!(!folder.exists());
}
