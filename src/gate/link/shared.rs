//! Links that several gates of one process have in common.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Link;
use crate::config::RedisServers;
use crate::gate::GateError;

/// One link for all who name the same servers in the same way. It ends with the last of them.
#[derive(Default)]
pub struct Links(Mutex<Vec<(RedisServers, Weak<Link>)>>);

impl Links {
    /// The link to `servers`. It does not connect yet.
    ///
    /// # Errors
    /// [`GateError::Refused`] when a url is no Redis url.
    pub fn to(&self, servers: &RedisServers) -> Result<Arc<Link>, GateError> {
        // What it holds is whole at any time.
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
    use crate::config::SecretUrl;

    #[test]
    fn those_who_name_the_same_servers_have_one_link_as_long_as_they_are_there() {
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
        assert_eq!(links.0.lock().expect("nobody panics").len(), 2);
    }
}
