//! Certificates, users and tokens, against a real etcd.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use cni_multi::plugins::ipam::cluster_local::store::etcd::Etcd as Engine;
use cni_multi::plugins::ipam::cluster_local::store::http::tls;
use cni_multi::plugins::ipam::cluster_local::store::settings::Access;
use cni_multi::plugins::ipam::cluster_local::store::{Key, Outcome, Store as _};
use serde_json::json;

use super::etcd::{claim, done};
use crate::support::attachment::has_programs;
use crate::support::etcd::{Etcd, ONE, engine, engine_with};
use crate::support::node::{Node, commands};

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

/// A lab without a server, with certificates; None without openssl.
pub fn with_certificates() -> Option<Etcd> {
    if !has_programs(&["openssl"]) {
        return None;
    }
    let etcd = Etcd::none()?;
    let dir = etcd.scratch.text();
    etcd.lab.host.sh(&format!("cd {dir} && ({CERTIFICATES}) >openssl.log 2>&1"));
    Some(etcd)
}

/// Starts a server that asks for client certificates.
pub fn start_secure(etcd: &mut Etcd, server: &str) {
    let path = |name: &str| etcd.scratch.join(name).display().to_string();
    let (ca, server) = (path("ca.crt"), path(server));
    etcd.start_one(&format!(
        "--listen-client-urls https://0.0.0.0:2379 --advertise-client-urls {SECURE} \
         --cert-file {server}.crt --key-file {server}.key --client-cert-auth --trusted-ca-file {ca}"
    ));
}

/// The files of a CA and a client, which may be none.
fn files(etcd: &Etcd, ca: &str, client: &str) -> Access {
    let of = |suffix: &str| match client {
        "" => PathBuf::new(),
        client => etcd.scratch.join(&format!("{client}.{suffix}")),
    };
    let ca = etcd.scratch.join(&format!("{ca}.crt"));
    Access { ca, cert: of("crt"), key: of("key"), ..Access::default() }
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
    let Some(mut etcd) = with_certificates() else { return };
    start_secure(&mut etcd, "server");
    etcd.inside(|| {
        for url in [SECURE, "https://localhost:2379"] {
            let mut engine = secure(url, files(&etcd, "ca", "client"));
            let written = done(engine.create(&claim("n1", "4-0a580100-26")));
            assert_eq!(engine.delete(&written), Outcome::Done(()), "{url}");
        }
        for (url, ca, client, expected) in [
            (SECURE, "other", "client", "etcd.ca must have the CA of the members' certificates"),
            ("https://127.0.0.2:2379", "ca", "client", "or use one of its names in etcd.endpoints"),
            (SECURE, "ca", "foreign", "client authentication"),
            (SECURE, "ca", "expired", "client"),
            (SECURE, "ca", "", "client"),
        ] {
            let reason = refusal(secure(url, files(&etcd, ca, client)));
            assert!(reason.starts_with(&format!("TLS with {url}: ")), "{reason}");
            assert!(reason.contains(expected), "{reason}");
        }
        let plain = refusal(engine(&[ONE]));
        assert!(plain.contains(ONE), "{plain}");
    });
}

#[test]
fn a_server_whose_certificate_has_expired_is_refused() {
    let Some(mut etcd) = with_certificates() else { return };
    start_secure(&mut etcd, "expired-server");
    etcd.inside(|| {
        let reason = refusal(secure(SECURE, files(&etcd, "ca", "client")));
        assert!(reason.contains("certificate expired"), "{reason}");
        assert!(reason.ends_with("renew the certificate of that member"), "{reason}");
    });
}

#[test]
fn a_server_without_tls_is_told_from_a_broken_one() {
    let Some(mut etcd) = with_certificates() else { return };
    etcd.start_one("");
    etcd.inside(|| {
        let reason = refusal(secure(SECURE, files(&etcd, "ca", "client")));
        assert!(reason.contains("does it speak TLS") || reason.contains("http://"), "{reason}");
    });
}

#[test]
fn files_of_certificates_are_checked_before_they_are_used() {
    let Some(etcd) = with_certificates() else { return };
    let path = |name: &str| etcd.scratch.join(name);
    assert!(tls::load(&files(&etcd, "ca", "client")).is_ok());
    assert!(tls::load(&files(&etcd, "ca", "foreign")).is_ok(), "its CA may be the members'");
    let usual = || files(&etcd, "ca", "client");
    let [other, none] = ["named.key", "none.crt"].map(path);
    let no_key = format!("etcd.key: {}: not the key of the certificate in", other.display());
    let not_there = format!("etcd.ca: read {}: no such file or directory", none.display());
    let in_pem = |what: &str| format!("no {what} in it, expected a file in PEM form");
    for (files, said) in [
        (Access { key: other, ..usual() }, no_key),
        (Access { ca: none, ..usual() }, not_there),
        (Access { ca: "/".into(), ..usual() }, "etcd.ca: read /: ".to_owned()),
        (Access { ca: path("ca.key"), ..usual() }, in_pem("certificate")),
        (Access { key: path("client.crt"), ..usual() }, in_pem("private key")),
    ] {
        let refused = tls::load(&files).unwrap_err().to_string();
        assert!(refused.contains(&said), "{refused} has no {said}");
    }
}

/// The password of the user `cni`, and that of root, in docs/cluster-etcd.md.
pub const PASSWORD: &str = "change-me-too";
pub const OF_ROOT: &str = "change-me";

/// Runs the commands of the page, by etcdctl with these options.
pub fn enable_users(etcd: &Etcd, options: &str) {
    let page = include_str!("../../../../docs/cluster-etcd.md");
    let test = "etcd_access::the_commands_of_the_page_make_a_user_for_the_prefix";
    let commands = commands(page, test)[0].replace("etcdctl ", &format!("etcdctl {options} "));
    etcd.lab.host.sh(&format!("set -e; export ETCDCTL_API=3\n{commands}"));
}

fn with_login(etcd: &Etcd, password: &str, files: Access) -> Access {
    let path = etcd.scratch.join("password");
    std::fs::write(&path, password).unwrap();
    set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    Access { user: "cni".into(), password_file: path, ..files }
}

/// The shortest lifetime of a token is a second; one that is used lives on.
#[test]
fn the_commands_of_the_page_make_a_user_for_the_prefix() {
    let Some(etcd) = Etcd::one_with("--auth-token-ttl 1") else { return };
    enable_users(&etcd, "");
    let beside = format!("ETCDCTL_API=3 etcdctl --user cni:{PASSWORD} put /cni-multi/v3/x y");
    assert!(!etcd.lab.host.try_sh(&beside).status.success(), "the role is for the prefix alone");
    etcd.inside(|| {
        let of = |password| engine_with(&[ONE], with_login(&etcd, password, Access::default()));
        let mut store = of(PASSWORD);
        done(store.create(&claim("n1", "4-0a580100-26")));
        std::thread::sleep(Duration::from_millis(3500));
        done(store.create(&claim("n1", "4-0a580140-26"))); // by another token

        let wrong = refusal(of("wrong"));
        assert!(wrong.ends_with("check etcd.user and etcd.passwordFile"), "{wrong}");
        let without = refusal(engine(&[ONE]));
        assert!(without.ends_with("set etcd.user and etcd.passwordFile"), "{without}");
    });
}

#[test]
fn with_users_the_gateway_wants_no_common_name() {
    let Some(mut etcd) = with_certificates() else { return };
    start_secure(&mut etcd, "server");
    let dir = etcd.scratch.text().to_owned();
    let ctl = format!(
        "--endpoints {SECURE} --cacert {dir}/ca.crt --cert {dir}/client.crt --key {dir}/client.key"
    );
    enable_users(&etcd, &ctl);
    etcd.inside(|| {
        let of = |client| {
            let login = with_login(&etcd, PASSWORD, files(&etcd, "ca", client));
            engine_with(&[SECURE], login)
        };
        assert_eq!(of("client").get(&Key::Meta), Outcome::Done(None));
        let named = refusal(of("named"));
        assert!(named.contains("accepts only client certificates without a CommonName"), "{named}");
    });
}

/// The operators' commands ask with the node's own configuration.
#[test]
fn commands_refuse_members_of_another_ca() {
    let Some(mut etcd) = with_certificates() else { return };
    start_secure(&mut etcd, "server");
    let path = |name: &str| etcd.scratch.join(name).display().to_string();
    let node = Node::configured(
        &etcd,
        1,
        json!({"etcd": {"endpoints": ["https://10.78.0.254:2379"],
        "ca": path("other.crt"), "cert": path("client.crt"), "key": path("client.key")}}),
    );
    for line in ["reclaim n2", "blocks --all"] {
        let refused = node.ipam(line);
        assert_eq!(refused.status, 1, "{line}: {refused:?}");
        let said = "etcd.ca must have the CA of the members";
        assert!(refused.stderr.contains(said), "{line}: {refused:?}");
    }
}
