//! Certificates, users and tokens, against a real etcd.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use cni_multi::plugins::ipam::cluster_local::store::etcd::Etcd as Engine;
use cni_multi::plugins::ipam::cluster_local::store::http::endpoint::Endpoint;
use cni_multi::plugins::ipam::cluster_local::store::http::tls;
use cni_multi::plugins::ipam::cluster_local::store::settings::Access;
use cni_multi::plugins::ipam::cluster_local::store::{Key, Outcome, Store as _};

use super::etcd::{claim, done};
use crate::support::attachment::has_programs;
use crate::support::etcd::{Etcd, ONE, engine, engine_with};

const SECURE: &str = "https://127.0.0.1:2379";

/// `make NAME END SUBJECT CA`: a certificate of CA with its key.
const CERTIFICATES: &str = r#"
set -e
ca() {
  openssl ecparam -name prime256v1 -genkey -noout -out $1.key
  openssl req -x509 -new -key $1.key -days 30 -subj "/O=$1" -out $1.crt
}
make() {
  openssl ecparam -name prime256v1 -genkey -noout -out $1.ec
  openssl pkcs8 -topk8 -nocrypt -in $1.ec -out $1.key
  openssl req -new -key $1.key -subj "$3" -out $1.csr
  printf 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:10.78.0.254\nextendedKeyUsage=serverAuth,clientAuth\n' > $1.ext
  printf '[ca]\ndefault_ca=c\n[c]\nnew_certs_dir=.\ndatabase=index.txt\nrand_serial=yes\ndefault_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=optional\norganizationName=optional\n' > ca.conf
  openssl ca -batch -notext -config ca.conf -cert $4.crt -keyfile $4.key -in $1.csr -out $1.crt -extfile $1.ext -startdate 20200101000000Z -enddate $2
}
touch index.txt
ca ca; ca other
make server 20490101000000Z /O=server ca
make expired-server 20210101000000Z /O=server ca
make client 20490101000000Z /O=client ca
make named 20490101000000Z /CN=cni ca
make expired 20210101000000Z /O=client ca
make foreign 20490101000000Z /O=client other
make foreign-server 20490101000000Z /O=server other
"#;

/// Certificates in the directory of a lab.
pub(super) struct Certificates<'a>(&'a Etcd);

impl Certificates<'_> {
    /// A lab without a server, and the certificates; None without openssl.
    pub(super) fn lab() -> Option<Etcd> {
        if !has_programs(&["openssl"]) {
            return None;
        }
        let etcd = Etcd::none()?;
        etcd.lab
            .host
            .sh(&format!("cd {} && ({CERTIFICATES}) >openssl.log 2>&1", etcd.scratch.text()));
        Some(etcd)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.scratch.join(name)
    }

    fn files(&self, ca: &str, client: &str) -> Access {
        let of = |suffix: &str| match client {
            "" => PathBuf::new(),
            client => self.path(&format!("{client}.{suffix}")),
        };
        let ca = self.path(&format!("{ca}.crt"));
        Access { ca, cert: of("crt"), key: of("key"), ..Access::default() }
    }
}

/// Starts a server that asks for client certificates.
pub(super) fn start_secure(etcd: &mut Etcd, server: &str) {
    let path = |name: String| etcd.scratch.join(&name).to_str().unwrap().to_owned();
    let (ca, cert, key) =
        (path("ca.crt".into()), path(format!("{server}.crt")), path(format!("{server}.key")));
    etcd.start_one(&[
        "--listen-client-urls",
        "https://0.0.0.0:2379",
        "--advertise-client-urls",
        SECURE,
        "--cert-file",
        &cert,
        "--key-file",
        &key,
        "--client-cert-auth",
        "--trusted-ca-file",
        &ca,
    ]);
}

/// The engine with certificates and no user.
fn secure(url: &str, files: Access) -> Engine {
    engine_with(&[url], files)
}

/// The reason why a read reaches nothing.
#[track_caller]
fn refusal(mut engine: Engine) -> String {
    match engine.get(&Key::Meta) {
        Outcome::Unreachable(reason)
        | Outcome::Unknown(reason)
        | Outcome::Unauthenticated(reason)
        | Outcome::Refused(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn mutual_tls_accepts_only_what_fits() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    etcd.inside(|| {
        let of = Certificates(&etcd);
        for url in [SECURE, "https://localhost:2379"] {
            let mut engine = secure(url, of.files("ca", "client"));
            let written = done(engine.create(&claim("n1", "4-0a580100-26")));
            assert_eq!(engine.delete(&written), Outcome::Done(()), "{url}");
        }
        let cases = [
            (SECURE, "other", "client", "etcd.ca must have the CA of the members' certificates"),
            ("https://127.0.0.2:2379", "ca", "client", "or use one of its names in etcd.endpoints"),
            (SECURE, "ca", "foreign", "client authentication"),
            (SECURE, "ca", "expired", "client"),
            (SECURE, "ca", "", "client"),
        ];
        for (url, ca, client, expected) in cases {
            let reason = refusal(secure(url, of.files(ca, client)));
            assert!(reason.starts_with(&format!("TLS with {url}: ")), "{reason}");
            assert!(reason.contains(expected), "{reason}");
        }
        let plain = refusal(engine(&[ONE]));
        assert!(plain.contains(ONE), "{plain}");
    });
}

#[test]
fn a_server_whose_certificate_has_expired_is_refused() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "expired-server");
    etcd.inside(|| {
        let reason = refusal(secure(SECURE, Certificates(&etcd).files("ca", "client")));
        assert!(reason.contains("certificate expired"), "{reason}");
        assert!(reason.ends_with("renew the certificate of that member"), "{reason}");
    });
}

#[test]
fn a_server_without_tls_is_told_from_a_broken_one() {
    let Some(mut etcd) = Certificates::lab() else { return };
    etcd.start_one(&[]);
    etcd.inside(|| {
        let reason = refusal(secure(SECURE, Certificates(&etcd).files("ca", "client")));
        assert!(reason.contains("does it speak TLS") || reason.contains("http://"), "{reason}");
    });
}

/// A restart of the server makes every connection new, and with it the certificates are.
#[test]
fn files_that_were_replaced_are_read_again_and_broken_ones_are_not_used() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let of = Certificates(&etcd);
    let replace = |from: &str, to: &str| {
        std::fs::copy(of.path(from), of.path("new")).unwrap();
        std::fs::rename(of.path("new"), of.path(to)).unwrap();
    };
    for suffix in ["crt", "key"] {
        replace(&format!("client.{suffix}"), &format!("used.{suffix}"));
    }
    let (tell, told) = channel();
    let endpoints = vec![Endpoint::parse(SECURE).unwrap()];
    let access = Access { endpoints, ..of.files("ca", "used") };
    let note = Box::new(move |line| tell.send(line).unwrap());
    let mut engine = Engine::open(&"test".parse().unwrap(), access, note).unwrap();
    let replace = &replace;
    etcd.inside(move || {
        assert_eq!(engine.get(&Key::Meta), Outcome::Done(None));
        replace("foreign.crt", "used.crt");
        assert_eq!(engine.get(&Key::Meta), Outcome::Done(None), "the key is another's");
        assert_eq!(engine.get(&Key::Meta), Outcome::Done(None));
        let kept = told.try_recv().unwrap();
        assert!(kept.ends_with("what was read before stays in use"), "{kept}");
        assert!(told.try_recv().is_err(), "it is told once");
        replace("foreign.key", "used.key");
        let Outcome::Unreachable(reason) = engine.get(&Key::Meta) else { panic!("it is used") };
        assert!(reason.starts_with("TLS with "), "{reason}");
        assert!(told.try_recv().unwrap().starts_with("certificates and password were read again"));
    });
}

#[test]
fn files_of_certificates_are_checked_before_they_are_used() {
    let Some(etcd) = Certificates::lab() else { return };
    let of = Certificates(&etcd);
    let refused = |files: &Access| tls::load(files).unwrap_err().to_string();
    let path = |name: &str| of.path(name).display().to_string();
    assert!(tls::load(&of.files("ca", "client")).is_ok());
    assert!(tls::load(&of.files("ca", "foreign")).is_ok(), "its CA may be the members'");
    let other_key = Access { key: of.path("named.key"), ..of.files("ca", "client") };
    assert_eq!(
        refused(&other_key),
        format!(
            "etcd.key: {}: not the key of the certificate in {}",
            path("named.key"),
            path("client.crt")
        )
    );
    assert_eq!(
        refused(&of.files("none", "client")),
        format!("etcd.ca: read {}: no such file or directory", path("none.crt"))
    );
    let no_certificate = Access { ca: of.path("ca.key"), ..Access::default() };
    assert!(refused(&no_certificate).contains("no certificate in it, expected a file in PEM form"));
    let no_key = Access { key: of.path("client.crt"), ..of.files("ca", "client") };
    assert!(refused(&no_key).contains("no private key in it, expected a file in PEM form"));
    assert!(
        refused(&Access { ca: Path::new("/").into(), ..Access::default() })
            .starts_with("etcd.ca: read /: ")
    );
}

/// The commands of docs/cluster-etcd.md, run as they are there.
#[test]
fn the_commands_of_the_page_make_a_user_for_the_prefix() {
    let Some(etcd) = Etcd::one() else { return };
    let page = include_str!("../../../../docs/cluster-etcd.md");
    let block = page.split("```sh ").nth(1).unwrap().split("```").next().unwrap();
    let commands = block.split_once('\n').unwrap().1;
    etcd.lab.host.sh(&format!("set -e; export ETCDCTL_API=3\n{commands}"));
    etcd.inside(|| {
        let mut engine = engine_with(&[ONE], with_login(&etcd, "change-me-too", Access::default()));
        done(engine.create(&claim("n1", "4-0a580100-26")));
    });
}

const USERS: &str = "user add root:r && $E role add cni && \
    $E role grant-permission cni --prefix=true readwrite /cni-multi/v2/ && $E user add cni:secret && \
    $E user grant-role cni cni && $E auth enable";

fn with_login(etcd: &Etcd, password: &str, files: Access) -> Access {
    let path = etcd.scratch.join("password");
    std::fs::write(&path, password).unwrap();
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    Access { user: "cni".into(), password_file: path, ..files }
}

pub fn enable_users(etcd: &Etcd, ctl: &str) {
    etcd.lab.host.sh(&format!("export ETCDCTL_API=3; E='etcdctl {ctl}'; $E {USERS}"));
}

/// The shortest lifetime of a token is a second; one that is used lives on.
#[test]
fn an_expired_token_is_renewed() {
    let Some(etcd) = Etcd::one_with(&["--auth-token-ttl", "1"]) else { return };
    enable_users(&etcd, "--endpoints 127.0.0.1:2379");
    etcd.inside(|| {
        let of = |password| engine_with(&[ONE], with_login(&etcd, password, Access::default()));
        let mut engine = of("secret");
        done(engine.create(&claim("n1", "4-0a580100-26")));
        std::thread::sleep(std::time::Duration::from_millis(3500));
        done(engine.create(&claim("n1", "4-0a580140-26")));

        let wrong = refusal(of("wrong"));
        assert!(wrong.ends_with("check etcd.user and etcd.passwordFile"), "{wrong}");
        let without = refusal(crate::support::etcd::engine(&[ONE]));
        assert!(without.ends_with("set etcd.user and etcd.passwordFile"), "{without}");
    });
}

#[test]
fn with_users_the_gateway_wants_no_common_name() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let dir = etcd.scratch.text().to_owned();
    let ctl = format!(
        "--endpoints {SECURE} --cacert {dir}/ca.crt --cert {dir}/client.crt --key {dir}/client.key"
    );
    enable_users(&etcd, &ctl);
    etcd.inside(|| {
        let of = |client| {
            let files = Certificates(&etcd).files("ca", client);
            engine_with(&[SECURE], with_login(&etcd, "secret", files))
        };
        assert_eq!(of("client").get(&Key::Meta), Outcome::Done(None));
        let named = refusal(of("named"));
        assert!(named.contains("accepts only client certificates without a CommonName"), "{named}");
    });
}

/// The operators' commands ask with the node's own configuration.
#[test]
fn commands_refuse_members_of_another_ca() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "server");
    let path = |name: &str| etcd.scratch.join(name).display().to_string();
    let conf = |ca: &str| {
        serde_json::json!({"cluster": "test", "node": "n1", "etcd": {"endpoints": [SECURE],
            "ca": path(ca), "cert": path("client.crt"), "key": path("client.key")}})
    };
    let run = |ca: &str, line: &str| {
        let program = crate::support::call::binary().display().to_string();
        etcd.lab.host.sh(&format!(
            "umask 077; echo '{}' >/run/ipam.json
             {program} ipam {line} --config /run/ipam.json 2>&1; echo status $?",
            conf(ca)
        ))
    };
    for line in ["reclaim n2", "blocks --all"] {
        let refused = run("other.crt", line);
        assert!(refused.contains("etcd.ca must have the CA of the members"), "{line}: {refused}");
        assert!(refused.ends_with("status 1\n"), "{line}: {refused}");
    }
}
