//! README and docs are true: links resolve, tables match the code, and examples print what is
//! written there.
//!
//! A page's examples are its fenced blocks: `json conflist` is a network that is written where
//! `cni-multi net` looks, `console` has commands after `$ ` with their output, and `json file NAME`
//! is written as it is. The blocks of a page run in one lab, in order. In the output, hardware
//! addresses, link-local addresses, ages and the numbers after `@if` are not compared, and a line
//! `...` stands for any lines.
//!
//! The tutorial's blocks, `console session` and `sh run by docs::NAME`, are typed into one shell.
//!
//! A block `sh` is for the reader's host and says what runs its commands: `sh run by
//! packages::NAME` is the test of tests/packages that takes them from the page; `sh run by
//! runtimes::NAME` is the case of tests/runtimes that does so; `sh run by MODULE::NAME` is a test
//! elsewhere; and `sh not run here` is not run.
//!
//! A network that not every kernel supports says so: `json conflist needs vlan id 1` is a link as
//! `ip link add` creates it. Such pages have separate tests, which skip where the kernel lacks the
//! link; the virtual machine runs them then. `needs program dnsmasq` is a program of the host.

mod page;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cni_multi::registry::PLUGINS;
use serde_json::{Value, json};

pub use self::page::{Block, Page, code_spans};
use crate::support::attachment::{has_programs, skip, with};
use crate::support::call::{Outcome, Peer, binary};
use crate::support::case;
use crate::support::limit;
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn plugins() -> Vec<[String; 3]> {
    let output = std::process::Command::new(binary()).args(["list", "--long"]).output().unwrap();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        [name.to_owned(), kind.to_owned(), words.collect::<Vec<_>>().join(" ")]
    };
    String::from_utf8(output.stdout).unwrap().lines().skip(1).map(line).collect()
}

// --- links and tables ---

#[test]
fn every_link_leads_somewhere() {
    for page in Page::all() {
        for link in links(&page.prose()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let own = root().join(&page.path);
            let target = if file.is_empty() { own } else { own.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: ({link}) is not there", page.path);
            if !anchor.is_empty() {
                assert!(
                    anchors(&target).contains(anchor),
                    "{}: ({link}) has no such heading",
                    page.path
                );
            }
        }
    }
}

/// `docs/README.md` links to each page, and the README to `docs/README.md`.
#[test]
fn the_index_has_every_page() {
    let linked = links(&Page::read("docs/README.md").prose());
    let files: BTreeSet<&str> = linked.iter().filter_map(|link| link.split('#').next()).collect();
    for page in Page::all().iter().filter_map(|page| page.path.strip_prefix("docs/")) {
        assert!(page == "README.md" || files.contains(page), "docs/README.md has no {page}");
    }
    for page in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        assert!(page == "README.md" || files.contains(&*format!("../{page}")), "{page}");
    }
    assert!(links(&Page::read("README.md").prose()).contains(&"docs/README.md".to_owned()));
}

/// The targets of all `[text](target)`.
fn links(text: &str) -> Vec<String> {
    text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// The anchors that viewers derive from the headings of a page.
fn anchors(path: &Path) -> BTreeSet<String> {
    let page = Page { path: path.display().to_string(), text: fs::read_to_string(path).unwrap() };
    let letter = |c: char| match c {
        ' ' | '-' => Some('-'),
        c if c.is_alphanumeric() || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    page.headings().iter().map(|heading| heading.chars().filter_map(letter).collect()).collect()
}

/// The comment of a code is the cause, an empty line, and what to do.
#[test]
fn the_error_codes_are_those_of_the_code() {
    let source = fs::read_to_string(root().join("src/error.rs")).unwrap();
    let mut table = "| code | cause | what to do |\n|---|---|---|\n".to_owned();
    let mut comment: Vec<&str> = vec![];
    for line in source.lines().map(str::trim) {
        let number = line.split_once(": Code = Code(").map(|(_, rest)| rest.trim_end_matches(");"));
        match (line.strip_prefix("///"), number) {
            (Some(text), _) => comment.push(text.trim()),
            (None, Some(number)) => {
                let text = comment.join(" ");
                let (cause, remedy) = text.split_once("  ").expect(line);
                writeln!(table, "| {number} | {cause} | {remedy} |").unwrap();
            }
            (None, None) => (),
        }
        if !line.starts_with("///") {
            comment.clear();
        }
    }
    Page::read("docs/errors.md").assert_generated("codes", &table);
}

// --- keys of configurations ---

/// `CNI_BLESS=1` writes them.
#[test]
fn the_tables_of_keys_are_those_of_the_types() {
    for entry in PLUGINS.iter().filter(|entry| entry.rows().next().is_some()) {
        let rows = entry.rows().map(|row| row.split_once(" | ").unwrap());
        let rows = rows.map(|(key, rest)| format!("| `{key}` | {rest} |\n"));
        let head = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
        let table = [head].into_iter().chain(rows).collect::<String>();
        Page::of_plugin(entry.name).assert_generated("keys", &table);
    }
}

// --- examples ---

/// A simulated host with `cni-multi` installed, and a shell of its operator.
struct Terminal {
    lab: Lab,
}

impl Terminal {
    fn new() -> Terminal {
        let lab = Lab::new(Peer::Ours);
        let program = binary();
        lab.host.sh(&format!(
            "mkdir /run/bin /run/net.d && ln -s '{}' /run/bin/cni-multi",
            program.display()
        ));
        Terminal { lab }
    }

    /// A terminal that can run the page's examples. Skips and returns None where the kernel lacks
    /// their links.
    fn for_page(page: &Page) -> Option<Terminal> {
        let terminal = Terminal::new();
        let missing = |kind: &String| {
            let probe = match kind.strip_prefix("program ") {
                Some(program) => format!("command -v {program}"),
                None => {
                    format!("ip link add link uplink name probe type {kind} && ip link del probe")
                }
            };
            !terminal.lab.host.try_sh(&probe).status.success()
        };
        match page.needs().iter().find(|kind| missing(kind)) {
            Some(kind) => {
                skip(kind.strip_prefix("program ").unwrap_or(kind.split(' ').next().unwrap()));
                None
            }
            None => Some(terminal),
        }
    }

    /// Makes what the first example makes before it calls cni-multi: links of the host, a server.
    fn make_ready(&self, page: &Page) {
        let example = page.blocks().into_iter().find(|block| block.info == "console").unwrap();
        let commands = commands(&example.text).into_iter().map(|(command, _)| command);
        for command in commands.take_while(|command| !command.contains("cni-multi")) {
            self.type_in(&command);
        }
    }

    fn write_network(&self, text: &str) {
        let network: Value = serde_json::from_str(text).unwrap();
        let name = network["name"].as_str().unwrap();
        fs::write(self.lab.path(&format!("/run/net.d/{name}.conflist")), text).unwrap();
    }

    fn write_file(&self, name: &str, text: &str) {
        fs::write(self.lab.path(&format!("/run/net.d/{name}")), text).unwrap();
    }

    /// The output of the command, including stderr.
    fn type_in(&self, command: &str) -> String {
        let script = format!(
            "exec 2>&1; export PATH=/run/bin:$PATH LC_ALL=C NETCONFPATH=/run/net.d; {command}"
        );
        String::from_utf8(self.lab.host.try_sh(&script).stdout).unwrap()
    }

    fn run(&self, page: &Page, block: &Block) {
        for (command, expected) in commands(&block.text) {
            let place = format!("{}:{}: $ {command}", page.path, block.line);
            assert_printed(&place, &self.type_in(&command), &expected);
        }
    }

    /// The output of one shell that reads these commands, in a directory like a clone whose demo
    /// has been built.
    fn type_in_one_shell(&self, commands: &str) -> String {
        let clone = Scratch::new(); // the page mounts something else at /run
        let script = format!(
            "cd {} && mkdir -p target/any/demo &&
            ln -s '{}' target/any/demo/cni-multi && unset http_proxy all_proxy ALL_PROXY &&
            export LC_ALL=C && exec bash 2>&1",
            clone.text(),
            binary().display()
        );
        let mut shell = self.lab.host.command("sh");
        shell.args(["-c", &script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let group = shell.id();
        // It fits into the pipe. bash reads one byte at a time, so the shell that the page starts
        // gets the lines after its own.
        shell.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = limit::output_of(shell);
        // A command in the background is left if the page's command that ends it has failed.
        let _ = self.lab.host.try_sh(&format!("kill -s KILL -- -{group}"));
        String::from_utf8(output.expect("the commands did not end").stdout).unwrap()
    }
}

impl Drop for Terminal {
    /// Kills what the page's commands left running: every process in the lab's mount namespace
    /// except the lab itself.
    fn drop(&mut self) {
        let script = r#"lab=$(readlink /proc/self/ns/mnt); [ -n "$lab" ] || exit 1
            for process in /proc/[0-9]*; do
                pid=${process#/proc/}
                [ "$pid" = $$ ] || [ "$pid" = LAB ] || [ "$(readlink $process/ns/mnt)" != "$lab" ] || kill -9 $pid
            done"#;
        // Some may have ended already.
        let _ = self.lab.host.try_sh(&script.replace("LAB", &self.lab.pid().to_string()));
    }
}

fn assert_printed(place: &str, printed: &str, expected: &[String]) {
    let printed: Vec<String> = printed.lines().map(lasting).collect();
    let expected: Vec<String> = expected.iter().map(|line| lasting(line)).collect();
    assert!(
        is_as_written(&printed, &expected),
        "{place}\nprints\n{}\nwritten is\n{}",
        printed.join("\n"),
        expected.join("\n")
    );
}

/// Commands with their output lines.
fn commands(text: &str) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = vec![];
    for line in text.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push((command.to_owned(), vec![])),
            None => commands
                .last_mut()
                .expect("a console block begins with a command")
                .1
                .push(line.to_owned()),
        }
    }
    commands
}

/// A line without the parts that vary. White space counts as one blank.
fn lasting(line: &str) -> String {
    line.split_whitespace().map(lasting_word).collect::<Vec<_>>().join(" ")
}

fn lasting_word(word: &str) -> String {
    let bare = word.trim_matches(['"', ',', ';']);
    let is_mac = bare.len() == 17
        && bare.split(':').count() == 6
        && bare.chars().all(|c| c == ':' || c.is_ascii_hexdigit());
    if is_mac
        && bare != "00:00:00:00:00:00"
        && bare != "ff:ff:ff:ff:ff:ff"
        && !bare.starts_with("02:00:00:")
    {
        return word.replace(bare, "MAC");
    }
    if bare.starts_with("fe80::") {
        return "LINK-LOCAL".to_owned();
    }
    if bare.strip_suffix(['s', 'm']).is_some_and(|number| number.parse::<u32>().is_ok()) {
        return "AGE".to_owned();
    }
    match word.split_once("@if") {
        Some((name, _)) => format!("{name}@if"),
        None => word.to_owned(),
    }
}

/// `...` in the written text stands for any number of lines.
fn is_as_written(printed: &[String], written: &[String]) -> bool {
    match written.split_first() {
        None => printed.is_empty(),
        Some((any, rest)) if any == "..." => {
            (0..=printed.len()).any(|skipped| is_as_written(&printed[skipped..], rest))
        }
        Some((line, rest)) => printed.first() == Some(line) && is_as_written(&printed[1..], rest),
    }
}

/// The pages with examples, by whether they need links that not every kernel supports.
fn pages_with_examples(needing: bool) -> Vec<Page> {
    let has_example = |page: &Page| page.blocks().iter().any(|block| block.info == "console");
    Page::all()
        .into_iter()
        .filter(|page| has_example(page) && page.needs().is_empty() != needing)
        .collect()
}

#[test]
fn the_examples_print_what_is_written() {
    pages_with_examples(false).iter().for_each(assert_prints_what_is_written);
}

#[test]
fn the_examples_of_rarer_links_print_what_is_written() {
    case::in_turn(pages_with_examples(true), 2).iter().for_each(assert_prints_what_is_written);
}

fn assert_prints_what_is_written(page: &Page) {
    let Some(terminal) = Terminal::for_page(page) else { return };
    terminal.lab.host.sh("ip route add default via 198.51.100.2");
    for block in page.blocks() {
        match block.info.as_str() {
            _ if block.is_network() => terminal.write_network(&block.text),
            "console" => terminal.run(page, &block),
            info if info.starts_with("json file ") => {
                terminal.write_file(&info["json file ".len()..], &block.text)
            }
            _ => (),
        }
    }
}

/// The tutorial as a whole: one shell gets its commands, enters namespaces as the page says, and
/// leaves them at the end.
#[test]
fn the_tutorial_prints_what_is_written() {
    const END: &str = "end of output";
    if !has_programs(&["bash", "curl", "python3"]) {
        return;
    }
    let terminal = Terminal::new();
    // A chroot forbids the namespace, and the runtime of a container may forbid the mount.
    if !terminal.lab.host.try_sh("unshare -rnm mount -t sysfs probe /sys").status.success() {
        return skip("user namespaces");
    }
    let page = Page::read("docs/tutorial.md");
    let mut steps: Vec<(usize, String, Vec<String>)> = vec![];
    for Block { info, text, line } in page.blocks() {
        match info.as_str() {
            "console session" => {
                let typed = commands(&text).into_iter();
                steps.extend(typed.map(|(command, expected)| (line, command, expected)));
            }
            info if info.starts_with("sh run by docs::") => steps.push((line, text, vec![])),
            _ => (),
        }
    }
    let with_end = |(_, command, _): &(usize, String, Vec<String>)| {
        format!("{command}\nprintf '\\n%s\\n' '{END}'\n") // some output has no last line break
    };
    let printed = terminal.type_in_one_shell(&steps.iter().map(with_end).collect::<String>());
    let outputs: Vec<&str> = printed.split(&format!("\n{END}\n")).collect();
    assert_eq!(outputs.len(), steps.len() + 1, "{printed}");
    for ((line, command, expected), output) in steps.iter().zip(outputs) {
        assert_printed(&format!("{}:{line}: $ {command}", page.path), output, expected);
    }
}

/// A row of a page's errors has a change to the plugin in its first example, or CNI_ARGS. With it,
/// ADD answers with the rest of the row, after the ADDs of the plugins before it.
///
/// The object below the table is the answer to the first row.
#[test]
fn the_errors_are_those_of_the_pages() {
    for page in pages_of_plugins(false) {
        assert_errors_are_written(&page, &Terminal::new());
    }
}

#[test]
fn the_errors_of_rarer_links_are_those_of_the_pages() {
    for page in case::in_turn(pages_of_plugins(true), 2) {
        let Some(terminal) = Terminal::for_page(&page) else { continue };
        terminal.make_ready(&page);
        assert_errors_are_written(&page, &terminal);
    }
}

fn pages_of_plugins(needing: bool) -> Vec<Page> {
    let pages = plugins().into_iter().map(|[name, ..]| Page::of_plugin(&name));
    pages.filter(|page| page.needs().is_empty() != needing).collect()
}

fn assert_errors_are_written(page: &Page, terminal: &Terminal) {
    let chain = first_chain(page);
    let mut answers = vec![];
    let plugin = page.path.trim_start_matches("docs/").trim_end_matches(".md");
    let rarer = Page::read("tests/docs/errors.txt").rows(Some(plugin));
    for row in page.rows(Some("Errors")).into_iter().chain(rarer) {
        let outcome = add_with(&terminal.lab, &chain, &code_spans(&row[0])[0]);
        let error = outcome.err();
        let details = row.get(3).map(|cell| code_spans(cell).concat()).unwrap_or_default();
        let expected = (row[1].parse().unwrap(), code_spans(&row[2]).concat(), details);
        assert_eq!((error.code, error.msg, error.details), expected, "{}: {}", page.path, row[0]);
        answers.push(outcome.json());
    }
    let whole =
        page.blocks().into_iter().find(|block| block.info == "json error").map(|block| block.text);
    let whole = whole.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(whole.as_ref(), answers.first(), "{}", page.path);
}

/// The configurations of the first example with the page's plugin, up to that plugin. An IPAM
/// plugin is in no list: then up to the plugin that calls it.
fn first_chain(page: &Page) -> Vec<Value> {
    let lists = page.blocks().into_iter().filter(Block::is_network);
    let lists: Vec<Value> = lists.map(|block| serde_json::from_str(&block.text).unwrap()).collect();
    let position = |list: &Value| {
        let is_its =
            |plugin: &Value| page.path == format!("docs/{}.md", plugin["type"].as_str().unwrap());
        list["plugins"].as_array().unwrap().iter().position(is_its)
    };
    let first = lists.first().unwrap_or_else(|| panic!("{} has no example", page.path));
    let (list, last) =
        lists.iter().find_map(|list| Some((list, position(list)?))).unwrap_or((first, 0));
    let of_list = json!({"cniVersion": list["cniVersion"], "name": list["name"]});
    list["plugins"].as_array().unwrap()[..=last]
        .iter()
        .map(|plugin| with(plugin, of_list.clone()))
        .collect()
}

fn add_with(lab: &Lab, chain: &[Value], change: &str) -> Outcome {
    let container = lab.container();
    let (conf, before) = chain.split_last().unwrap();
    let result = before.iter().fold(Value::Null, |result, conf| {
        lab.attach(&container, &with(conf, json!({"prevResult": result}))).add()
    });
    let conf = &with(conf, json!({"prevResult": result}));
    match change.strip_prefix("CNI_ARGS=") {
        Some(args) => lab.attach(&container, conf).args(args).try_add(),
        None => {
            let change = serde_json::from_str(change).unwrap_or_else(|e| panic!("{change}: {e}"));
            lab.attach(&container, &with(conf, change)).try_add()
        }
    }
}
