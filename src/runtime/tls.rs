//! Client TLS for RabbitMQ and the downstream: trusted authorities, client certificates, and advice
//! on errors. The Redis client library builds its own TLS configuration from the same files.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, InvalidMessage, RootCertStore};

use config::{Pems, Tls};

/// Returns the configuration for a server whose certificate must be signed by an authority of
/// `tls.ca-file`, or by one of the system's if `tls` names none. Reads the files and blocks
/// meanwhile.
///
/// # Errors
/// A message for the operator: a file can't be used, or no trusted authority was found.
pub fn client(tls: &Tls) -> Result<ClientConfig, String> {
    let pems = tls.read().map_err(|why| why.to_string())?;
    let roots = match &pems.ca {
        Some(pem) => only(pem)?,
        None => system()?,
    };
    build(roots, &pems)
}

/// Returns a configuration that trusts no authority, for a server without TLS. Reads no files.
///
/// # Errors
/// No known case.
#[cfg(feature = "http")]
pub fn untrusting() -> Result<ClientConfig, String> {
    build(RootCertStore::empty(), &Pems::default())
}

/// Loads the root certificates that the system trusts. The environment variables `SSL_CERT_FILE`
/// and `SSL_CERT_DIR` override their location.
fn system() -> Result<RootCertStore, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems ship an unreadable certificate among hundreds of good ones: ignore it.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|why| format!(": {why}"));
        return Err(format!(
            "the system has no root certificates{}; install them (package ca-certificates)",
            why.unwrap_or_default()
        ));
    }
    Ok(roots)
}

/// Returns a store that trusts only the certificates in `pem`.
fn only(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|why| format!("ca-file: {why}"))?;
        let added = roots.add(certificate);
        added.map_err(|why| format!("ca-file: holds a certificate that can't be used: {why}"))?;
    }
    Ok(roots)
}

fn build(roots: RootCertStore, pems: &Pems) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?
        .with_root_certificates(roots);
    let Some((cert, key)) = &pems.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|why| format!("cert-file: {why}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|why| format!("key-file: {why}"))?;
    (builder.with_client_auth_cert(chain, key)).map_err(|why| format!("cert-file: {why}"))
}

/// Returns advice on the TLS error `why` if a change of our configuration can help. `section` is
/// the configuration section with the server's TLS keys.
pub fn advice(why: &(dyn Error + 'static), section: &str) -> Option<String> {
    match failure(why)? {
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => Some(format!(
                "the server requires a client certificate: set {section}.cert-file and \
                {section}.key-file"
            )),
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => Some(format!(
                "the server rejects the client certificate: check the issuer and the expiry of \
                {section}.cert-file"
            )),
            // TLS 1.2 has no alert of its own for a missing client certificate.
            AlertDescription::HandshakeFailure => Some(format!(
                "the server may require a client certificate: {section}.cert-file and \
                {section}.key-file"
            )),
            _ => None,
        },
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(
            "the server does not answer with TLS: check the port, or use a URL without TLS"
                .to_owned(),
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => Some(format!(
            "the server's certificate is not signed by a trusted authority: see {section}.ca-file"
        )),
        // `openssl req -x509` makes such certificates. rustls exposes no type for this webpki
        // error.
        rustls::Error::InvalidCertificate(CertificateError::Other(why))
            if why.to_string().contains("CaUsedAsEndEntity") =>
        {
            Some(
                "the server uses the certificate of an authority (CA:TRUE): use one that the \
                authority signed, or create it with CA:FALSE"
                    .to_owned(),
            )
        }
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Some(
            "the server's certificate is not valid at this machine's time: renew it, or correct \
            the clock"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns the advice of [`advice`] for an error `why` while a TLS connection was being set up. A
/// server that rejects our certificate may close the connection while we are still writing, and its
/// alert is lost. A closed connection therefore gets advice, too.
pub fn setup_advice(why: &(dyn Error + 'static), section: &str) -> Option<String> {
    let closed = |why: &io::Error| {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let kinds = [
            BrokenPipe,
            ConnectionAborted,
            ConnectionReset,
            UnexpectedEof,
        ];
        kinds.contains(&why.kind())
    };
    advice(why, section).or_else(|| {
        let closed = causes(why).any(|cause| cause.downcast_ref().is_some_and(closed));
        closed.then(|| {
            format!(
                "the server closed the connection: it may require a valid client certificate, \
            {section}.cert-file and {section}.key-file; see its log"
            )
        })
    })
}

/// Returns the TLS error among the causes of `why`.
fn failure<'a>(why: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(why).find_map(|cause| cause.downcast_ref())
}

/// Iterates over `why` and all its causes.
fn causes<'a>(why: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(why), |&error| {
        // An I/O error or an `Arc` reports the source of the error that it wraps, and skips that
        // error itself.
        if let Some(wrapped) = error.downcast_ref().and_then(io::Error::get_ref) {
            Some(wrapped)
        } else if let Some(wrapped) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
            Some(&**wrapped)
        } else {
            error.source()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_tls_gets_advice_on_the_port() {
        let why = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        let advice = advice(&io::Error::other(why), "redis");
        assert!(advice.is_some_and(|text| text.contains("check the port")));
    }
}
