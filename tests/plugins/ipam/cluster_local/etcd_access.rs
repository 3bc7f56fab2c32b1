//! Certificates, users and tokens, against a real etcd.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use cni_multi::plugins::ipam::cluster_local::engine::{Operation, Outcome};
use cni_multi::plugins::ipam::cluster_local::etcd::client::{Event, Inspection, Store};
use cni_multi::plugins::ipam::cluster_local::etcd::login::Login;
use cni_multi::plugins::ipam::cluster_local::etcd::tls::{Files, Tls};
use cni_multi::sys::clock::since_boot;

use super::etcd::{claim, name, node_state, register, written};
use crate::support::attachment::has_programs;
use crate::support::etcd::{Driver, Etcd, ONE, secure_store, store};

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

    fn files(&self, ca: &str, client: &str) -> Files {
        let of = |suffix: &str| match client {
            "" => PathBuf::new(),
            client => self.path(&format!("{client}.{suffix}")),
        };
        Files { ca: self.path(&format!("{ca}.crt")), cert: of("crt"), key: of("key") }
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

/// The reason why a read reaches nothing.
#[track_caller]
fn refusal(store: Store) -> String {
    match Driver::over(store).run(Operation::ReadNode { node: name("n1") }) {
        Outcome::Unreachable { reason }
        | Outcome::Unauthenticated { reason }
        | Outcome::Refused { reason } => reason,
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
            let mut driver = Driver::over(secure_store(&[url], &of.files("ca", "client")));
            let ground = register(&mut driver, if url == SECURE { "n1" } else { "n2" });
            assert!(ground.node_revision > 0, "{url}");
        }
        let wrong_ca = refusal(secure_store(&[SECURE], &of.files("other", "client")));
        assert!(
            wrong_ca.contains("the member's certificate is not signed by a CA in"),
            "{wrong_ca}"
        );
        let wrong_name =
            refusal(secure_store(&["https://127.0.0.2:2379"], &of.files("ca", "client")));
        assert!(wrong_name.contains("the member's certificate is for"), "{wrong_name}");
        assert!(wrong_name.contains("not for 127.0.0.2"), "{wrong_name}");
        let foreign = refusal(secure_store(&[SECURE], &of.files("ca", "foreign")));
        assert!(foreign.contains("the client certificate"), "{foreign}");
        let none = refusal(secure_store(&[SECURE], &of.files("ca", "")));
        assert!(none.contains("client certificate"), "{none}");
        let plain = refusal(store(&[ONE]));
        assert!(plain.contains(ONE), "{plain}");
    });
}

#[test]
fn a_server_whose_certificate_has_expired_is_refused() {
    let Some(mut etcd) = Certificates::lab() else { return };
    start_secure(&mut etcd, "expired-server");
    etcd.inside(|| {
        let reason = refusal(secure_store(&[SECURE], &Certificates(&etcd).files("ca", "client")));
        assert!(
            reason.contains("the member's certificate expired on 2021-01-01T00:00:00Z"),
            "{reason}"
        );
    });
}

#[test]
fn a_server_without_tls_is_told_from_a_broken_one() {
    let Some(mut etcd) = Certificates::lab() else { return };
    etcd.start_one(&[]);
    etcd.inside(|| {
        let reason = refusal(secure_store(&[SECURE], &Certificates(&etcd).files("ca", "client")));
        assert!(reason.ends_with("; is its URL http://?"), "{reason}");
    });
}

#[test]
fn files_of_certificates_are_checked_before_they_are_used() {
    let Some(etcd) = Certificates::lab() else { return };
    let of = Certificates(&etcd);
    let refused = |files: &Files| Tls::load(files, SystemTime::now()).unwrap_err().to_string();
    let path = |name: &str| of.path(name).display().to_string();
    assert!(Tls::load(&of.files("ca", "client"), SystemTime::now()).is_ok());
    assert!(
        Tls::load(&of.files("ca", "foreign"), SystemTime::now()).is_ok(),
        "its CA may be the members'"
    );
    let expired = refused(&of.files("ca", "expired"));
    assert!(
        expired.starts_with(&format!(
            "etcd.cert: {}: the certificate expired on 2021-01-01T00:00:00Z",
            path("expired.crt")
        )),
        "{expired}"
    );
    let other_key = Files { key: of.path("named.key"), ..of.files("ca", "client") };
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
    let no_certificate = Files { ca: of.path("ca.key"), ..Files::default() };
    assert!(refused(&no_certificate).contains("no certificate in it, expected a file in PEM form"));
    let no_key = Files { key: of.path("client.crt"), ..of.files("ca", "client") };
    assert!(refused(&no_key).contains("no private key in it, expected a file in PEM form"));
    assert!(
        refused(&Files { ca: Path::new("/").into(), ..Files::default() })
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
        let mut driver = Driver::over(with_login(store(&[ONE]), "change-me-too"));
        assert!(register(&mut driver, "n1").node_revision > 0);
    });
}

const USERS: &str = "user add root:r && $E role add cni && \
    $E role grant-permission cni --prefix=true readwrite /cni-multi/v1/ && $E user add cni:secret && \
    $E user grant-role cni cni && $E auth enable";

fn with_login(store: Store, password: &str) -> Store {
    Store { login: Some(Login::new("cni".into(), password.into())), ..store }
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
        let mut driver = Driver::over(with_login(store(&[ONE]), "secret"));
        let ground = register(&mut driver, "n1");
        std::thread::sleep(std::time::Duration::from_millis(3500));
        written(&driver.run(claim("n1", "4-0a580100-26", ground)));
        driver.client.inspect(since_boot());
        let inspected = driver.wait_for(|event| matches!(event, Event::Inspected(_)));
        assert_eq!(
            inspected,
            Event::Inspected(Inspection::Separate),
            "the role is limited to the prefix"
        );

        let wrong = Driver::over(with_login(store(&[ONE]), "wrong"))
            .run(Operation::ReadNode { node: name("n1") });
        let Outcome::Unauthenticated { reason } = wrong else { panic!("{wrong:?}") };
        assert!(reason.ends_with("check etcd.user and etcd.passwordFile"), "{reason}");
        let without = refusal(store(&[ONE]));
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
        let of = Certificates(&etcd);
        let mut driver =
            Driver::over(with_login(secure_store(&[SECURE], &of.files("ca", "client")), "secret"));
        let state = node_state(driver.run(Operation::ReadNode { node: name("n1") }));
        assert_eq!(state.record, None);
        let named =
            refusal(with_login(secure_store(&[SECURE], &of.files("ca", "named")), "secret"));
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
    for line in ["reclaim n2", "recover"] {
        let refused = run("other.crt", line);
        assert!(refused.contains("is not signed by a CA in"), "{line}: {refused}");
        assert!(refused.ends_with("status 1\n"), "{line}: {refused}");
    }
    let listed = run("other.crt", "conflicts");
    assert!(listed.contains("is not signed by a CA in"), "{listed}");
    let served = run("ca.crt", "recover");
    assert!(served.starts_with("epoch 0 is now 1: 0 nodes"), "{served}");
}
