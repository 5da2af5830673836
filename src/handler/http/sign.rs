//! Signs calls by [Standard Webhooks][spec]: an HMAC-SHA256 of the call's ID, time and body. The
//! receiver can verify the sender and that the call is unchanged.
//!
//! [spec]: https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

/// Keys, each of which signs every call.
pub(super) struct Signer(Vec<hmac::Key>);

impl Signer {
    pub(super) fn new(keys: &[Vec<u8>]) -> Self {
        let key = |key: &Vec<u8>| hmac::Key::new(hmac::HMAC_SHA256, key);
        Self(keys.iter().map(key).collect())
    }

    /// Returns the value of `webhook-signature` for a call with these values of `webhook-id` and
    /// `webhook-timestamp` (seconds since the epoch).
    pub(super) fn signature(&self, id: &[u8], timestamp: u64, body: &[u8]) -> String {
        let signed = |key: &hmac::Key| {
            let mut context = hmac::Context::with_key(key);
            context.update(id);
            context.update(format!(".{timestamp}.").as_bytes());
            context.update(body);
            format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
        };
        let signatures: Vec<String> = self.0.iter().map(signed).collect();
        signatures.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::signing_keys;

    /// The example of the specification's own libraries.
    #[test]
    fn a_signature_follows_the_specification() {
        let (id, timestamp) = (b"msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330);
        let body = br#"{"test": 2432232314}"#;
        let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let sign = |keys: &str| {
            let keys = signing_keys(keys).expect("keys");
            Signer::new(&keys).signature(id, timestamp, body)
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(sign(key), expected);
        let other = format!("whsec_{}", BASE64_STANDARD.encode([7; 24]));
        let both = sign(&format!("{other} {key}"));
        let (first, second) = both.split_once(' ').expect("two of them");
        assert_eq!(second, expected);
        assert!(first.starts_with("v1,") && first != expected);
    }
}
