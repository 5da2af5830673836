//! Links shared by several gates of one process.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Link;
use crate::GateError;
use config::RedisServers;

/// One link for all users of the same servers with the same settings. It closes with its last user.
#[derive(Default)]
pub struct Links(Mutex<Vec<(RedisServers, Weak<Link>)>>);

impl Links {
    /// Returns the link to `servers`. It does not connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] if a URL is not a Redis URL.
    pub fn to(&self, servers: &RedisServers) -> Result<Arc<Link>, GateError> {
        // The list is consistent at any time, so a panic while it was locked does no harm.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, link)| link.strong_count() > 0);
        let same = known.iter().find(|(of, _)| of == servers);
        if let Some(link) = same.and_then(|(_, link)| link.upgrade()) {
            return Ok(link);
        }
        let link = Arc::new(Link::new(servers)?);
        known.push((servers.clone(), Arc::downgrade(&link)));
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::SecretUrl;

    #[test]
    fn users_of_the_same_servers_share_one_link() {
        let links = Links::default();
        let to = |url: &str| {
            let servers = RedisServers::from(&SecretUrl::new(url));
            links.to(&servers).expect("a url")
        };
        let (one, same, other) = (to("redis://h"), to("redis://h"), to("redis://:p@h"));
        assert!(Arc::ptr_eq(&one, &same));
        assert!(!Arc::ptr_eq(&one, &other));
        let gone = Arc::downgrade(&other);
        drop(other);
        assert!(gone.upgrade().is_none());
        drop(to("redis://:p@h"));
        assert_eq!(links.0.lock().expect("no panic").len(), 2);
    }
}
