//! `dispatch.http.method`.

use super::key::NamedValue;

/// `dispatch.http.method`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// `POST`
    #[default]
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

impl Method {
    /// Returns the name in a request.
    pub fn name(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Get => "GET",
        }
    }

    /// Returns true if requests carry the job's body. With other methods a body has no meaning (RFC
    /// 9110, 9.3), and some servers reject it.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }
}

impl NamedValue for Method {
    fn all() -> Vec<(&'static str, Self)> {
        [Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Get]
            .map(|method| (method.name(), method))
            .into()
    }
}
