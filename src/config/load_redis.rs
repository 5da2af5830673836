//! Reads where Redis is, and reports what does not fit together.

use super::load_tls::TlsKeys;
use super::redis::{self, RedisServers, RedisTopology};
use super::secret::SecretUrl;
use super::values::Values;
use super::{form, value};

/// Seeds of a cluster, and sentinels, at most.
const MOST_SERVERS: usize = 32;
const TLS: TlsKeys = ["redis.ca-file", "redis.cert-file", "redis.key-file"];
const REDIS_URL: &str = "redis://user:password@host:6379/0";

impl Values {
    pub(super) fn redis_servers(&mut self) -> Option<RedisServers> {
        let url = self.redis_urls("redis.url", "redis.url-file", REDIS_URL);
        let sentinels = self.redis_urls(
            "redis.sentinels",
            "redis.sentinels-file",
            "redis://host:26379",
        );
        let key = "redis.cluster";
        let cluster = self
            .entry(key)
            .map(|_| ())
            .map(|()| self.get(key, form::boolean));
        let tls = self.tls(TLS);
        let cluster = match cluster {
            Some(parsed) => Some(parsed?),
            None => None,
        };
        let (urls, sentinels, tls) = (url??, sentinels?, tls?);
        let url_key = self.set_of("redis.url", "redis.url-file");
        let topology = match (sentinels, cluster) {
            (Some(_), Some(true)) => {
                return self.wrong(key, "is true, and redis.sentinels is set; keep one of them");
            }
            (Some(_), _) if urls.len() > 1 => {
                return self.wrong(
                    url_key,
                    "names several servers; with redis.sentinels it names the primary, such as redis://user:password@NAME/0",
                );
            }
            (Some(sentinels), _) => RedisTopology::Sentinel(sentinels),
            (None, Some(false)) if urls.len() > 1 => {
                return self.wrong(
                    key,
                    "is false, and redis.url names several servers; give one",
                );
            }
            (None, cluster) if cluster == Some(true) || urls.len() > 1 => RedisTopology::Cluster,
            (None, _) => RedisTopology::Single,
        };
        if let Some(words) = redis::unlike(&urls) {
            return self.wrong(url_key, words);
        }
        if topology == RedisTopology::Cluster && redis::has_database(&urls) {
            return self.wrong(url_key, "names a database; a cluster has database 0 alone");
        }
        let mut encrypted = redis::has_tls(&urls);
        if let RedisTopology::Sentinel(sentinels) = &topology {
            encrypted |= redis::has_tls(sentinels);
            if let Some(words) = redis::unlike(sentinels) {
                let key = self.set_of("redis.sentinels", "redis.sentinels-file");
                return self.wrong(key, words);
            }
        }
        if !encrypted {
            self.tls_unused(TLS, "the urls begin with rediss://")?;
        }
        Some(RedisServers {
            urls,
            topology,
            tls,
        })
    }

    /// One url, or several with commas between them or as a list.
    fn redis_urls(
        &mut self,
        key: &'static str,
        file_key: &'static str,
        example: &str,
    ) -> Option<Option<Vec<SecretUrl>>> {
        let must = format!("a url such as {example}");
        self.secret(key, file_key, &must, true, |text| {
            let urls = redis::split(text, "redis");
            if urls.len() > MOST_SERVERS {
                return Err(format!(
                    "names {} servers; {MOST_SERVERS} are enough",
                    urls.len()
                ));
            }
            let url = |url: &String| value::secret_url(url, ["redis", "rediss"], example);
            urls.iter().map(url).collect()
        })
    }

    /// Which of the two is set; the first, if none is.
    pub(super) fn set_of(&self, key: &'static str, file_key: &'static str) -> &'static str {
        match (self.entry(key), self.entry(file_key)) {
            (None, Some(_)) => file_key,
            _ => key,
        }
    }
}
