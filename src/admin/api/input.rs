//! Parses a request by the parameters of its route.

use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::problem::ApiProblem;
use super::routes::{ApiRoute, Param, ParamKind, ParamLocation};
use config::{closest, parse_duration};
use operator::rate::Rate;

/// Maximum size of a body in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024;

/// Values of the request's parameters, each of its parameter's kind.
#[derive(Debug, Default)]
pub struct RequestInput {
    values: Vec<(&'static str, Value)>,
    /// Fields of the body, for the audit.
    pub body: Map<String, Value>,
}

impl RequestInput {
    /// Parses the parameters in `path`, which has one part for each path parameter of `route`, and
    /// in `query`.
    ///
    /// # Errors
    /// The mistake in the request.
    pub fn of(route: &ApiRoute, path: &[&str], query: &str) -> Result<Self, ApiProblem> {
        let mut input = Self::default();
        for (param, given) in route.params_in(ParamLocation::Path).zip(path) {
            let decoded = percent_decode_str(given).decode_utf8();
            let words = || format!("{}: is not percent-encoded UTF-8", param.name);
            let text = decoded.map_err(|_| ApiProblem::wrong(words()))?;
            input.take(param, text.as_ref().into())?;
        }
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            let param = known(route, ParamLocation::Query, &name)?;
            let value = match param.kind {
                ParamKind::Number { .. } => value
                    .parse()
                    .map_or(Value::Null, |number: u64| number.into()),
                ParamKind::Flag => value.parse().map_or(Value::Null, |flag: bool| flag.into()),
                _ => value.as_ref().into(),
            };
            input.take(param, value)?;
        }
        Ok(input)
    }

    /// Parses the body, too.
    ///
    /// # Errors
    /// The mistake in the request.
    pub async fn read(
        &mut self,
        route: &ApiRoute,
        parts: &Parts,
        body: Body,
    ) -> Result<(), ApiProblem> {
        let too_large = || {
            let words = format!("the body has more than {MAX_BODY_BYTES} bytes");
            ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, words)
        };
        let announced = parts.headers.get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > MAX_BODY_BYTES) {
            return Err(too_large());
        }
        let bytes = to_bytes(body, MAX_BODY_BYTES)
            .await
            .map_err(|_| too_large())?;
        self.take_body(route, &bytes)
    }

    fn take_body(&mut self, route: &ApiRoute, bytes: &[u8]) -> Result<(), ApiProblem> {
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let object = serde_json::from_slice::<Map<String, Value>>(bytes);
        let object = object
            .map_err(|why| ApiProblem::wrong(format!("the body is not a JSON object: {why}")))?;
        self.take_fields(route, object)
    }

    /// Takes the fields of a body.
    ///
    /// # Errors
    /// The mistake in the request.
    pub fn take_fields(
        &mut self,
        route: &ApiRoute,
        object: Map<String, Value>,
    ) -> Result<(), ApiProblem> {
        for (name, value) in &object {
            let param = known(route, ParamLocation::Body, name)?;
            if !value.is_null() {
                self.take(param, value.clone())?;
            }
        }
        self.body = object;
        Ok(())
    }

    fn take(&mut self, param: &'static Param, value: Value) -> Result<(), ApiProblem> {
        let words = |why: String| ApiProblem::wrong(format!("{}: {why}", param.name));
        if !param.repeats && self.values.iter().any(|(name, _)| *name == param.name) {
            return Err(words("is given twice".to_owned()));
        }
        fits(param.kind, &value).map_err(words)?;
        self.values.push((param.name, value));
        Ok(())
    }

    fn first(&self, name: &str) -> Option<&Value> {
        let mut all = self.values.iter();
        (all.find(|(known, _)| *known == name)).map(|(_, value)| value)
    }

    /// Returns the text `name`, if given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.first(name).and_then(Value::as_str)
    }

    /// Iterates over all texts `name`.
    pub fn texts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let of_it = self.values.iter().filter(move |(known, _)| *known == name);
        of_it.filter_map(|(_, value)| value.as_str())
    }

    /// Returns the number `name`, if given.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.first(name).and_then(Value::as_u64)
    }

    /// Returns true if `name` was given as true.
    pub fn flag(&self, name: &str) -> bool {
        self.first(name) == Some(&Value::Bool(true))
    }
}

/// Returns the parameter of `route` with this name.
fn known(
    route: &ApiRoute,
    location: ParamLocation,
    name: &str,
) -> Result<&'static Param, ApiProblem> {
    if let Some(param) = (route.params_in(location)).find(|param| param.name == name) {
        return Ok(param);
    }
    let names = || route.params_in(location).map(|param| param.name);
    let hint = match (closest(name, names()), names().collect::<Vec<_>>()) {
        (Some(meant), _) => format!("did you mean {meant}?"),
        (None, all) if all.is_empty() => "there is none".to_owned(),
        (None, all) => format!("there are: {}", all.join(", ")),
    };
    let what = match location {
        ParamLocation::Body => "field",
        _ => "parameter",
    };
    Err(ApiProblem::wrong(format!(
        "there is no {what} {name:?}; {hint}"
    )))
}

fn fits(kind: ParamKind, value: &Value) -> Result<(), String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match kind {
        ParamKind::Text(max) => match text(value) {
            Some(text) if (1..=max).contains(&text.len()) => Ok(()),
            _ => Err(format!("must be a text of 1 to {max} bytes")),
        },
        ParamKind::Span => match text(value).and_then(|text| parse_duration(&text)) {
            Some(_) => Ok(()),
            None => Err("must be a duration, such as \"90s\" or \"1h\"".to_owned()),
        },
        ParamKind::Rate => match text(value).map(|text| text.parse::<Rate>()) {
            Some(Ok(_)) => Ok(()),
            Some(Err(why)) => Err(why),
            None => Err("must be a text, such as \"10/s\"".to_owned()),
        },
        ParamKind::Number { min, max } => match value.as_u64() {
            Some(number) if (min..=max).contains(&number) => Ok(()),
            _ => Err(format!("must be a whole number from {min} to {max}")),
        },
        ParamKind::Flag if value.is_boolean() => Ok(()),
        ParamKind::Flag => Err("must be true or false".to_owned()),
        ParamKind::Word(words) => match text(value) {
            Some(text) if words.contains(&text.as_str()) => Ok(()),
            _ => Err(format!("must be one of {}", words.join(", "))),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::routes::ROUTES;
    use super::*;

    #[test]
    fn unknown_and_invalid_parameters_are_refused_with_the_valid_ones() {
        let route = |path: &str| {
            let all = ROUTES.iter();
            all.clone()
                .find(|route| route.path == path)
                .expect("a route")
        };
        let tenant = route("/tenants/{tenant}");
        let input = RequestInput::of(tenant, &["a%2Fb%20%C3%BC"], "header=x=1&header=y=2&plan=p");
        let input = input.expect("it fits");
        assert_eq!(input.text("tenant"), Some("a/b ü"));
        assert_eq!(input.texts("header").collect::<Vec<_>>(), ["x=1", "y=2"]);
        let letters = route("/dead/letters");
        for (route, path, query, words) in [
            (tenant, "%ff", "", "not percent-encoded UTF-8"),
            (tenant, "a", "plan=p&plan=p", "plan: is given twice"),
            (tenant, "a", "plam=p", "did you mean plan?"),
            (tenant, "a", "plan=", "must be a text of 1 to 255 bytes"),
            (letters, "", "limit=0", "a whole number from 1 to 500"),
            (letters, "", "limit=x", "a whole number from 1 to 500"),
            (letters, "", "limit=18446744073709551616", "a whole number"),
            (letters, "", "no-tenant=1", "must be true or false"),
            (route("/pause"), "", "for=1h", "there are: pipeline"),
            (
                route("/tenants"),
                "",
                "sort=name",
                "must be one of waiting, denied, closed, starts",
            ),
        ] {
            let why = RequestInput::of(route, &[path], query).expect_err(query);
            assert!(format!("{why:?}").contains(words), "{why:?}");
        }
        for (kind, value) in [
            (ParamKind::Span, "soon"),
            (ParamKind::Rate, "10"),
            (ParamKind::Flag, "true"),
        ] {
            assert!(fits(kind, &value.into()).is_err(), "{value}");
        }
        assert!(fits(ParamKind::Flag, &true.into()).is_ok());
        assert!(
            fits(ParamKind::Span, &"1h".into()).is_ok()
                && fits(ParamKind::Rate, &"5/m".into()).is_ok()
        );
    }

    /// Generates a text that resembles a route's parameters, or any text.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "(limit|offset|for|max|header|tenant|all|rate|sort|starts|id|%[0-9a-f]{0,2}|[=&?{}\\[\\]\",:]|[0-9]{1,25}|true|1h){0,8}",
        ]
    }

    proptest! {
        #[test]
        fn every_request_is_refused_or_within_bounds(
            at in 0..ROUTES.len(),
            path in proptest::collection::vec(text(), 2),
            query in text(),
            body in prop_oneof![text().prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..64)],
        ) {
            let route = &ROUTES[at];
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            if let Ok(mut input) = RequestInput::of(route, &path, &query) {
                let _ = input.take_body(route, &body);
                for (name, value) in &input.values {
                    let of_it = |param: &&Param| param.name == *name && fits(param.kind, value).is_ok();
                    prop_assert!(route.params().any(|param| of_it(&param)), "{name}: {value}");
                }
            }
        }
    }
}
