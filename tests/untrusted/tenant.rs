//! Names of tenants, and the Redis keys made from them.

use std::time::Duration;

use gate::keys::Keys;
use percent_encoding::percent_decode_str;
use rules::layout::Layout;
use rules::limit::{Algorithm, Limit};
use rules::scope::{Labels, Scope};
use rules::slots::hash_tag;
use rules::tenant::{MAX_TENANT_BYTES, Tenant};

/// Checks two tenant ids, separated by a zero byte, which neither can contain.
///
/// A key must contain the name in a form that can be decoded. Two tenants must not share a key, nor
/// a tenant and a label. A name must not end or begin a hash tag.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (one, two) = text.split_once('\0').unwrap_or((text, "other"));
    let parsed = [one, two].map(Tenant::parse);
    for (text, tenant) in [one, two].into_iter().zip(&parsed) {
        let fine = (1..=MAX_TENANT_BYTES).contains(&text.len()) && !text.contains(char::is_control);
        assert_eq!(tenant.is_ok(), fine, "{text:?}");
    }
    let [Ok(one), Ok(two)] = parsed else { return };
    for tenant in [&one, &two] {
        let key = tenant.key();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~@+%".contains(&byte);
        assert!(key.bytes().all(plain), "{key}");
        assert!(key.len() <= 3 * MAX_TENANT_BYTES);
        let decoded = percent_decode_str(&key).decode_utf8();
        assert_eq!(decoded.as_deref(), Ok(tenant.as_str()));
    }
    for keys in [Keys::new("p"), Keys::new("p").in_cluster()] {
        let [all, others] =
            [(&one, &two), (&two, &one)].map(|(tenant, label)| names(&keys, tenant, label));
        let shared = all.iter().filter(|name| others.contains(name));
        // Keys shared by all tenants have the same name for all of them.
        let shared = shared.filter(|name| !name.contains("%global")).count();
        assert_eq!(shared > 0, one == two, "{all:?} {others:?}");
        let ours = [keys.epoch(None), keys.policies(None), keys.epoch(Some(1))];
        assert!(all.iter().all(|name| !ours.contains(name)));
    }
    let keys = Keys::new("p").in_cluster();
    for name in names(&keys, &one, &two) {
        let tag = hash_tag(&name);
        assert!(
            tag == Some(&one.key()) || name.contains("%global"),
            "{name}"
        );
    }
}

/// Returns the keys of `tenant` if its jobs have the name of `label` as their label.
fn names(keys: &Keys, tenant: &Tenant, label: &Tenant) -> Vec<String> {
    let scopes = [
        Scope::Tenant,
        Scope::Header(label.as_str().to_owned()),
        Scope::RoutingKey,
        Scope::Global,
    ];
    let limits: Vec<Limit> = (scopes.into_iter().zip(["a", "b", "c", "d"]))
        .map(|(scope, name)| {
            let (window, guard) = (Duration::from_secs(60), Duration::ZERO);
            let limit = Limit::new(name, Algorithm::FixedWindow, 5, window, guard);
            limit.expect("in range").with_scope(scope)
        })
        .collect();
    let labels = Labels::of(&limits, |_| label.as_str().to_owned());
    let layout = Layout::of(&limits, tenant, &labels);
    keys.call(&layout, &limits, 120_000).names
}
