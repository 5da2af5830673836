//! Files of jobs that a user wrote for `sluicegate simulate --jobs`.

use simulator::jobs::{JobsError, SimulatedJob, read};

/// Checks a file with one job per line.
///
/// Jobs must be sorted by time, and each must become a message. An error must be one short line
/// that says where it is.
pub fn check(data: &[u8]) {
    let jobs = match read(data) {
        Ok(jobs) => jobs,
        Err(why) => {
            let words = why.to_string();
            assert!(
                words.chars().count() <= 500 && !words.contains(char::is_control),
                "{words}"
            );
            if let JobsError::Line { line, .. } = why {
                assert!(
                    line >= 1 && line <= data.iter().filter(|byte| **byte == b'\n').count() + 1
                );
            }
            return;
        }
    };
    assert!(!jobs.is_empty() && jobs.is_sorted_by(|one, two| one.at <= two.at));
    for (id, job) in jobs.iter().enumerate() {
        assert_eq!(job.check(), Ok(()));
        assert_eq!(
            job.message(id, Some("x-plan")).id(),
            Some(id.to_string().as_str())
        );
        // A written job is read as the same job.
        let line = serde_json::to_string(job).expect("a job can be written");
        let again: Vec<SimulatedJob> = read(line.as_bytes()).expect("and read");
        assert_eq!(again.len(), 1);
    }
}
