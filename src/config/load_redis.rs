//! Reads where Redis is, and reports what does not fit together.

use super::load::Values;
use super::redis::{self, Identity, Pem, RedisServers, RedisTls, RedisTopology};
use super::secret::SecretUrl;
use super::value;

/// The largest PEM file, in bytes: a bundle of all public CAs has some 250,000.
const LONGEST_PEM: u64 = 1 << 20;
/// Seeds of a cluster, and sentinels, at most.
const MOST_SERVERS: usize = 32;
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
            .map(|()| self.get(key, value::boolean));
        let tls = self.redis_tls();
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
            let unused = ["redis.ca-file", "redis.cert-file"]
                .into_iter()
                .find(|key| self.entry(key).is_some());
            if let Some(key) = unused {
                return self.wrong(
                    key,
                    "is of no use without TLS; let the urls begin with rediss://",
                );
            }
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
        self.secret(key, file_key, example, true, |text| {
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

    fn redis_tls(&mut self) -> Option<RedisTls> {
        let certificates = "holds no certificate that can be read; it must be a PEM file";
        let ca = self.pem("redis.ca-file", Pem::has_certificates, certificates);
        let cert = self.pem("redis.cert-file", Pem::has_certificates, certificates);
        let key = self.pem(
            "redis.key-file",
            Pem::has_key,
            "holds no private key that can be read; it must be a PEM file without a passphrase",
        );
        let identity = match (cert?, key?) {
            (Some(cert), Some(key)) => Some(Identity { cert, key }),
            (None, None) => None,
            (Some(_), None) => {
                return self.wrong("redis.cert-file", "needs its key too: set redis.key-file");
            }
            (None, Some(_)) => {
                return self.wrong(
                    "redis.key-file",
                    "needs its certificate too: set redis.cert-file",
                );
            }
        };
        Some(RedisTls { ca: ca?, identity })
    }

    /// The PEM file that `key` names, if it is set.
    fn pem(
        &mut self,
        key: &'static str,
        fits: impl Fn(&Pem) -> bool,
        words: &str,
    ) -> Option<Option<Pem>> {
        let Some(entry) = self.entry(key) else {
            return Some(None);
        };
        let read = self.named_file(entry, "the path of a PEM file", LONGEST_PEM);
        match read.map(|(name, text)| Pem::new(name, text.as_bytes())) {
            Ok(pem) if fits(&pem) => Some(Some(pem)),
            Ok(_) => self.wrong(key, words),
            Err(words) => self.wrong(key, words),
        }
    }

    /// Which of the two is set; the first, if none is.
    pub(super) fn set_of(&self, key: &'static str, file_key: &'static str) -> &'static str {
        match (self.entry(key), self.entry(file_key)) {
            (None, Some(_)) => file_key,
            _ => key,
        }
    }
}
