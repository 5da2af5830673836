//! Answers of `/api/v1` as the page reads them. Views have no other source but the charts.

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Debug, Deserialize)]
pub struct WorkersJson {
    pub now_ms: u64,
    pub workers: Vec<WorkerJson>,
    pub not_known: NotKnownJson,
}

#[derive(Debug, Deserialize)]
pub struct WorkerJson {
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
pub struct NotKnownJson {
    pub silent_workers: Vec<String>,
    pub unread_workers: Vec<UnreadJson>,
    pub unasked_workers: u64,
    pub unread_servers: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct UnreadJson {
    pub name: String,
    pub why: String,
}

#[derive(Debug, Deserialize)]
pub struct TenantsJson {
    pub now_ms: u64,
    pub workers: u64,
    pub tenants: Vec<TenantJson>,
    pub tenants_not_shown: u64,
    pub tenants_untold: Option<String>,
    pub left_out: LeftOutJson,
    pub not_known: NotKnownJson,
    pub next_offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct TenantJson {
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
pub struct LeftOutJson {
    pub tenants_at_most: Option<u64>,
    pub waiting_in_memory: u64,
}

#[derive(Debug, Deserialize)]
pub struct InstructionsJson {
    pub held: Option<String>,
    pub held_until_ms: Option<u64>,
    pub diverted: Vec<DivertedJson>,
    pub cancelled: Vec<CancelledJson>,
}

#[derive(Debug, Deserialize)]
pub struct DivertedJson {
    pub tenant: String,
    pub queue: String,
    pub until_ms: u64,
}

#[derive(Debug, Deserialize)]
pub struct CancelledJson {
    pub tenant: String,
    pub id: String,
    pub until_ms: u64,
}

#[derive(Debug, Deserialize)]
pub struct InspectedJson {
    pub source: String,
    pub now_ms: u64,
    pub labels_missing: Vec<String>,
    pub limits: Vec<LimitJson>,
    pub shadows: Vec<ShadowJson>,
    pub waiting: Option<u64>,
    pub waiting_by_level: Map<String, Value>,
    pub waitlist_end_in_ms: Option<u64>,
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
    pub advertised: Vec<AdvertisedJson>,
    pub redis_round_trip_ms: u64,
    pub in_force: bool,
    pub other_configurations: Vec<OtherJson>,
}

#[derive(Debug, Deserialize)]
pub struct LimitJson {
    pub name: String,
    pub algorithm: String,
    pub max_requests: u64,
    pub configured_max_requests: u64,
    pub window_ms: u64,
    pub calendar: Option<String>,
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
pub struct ShadowJson {
    pub name: String,
    pub max_requests: u64,
    pub window_ms: u64,
    pub calendar: Option<String>,
    pub set_until_ms: Option<u64>,
    pub starts: Option<u64>,
    pub would_have_waited: Option<u64>,
    pub longest_wait_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct AdvertisedJson {
    pub limit: u64,
    pub window_ms: Option<u64>,
    pub exceeded: Option<ExceededJson>,
}

#[derive(Debug, Deserialize)]
pub struct ExceededJson {
    pub warning: String,
}

#[derive(Debug, Deserialize)]
pub struct OtherJson {
    pub until_ms: u64,
    pub limits: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct LettersJson {
    pub letters: Vec<LetterRowJson>,
    pub found: u64,
    pub not_looked_at: u64,
    pub next_offset: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct LetterRowJson {
    pub id: Option<String>,
    pub tenant: Option<String>,
    pub reason: String,
    pub bytes: u64,
    pub died_ms: Option<u64>,
    pub attempt: Option<u64>,
    pub waits: u64,
}

#[derive(Debug, Deserialize)]
pub struct LetterJson {
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
pub struct AuditJson {
    pub entries: Vec<EntryJson>,
    pub next: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct EntryJson {
    pub number: u64,
    pub at_ms: u64,
    pub operator: String,
    pub peer: String,
    pub action: String,
    pub of: Map<String, Value>,
    pub request: Value,
    pub failed: Option<String>,
}
