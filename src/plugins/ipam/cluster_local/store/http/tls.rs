//! TLS to the members: the trusted CAs, the client certificate, and failures in words.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use super::super::settings::Access;
use super::endpoint::Endpoint;
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// The versions that etcd speaks.
/// The longest file with certificates or a key.
const LARGEST_FILE: usize = 1 << 20;
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// A configuration of TLS, ready for use; None without a CA: then https is refused.
pub type Tls = Option<Arc<ClientConfig>>;

/// Reads and checks the files.
pub fn load(access: &Access) -> Result<Tls> {
    let Access { ca, cert, key, .. } = access;
    if ca.as_os_str().is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("ca", ca)? {
        roots.add(certificate).map_err(|e| of_file("ca", ca, &e))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&VERSIONS)
        .map_err(|e| of_file("ca", ca, &e))?
        .with_root_certificates(roots);
    if cert.as_os_str().is_empty() {
        return Ok(Some(Arc::new(builder.with_no_client_auth())));
    }
    let chain = read_certificates("cert", cert)?;
    let secret = PrivateKeyDer::from_pem_slice(&read("key", key)?).map_err(|_| {
        let problem = of_file("key", key, &"no private key in it");
        problem.expecting("a file in PEM form without a password: -----BEGIN PRIVATE KEY-----")
    })?;
    let config = builder.with_client_auth_cert(chain, secret).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let cert = cert.display();
            of_file("key", key, &format_args!("not the key of the certificate in {cert}"))
        }
        other => of_file("cert", cert, &other),
    })?;
    Ok(Some(Arc::new(config)))
}

/// A new session with a member.
pub fn session(tls: &Tls, endpoint: &Endpoint) -> Result<ClientConnection> {
    let refused =
        |why: &dyn Display| Error::new(Code::INVALID_CONFIG, format!("TLS with {endpoint}: {why}"));
    let config = tls.clone().ok_or_else(|| refused(&"etcd.ca is missing"))?;
    ClientConnection::new(config, endpoint.host.clone()).map_err(|e| refused(&e))
}

/// The error of TLS in an error of its stream.
pub fn error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A failure of TLS, with what the reader can do.
pub fn explain(endpoint: &Endpoint, failure: &io::Error) -> Error {
    use rustls::{CertificateError as Invalid, Error as Failed};
    let advice = match error(failure) {
        Some(Failed::InvalidCertificate(invalid)) => match invalid {
            Invalid::UnknownIssuer | Invalid::BadSignature => {
                "etcd.ca must have the CA of the members' certificates"
            }
            Invalid::ExpiredContext { .. } => "renew the certificate of that member",
            Invalid::NotValidYetContext { .. } => "is the clock of this node right?",
            Invalid::NotValidForNameContext { .. } => {
                "add the name or address to the certificate, or use one of its names in \
                 etcd.endpoints"
            }
            _ => "",
        },
        Some(Failed::AlertReceived(_)) => {
            "etcd.cert must be signed by the CA of the member's --trusted-ca-file, be for client \
             authentication, and not have expired"
        }
        Some(Failed::InvalidMessage(_)) => "is its URL http://?",
        Some(_) => "",
        // TLS 1.3 refuses a client certificate after the handshake, and the refusal may be lost.
        None => "its log may say more: does it speak TLS, and accept the client certificate?",
    };
    Error::io(format_args!("TLS with {endpoint}"), failure).with_details(advice)
}

fn read_certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(key, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|e| of_file(key, path, &e))?;
    if found.is_empty() {
        let problem = of_file(key, path, &"no certificate in it");
        return Err(problem.expecting("a file in PEM form: -----BEGIN CERTIFICATE-----"));
    }
    Ok(found)
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>> {
    // Certificates are rotated by changing a symlink.
    plain_file::read_configuration_of(path, LARGEST_FILE).map_err(|e| {
        Error::io(format_args!("etcd.{key}: read {}", path.display()), &e)
            .with_code(Code::INVALID_CONFIG)
    })
}

fn of_file(key: &str, path: &Path, problem: &dyn Display) -> Error {
    Error::config(format_args!("etcd.{key}"), format_args!("{}: {problem}", path.display()))
}
