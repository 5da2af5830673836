//! A process's resource usage according to the kernel.

use std::fs;
use std::time::Duration;

use crate::servers::Rabbit;

/// A server's resource usage so far.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Processor time since its start, in user space and in the kernel, in steps of 10 ms.
    pub cpu: Duration,
    /// Memory in kB.
    pub resident_kb: u64,
    /// Number of open files and sockets.
    pub files: usize,
}

impl Usage {
    /// Returns the usage of RabbitMQ's Erlang machine.
    pub fn of(rabbit: &Rabbit) -> Self {
        let file = rabbit.folder().join("beam.pid");
        let text = fs::read_to_string(file).expect("it runs");
        let pid = text.split_whitespace().next().expect("an id");
        let pid = pid.parse().expect("an id");
        let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours");
        Self {
            cpu: cpu(pid),
            resident_kb: status(pid, "VmRSS:"),
            files: files.count(),
        }
    }
}

/// Returns the processor time of a process since its start, in user space and in the kernel, in
/// steps of 10 ms. It may have ended.
pub fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    let stat = stat.expect("it is ours, and nobody has waited for it");
    // The program's name, in parentheses, may contain spaces. From the state after it on, utime and
    // stime are the fields 11 and 12.
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let times = fields.expect("a state").skip(11).take(2);
    let ticks: u64 = times.map(|time| time.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
}

/// Returns a field of a process's status, in kB.
pub fn status(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.expect("a process that runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    number.unwrap_or_else(|| panic!("the process has ended: {field} is missing"))
}
