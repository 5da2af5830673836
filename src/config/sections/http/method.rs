//! `dispatch.http.method`.

use strum::{IntoStaticStr, VariantArray};

use crate::reading::{ShownValue, show};
use rules::named::Named;

/// `dispatch.http.method`
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "UPPERCASE")]
pub enum Method {
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
    /// `GET`
    Get,
}

impl Named for Method {}
show!(ShownValue::named => Method);

impl Method {
    /// Returns true if requests carry the job's body. With other methods a body has no meaning (RFC
    /// 9110, 9.3), and some servers reject it.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }
}
