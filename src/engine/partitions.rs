//! Which tenants the gate decides for apart from others.

use std::fmt;
use std::sync::Arc;

use crate::gate::Partition;
use crate::rules::tenant::Tenant;

type Of = dyn Fn(&Tenant) -> Partition + Send + Sync;

/// What the gate says of each tenant; by default all are in one partition.
#[derive(Clone, Default)]
pub struct Partitions(Option<Arc<Of>>);

impl Partitions {
    /// `of` may say another one for a tenant when the store has changed: what is under way then ends where it was sent.
    pub fn by(of: impl Fn(&Tenant) -> Partition + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }

    /// The one that `tenant` is in now.
    pub fn of(&self, tenant: &Tenant) -> Partition {
        (self.0.as_ref()).map_or_else(Partition::default, |of| of(tenant))
    }
}

impl fmt::Debug for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Partitions")
    }
}
