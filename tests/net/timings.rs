//! `--timings` reports what each call of a plugin spent its time on, and changes nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::json;

use super::{Site, slow_network};
use crate::support::attachment::for_ours;
use crate::support::networks::portmap::network;
use crate::support::synced::{attach, net};

/// The table's lines: the call, and the cell of each column.
type Lines = Vec<(String, BTreeMap<String, String>)>;

/// Reads the table, whose cells begin below their headers.
fn lines(table: &str) -> Lines {
    let mut lines = table.lines();
    let headers = lines.next().unwrap();
    let names = headers.split_whitespace().skip(1);
    let starts: Vec<_> = names.map(|name| (name, headers.find(name).unwrap())).collect();
    let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([usize::MAX]);
    let columns: Vec<_> = starts.iter().copied().zip(ends).collect();
    let read = |line: &str| {
        let cell = |((name, start), end): ((&str, usize), usize)| {
            let text = &line[start..end.min(line.len())];
            (name.to_owned(), text.trim().to_owned())
        };
        (line[..starts[0].1].trim_end().to_owned(), columns.iter().copied().map(cell).collect())
    };
    lines.map(read).collect()
}

/// A cell's milliseconds, and the number in brackets.
#[track_caller]
fn spent(lines: &Lines, call: &str, column: &str) -> (f64, u32) {
    let (_, cells) = lines.iter().find(|(name, _)| name == call).unwrap();
    let (ms, rest) = cells[column].split_once(" ms").unwrap_or(("0", ""));
    let count = rest.trim().trim_matches(['(', ')']).parse().unwrap_or(0);
    (ms.parse().unwrap(), count)
}

fn calls(lines: &Lines) -> Vec<&str> {
    lines.iter().map(|(call, _)| call.as_str()).collect()
}

#[test]
fn each_call_has_a_line_with_its_waits() {
    for_ours("bridge", |lab| {
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        attach(lab, &[network(), portmap], "");
        let container = lab.container();
        let timed = |words: &str| net(lab, &format!("{words} {} --timings", container.netns)).run();
        let add = timed("add pods -p 8080:80");
        assert!(add.ok()["ips"][0]["address"].is_string());
        let table = lines(&add.stderr);
        let expected = ["runtime", "ADD bridge", "  ADD host-local", "ADD portmap", "all"];
        assert_eq!(calls(&table), expected, "{}", add.stderr);
        let count = |call: &str, column: &str| spent(&table, call, column).1;
        assert!(count("ADD bridge", "LINKS") > 5 && count("ADD bridge", "NAMESPACES") > 0);
        assert_eq!((count("ADD portmap", "RULES") > 0, count("all", "PROGRAMS")), (true, 0));
        let parts = expected[..4].iter().map(|call| spent(&table, call, "TIME").0);
        assert!((parts.sum::<f64>() - spent(&table, "all", "TIME").0).abs() < 0.05);

        let del = timed("del pods");
        let table = lines(&del.stderr);
        let expected =
            ["runtime", "DEL portmap", "DEL bridge", "  DEL host-local", "end of DEL", "all"];
        assert_eq!(calls(&table), expected, "{}", del.stderr);
        assert!(spent(&table, "DEL bridge", "LINKS").1 > 0, "{}", del.stderr);
    });
}

#[test]
fn a_lock_that_another_process_holds_is_a_wait() {
    for_ours("bridge", |lab| {
        attach(lab, &[network()], "");
        let script = "flock /var/lib/cni/networks/pods/lock sh -c 'echo locked; sleep 0.5'";
        let mut holder =
            lab.host.command("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        let add = net(lab, &format!("add pods {} --timings", lab.container().netns)).run();
        holder.wait().unwrap();
        add.ok();
        let (ms, count) = spent(&lines(&add.stderr), "  ADD host-local", "LOCKS");
        assert!(ms > 50.0 && count > 0, "{}", add.stderr);
    });
}

#[test]
fn a_program_s_time_is_a_wait_also_if_it_fails() {
    let site = Site::new();
    site.network("10-lab.conflist", &slow_network("lab"));
    site.attached("lab", "c1", "/gone", &super::result(&["10.1.2.3/24"]));
    std::fs::write(site.0.join("fails"), "").unwrap();
    let del = site.net("del lab /gone --container-id c1 --timings");
    assert_eq!(del.status, 1, "{del:?}");
    let (table, error) = del.stderr.split_once("plugin type=").unwrap();
    assert!(error.contains("busy"), "{error}");
    let table = lines(table);
    let call = format!("DEL {}", site.at("bin/slow"));
    assert_eq!(calls(&table), ["runtime", &call, "end of DEL", "all"], "{}", del.stderr);
    let (ms, count) = spent(&table, &call, "PROGRAMS");
    assert!(ms >= 30.0 && count == 1, "{}", del.stderr);
}
