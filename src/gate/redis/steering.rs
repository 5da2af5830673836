//! Operators' instructions in Redis: the boards, and the answers about single jobs.

use ::redis::Value;

use super::{RedisGate, placeholder_tenant};
use crate::{GateError, scripts};
use rules::steering::{JobSighting, SIGHTING_KEPT_MS, Sighting};
use rules::tenant::Tenant;

impl RedisGate {
    /// Runs `steer.lua` on the board `key`, with the arguments `more`. Returns its reply.
    pub(crate) async fn run_board(&self, key: &str, more: Vec<String>) -> Result<Value, GateError> {
        let placeholder = placeholder_tenant("all-workers")?;
        let more = more.into_iter().map(String::into_bytes).collect();
        let mut call = self.call_tenant(scripts::steer(), &placeholder, more);
        call.keys.names = vec![key.to_owned()];
        self.run_one(call).await
    }

    /// Runs `audit.lua` with the arguments `more`. Returns its reply.
    pub async fn run_audit(&self, more: Vec<String>) -> Result<Value, GateError> {
        let placeholder = placeholder_tenant("all-operators")?;
        let more = more.into_iter().map(String::into_bytes).collect();
        let mut call = self.call_tenant(scripts::audit(), &placeholder, more);
        call.keys.names = vec![self.keys.audit()];
        call.keys.types = vec!["zset"];
        self.run_one(call).await
    }

    /// Stores a worker's answers about jobs.
    pub(super) async fn store_sightings(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        let unwritable = |why: serde_json::Error| GateError::Refused(why.to_string());
        let texts: Vec<Vec<u8>> = (batch.iter())
            .map(|sighted| serde_json::to_vec(&sighted.sighting).map_err(unwritable))
            .collect::<Result<_, _>>()?;
        let calls = batch
            .iter()
            .zip(texts)
            .map(|(JobSighting { tenant, job, .. }, text)| {
                let kept_ms = SIGHTING_KEPT_MS.to_string().into_bytes();
                let mut call = self.call_tenant(scripts::sighting(), tenant, vec![text, kept_ms]);
                call.keys.names = vec![self.keys.sighting(tenant, job)];
                call.keys.types = vec!["string"];
                call
            });
        let replies = self.run(calls.collect(), None).await?;
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// Returns the last answer of any worker about a job.
    ///
    /// # Errors
    /// [`GateError`] if Redis can't be asked.
    pub async fn sighting(
        &self,
        tenant: &Tenant,
        job: &str,
    ) -> Result<Option<Sighting>, GateError> {
        let more = vec![Vec::new(), b"0".to_vec()];
        let mut call = self.call_tenant(scripts::sighting(), tenant, more);
        call.keys.names = vec![self.keys.sighting(tenant, job)];
        call.keys.types = vec!["string"];
        let reply = self.run_one(call).await?;
        let text: String = ::redis::from_redis_value_ref(&reply).unwrap_or_default();
        // An answer in another version's format counts as none.
        Ok(serde_json::from_str(&text).ok())
    }
}
