//! `net ps` shows each attachment with the state of its namespace.

use serde_json::json;

use super::{Site, assert_failed, result};

const HERE: &str = "/proc/self/ns/net";
const HEADERS: &str = "NAME NETWORK INTERFACE ID POD PORTS ADDRESSES AGE NAMESPACE";

/// The words of each line without the ages.
fn rows(text: &str) -> Vec<String> {
    let is_age = |word: &&str| word.strip_suffix('s').is_none_or(|age| age.parse::<u32>().is_err());
    text.lines()
        .map(|line| line.split_whitespace().filter(is_age).collect::<Vec<_>>().join(" "))
        .collect()
}

fn site() -> Site {
    let site = Site::with_lab();
    site.attached(
        "lab",
        "alive",
        HERE,
        &result(&["10.1.2.3/24", "fd00:1234:5678:9abc:def0:1234:5678:9abc/64"]),
    );
    site.attached("lab", "gone", "/nonexistent", &result(&["10.1.2.4/24"]));
    site.attached("other", &"f".repeat(64), "", &result(&[]));
    site
}

#[test]
fn attachments_are_listed_with_their_namespaces() {
    let long = "f".repeat(64);
    let short = &long[..12];
    assert_eq!(
        rows(&site().prints("ps")),
        [
            HEADERS,
            "alive lab eth0 alive - - 10.1.2.3/24,fd00:1234:5678:9abc:def0:1234:5678:9abc/64 alive",
            "gone lab eth0 gone - - 10.1.2.4/24 gone",
            &format!("{short} other eth0 {short} - - - unknown"),
        ]
    );
    let whole = site().prints("ps --no-trunc");
    assert_eq!(rows(&whole)[3], format!("{short} other eth0 {long} - - - unknown"));
}

#[test]
fn networks_and_containers_can_be_chosen() {
    let site = site();
    let ids = |line: &str| -> Vec<String> {
        let list = site.json(line);
        let ids = list.as_array().unwrap().iter().map(|at| at["containerId"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    };
    assert_eq!(ids("ps lab"), ["alive", "gone"]);
    assert_eq!(ids("ps --container-id gone"), ["gone"]);
    assert_eq!(ids("ps --container-id ffffffffffff"), ["f".repeat(64)], "as the table shows it");
    assert_eq!(ids(&format!("ps lab --container-id {}", "f".repeat(64))), [""; 0]);
    assert_eq!(ids("ps other --container-id gone"), [""; 0]);
    assert_failed(&site.net("ps a/b"), "invalid characters found in network name", "a/b");
    site.net("ps --container-id ../x").assert_is(
        2,
        "",
        "invalid characters in containerID\n../x\n",
    );
}

/// A name that was mistyped, as opposed to a network without attachments.
#[test]
fn a_network_that_is_nowhere_is_reported() {
    let site = site();
    site.network("20-idle.conflist", &super::static_network("idle"));
    assert_eq!(rows(&site.prints("ps idle")), [HEADERS]);
    for format in ["", " -o json"] {
        let outcome = site.net(&format!("ps nosuch{format}"));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
        for part in ["no net configuration with name", "nosuch", "available networks: lab, idle"] {
            assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
        }
    }
}

#[test]
fn programs_get_the_same_as_json() {
    let site = Site::with_lab();
    site.attached("lab", "gone", "/nonexistent", &result(&["10.1.2.4/24"]));
    let mut list = site.json("ps");
    let age = list[0].as_object_mut().unwrap().remove("ageSeconds").unwrap();
    assert!(age.as_u64().unwrap() < 600);
    let expected = json!([{
        "name": "gone", "network": "lab", "containerId": "gone", "ifname": "eth0",
        "netns": "/nonexistent", "namespace": "gone", "addresses": ["10.1.2.4/24"], "ports": [], "file": "/cache/results/lab-gone-eth0",
    }]);
    assert_eq!(list, expected);
}

/// A record as containerd's libcni writes it for a pod.
#[test]
fn a_pod_is_listed_with_its_name_and_ports() {
    let site = Site::with_lab();
    let id = "3f2a91c07b1e".repeat(5);
    let netns = "/nonexistent/netns/cni-0fd9a1b2-93b1-4ac0-a52b-01c7bb2f3e4d";
    let port = |host: u16| json!({"HostPort": host, "ContainerPort": host, "Protocol": "tcp", "HostIP": ""});
    let record = json!({
        "kind": "cniCacheV1", "containerId": id, "ifName": "eth0", "networkName": "lab",
        "netns": netns, "result": result(&["10.1.2.3/24"]),
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "till"]],
        "capabilityArgs": {"portMappings": [port(8080), port(8081), port(53)]},
    });
    site.cached(&format!("lab-{id}-eth0"), &record.to_string());
    assert_eq!(
        rows(&site.prints("ps"))[1],
        "shop/till lab eth0 3f2a91c07b1e shop/till 8080-8081:8080-8081/tcp,53:53/tcp 10.1.2.3/24 gone"
    );
    let printed = &site.json("ps")[0];
    assert_eq!((&printed["name"], &printed["pod"]), (&json!("shop/till"), &json!("shop/till")));
    assert_eq!(printed["ports"], json!(["8080-8081:8080-8081/tcp", "53:53/tcp"]));
    assert_eq!(printed["containerId"], json!(id));
}

/// The seconds of `0m0.25s`, as times(1) of a shell prints them.
fn seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

/// By CPU time: other tests run beside this one.
#[test]
fn ps_of_5000_attachments_takes_less_than_a_second() {
    let site = Site::with_lab();
    for number in 0..5000 {
        site.attached("lab", &format!("{number:064x}"), HERE, &result(&["10.1.2.3/24"]));
    }
    assert_eq!(site.prints("ps").lines().count(), 5001);
    let took = |_| {
        let script = "\"$@\" >/dev/null; times";
        let times = site.call("ps").wrapped(&["sh", "-c", script, "sh"].map(str::to_owned)).run();
        times.stdout.lines().last().unwrap().split_whitespace().map(seconds).sum::<f64>()
    };
    let least = (0..3).map(took).fold(f64::INFINITY, f64::min);
    println!("net ps of 5000 attachments: {least:.2} s of CPU time");
    assert!((0.001..1.0).contains(&least), "{least}");
}

#[test]
fn files_of_older_libcnis_and_broken_ones_are_shown() {
    let site = Site::with_lab();
    let bare = json!({
        "cniVersion": "0.4.0", "interfaces": [{"name": "eth0", "sandbox": "/nonexistent"}],
        "ips": [{"version": "4", "address": "10.9.0.2/24", "interface": 0}],
    });
    site.cached("lab-abc-eth0", &bare.to_string());
    site.cached("unknown-abc-eth0", &bare.to_string());
    site.cached("lab-torn-eth0", "{\"kind\":\"cniCacheV1\",");
    site.cached("lab-empty-eth0", "");
    site.cached("evil\u{1b}[31m", "");
    let torn = |name: &str, column: u32| {
        let why = format!("EOF while parsing a value at line 1 column {column}");
        format!("- - - - - - - unknown read /cache/results/{name}: {why}")
    };
    assert_eq!(
        rows(&site.prints("ps")),
        [
            HEADERS.to_owned(),
            torn("evil\\u{1b}[31m", 0),
            "abc lab eth0 abc - - 10.9.0.2/24 gone".to_owned(),
            torn("lab-empty-eth0", 0),
            torn("lab-torn-eth0", 21),
            "- - - - - - 10.9.0.2/24 unknown no owner is recorded: unknown-abc-eth0".to_owned(),
        ]
    );
    assert_eq!(rows(&site.prints("ps lab")).len(), 4, "those that may be of the network");
    assert_eq!(rows(&site.prints("ps lab --container-id torn")).len(), 2);
}

#[test]
fn a_missing_cache_is_empty_and_an_unreadable_one_an_error() {
    let site = Site::with_lab();
    std::fs::remove_dir_all(site.at("cache")).unwrap();
    assert_eq!(site.json("ps"), json!([]));
    std::fs::create_dir(site.at("cache")).unwrap();
    std::fs::write(site.at("cache/results"), "").unwrap();
    let error = format!("open {}: not a directory", site.at("cache/results"));
    assert_failed(&site.net("ps"), &error, "");
}
