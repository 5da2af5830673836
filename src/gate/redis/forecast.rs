//! When the units of a waitlist have their turns, as things stand and if something were different.

use super::RedisGate;
use crate::gate::GateError;
use crate::gate::{reply, scripts};
use crate::rules::forecast::{Asked, Schedule};
use crate::rules::limit::Limit;
use crate::rules::scope::Labels;
use crate::rules::tenant::Tenant;

impl RedisGate {
    /// In one look at the state of `tenant`'s jobs with `labels`, which is left as it is: the turns under the limits `as_it_is`, and
    /// as they `would_be`. Both sets tell jobs apart by the same scopes.
    ///
    /// # Errors
    /// [`GateError`]
    pub async fn forecast(
        &self,
        (tenant, labels): (&Tenant, &Labels),
        as_it_is: &[Limit],
        would_be: &Asked,
    ) -> Result<[Schedule; 2], GateError> {
        let both = [as_it_is, &would_be.limits].concat();
        let more = reply::forecast_arguments(as_it_is.len(), would_be);
        let call = self.call(scripts::forecast, (tenant, labels), &both, more);
        let reply = self.run_one(call).await?;
        reply::forecasted(&reply, [as_it_is.len(), would_be.limits.len()])
    }
}
