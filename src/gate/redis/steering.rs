//! Operators' instructions in Redis: the boards, and the answers about single jobs.

use ::redis::Value;

use super::RedisGate;
use crate::{GateError, scripts};
use rules::steering::{JobSighting, SIGHTING_KEPT_MS, Sighting};
use rules::tenant::Tenant;

impl RedisGate {
    /// Runs `policies.lua` on a registry, with the arguments `more`. Returns its reply.
    pub(crate) async fn run_policies(
        &self,
        registry: &str,
        more: Vec<String>,
    ) -> Result<Value, GateError> {
        let key = (registry.to_owned(), "hash");
        let call = self.keyed(scripts::policies(), "all-policies", key, more);
        self.run_one(call).await
    }

    /// Runs `steer.lua` on the board `key`, with the arguments `more`. Returns its reply.
    pub(crate) async fn run_board(&self, key: &str, more: Vec<String>) -> Result<Value, GateError> {
        let key = (key.to_owned(), "hash");
        let call = self.keyed(scripts::steer(), "all-workers", key, more);
        self.run_one(call).await
    }

    /// Runs `audit.lua` with the arguments `more`. Returns its reply.
    pub async fn run_audit(&self, more: Vec<String>) -> Result<Value, GateError> {
        let key = (self.keys.audit(), "zset");
        let call = self.keyed(scripts::audit(), "all-operators", key, more);
        self.run_one(call).await
    }

    /// Stores a worker's answers about jobs.
    pub(super) async fn store_sightings(&self, batch: &[JobSighting]) -> Result<(), GateError> {
        let unwritable = |why: serde_json::Error| GateError::Refused(why.to_string());
        let calls = batch.iter().map(|of| {
            let text = serde_json::to_string(&of.sighting).map_err(unwritable)?;
            let key = (self.keys.sighting(&of.tenant, &of.job), "string");
            let more = [text, SIGHTING_KEPT_MS.to_string()];
            Ok(self.keyed(scripts::sighting(), of.tenant.as_str(), key, more))
        });
        let calls = calls.collect::<Result<_, GateError>>()?;
        let replies = self.run(calls, None).await?;
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
        let key = (self.keys.sighting(tenant, job), "string");
        let call = self.keyed(scripts::sighting(), tenant.as_str(), key, ["", "0"]);
        let reply = self.run_one(call).await?;
        let text: String = ::redis::from_redis_value_ref(&reply).unwrap_or_default();
        // An answer in another version's format counts as none.
        Ok(serde_json::from_str(&text).ok())
    }
}
