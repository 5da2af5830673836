//! Which shard each tenant is in: the gate decides for those of different shards apart from each other.

use std::fmt;
use std::sync::Arc;

use crate::gate::ShardId;
use crate::rules::tenant::Tenant;

type Of = dyn Fn(&Tenant) -> ShardId + Send + Sync;

/// What the gate says of each tenant; by default all are in one shard.
#[derive(Clone, Default)]
pub struct Shards(Option<Arc<Of>>);

impl Shards {
    /// `of` may say another one for a tenant when the store has changed: what is under way then ends where it was sent.
    pub fn by(of: impl Fn(&Tenant) -> ShardId + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }

    /// The one that `tenant` is in now.
    pub fn of(&self, tenant: &Tenant) -> ShardId {
        (self.0.as_ref()).map_or_else(ShardId::default, |of| of(tenant))
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shards")
    }
}
