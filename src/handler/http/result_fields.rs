//! The parts of an answer that belong into its job's result: chosen headers and the body, without
//! our secrets.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName};

use super::redaction::{drop_begun, hide};
use crate::ApiAnswer;
use config::{Results, ResultsTo};

/// Selects the parts of an answer that are kept.
pub(super) struct ResultFields {
    headers: Vec<HeaderName>,
    /// Maximum number of bytes of the body.
    pub max_body: usize,
}

impl ResultFields {
    /// Creates the selection, or returns `None` if there are no results.
    pub fn new(results: &Results) -> Option<Self> {
        (results.to != ResultsTo::None).then(|| Self {
            headers: results.headers.clone(),
            max_body: results.max_body,
        })
    }

    /// Returns the kept parts of an answer whose body begins with `start`; `cut` says whether it
    /// may go on. `secrets` are ours, longest first, and are hidden: an API that echoes its request
    /// must not reveal them to publishers.
    pub fn answered(
        &self,
        status: u16,
        headers: &HeaderMap,
        (start, cut): (Vec<u8>, bool),
        secrets: &[String],
    ) -> ApiAnswer {
        let text = |name: &HeaderName| {
            let values: Vec<_> = (headers.get_all(name).iter())
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            let text = (!values.is_empty()).then(|| values.join(", "))?;
            let shown = hide(text.as_bytes(), secrets);
            Some(String::from_utf8_lossy(&shown).into_owned())
        };
        let chosen = self.headers.iter();
        let chosen = chosen.filter_map(|name| Some((name.to_string(), text(name)?)));
        let whole = start.len();
        let mut body = start;
        body.truncate(self.max_body);
        let truncated = cut || body.len() < whole;
        let mut body = hide(&body, secrets);
        if truncated {
            drop_begun(&mut body, secrets);
        }
        ApiAnswer {
            status: Some(status),
            headers: chosen.collect(),
            content_type: text(&CONTENT_TYPE),
            content_encoding: text(&CONTENT_ENCODING),
            body: Bytes::from(body),
            truncated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(max_body: usize) -> ResultFields {
        let results = Results {
            to: ResultsTo::ReplyTo,
            exchange: None,
            routing_key: String::new(),
            headers: vec![HeaderName::from_static("location")],
            max_body,
        };
        ResultFields::new(&results).expect("somebody wants it")
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let value = value.parse().expect("a value");
            (HeaderName::from_static(name), value)
        });
        pairs.collect()
    }

    #[test]
    fn a_result_has_chosen_headers_and_the_bounded_body() {
        let headers = headers(&[
            ("location", "/orders/7"),
            ("set-cookie", "a"),
            ("content-type", "text/plain"),
        ]);
        let body = |text: &str, cut| (text.as_bytes().to_vec(), cut);
        let result = collected(4).answered(201, &headers, body("abcd", false), &[]);
        assert_eq!(result.status, Some(201));
        assert_eq!(
            result.headers,
            [("location".to_owned(), "/orders/7".to_owned())]
        );
        assert_eq!(result.content_type.as_deref(), Some("text/plain"));
        assert_eq!((&result.body[..], result.truncated), (&b"abcd"[..], false));
        for (text, cut) in [("abcde", false), ("abcd", true)] {
            let result = collected(4).answered(201, &headers, body(text, cut), &[]);
            assert_eq!((&result.body[..], result.truncated), (&b"abcd"[..], true));
        }
    }

    #[test]
    fn echoed_secrets_are_hidden_in_results() {
        let secrets = ["hunter22".to_owned(), "***".to_owned(), "x".to_owned()];
        let headers = headers(&[("location", "/?key=hunter22")]);
        let mut body = b"\xff hunter22 and hunter22, and hunt".to_vec();
        let result = collected(100).answered(200, &headers, (body.clone(), true), &secrets);
        assert_eq!(&result.body[..], b"\xff *** and ***, and ");
        assert_eq!(result.headers[0].1, "/?key=***");
        // The bound cuts a secret in two.
        body.truncate(8);
        let result = collected(7).answered(200, &headers, (body, false), &secrets);
        assert_eq!(&result.body[..], b"\xff ");
    }
}
