//! Answers of `/api/v1` as the page reads them. Views have no other source but the charts.

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub struct Workers {
    pub now_ms: u64,
    pub workers: Vec<Worker>,
    pub not_known: NotKnown,
}

#[derive(Debug, Deserialize)]
pub struct Worker {
    pub name: String,
    pub host: String,
    pub pid: u32,
    pub version: String,
    pub up_ms: u64,
    pub said_ms_ago: u64,
    pub ready: bool,
    pub notes: Vec<String>,
    pub calls_in_flight: u64,
    pub worker_slots: u64,
    pub saturation: f64,
    pub starts_per_s: f64,
    pub denials_per_s: f64,
    pub jobs_in_memory: u64,
    pub jobs_waiting: u64,
    pub quota_idle: u64,
}

#[derive(Debug, Deserialize)]
pub struct NotKnown {
    pub silent_workers: Vec<String>,
    pub unread_workers: Vec<Unread>,
    pub unasked_workers: u64,
    pub unread_servers: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct Unread {
    pub name: String,
    pub why: String,
}

#[derive(Debug, Deserialize)]
pub struct Tenants {
    pub now_ms: u64,
    pub workers: u64,
    pub tenants: Vec<Tenant>,
    pub tenants_not_shown: u64,
    pub tenants_untold: Option<String>,
    pub left_out: LeftOut,
    pub not_known: NotKnown,
    pub next_offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Tenant {
    pub tenant: String,
    pub waiting: Option<u64>,
    pub waiting_in_memory: u64,
    pub calls_in_flight: u64,
    pub starts_per_s: f64,
    pub denials_per_s: f64,
    pub suspended_until_ms: u64,
    pub suspended_by: Option<String>,
    pub line_ends_ms: u64,
    pub limit: Option<String>,
    pub at_least: bool,
}

#[derive(Debug, Deserialize)]
pub struct LeftOut {
    pub tenants_at_most: Option<u64>,
    pub waiting_in_memory: u64,
}

#[derive(Debug, Deserialize)]
pub struct Instructions {
    pub held: Option<String>,
    pub held_until_ms: Option<u64>,
    pub diverted: Vec<Diverted>,
    pub cancelled: Vec<Cancelled>,
}

#[derive(Debug, Deserialize)]
pub struct Diverted {
    pub tenant: String,
    pub queue: String,
    pub until_ms: u64,
}

#[derive(Debug, Deserialize)]
pub struct Cancelled {
    pub tenant: String,
    pub id: String,
    pub until_ms: u64,
}

#[derive(Debug, Deserialize)]
pub struct Inspected {
    pub source: String,
    pub now_ms: u64,
    pub labels_missing: Vec<String>,
    pub limits: Vec<Limit>,
    pub shadows: Vec<Shadow>,
    pub waiting: Option<u64>,
    pub waiting_by_level: Map<String, Value>,
    pub line_end_in_ms: Option<u64>,
    pub new_job_in_ms: Option<u64>,
    pub recovery_wait_until_ms: Option<u64>,
    pub recovery_wait_reason: Option<String>,
    pub suspended_until_ms: u64,
    pub suspended_by: String,
    pub all_suspended_until_ms: Option<u64>,
    pub all_suspended_by: Option<String>,
    pub all_suspended_unread: Option<String>,
    pub held: Option<String>,
    pub diverted_to: Option<String>,
    pub reason: String,
    pub advertised: Vec<Advertised>,
    pub redis_round_trip_ms: u64,
    pub in_force: bool,
    pub other_configurations: Vec<Other>,
}

#[derive(Debug, Deserialize)]
pub struct Limit {
    pub name: String,
    pub algorithm: String,
    pub max_requests: u64,
    pub configured_max_requests: u64,
    pub window_ms: u64,
    pub burst: Option<u64>,
    pub unit: String,
    pub guard: String,
    pub scope: String,
    pub operator_max_requests: Option<u64>,
    pub override_until_ms: u64,
    pub used: Option<u64>,
    pub used_by_calls: Option<u64>,
    pub free: Option<u64>,
    pub next_in_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Shadow {
    pub name: String,
    pub max_requests: u64,
    pub window_ms: u64,
    pub set_until_ms: Option<u64>,
    pub starts: Option<u64>,
    pub would_have_waited: Option<u64>,
    pub longest_wait_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Advertised {
    pub limit: u64,
    pub window_ms: Option<u64>,
    pub exceeded: Option<Exceeded>,
}

#[derive(Debug, Deserialize)]
pub struct Exceeded {
    pub warning: String,
}

#[derive(Debug, Deserialize)]
pub struct Other {
    pub until_ms: u64,
    pub limits: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct Letters {
    pub letters: Vec<LetterRow>,
    pub found: u64,
    pub not_looked_at: u64,
    pub next_offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct LetterRow {
    pub id: Option<String>,
    pub tenant: Option<String>,
    pub reason: String,
    pub bytes: u64,
    pub died_ms: Option<u64>,
    pub attempt: Option<u64>,
    pub waits: u64,
}

#[derive(Debug, Deserialize)]
pub struct Letter {
    pub id: Option<String>,
    pub tenant: Option<String>,
    pub reason: String,
    pub content_type: Option<String>,
    pub headers: Map<String, Value>,
    pub encoding: String,
    pub body: String,
    pub bytes: u64,
    pub truncated: bool,
}

#[derive(Debug, Deserialize)]
pub struct Audit {
    pub entries: Vec<Entry>,
    pub next: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Entry {
    pub number: u64,
    pub at_ms: u64,
    pub operator: String,
    pub peer: String,
    pub action: String,
    pub of: Map<String, Value>,
    pub request: Value,
    pub failed: Option<String>,
}
