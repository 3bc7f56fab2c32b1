//! Tests that read what was written, here and by other programs.

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::cni::json::Value;
use crate::scratch::Scratch;

fn key(network: &str, ifname: &str) -> Key {
    Key::parse(network, "cnitool-20c433bb2b1d6ede56d6", ifname).unwrap()
}

fn parameters(network: &str, ifname: &str) -> Parameters {
    Parameters {
        key: key(network, ifname),
        netns: "/var/run/netns/t".into(),
        args: vec![("IgnoreUnknown".into(), "1".into()), ("A".into(), "<b>".into())],
        capability_args: Value::parse(
            br#"{"mac":"y","portMappings":[{"hostPort":80,"containerPort":8080}],"mac":"x"}"#,
        )
        .unwrap(),
    }
}

fn document(text: &str) -> Document {
    Document::parse(&Value::parse(text.as_bytes()).unwrap(), "").unwrap()
}

const RESULT: &str = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","interface":0,"address":"10.1.2.3/24"}],"dns":{}}"#;

#[test]
fn the_file_is_libcni_s_to_the_byte() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path().join("new"));
    cache
        .write(&parameters("mynet", "eth0"), br#"{"cniVersion":"0.4.0"}"#, &document(RESULT))
        .unwrap();
    let file = dir.path().join("new/results/mynet-cnitool-20c433bb2b1d6ede56d6-eth0");
    let expected = concat!(
        r#"{"kind":"cniCacheV1","containerId":"cnitool-20c433bb2b1d6ede56d6","config":"eyJjbmlWZXJzaW9uIjoiMC40LjAifQ==","ifName":"eth0","#,
        r#""networkName":"mynet","netns":"/var/run/netns/t","cniArgs":[["IgnoreUnknown","1"],["A","\u003cb\u003e"]],"#,
        r#""capabilityArgs":{"mac":"x","portMappings":[{"containerPort":8080,"hostPort":80}]},"#,
        r#""result":{"cniVersion":"0.4.0","dns":{},"ips":[{"address":"10.1.2.3/24","interface":0,"version":"4"}]}}"#
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&file), mode(&dir.path().join("new/results")), mode(&dir.path().join("new"))),
        (0o600, 0o700, 0o700)
    );
    assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn a_result_comes_back_in_the_version_asked_for() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let at = parameters("n", "eth0");
    assert_eq!(cache.result(&at.key, "1.0.0"), Ok(None));
    cache.write(&at, b"", &document(RESULT)).unwrap();
    assert_eq!(cache.result(&at.key, "0.4.0").unwrap().unwrap().to_compact_text(), RESULT);
    let newer = cache.result(&at.key, "1.0.0").unwrap().unwrap().to_compact_text();
    assert_eq!(newer, r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.3/24","interface":0}]}"#);
    let error = cache.result(&at.key, "1.0.1").unwrap_err().msg.clone();
    assert_eq!(
        error,
        "failed to convert cached result to config version \"1.0.1\": no converter for CNI result version 0.4.0 to 1.0.1"
    );
    assert!(cache.contains(&at.key).unwrap());
    assert_eq!((cache.delete(&at.key), cache.delete(&at.key)), (Ok(()), Ok(())));
    assert_eq!(cache.result(&at.key, "0.4.0"), Ok(None));
}

#[test]
fn files_of_libcni_0_7_are_bare_results() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let key = key("n", "eth0");
    let file = format!("results/{}", file_name(&key));
    dir.write(&file, RESULT);
    assert_eq!(cache.result(&key, "0.4.0").unwrap().unwrap().to_compact_text(), RESULT);
    dir.write(&file, r#"{"ip4":{"ip":"10.1.2.3/24"}}"#);
    assert_eq!(cache.result(&key, "0.2.0").unwrap().unwrap().cni_version(), "0.2.0");
}

#[test]
fn a_file_that_is_no_result_is_an_error() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let key = key("n", "eth0");
    for (text, msg) in [
        ("", "decoding version from network config: EOF"),
        (r#"{"kind":"cniCacheV1","result":"#, "decoding version from network config: EOF"),
        ("[]", "decoding version from network config: expected an object"),
        (
            r#"{"kind":"cniCacheV1","result":{"cniVersion":"0.4567.0"}}"#,
            "unsupported CNI result version \"0.4567.0\"",
        ),
    ] {
        dir.write(&format!("results/{}", file_name(&key)), text);
        let error = cache.result(&key, "0.4.0").unwrap_err();
        assert!(error.msg.starts_with(msg), "{text}: {error}");
    }
    dir.write(&format!("results/{}", file_name(&key)), r#"{"kind":"cniCacheV1"}"#);
    assert_eq!(cache.result(&key, "0.4.0"), Ok(None));
}

#[test]
fn list_has_attachments_of_the_network_and_no_foreign_files() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let network = NetworkName::parse("n").unwrap();
    assert_eq!(cache.attachments(&network), Ok(vec![]));
    for (network, ifname) in [("n", "eth1"), ("n", "eth0"), ("other", "eth0")] {
        cache.write(&parameters(network, ifname), b"", &document(RESULT)).unwrap();
    }
    dir.write("results/n-legacy-eth0", RESULT);
    dir.write("results/n-torn-eth0", r#"{"kind":"cniCacheV1","con"#);
    dir.write(
        "results/n-wicked",
        r#"{"kind":"cniCacheV1","containerId":"../../x","ifName":"eth0","networkName":"n"}"#,
    );
    dir.write("results/dir/x", "");
    assert_eq!(cache.attachments(&network).unwrap(), [as_read("n", "eth0"), as_read("n", "eth1")]);
}

/// What [`parameters`] are once they have been in a file.
fn as_read(network: &str, ifname: &str) -> Parameters {
    let at = parameters(network, ifname);
    Parameters { capability_args: at.capability_args.clone().sorted(), ..at }
}

#[test]
fn every_file_is_told_of_and_what_is_wrong_with_it() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    assert!(cache.all().unwrap().is_empty());
    cache.write(&parameters("n", "eth0"), br#"{"name":"n"}"#, &document(RESULT)).unwrap();
    dir.write("results/n-bare-eth0", RESULT);
    dir.write("results/n-newer-eth0", r#"{"kind":"cniCacheV2"}"#);
    dir.write("results/n-torn-eth0", "");
    dir.write(
        "results/n-future-eth0",
        r#"{"kind":"cniCacheV1","containerID":"future","ifName":"eth0","networkName":"n","result":{"cniVersion":"9.0.0"}}"#,
    );
    let told: Vec<String> = cache
        .all()
        .unwrap()
        .into_iter()
        .map(|found| match found.record {
            Ok(Record { at: Some(at), document, result, .. }) => {
                let document = String::from_utf8(document).unwrap();
                format!("{} {document} {}", at.key.container_id, result.is_ok())
            }
            Ok(record) => format!("bare {}", record.result.unwrap().unwrap().cni_version()),
            Err(error) => error.msg.replace(dir.path().to_str().unwrap(), ""),
        })
        .collect();
    assert_eq!(
        told,
        [
            "bare 0.4.0",
            r#"cnitool-20c433bb2b1d6ede56d6 {"name":"n"} true"#,
            "future  false",
            "read /results/n-newer-eth0: wrong kind, expected \"cniCacheV1\"",
            "read /results/n-torn-eth0: EOF while parsing a value at line 1 column 0",
        ]
    );
    assert!(cache.all().unwrap().iter().all(|found| found.written.is_some()));
}

#[test]
fn bare_result_is_matched_by_interface_when_the_id_is_certain() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let result = r#"{"cniVersion":"0.3.1","interfaces":[{"name":"br0"},{"name":"net-1","sandbox":"/run/netns/x"}],"dns":{}}"#;
    let read = |file: &str, result: &str| {
        dir.write(&format!("results/{file}"), result);
        let attachments = cache.attachments(&NetworkName::parse("n").unwrap()).unwrap();
        std::fs::remove_dir_all(dir.path().join("results")).unwrap();
        attachments
            .iter()
            .map(|at| format!("{} {} {}", at.key.container_id, at.key.ifname, at.netns))
            .collect()
    };
    let none: [String; 0] = [];
    let told = |file: &str, result: &str| -> Vec<String> { read(file, result) };
    assert_eq!(told("n-id-net-1", result), ["id net-1 /run/netns/x"]);
    assert_eq!(told("n-cnitool-12ab-net-1", result), ["cnitool-12ab net-1 /run/netns/x"]);
    assert_eq!(told("n-other-id-net-1", result), none, "it may be of the network n-other");
    assert_eq!(told("n-id-eth0", result), none, "no such interface");
    assert_eq!(told("n-id-eth0", RESULT), none, "no namespace");
    assert_eq!(told("m-id-net-1", result), none);
}

#[test]
fn one_attachment_s_record_has_what_a_runtime_needs_for_del() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let at = parameters("n", "eth0");
    assert_eq!(cache.record(&at.key), Ok(None));
    cache.write(&at, b"{}", &document(RESULT)).unwrap();
    let record = cache.record(&at.key).unwrap().unwrap();
    assert_eq!((record.at, record.document), (Some(as_read("n", "eth0")), b"{}".to_vec()));
    assert_eq!(record.result.unwrap().unwrap().to_compact_text(), RESULT);
    let names = r#""containerId":"cnitool-20c433bb2b1d6ede56d6","ifName":"eth0","networkName":"n""#;
    dir.write(
        &format!("results/{}", file_name(&at.key)),
        &format!(r#"{{"kind":"cniCacheV1",{names},"config":"%"}}"#),
    );
    let error = cache.record(&at.key).unwrap_err();
    assert!(error.code == Code::DECODE && error.msg.ends_with(": config is not base64"), "{error}");
}

/// `n-x` and `y` come to the file name of `n` and `x-y`.
#[test]
fn a_file_that_is_another_attachment_s_is_left_alone() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let key = |network: &str, id: &str| Key::parse(network, id, "eth0").unwrap();
    let own = key("n-x", "y");
    let other = key("n", "x-y");
    cache
        .write(
            &Parameters { key: other.clone(), ..parameters("n", "eth0") },
            b"",
            &document(RESULT),
        )
        .unwrap();
    assert_eq!(
        (cache.contains(&own).unwrap(), cache.result(&own, "0.4.0"), cache.record(&own)),
        (false, Ok(None), Ok(None))
    );
    assert_eq!(cache.delete(&own), Ok(()));
    let error = cache.require_keepable(&own).unwrap_err().msg.clone();
    assert_eq!(error, "the result of another attachment is kept under the same name, n-x-y-eth0");
    assert!(cache.contains(&other).unwrap() && cache.require_keepable(&other).is_ok());
    assert!(
        cache.result(&other, "0.4.0").unwrap().is_some() && cache.record(&other).unwrap().is_some()
    );
    assert_eq!((cache.delete(&other), cache.contains(&other)), (Ok(()), Ok(false)));
}

#[test]
fn what_is_no_file_is_told_of_and_not_waited_for() {
    let dir = Scratch::new();
    let cache = Cache::new(dir.path());
    let results = dir.path().join("results");
    dir.write("results/n-dir-eth0/x", "");
    nix::unistd::mkfifo(&results.join("n-fifo-eth0"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("nowhere", results.join("n-link-eth0")).unwrap();
    dir.write("elsewhere", RESULT);
    std::os::unix::fs::symlink("../elsewhere", results.join("n-there-eth0")).unwrap();
    let told = cache.all().unwrap().into_iter().map(|found| match found.record {
        Ok(record) => record.result.unwrap().unwrap().cni_version().to_owned(),
        Err(error) => error.msg.replace(results.to_str().unwrap(), ""),
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            "read /n-dir-eth0: not a regular file",
            "read /n-fifo-eth0: not a regular file",
            "read /n-link-eth0: too many levels of symbolic links",
            "read /n-there-eth0: too many levels of symbolic links",
        ]
    );
    let key = |id: &str| Key::parse("n", id, "eth0").unwrap();
    for id in ["fifo", "there"] {
        let code = cache.result(&key(id), "0.4.0").map_err(|error| error.code);
        assert_eq!((code, cache.record(&key(id)).is_err()), (Err(Code::IO), true));
    }
}

#[test]
fn names_that_make_no_file_name_are_told_before() {
    let long = "x".repeat(200);
    let cache = Cache::new("/nonexistent");
    assert_eq!(
        cache.require_keepable(&Key::parse(&long, &"y".repeat(49), "eth0").unwrap()),
        Ok(())
    );
    let error =
        cache.require_keepable(&Key::parse(&long, &"y".repeat(50), "eth0").unwrap()).unwrap_err();
    assert_eq!(error.msg, "the names of network, container and interface make 256 bytes together");
}

#[test]
fn a_directory_that_cannot_be_is_an_error() {
    let dir = Scratch::new();
    dir.write("results", "");
    let error =
        Cache::new(dir.path()).write(&parameters("n", "eth0"), b"", &document(RESULT)).unwrap_err();
    assert_eq!(error.code, Code::IO);
}
