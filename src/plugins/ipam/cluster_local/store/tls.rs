//! TLS to the members: the trusted CAs, the client certificate, and failures in words.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore,
    SupportedProtocolVersion,
};

use super::endpoint::{Endpoint, Host};
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::service::log::timestamp;

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
    files: Arc<Files>,
    /// None without a CA: then https is refused.
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads and checks the files.
    pub fn load(files: &Files) -> Result<Tls> {
        let config = match files.ca.as_os_str().is_empty() {
            true => None,
            false => Some(Arc::new(configure(files)?)),
        };
        Ok(Tls { files: Arc::new(files.clone()), config })
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
        let mut session = ClientConnection::new(config, name).map_err(|e| refused(&e))?;
        session.set_buffer_limit(None); // of the bytes that are handed over: one request
        Ok(session)
    }

    /// What a failure of TLS means, and what the reader can do.
    pub fn explain(&self, endpoint: &Endpoint, failure: &io::Error) -> Error {
        let what = format!("TLS with {endpoint}");
        let (problem, advice) = match error(failure) {
            None => return Error::io(what, failure),
            Some(rustls::Error::InvalidCertificate(error)) => {
                explain_certificate(&self.files, error)
            }
            Some(rustls::Error::AlertReceived(alert)) => explain_alert(&self.files, *alert),
            Some(rustls::Error::InvalidMessage(_)) => {
                ("the member does not speak TLS".into(), "is its URL http://?".into())
            }
            Some(other) => (other.to_string(), String::new()),
        };
        Error::new(Code::IO, format!("{what}: {problem}")).with_details(advice)
    }
}

/// The error of TLS in an error of its stream.
pub fn error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn explain_certificate(files: &Files, error: &CertificateError) -> (String, String) {
    use CertificateError as E;
    let ca = files.ca.display();
    match error {
        E::UnknownIssuer | E::BadSignature => (
            format!("the member's certificate is not signed by a CA in {ca}"),
            "etcd.ca must have the CA of the members' certificates".into(),
        ),
        E::ExpiredContext { not_after, .. } => (
            format!("the member's certificate expired on {}", date(*not_after)),
            "renew it on that member".into(),
        ),
        E::NotValidYetContext { not_before, .. } => (
            format!("the member's certificate is valid from {}", date(*not_before)),
            "is the clock of this node right?".into(),
        ),
        E::NotValidForNameContext { expected, presented } => (
            format!(
                "the member's certificate is for {}, not for {}",
                presented.join(", "),
                expected.to_str()
            ),
            "add the name or address to the certificate, or use one of its names in etcd.endpoints"
                .into(),
        ),
        other => (format!("the member's certificate is refused: {other}"), String::new()),
    }
}

fn explain_alert(files: &Files, alert: AlertDescription) -> (String, String) {
    use AlertDescription as A;
    let cert = files.cert.display();
    match alert {
        A::CertificateRequired | A::HandshakeFailure if files.cert.as_os_str().is_empty() => (
            "the member asks for a client certificate, and etcd.cert is missing".into(),
            "set etcd.cert and etcd.key".into(),
        ),
        A::BadCertificate | A::UnknownCA | A::CertificateUnknown | A::AccessDenied | A::DecryptError => (
            format!("the member refuses the client certificate {cert} ({alert:?})"),
            "it must be signed by the CA of the member's --trusted-ca-file and be for client authentication".into(),
        ),
        A::CertificateExpired => {
            (format!("the member says that the client certificate {cert} has expired"), "renew it".into())
        }
        other => (format!("the member ended TLS with {other:?}"), String::new()),
    }
}

fn date(time: UnixTime) -> String {
    timestamp(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
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
    builder.with_client_auth_cert(chain, key).map_err(|e| mismatch(files, &e))
}

fn mismatch(files: &Files, error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => of_file(
            "key",
            &files.key,
            &format_args!("not the key of the certificate in {}", files.cert.display()),
        ),
        other => of_file("cert", &files.cert, other),
    }
}

fn read_roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("ca", path)? {
        roots.add(certificate).map_err(|e| of_file("ca", path, &e))?;
    }
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
