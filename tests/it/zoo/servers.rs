//! The limiters. Each is configured as its documentation shows, prints a line for each call (`ZOO
//! TENANT STATUS MILLISECONDS`), and is killed with its test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kit::MS;
use kit::process::Process;
use kit::servers::free_port;
use tempfile::TempDir;
use tokio::time::sleep;

/// How long a limiter may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A kind of limiter.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `limit_req` of nginx: the rate of its zone, and its burst parameters.
    Nginx(&'static str, &'static str),
    /// HAProxy with a stick table of request rates.
    Haproxy,
    /// A middleware from npm, by its name in `node/limiters.mjs`.
    Node(&'static str),
    /// A strategy of the Python library `limits`.
    Python(&'static str),
}

/// A running limiter.
pub struct Limiter {
    process: Process,
    pub url: String,
    /// Holds its configuration.
    _folder: TempDir,
}

/// A call as a limiter saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterCall {
    pub tenant: String,
    pub status: u16,
    /// Milliseconds on the limiter's clock.
    pub at_ms: u64,
}

impl Limiter {
    /// Starts a limiter. Another program may take its port first, so it is started up to three
    /// times.
    pub async fn start(kind: Kind) -> Self {
        for _ in 0..3 {
            let folder = tempfile::tempdir().expect("a folder");
            let port = free_port();
            let process = Process::start(kind.command(folder.path(), port));
            let begun = Instant::now();
            while begun.elapsed() < START_TIMEOUT {
                if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Self {
                        process,
                        url: format!("http://127.0.0.1:{port}/"),
                        _folder: folder,
                    };
                }
                sleep(5 * MS).await;
            }
            println!("{kind:?} does not listen: {:?}", process.log());
        }
        panic!("{kind:?} does not start");
    }

    /// Returns all calls until now.
    pub fn seen(&self) -> Vec<LimiterCall> {
        self.process
            .log()
            .iter()
            .filter_map(|line| LimiterCall::read(line))
            .collect()
    }

    /// Returns how many calls it let through.
    pub fn admitted(&self) -> usize {
        self.process.count(&["ZOO ", " 200 "])
    }
}

impl LimiterCall {
    fn read(line: &str) -> Option<Self> {
        let (_, line) = line.split_once("ZOO ")?;
        let mut words = line.split_whitespace();
        Some(Self {
            tenant: words.next()?.to_owned(),
            status: words.next()?.parse().ok()?,
            at_ms: words.next()?.replace('.', "").parse().ok()?,
        })
    }
}

impl Kind {
    fn command(self, folder: &Path, port: u16) -> Command {
        let text_in = |name: &str, text: String| {
            let file = folder.join(name);
            std::fs::write(&file, text).expect("written");
            file
        };
        match self {
            Self::Nginx(rate, burst) => {
                let file = text_in("nginx.conf", nginx(folder, port, rate, burst));
                let mut command = Command::new("/usr/sbin/nginx");
                command.arg("-p").arg(folder).arg("-c").arg(file);
                command
            }
            Self::Haproxy => {
                let file = text_in("haproxy.cfg", haproxy(port));
                let mut command = Command::new("/usr/sbin/haproxy");
                command.arg("-db").arg("-f").arg(file);
                command
            }
            Self::Node(name) => {
                let mut command = Command::new("node");
                let script = node_folder().join("limiters.mjs");
                command.arg(script).arg(name).arg(port.to_string());
                command
            }
            Self::Python(strategy) => {
                let mut command = Command::new(python_folder().join("bin/python"));
                let script = own_folder("python").join("limiters.py");
                command.arg(script).arg(strategy).arg(port.to_string());
                command
            }
        }
    }
}

/// Limits each tenant. nginx runs `return` before `limit_req`, so a second server sends the answer.
fn nginx(folder: &Path, port: u16, rate: &str, burst: &str) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 256; }}
http {{
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  log_format zoo 'ZOO $http_x_tenant $status $msec';
  limit_req_zone $http_x_tenant zone=t:1m rate={rate};
  server {{
    listen 127.0.0.1:{port};
    access_log /dev/stdout zoo;
    location / {{ limit_req zone=t{burst}; limit_req_status 429; proxy_pass http://unix:{folder}/up; }}
  }}
  server {{ listen unix:{folder}/up; access_log off; location / {{ return 200; }} }}
}}
"
    )
}

fn haproxy(port: u16) -> String {
    format!(
        "global
  log stdout format raw local0
defaults
  mode http
  timeout client 1m
  timeout server 1m
  timeout connect 5s
frontend api
  bind 127.0.0.1:{port}
  log global
  http-request capture req.hdr(x-tenant) len 64
  log-format \"ZOO %[capture.req.hdr(0)] %ST %Ts%ms\"
  stick-table type string len 64 size 1k expire 1m store http_req_rate(2s)
  http-request track-sc0 req.hdr(x-tenant)
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 20 }}
  http-request return status 200
"
    )
}

/// Returns a folder of this suite's sources.
fn own_folder(name: &str) -> PathBuf {
    kit::root().join("tests/it/zoo").join(name)
}

/// Installs packages once, and again when the files in `pins` change. Returns their folder.
fn installed(name: &str, pins: &[&str], install: impl Fn(&Path)) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().expect("no holder panics");
    let folder = kit::root().join("target/zoo").join(name);
    let mark = folder.join("installed");
    let source = own_folder(name);
    let text: String = (pins.iter())
        .map(|file| std::fs::read_to_string(source.join(file)).expect("a file of ours"))
        .collect();
    if std::fs::read_to_string(&mark).is_ok_and(|there| there == text) {
        return folder;
    }
    // The folder does not exist the first time.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    for file in std::fs::read_dir(&source).expect("a folder of ours") {
        let file = file.expect("a file").path();
        let name = file.file_name().expect("a name");
        std::fs::copy(&file, folder.join(name)).expect("copied");
    }
    install(&folder);
    std::fs::write(mark, text).expect("written");
    folder
}

fn run(command: &mut Command) {
    let output = command.output();
    let output = output
        .unwrap_or_else(|why| panic!("{command:?}: {why} (scripts/test installs what is missing)"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn node_folder() -> PathBuf {
    let pins = ["package.json", "package-lock.json", "limiters.mjs"];
    installed("node", &pins, |folder| {
        let args = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
        run(Command::new("npm").args(args).current_dir(folder));
    })
}

fn python_folder() -> PathBuf {
    installed("python", &["requirements.txt"], |folder| {
        run(Command::new("/usr/bin/python3")
            .args(["-m", "venv", "."])
            .current_dir(folder));
        let args = ["install", "--quiet", "--no-deps", "-r", "requirements.txt"];
        run(Command::new("bin/pip").args(args).current_dir(folder));
    })
}
