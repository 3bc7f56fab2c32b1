//! `cni-multi metrics`: leases, attachments and findings of this host, in the OpenMetrics text
//! format.
//!
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use clap::{ArgMatches, Command};

use super::doctor::Counts;
use super::ipam::networks::{Host, Leased};
use super::ipam::owners::{Owners, state};
use super::{doctor, ipam};
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::plugin::OperatorCommand;
use crate::plugin::leases::{Holding, Holdings};
use crate::runner::counts;
use crate::runtime::living::state_of;
use crate::service::metrics::Page;
use crate::terminal::arguments::{flag, option, text};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE};
use crate::terminal::{self, Streams};

/// Its page of the manual.
pub const MANUAL: Manual = Manual {
    description: &[
        "The values are read at the moment of the call; no daemon counts. With --textfile they \
         become a file for the textfile collector of node_exporter, which never sees a half of \
         it: call it from a timer.",
        "With --findings the node is examined as by cni-multi doctor, which takes a second for some \
         hundred attachments, runs CHECK of their plugins, and sends no packet.",
        "Calls of plugins are counted from --count start to --count stop, or to the next start of the \
         machine.",
    ],
    examples: &[
        ("cni-multi metrics", "Print the metrics."),
        (
            "cni-multi metrics --textfile /var/lib/prometheus/node-exporter",
            "Write them for node_exporter.",
        ),
        ("cni-multi metrics --findings", "Count the findings of doctor as well."),
    ],
    exit_status: SUCCESS_FAILURE_OR_USAGE,
    files: &[
        ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
        ("/var/lib/cni", "Leases of host-local, and records of attachments."),
        (counts::DIR, "Counts of calls, while it exists."),
    ],
    environment: &[
        ("NETCONFPATH", "The directory of networks, without --conf-dir."),
        ("CNI_PATH", "The directories of plugins for --findings, without --plugin-path."),
    ],
    see_also: &["cni-multi-doctor(1)", "cni-multi-ipam-ls(1)", "cni-multi-net-ps(1)"],
};

/// The beginning of each metric's name.
const PREFIX: &str = "cni_multi";
/// The name of the file for the textfile collector.
const FILE: &str = "cni-multi.prom";
/// What is written before it is renamed; the collector reads files that end in .prom.
const DRAFT: &str = ".cni-multi.prom.draft";

/// `cni-multi metrics`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "metrics", command_line: command, run, manual: |_| MANUAL };

fn command() -> Command {
    let findings = "Examine the node as doctor does, and count the findings by code";
    let textfile = "Write DIR/cni-multi.prom, for node_exporter's textfile collector";
    let count = "Begin to count calls of plugins, or end it; prints no metrics";
    Command::new("metrics")
        .about("Print leases, attachments and findings as metrics")
        .args(ipam::directories())
        .arg(flag("findings", findings))
        .arg(doctor::plugin_dirs().requires("findings"))
        .arg(option("textfile", "DIR", textfile))
        .arg(
            option("count", "start|stop", count)
                .value_parser(["start", "stop"])
                .conflicts_with_all(["textfile", "findings"]),
        )
}

/// Runs the command: exit status 0, or 1 for a failure.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let done = match text(matches, "count") {
        "stop" => counts::end(),
        "start" => counts::begin(),
        _ => write(matches, env, io),
    };
    let Err(error) = done else { return 0 };
    io.complain(&error);
    1
}

/// Writes the metrics to stdout, or to the file of `--textfile`.
fn write(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> Result<()> {
    let examined = matches.get_flag("findings").then(|| {
        let begun = Instant::now();
        let counts = doctor::count(matches, env);
        Examined { counts, seconds: begun.elapsed().as_secs_f64() }
    });
    let text = page(&ipam::host(matches, env), examined.as_ref())?;
    match matches.get_one::<String>("textfile") {
        Some(dir) => {
            // In one step; its readers are other users.
            let [draft, file] = [DRAFT, FILE].map(|name| Path::new(dir).join(name));
            plain_file::create_anew(&draft, text.as_bytes())
                .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(0o644)))
                .and_then(|()| fs::rename(&draft, &file))
                .map_err(Error::at_path("write", &file))?;
        }
        None => terminal::print(io.stdout, &text)?,
    }
    // A failure is a value, and the others are there.
    if let Some(Examined { counts: Err(error), .. }) = examined {
        io.complain(&error);
    }
    Ok(())
}

/// All metrics.
fn page(host: &Host<'_>, examined: Option<&Examined>) -> Result<String> {
    let networks = host.leased(None)?;
    let read: Vec<(&Leased, Result<Holdings>)> =
        networks.iter().map(|leased| (leased, leased.holdings(host))).collect();
    let owners = Owners::look(&host.cache)?;
    let mut page = Page::new(PREFIX);
    page.family("build", "info", "The version of cni-multi.");
    page.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    write_ranges(&read, &mut page);
    write_leases(&read, &owners, &mut page);
    write_attachments(&owners, &mut page);
    if let Some(calls) = counts::read()? {
        page.family("calls", "counter", "Calls of plugins by the error's code; 0 for success.");
        for ((plugin, command, code), count) in calls {
            let labels = [("plugin", &*plugin), ("command", &command), ("code", &code.to_string())];
            page.sample("calls_total", &labels, count);
        }
    }
    if let Some(examined) = examined {
        examined.write(&mut page);
    }
    Ok(page.finish())
}

/// How full each range is, and which stores cannot be read.
fn write_ranges(read: &[(&Leased, Result<Holdings>)], page: &mut Page) {
    for (name, about) in [
        ("range_addresses", "Addresses that a range has to allocate."),
        ("range_held", "Addresses of a range that are held."),
    ] {
        page.family(name, "gauge", about);
        for (leased, holdings) in read {
            for range in holdings.iter().flat_map(|holdings| &holdings.ranges) {
                let value = if name == "range_held" { range.held } else { range.size };
                let labels = [
                    ("network", leased.network.as_str()),
                    ("ipam", leased.ipam),
                    ("range", &range.range),
                ];
                page.sample(name, &labels, value);
            }
        }
    }
    page.family("leases_readable", "gauge", "Whether the leases of a network can be read.");
    for (leased, holdings) in read {
        let labels = [("network", leased.network.as_str()), ("ipam", leased.ipam)];
        page.sample("leases_readable", &labels, u64::from(holdings.is_ok()));
    }
}

/// How many leases there are, by network and by the state of the owner's namespace.
fn write_leases(read: &[(&Leased, Result<Holdings>)], owners: &Owners, page: &mut Page) {
    page.family("leases", "gauge", "Leases by the state of the container's namespace.");
    for (leased, holdings) in read {
        let held: &[Holding] = holdings.as_ref().map_or(&[], |holdings| &holdings.held);
        let leases: Vec<_> = held.iter().map(|held| (&leased.network, held)).collect();
        let mut counts = States::default();
        owners.judge(&leases).into_iter().for_each(|verdict| counts.count(state(verdict)));
        let labels = [("network", leased.network.as_str()), ("ipam", leased.ipam)];
        counts.write("leases", &labels, page);
    }
}

/// How many attachments are recorded, by network and by the state of their namespace.
fn write_attachments(owners: &Owners, page: &mut Page) {
    page.family("attachments", "gauge", "Recorded attachments by the state of their namespace.");
    let mut networks: BTreeMap<&str, States> = BTreeMap::new();
    for at in owners.recorded() {
        networks.entry(at.key.network.as_str()).or_default().count(state_of(&at.netns));
    }
    for (network, counts) in networks {
        counts.write("attachments", &[("network", network)], page);
    }
}

/// What doctor has found.
struct Examined {
    counts: Result<Counts>,
    seconds: f64,
}

impl Examined {
    /// Writes the findings by code, if it could be carried out. A code without a finding has no
    /// sample.
    fn write(&self, page: &mut Page) {
        page.family("examined", "gauge", "Whether doctor could examine the node.");
        page.sample("examined", &[], u8::from(self.counts.is_ok()));
        page.family("examination_seconds", "gauge", "How long the examination took.");
        page.sample("examination_seconds", &[], format_args!("{:.3}", self.seconds));
        page.family("findings", "gauge", "Findings of doctor by code.");
        for ((code, severity), count) in self.counts.iter().flatten() {
            page.sample("findings", &[("code", code), ("severity", severity)], count);
        }
    }
}

/// Counts of namespaces, by their state.
#[derive(Default)]
struct States([u64; 3]);

const STATES: [&str; 3] = ["alive", "gone", "unknown"];

impl States {
    fn count(&mut self, state: &str) {
        let index = STATES.iter().position(|known| *known == state).unwrap_or(STATES.len() - 1);
        self.0[index] += 1;
    }

    fn write(&self, name: &str, labels: &[(&str, &str)], page: &mut Page) {
        for (state, count) in STATES.iter().zip(self.0) {
            let labels = [labels, &[("namespace", *state)]].concat();
            page.sample(name, &labels, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    fn values(counts: Result<Counts>) -> Vec<String> {
        let mut page = Page::new("cni_multi");
        Examined { counts, seconds: 0.25 }.write(&mut page);
        let text = page.finish();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn findings_have_a_sample_for_each_code() {
        let counts = Counts::from([(("duplicate-name", "warning"), 1), (("D311", "error"), 2)]);
        assert_eq!(
            values(Ok(counts)),
            [
                "cni_multi_examined 1",
                "cni_multi_examination_seconds 0.250",
                "cni_multi_findings{code=\"D311\",severity=\"error\"} 2",
                "cni_multi_findings{code=\"duplicate-name\",severity=\"warning\"} 1",
            ]
        );
    }

    #[test]
    fn a_failed_examination_is_a_value() {
        let values = values(Err(Error::new(Code::TRY_AGAIN, "open netlink")));
        assert_eq!(values, ["cni_multi_examined 0", "cni_multi_examination_seconds 0.250"]);
    }
}
