//! Types of values that several sections have, such as secrets, URLs and files for TLS.

pub(super) mod amqp_name;
pub(super) mod amqp_servers;
pub(super) mod header;
pub(super) mod pipeline_name;
pub(super) mod redis_servers;
pub(super) mod secret;
pub(super) mod tls;
pub(super) mod url_parts;
pub(super) mod urls;
