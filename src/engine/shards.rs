//! Maps tenants to shards. The gate decides for tenants of different shards separately.

use std::fmt;
use std::sync::Arc;

use gate::ShardId;
use rules::tenant::Tenant;

type ShardFn = dyn Fn(&Tenant) -> ShardId + Send + Sync;

/// The gate's mapping. By default, all tenants are in one shard.
#[derive(Clone, Default)]
pub struct Shards(Option<Arc<ShardFn>>);

impl Shards {
    /// Uses the mapping `of`. It may return a different shard for a tenant after the store has
    /// changed. Requests in flight then end in the shard to which they were sent.
    pub fn from_grouping(of: impl Fn(&Tenant) -> ShardId + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }

    /// Returns the current shard of `tenant`.
    pub fn of(&self, tenant: &Tenant) -> ShardId {
        (self.0.as_ref()).map_or_else(ShardId::default, |of| of(tenant))
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shards")
    }
}
