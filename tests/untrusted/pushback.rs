//! Response headers about limits: `Retry-After`, `RateLimit` and its relatives, `x-actual-cost`.

use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use rules::answers::{Answers, Consequence};
use rules::answers::{Excess, Interpretation, Quotas, ReceivedAnswer, verdict};
use rules::limit::{Algorithm, Limit};

/// Maximum time for which an answer closes a tenant.
const MAX_DURATION: Duration = Duration::from_secs(1 << 31);

/// Checks an answer: `data` is a status in two bytes, then one header per line.
///
/// A wait must be within its bounds. The presence of other headers must not matter. Stored quotas
/// must be read as they are written, and be comparable with our limits.
pub fn check(data: &[u8]) {
    let Some((status, rest)) = data.split_first_chunk() else {
        return;
    };
    let status = match u16::from_be_bytes(*status) {
        status @ 100..=599 => status,
        other => [200, 429, 503, 404][usize::from(other % 4)],
    };
    let headers = rest.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        Some((name, value))
    });
    let mut headers: HeaderMap = headers.collect();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let answers = Answers::default();
    let read = |headers: &HeaderMap| {
        let answer = ReceivedAnswer {
            status,
            headers,
            body: None,
        };
        verdict(&answers, &answer, now)
    };
    let all = read(&headers);
    let Interpretation {
        meaning,
        seen: info,
        ..
    } = all;
    let wait = |wait: Option<Duration>| {
        assert!(wait.is_none_or(|wait| (Duration::from_secs(1)..=MAX_DURATION).contains(&wait)));
    };
    wait(info.refused.and_then(|pushback| pushback.after));
    wait(info.used_up);
    assert_eq!(info.refused.is_some(), meaning == Consequence::Throttle);
    match status {
        429 => assert!(info.refused.is_some()),
        400..=599 => {}
        _ => assert_eq!(info.refused, None),
    }
    assert!(info.refused.is_none() || info.used_up.is_none());

    for (name, value) in [("content-type", "text/plain"), ("x-rate", "9")] {
        headers.append(name, HeaderValue::from_static(value));
    }
    assert_eq!(read(&headers), all);

    quotas(&info.quotas);
}

fn quotas(quotas_read: &Quotas) {
    assert_eq!(
        Quotas::read(&quotas_read.text()),
        *quotas_read,
        "{}",
        quotas_read.text()
    );
    let ours = Limit::new(
        "x",
        Algorithm::TokenBucket,
        20,
        Duration::from_secs(60),
        Duration::ZERO,
    );
    let ours = [ours.expect("in range")];
    for quota in quotas_read.iter() {
        assert!(quota.limit > 0);
        assert!(
            quota
                .window
                .is_none_or(|window| !window.is_zero() && window <= MAX_DURATION)
        );
        if let Some(excess) = Excess::of(&ours, quota) {
            assert!(excess.allowed() > Some(quota.limit));
            assert!(!excess.to_string().contains(char::is_control));
        }
    }
}
