//! Whom the handler trusts when the downstream speaks TLS.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Trusts what the system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` in the environment say where that is).
///
/// # Errors
/// In words, when that is nobody.
pub(super) fn system() -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems have one that can't be read among hundreds; the others are good.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let why = found.errors.first().map(|why| format!(": {why}"));
        return Err(format!(
            "the system has no root certificates{}; install them (package ca-certificates)",
            why.unwrap_or_default()
        ));
    }
    config(roots)
}

/// Trusts the certificates in `pem`, and nobody else.
///
/// # Errors
/// In words, when there are none or one can't be read.
pub(super) fn only(pem: &[u8]) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|why| format!("the CA certificates: {why}"))?;
        roots
            .add(certificate)
            .map_err(|why| format!("the CA certificates: {why}"))?;
    }
    if roots.is_empty() {
        return Err("the CA certificates: there is none in PEM form".to_owned());
    }
    config(roots)
}

/// For a downstream without TLS.
///
/// # Errors
/// None that is known of.
pub(super) fn nobody() -> Result<ClientConfig, String> {
    config(RootCertStore::empty())
}

fn config(roots: RootCertStore) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| why.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
