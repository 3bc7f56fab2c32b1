//! TLS to the members: the trusted CAs, the client certificate, and failures in words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use super::endpoint::{Endpoint, Host};
use crate::error::{Code, Error, Result};
use crate::plain_file;

/// The limit in bytes of a file of certificates.
const LARGEST_FILE: usize = 1 << 20;
/// The versions that etcd speaks.
const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

/// The files of certificates. Each path is empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The certificates of the CAs that members' certificates are signed by.
    pub ca: PathBuf,
    /// The client certificate, followed by those of intermediate CAs.
    pub cert: PathBuf,
    /// The private key of the client certificate.
    pub key: PathBuf,
}

/// A configuration of TLS, ready for use.
#[derive(Clone, Debug)]
pub struct Tls {
    /// None without a CA: then https is refused.
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads and checks the files.
    pub fn load(files: &Files) -> Result<Tls> {
        let has_ca = !files.ca.as_os_str().is_empty();
        let config = has_ca.then(|| configure(files)).transpose()?;
        Ok(Tls { config: config.map(Arc::new) })
    }

    /// A new session with a member.
    pub fn session(&self, endpoint: &Endpoint) -> Result<ClientConnection> {
        let refused = |why: &dyn std::fmt::Display| {
            Error::new(Code::INVALID_CONFIG, format!("TLS with {endpoint}: {why}"))
        };
        let config = self.config.clone().ok_or_else(|| refused(&"etcd.ca is missing"))?;
        let name = match &endpoint.host {
            Host::Address(address) => ServerName::from(*address),
            Host::Name(name) => ServerName::try_from(name.clone()).map_err(|e| refused(&e))?,
        };
        ClientConnection::new(config, name).map_err(|e| refused(&e))
    }
}

/// The error of TLS in an error of its stream.
pub fn error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A failure of TLS, with what the reader can do.
pub fn explain(endpoint: &Endpoint, failure: &io::Error) -> Error {
    use rustls::{AlertDescription as Alert, CertificateError as Invalid, Error as Failed};
    let advice = match error(failure) {
        Some(Failed::InvalidCertificate(Invalid::UnknownIssuer | Invalid::BadSignature)) => {
            "etcd.ca must have the CA of the members' certificates"
        }
        Some(Failed::InvalidCertificate(Invalid::ExpiredContext { .. })) => {
            "renew the certificate of that member"
        }
        Some(Failed::InvalidCertificate(Invalid::NotValidYetContext { .. })) => {
            "is the clock of this node right?"
        }
        Some(Failed::InvalidCertificate(Invalid::NotValidForNameContext { .. })) => {
            "add the name or address to the certificate, or use one of its names in etcd.endpoints"
        }
        Some(Failed::AlertReceived(Alert::CertificateExpired)) => "renew the client certificate",
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

fn configure(files: &Files) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&VERSIONS)
        .map_err(|e| of_file("ca", &files.ca, &e))?
        .with_root_certificates(read_roots(&files.ca)?);
    if files.cert.as_os_str().is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let chain = read_certificates("cert", &files.cert)?;
    let key = read_key(&files.key)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let cert = files.cert.display();
            of_file("key", &files.key, &format_args!("not the key of the certificate in {cert}"))
        }
        other => of_file("cert", &files.cert, &other),
    })
}

fn read_roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let mut certificates = read_certificates("ca", path)?.into_iter();
    certificates.try_for_each(|one| roots.add(one)).map_err(|e| of_file("ca", path, &e))?;
    Ok(roots)
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

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let text = read("key", path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
        let problem = of_file("key", path, &"no private key in it");
        problem.expecting("a file in PEM form without a password: -----BEGIN PRIVATE KEY-----")
    })
}

fn read(key: &str, path: &Path) -> Result<Vec<u8>> {
    // Certificates are rotated by changing a symlink.
    let text = plain_file::read_configuration(path).map_err(|e| {
        Error::io(format_args!("etcd.{key}: read {}", path.display()), &e)
            .with_code(Code::INVALID_CONFIG)
    })?;
    if text.len() > LARGEST_FILE {
        return Err(of_file(key, path, &format_args!("longer than {LARGEST_FILE} bytes")));
    }
    Ok(text)
}

fn of_file(key: &str, path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::config(format_args!("etcd.{key}"), format_args!("{}: {problem}", path.display()))
}
