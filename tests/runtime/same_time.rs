//! Concurrent operations, and processes that are killed.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Host, ID, assert_failed, assert_silent, assert_unrecorded, result, with_small_disk};
use crate::protocol::has_user_namespaces;
use crate::support::call::{Call, Outcome, binary};
use crate::support::patience;

/// The message of an operation that waits for another.
const WAITS: &str = "waiting for another operation on the same container, or gc\n";

/// The call with its stderr in the file `told`, which shows when the operation waits.
fn tell(host: &Host, call: Call) -> Call {
    let script = format!("exec \"$@\" 2>>{}/told", host.0.text());
    let wrapper = ["sh", "-c", &script, "sh"].map(str::to_owned);
    call.clone().wrapped(&[call.wrapper, wrapper.to_vec()].concat())
}

fn told(host: &Host) -> String {
    fs::read_to_string(host.0.join("told")).unwrap_or_default()
}

/// A plugin's script that continues once another operation has reported that it waits.
fn until_told(host: &Host) -> String {
    let told = host.0.join("told");
    let told = told.display();
    format!("n=0; until test -s {told} -o $n = 2000; do n=$((n + 1)); sleep 0.02; done")
}

/// The first ADD creates the container's state, as a link would be, and DEL removes it.
fn with_one_link(host: &Host) {
    host.answer_adds();
    host.does("ADD", "a", r#"mkdir DIR/link 2>/dev/null || { echo '{"code":102,"msg":"it exists"}'; exit 1; }; sleep 0.3"#.replace("DIR", host.0.text()).as_str());
    host.does("DEL", "a", &format!("rmdir {}/link", host.0.text()));
}

#[test]
fn of_two_adds_at_once_one_fails_and_takes_nothing_down() {
    let host = Host::new("1.0.0");
    with_one_link(&host);
    let outcomes: Vec<Outcome> = thread::scope(|scope| {
        let adds = [(); 2].map(|()| scope.spawn(|| host.net(&format!("add net /x {ID}"))));
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    });
    let (done, failed): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.status == 0);
    assert_eq!((done.len(), failed.len()), (1, 1), "{outcomes:?}");
    let details = "not undone, because \"eth0\" was there before; `net del` removes it";
    let waited = Outcome { stderr: failed[0].stderr.replacen(WAITS, "", 1), ..failed[0].clone() };
    assert_failed(&waited, "plugin type=\"a\" failed (add): it exists", details);
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, ADD a");
    assert!(host.0.join("link").exists() && host.cached().exists());
    assert_silent(&host.net(&format!("del net /x {ID}")));
    assert!(!host.0.join("link").exists());
}

#[test]
fn add_and_del_at_once_come_one_after_the_other() {
    let host = Host::new("1.0.0");
    with_one_link(&host);
    host.does("ADD", "b", &until_told(&host));
    thread::scope(|scope| {
        let add = scope.spawn(|| host.net(&format!("add net /x {ID}")).ok());
        wait_for(|| host.0.join("link").exists());
        assert_eq!(tell(&host, host.call(&format!("del net /x {ID}"))).run().status, 0);
        add.join().unwrap();
    });
    assert_eq!(told(&host), WAITS);
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a");
    assert!(!host.0.join("link").exists() && !host.cached().exists());
}

/// Two ids can stand for one namespace: cnitool derives the id from the path, which can be written
/// in two ways.
#[test]
fn two_ids_of_one_namespace_are_one_after_the_other() {
    if !has_user_namespaces() {
        return;
    }
    let host = Host::new("1.0.0");
    host.answer_adds();
    let dir = host.0.text();
    let until_told = until_told(&host);
    let enter = format!("mkdir {dir}/busy || echo $CNI_CONTAINERID >>{dir}/overlap; {until_told}");
    host.does("ADD", "a", &enter);
    host.does("ADD", "c", &format!("rmdir {dir}/busy"));
    let script = format!(
        "cd {dir}; ln -s /proc/$$/ns/net one; ln -s one two
         \"$@\" add net {dir}/one --container-id one --cache-dir {dir}/cache >/dev/null &
         \"$@\" add net {dir}/two --container-id two --cache-dir {dir}/cache >/dev/null; wait"
    );
    let mut call = host.call("list");
    call.args = vec!["net".into()];
    let call = call.wrapped(&["unshare", "-Urn", "sh", "-c", &script, "sh"].map(str::to_owned));
    assert_eq!(tell(&host, call).run().status, 0);
    assert_eq!(told(&host), WAITS);
    assert!(!host.0.join("overlap").exists());
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, ADD a, ADD b, ADD c");
}

/// Multus does this: the nested call must not wait for the lock of the outer one.
#[test]
fn a_plugin_may_attach_its_own_container_to_another_network() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    let other = json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "b"}]});
    fs::write(host.0.join("net.d/20-other.conflist"), other.to_string()).unwrap();
    let limit = patience(5).as_secs(); // the timeout of a lock is 30 s
    for (command, verb) in [("ADD", "add"), ("DEL", "del")] {
        let nested = format!(
            "net {verb} other $CNI_NETNS -i net1 --container-id $CNI_CONTAINERID --cache-dir {}",
            host.0.join("cache").display()
        );
        let nested =
            format!("timeout {limit} {} {nested} >/dev/null || exit 9", binary().display());
        host.does(command, "a", &nested);
    }
    assert_eq!(host.net(&format!("add net /proc {ID}")).status, 0);
    assert_eq!(host.cached_names(), ["net-id-1-eth0", "other-id-1-net1"]);
    assert_silent(&host.net(&format!("del net /proc {ID}")));
    assert_eq!(host.cached_names(), [""; 0]);
    assert_eq!(host.calls(), "ADD a, ADD b, ADD b, ADD c, DEL c, DEL b, DEL a, DEL b");
}

fn wait_for(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + patience(10);
    while !condition() {
        assert!(Instant::now() < deadline, "it does not come");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn gc_waits_for_an_add_and_knows_it_then() {
    let host = Host::new("1.1.0");
    host.answer_adds();
    host.does("ADD", "b", &until_told(&host));
    thread::scope(|scope| {
        let add = scope.spawn(|| host.net(&format!("add net /proc {ID}")));
        wait_for(|| host.0.join("ADD-b.env").exists());
        assert_eq!(tell(&host, host.call("gc net")).run().status, 0);
        add.join().unwrap().ok();
    });
    assert_eq!(told(&host), WAITS);
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, GC a, GC b, GC c");
    let valid = json!([{"containerID": "id-1", "ifname": "eth0"}]);
    assert_eq!(host.config("GC-a")["cni.dev/valid-attachments"], valid);
}

#[test]
fn other_containers_are_not_waited_for() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    let go = host.0.join("go");
    // The first container's ADD ends only after the second one's has begun.
    let script = "test $CNI_CONTAINERID = id-2 && touch GO; until test -e GO; do sleep 0.02; done";
    host.does("ADD", "b", &script.replace("GO", go.to_str().unwrap()));
    thread::scope(|scope| {
        let first = scope.spawn(|| host.net("add net /x --container-id id-1").ok());
        wait_for(|| host.0.join("ADD-b.env").exists());
        host.net("add net /x --container-id id-2").ok();
        first.join().unwrap();
    });
    assert_eq!(host.cached_names(), ["net-id-1-eth0", "net-id-2-eth0"]);
}

#[test]
fn attachments_of_many_containers_at_once_are_all_kept() {
    let host = Host::new("1.0.0");
    host.answer_adds();
    thread::scope(|scope| {
        for number in 0..12 {
            let host = &host;
            scope.spawn(move || host.net(&format!("add net /x --container-id c{number}")).ok());
        }
    });
    assert_eq!(host.cached_names().len(), 12);
    for name in host.cached_names() {
        let text = fs::read_to_string(host.0.join("cache/results").join(name)).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["result"], serde_json::from_str::<Value>(&result("10.0.0.1/24")).unwrap());
    }
}

/// The process is killed after the last plugin's ADD, before it writes the file.
#[test]
fn an_add_that_was_killed_is_taken_down_without_a_file() {
    let host = Host::new("1.0.0");
    with_one_link(&host);
    host.does("ADD", "c", "kill -9 $PPID");
    assert_eq!(host.net(&format!("add net /x {ID}")).status, -1);
    assert!(host.0.join("link").exists() && !host.cached().exists());
    host.calls();
    assert_unrecorded(&host.net(&format!("del net /x {ID}")), "net");
    assert_eq!(host.calls(), "DEL c, DEL b, DEL a");
    assert!(!host.0.join("link").exists());
    assert_eq!(host.config("DEL-a").get("prevResult"), None);
    host.does("ADD", "c", "");
    host.net(&format!("add net /x {ID}")).ok();
}

#[test]
fn an_add_that_finds_the_disk_full_is_undone() {
    if !has_user_namespaces() {
        return;
    }
    let host = Host::new("1.0.0");
    with_one_link(&host);
    let cache = host.0.join("cache");
    let long: String = (0..400)
        .map(|number| format!(r#",{{"dst":"10.{}.{}.0/24"}}"#, number / 256, number % 256))
        .collect();
    let result = format!(
        r#"{{"cniVersion":"1.0.0","ips":[{{"address":"10.0.0.1/24"}}],"routes":[{{"dst":"10.9.0.0/16"}}{long}]}}"#
    );
    host.answer("ADD", "c", &result, false);
    let outcome = with_small_disk(host.call(&format!("add net /x {ID}")), &cache, "4k").run();
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""));
    assert!(
        outcome.stderr.starts_with("failed to set network \"net\" cached result: write "),
        "{outcome:?}"
    );
    let end = "no space left on device\nwhat was done has been undone\n";
    assert!(outcome.stderr.ends_with(end), "{outcome:?}");
    assert_eq!(host.calls(), "ADD a, ADD b, ADD c, DEL c, DEL b, DEL a");
    assert!(!host.0.join("link").exists());
    let outcome = with_small_disk(host.call(&format!("add net /x {ID}")), &cache, "64k").run();
    assert_eq!(outcome.ok()["ips"][0]["address"], "10.0.0.1/24", "there it would have had room");
}

/// An administrator may want the results to be gone after a reboot. There, too, a file gets its
/// name only when it is complete.
#[test]
fn the_results_may_be_a_file_system_of_their_own() {
    if !has_user_namespaces() {
        return;
    }
    let host = Host::new("1.0.0");
    host.answer_adds();
    let results = host.0.join("cache/results");
    fs::create_dir(&results).unwrap();
    let list = format!("\"$@\" >/dev/null && ls -A {}", results.display());
    let add = |size: &str| {
        let call = host
            .call(&format!("add net /x {ID}"))
            .wrapped(&["sh", "-c", &list, "sh"].map(str::to_owned));
        with_small_disk(call, &results, size).run()
    };
    assert_eq!(add("64k").stdout, "net-id-1-eth0\n");
    let full = add("64k,nr_inodes=1");
    assert!(full.status == 1 && full.stderr.contains("no space left on device"), "{full:?}");
}

/// A plugin killed by a time limit or for lack of memory.
#[test]
fn a_killed_plugin_is_reported_for_every_operation() {
    let host = Host::new("1.1.0");
    host.cache("net-id-1-eth0", &result("10.0.0.1/24"));
    host.cache(
        "net-id-2-eth0",
        r#"{"kind":"cniCacheV1","containerId":"id-2","ifName":"eth0","networkName":"net","netns":"/nowhere"}"#,
    );
    for command in ["ADD", "CHECK", "DEL", "STATUS", "GC"] {
        host.does(command, "a", "kill -9 $$");
    }
    for (line, operation) in [
        ("add net /x --container-id id-1", "plugin type=\"a\" failed (add): "),
        ("check net /x --container-id id-1", ""),
        ("del net /x --container-id id-1", "plugin type=\"a\" failed (delete): "),
        ("status net", ""),
        ("gc net", "stale attachment id-2 eth0: plugin type=\"a\" failed (delete): "),
        ("gc net", "also: failed to GC plugin a: "),
    ] {
        let outcome = host.net(line);
        let expected = format!("{operation}netplugin failed with no error message: signal: killed");
        assert!(outcome.status == 1 && outcome.stderr.contains(&expected), "{line}: {outcome:?}");
    }
}
