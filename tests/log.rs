//! The log: one line for each call of a plugin, in journald's socket or on stderr.

use std::os::unix::net::UnixDatagram;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::parallel::all_at_once;
use crate::support::attachment::{Attachment, for_ours, ips, skip, with};
use crate::support::call::{Call, Outcome};
use crate::support::dhcp::{Process, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::bridge;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The page's commands, with the real journal. Its files are on the lab's own file systems.
#[test]
fn journalctl_finds_the_calls_of_a_container() {
    for_ours("bridge", |lab| {
        const JOURNALD: &str = "/usr/lib/systemd/systemd-journald";
        if !std::path::Path::new(JOURNALD).exists() {
            return eprintln!("not run: {JOURNALD} is not installed");
        }
        // journald looks up the cgroup of each sender, and the lab's /sys shows none.
        if !lab.host.try_sh("mount -t cgroup2 lab /sys/fs/cgroup").status.success() {
            return skip("a cgroup2 that can be mounted");
        }
        lab.host.sh("mount -t tmpfs lab /var/log
            mkdir -p /run/systemd/journal /run/log/journal /run/etc && cp /etc/machine-id /run/etc/
            mount --bind /run/etc /etc");
        let commands = page_commands();
        let at = |text: &str| commands.iter().position(|line| line.starts_with(text)).unwrap();
        commands[..at("journalctl")].iter().for_each(|command| drop(lab.host.sh(command)));
        let output = lab.path("/run/journald.out");
        let _journald = Process::start(&lab.host, &[JOURNALD.to_owned()], Stdio::null(), output);
        let socket = lab.path("/run/systemd/journal/socket");
        wait_until("journald has its socket", 20, || socket.exists());
        let container = lab.container();
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.96.0.0/24"}]]});
        let conf = with(&bridge::conf(), json!({"ipam": ipam}));
        let result = lab.attach(&container, &conf).id("red").call("ADD", None).run().ok();
        let failing = with(&conf, json!({"vlan": 5000}));
        lab.attach(&container, &failing).id("blue").call("ADD", None).run().err();
        let is_last_there = || {
            let found = lab.host.try_sh("journalctl -t cni-multi -q").stdout;
            String::from_utf8_lossy(&found).contains(" id=blue")
        };
        wait_until("journald has written the entries", 20, is_last_there);
        let lines: Vec<String> = commands[at("journalctl")..]
            .iter()
            .map(|command| lab.host.sh(&format!("{command} -q -o cat")))
            .collect();
        let ids = |text: &str| {
            let words = text.split_whitespace().filter_map(|word| word.strip_prefix("id="));
            words.map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        let ids: Vec<String> = lines.iter().map(|text| ids(text)).collect();
        assert_eq!(ids, ["red blue", "blue", "red", "red"], "{lines:?} {result}");
    });
}

/// The commands of the page's blocks that this file runs, in order.
fn page_commands() -> Vec<String> {
    let page = std::fs::read_to_string("docs/logging.md").unwrap();
    let blocks =
        page.split("```sh run by log::journalctl_finds_the_calls_of_a_container\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    lines.map(str::to_owned).collect()
}

/// A socket in place of journald's.
struct Journal(UnixDatagram);

impl Journal {
    fn start(lab: &Lab) -> Journal {
        lab.host.sh("mkdir -p /run/systemd/journal");
        let socket = UnixDatagram::bind(lab.path("/run/systemd/journal/socket")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Journal(socket)
    }

    /// The entries that have come, each a list of `NAME=value`. A value with a newline would have
    /// another form, and fails the test.
    fn entries(&self) -> Vec<Vec<String>> {
        let mut buffer = vec![0; 1 << 20];
        let mut entries = vec![];
        while let Ok(length) = self.0.recv(&mut buffer) {
            let text = std::str::from_utf8(&buffer[..length]).unwrap();
            let fields: Vec<String> = text.lines().map(str::to_owned).collect();
            assert!(fields.iter().all(|field| field.contains('=')), "{text:?}");
            entries.push(fields);
        }
        entries
    }

    #[track_caller]
    fn only_entry(&self) -> Vec<String> {
        let mut entries = self.entries();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }
}

/// The values of a field of an entry.
fn values<'a>(entry: &'a [String], name: &str) -> Vec<&'a str> {
    let fields = entry.iter().filter_map(|field| field.split_once('='));
    fields.filter(|(field, _)| *field == name).map(|(_, value)| value).collect()
}

/// The call with the log switched on.
fn logged(call: Call) -> Call {
    call.env("CNI_MULTI_LOG", "1")
}

/// The line without its time, which differs from run to run.
fn without_time(line: &str) -> String {
    let words = line.trim_end().split(' ').filter(|word| !word.starts_with("ms="));
    words.collect::<Vec<_>>().join(" ")
}

fn is_logged(lab: &Lab, env: &[(&str, &str)]) -> bool {
    let mut call = Call::new(&lab.peer, "bridge", "VERSION", "").wrapped(&lab.host.enter);
    call.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let outcome = call.run();
    outcome.ok();
    let is_line = without_time(&outcome.stderr) == "plugin=bridge op=VERSION code=0";
    assert!(is_line || outcome.stderr.is_empty(), "{}", outcome.stderr);
    is_line
}

/// An ADD and a DEL of one container, which both succeed.
fn add_and_del(attachment: &Attachment<'_>) -> Value {
    let result = logged(attachment.call("ADD", None)).env("TRACEPARENT", TRACE).run().ok();
    logged(attachment.call("DEL", Some(&result))).run();
    result
}

#[test]
fn a_call_is_an_entry_of_the_journal_with_its_fields() {
    for_ours("bridge", |lab| {
        let journal = Journal::start(lab);
        let container = lab.container();
        let result = add_and_del(&lab.attach(&container, &bridge::conf()));
        let entries = journal.entries();
        let [add, del] = &entries[..] else { panic!("{entries:?}") };
        let conf = bridge::conf();
        let net = conf["name"].as_str().unwrap();
        let ip = ips(&result)[0].clone();
        for (name, value) in [
            ("SYSLOG_IDENTIFIER", "cni-multi"),
            ("PRIORITY", "6"),
            ("CNI_PLUGIN", "bridge"),
            ("CNI_COMMAND", "ADD"),
            ("CNI_NETWORK", net),
            ("CNI_CONTAINERID", &container.id),
            ("CNI_IFNAME", "eth0"),
            ("CNI_CODE", "0"),
            ("CNI_IP", &ip),
            ("TRACEPARENT", TRACE),
        ] {
            assert_eq!(values(add, name), [value], "{name}: {add:?}");
        }
        let ms: f64 = values(add, "CNI_MS")[0].parse().unwrap();
        assert!(ms > 0.0);
        let id = &container.id;
        let line = format!("plugin=bridge op=DEL net={net} id={id} if=eth0 code=0");
        assert_eq!(without_time(values(del, "MESSAGE")[0]), line);
        let failing = with(&conf, json!({"vlan": 5000}));
        let outcome = logged(lab.attach(&lab.container(), &failing).call("ADD", None)).run();
        let (error, entry) = (outcome.err(), journal.only_entry());
        assert_eq!(values(&entry, "CNI_CODE"), [error.code.to_string()]);
        assert_eq!(values(&entry, "PRIORITY"), ["3"]);
        assert!(values(&entry, "CNI_MSG")[0].starts_with(&error.msg), "{entry:?}: {error:?}");
        assert_eq!(outcome.stderr, "");
    });
}

#[test]
fn without_a_journal_the_line_is_on_stderr() {
    for_ours("bridge", |lab| {
        assert!(is_logged(lab, &[("CNI_MULTI_LOG", "1")]), "no socket");
        let journal = Journal::start(lab);
        assert!(!is_logged(lab, &[("CNI_MULTI_LOG", "1")]));
        assert_eq!(journal.entries().len(), 1);
        drop(journal);
        // A process that another test starts at this moment has the socket until its exec.
        let is_on_stderr = || is_logged(lab, &[("CNI_MULTI_LOG", "1")]);
        wait_until("nobody reads the socket", 5, is_on_stderr);
    });
}

#[test]
fn the_log_is_off_unless_the_variable_or_the_file_is_there() {
    for_ours("bridge", |lab| {
        lab.host.sh("mkdir -p /run/etc/cni-multi && mount --bind /run/etc /etc");
        assert!(!is_logged(lab, &[]));
        assert!(!is_logged(lab, &[("CNI_MULTI_LOG", "")]));
        for (made, on) in [
            ("mkdir log", false),
            ("mkfifo log", false),
            ("ln -s /nowhere log", false),
            ("touch log", true),
            ("echo '{' >log && chmod 0 log", true),
        ] {
            lab.host.sh(&format!("cd /etc/cni-multi; rm -rf log; {made}"));
            assert_eq!(is_logged(lab, &[]), on, "{made}");
        }
        assert!(!is_logged(lab, &[("CNI_MULTI_LOG", "0")]), "the variable comes first");
    });
}

/// Values that would add lines or fields, or move a terminal's cursor.
#[test]
fn text_of_others_adds_no_line_and_no_field() {
    for_ours("bridge", |lab| {
        let long = "x".repeat(100_000);
        let hostile = ["a\nPRIORITY=0", "a b code=0", "\u{1b}[2J", "a\u{202e}b", "\"", &long];
        for on_stderr in [true, false] {
            let journal = (!on_stderr).then(|| Journal::start(lab));
            for text in hostile {
                let stdin = json!({"cniVersion": "1.1.0", "name": text, "type": "bridge"});
                let mut call = logged(Call::new(&lab.peer, "bridge", "ADD", stdin.to_string()))
                    .wrapped(&lab.host.enter);
                for name in ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "TRACEPARENT"] {
                    call = call.env(name, text);
                    let outcome = call.run();
                    outcome.err();
                    let line = match &journal {
                        None => outcome.stderr.strip_suffix('\n').unwrap().to_owned(),
                        Some(journal) => one_message(&journal.only_entry()),
                    };
                    assert!(line.starts_with("plugin=bridge op="), "{line:?}");
                    assert!(!line.contains(|letter: char| letter.is_control()), "{line:?}");
                    let outside = outside_quotes(&line);
                    for (field, count) in [(" code=", 1), (" code=0", 0), ("traceparent=", 0)] {
                        assert_eq!(outside.matches(field).count(), count, "{line:?}");
                    }
                    assert!(line.len() < 4096, "{}", line.len());
                }
            }
        }
    });
}

/// The line without what is in quotes, where `\\` comes before a quote that is part of the value.
fn outside_quotes(line: &str) -> String {
    let line = line.replace("\\\\", "").replace("\\\"", "");
    line.split('"').step_by(2).collect()
}

/// The message of an entry in which each field is there once.
fn one_message(entry: &[String]) -> String {
    assert_eq!(values(entry, "PRIORITY"), ["3"], "{entry:?}");
    values(entry, "MESSAGE")[0].to_owned()
}

/// journald has stopped: its queue is full, and the call succeeds without delay.
#[test]
fn a_full_journal_loses_the_line_and_delays_nothing() {
    for_ours("bridge", |lab| {
        let journal = Journal::start(lab);
        let sender = UnixDatagram::unbound().unwrap();
        sender.set_nonblocking(true).unwrap();
        let path = lab.path("/run/systemd/journal/socket");
        let mut sent = 0;
        while sender.send_to(b"MESSAGE=x\n", &path).is_ok() {
            sent += 1;
        }
        assert!(!is_logged(lab, &[("CNI_MULTI_LOG", "1")]));
        assert_eq!(journal.entries().len(), sent, "the entry was lost");
        assert!(!is_logged(lab, &[("CNI_MULTI_LOG", "1")]));
        assert_eq!(journal.entries().len(), 1, "the next one was not");
    });
}

/// A runtime that does not read stderr: the pipe is full, and the call succeeds.
#[test]
fn a_full_pipe_of_stderr_delays_nothing() {
    for_ours("bridge", |lab| {
        let call = logged(Call::new(&lab.peer, "bridge", "VERSION", ""))
            .wrapped(&[&lab.host.enter[..], &FULL_PIPE.map(str::to_owned)[..]].concat());
        call.run().ok();
    });
}

/// Runs the program with a full pipe as its stderr, and with a limit of five seconds.
const FULL_PIPE: [&str; 3] = [
    "sh",
    "-c",
    r#"rm -f /run/full; mkfifo /run/full; exec 3<>/run/full
    timeout 1 sh -c 'while :; do printf %04096d 0 >&3; done'; exec timeout 5 "$0" 2>&3"#,
];

#[test]
fn calls_at_once_are_an_entry_each() {
    for_ours("bridge", |lab| {
        let journal = Journal::start(lab);
        lab.host.sh("mkdir -p /run/etc/cni-multi && touch /run/etc/cni-multi/log && mount --bind /run/etc /etc");
        let containers: Vec<_> = (0..8).map(|_| lab.container()).collect();
        let conf = bridge::conf();
        let attachments: Vec<_> =
            containers.iter().map(|container| lab.attach(container, &conf)).collect();
        let outcomes = all_at_once(&attachments, "ADD");
        let added: Vec<Value> = outcomes.iter().map(Outcome::ok).collect();
        let entries = journal.entries();
        assert_eq!(entries.len(), added.len());
        for (container, result) in containers.iter().zip(&added) {
            let is_its = |entry: &&Vec<String>| values(entry, "CNI_CONTAINERID") == [&container.id];
            let of_container: Vec<_> = entries.iter().filter(is_its).collect();
            assert_eq!(of_container.len(), 1, "{entries:?}");
            assert_eq!(values(of_container[0], "CNI_IP"), [&ips(result)[0]]);
        }
    });
}

/// The plugin of addresses runs inside the bridge's call and has no line of its own; `net` calls
/// each plugin of a list, and removes by GC.
#[test]
fn each_call_of_net_is_an_entry() {
    for_ours("bridge", |lab| {
        let container = lab.container();
        let plugins = json!([bridge::conf(), {"type": "tuning", "sysctl": {}}]);
        let list = json!({"cniVersion": "1.1.0", "name": "lab", "plugins": plugins});
        lab.host.sh("mkdir -p /run/net.d");
        std::fs::write(lab.path("/run/net.d/lab.conflist"), list.to_string()).unwrap();
        let journal = Journal::start(lab);
        let binary = crate::support::call::binary();
        let path = crate::support::call::farm().display().to_string();
        let net = |line: &str| {
            lab.host.sh(&format!(
                "CNI_MULTI_LOG=1 NETCONFPATH=/run/net.d {} net {line} --plugin-path {path}",
                binary.display()
            ));
            let entries = journal.entries();
            let calls = entries.iter().map(|entry| {
                let [plugin, command] =
                    ["CNI_PLUGIN", "CNI_COMMAND"].map(|name| values(entry, name)[0]);
                assert_eq!(values(entry, "CNI_NETWORK"), ["lab"]);
                format!("{plugin} {command}")
            });
            calls.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(net(&format!("add lab {}", container.netns)), "bridge ADD, tuning ADD");
        assert_eq!(net(&format!("check lab {}", container.netns)), "bridge CHECK, tuning CHECK");
        assert_eq!(net("gc lab"), "bridge GC, tuning GC");
        assert_eq!(net("sync lab"), "", "a repair is not a call of a plugin");
        assert_eq!(net(&format!("del lab {}", container.netns)), "tuning DEL, bridge DEL");
    });
}

/// Off, a call looks for the file once and opens no socket.
#[test]
fn the_log_costs_one_system_call_while_it_is_off() {
    for_ours("bridge", |lab| {
        let trace = "strace -qq -e trace=file,network -o /run/trace".split(' ').map(str::to_owned);
        if !lab.host.try_sh("strace -qq -o /dev/null true").status.success() {
            return skip("strace");
        }
        let wrapper: Vec<String> = lab.host.enter.iter().cloned().chain(trace).collect();
        Call::new(&lab.peer, "bridge", "VERSION", "").wrapped(&wrapper).run().ok();
        let trace = lab.host.sh("cat /run/trace");
        let looked: Vec<&str> =
            trace.lines().filter(|line| line.contains("/etc/cni-multi")).collect();
        assert_eq!(looked.len(), 1, "{trace}");
        assert!(looked[0].contains("stat") && looked[0].contains("ENOENT"), "{trace}");
        assert!(!trace.contains("socket("), "{trace}");
    });
}
