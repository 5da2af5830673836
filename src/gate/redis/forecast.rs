//! When the units of a waitlist have their turns, now and under other limits.

use super::RedisGate;
use crate::GateError;
use crate::{reply, scripts};
use rules::gate::forecast::{ForecastRequest, Schedule};
use rules::limit::Limit;
use rules::scope::Labels;
use rules::tenant::Tenant;

impl RedisGate {
    /// Computes the turns of `tenant`'s jobs with `labels` under the limits `as_it_is` and under
    /// `would_be`, from one look at the state. Changes nothing. Both sets of limits must
    /// distinguish jobs by the same scopes.
    ///
    /// # Errors
    /// [`GateError`] if the state can't be read.
    pub async fn forecast(
        &self,
        (tenant, labels): (&Tenant, &Labels),
        as_it_is: &[Limit],
        would_be: &ForecastRequest,
    ) -> Result<[Schedule; 2], GateError> {
        let both = [as_it_is, &would_be.limits].concat();
        let more = reply::forecast_arguments(as_it_is.len(), would_be);
        let call = self.call(scripts::forecast, (tenant, labels), &both, more);
        let reply = self.run_one(call).await?;
        reply::forecasted(&reply, [as_it_is.len(), would_be.limits.len()])
    }
}
