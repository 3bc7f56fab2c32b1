//! The pages that figures are written into, docs/performance.md and the README, and the tables
//! below `evidence` beside the first: a page has the rows that decide.

use std::path::Path;

use crate::Result;
use crate::cases::Bench;
use crate::names;
use crate::options::Options;
use crate::report::{Report, piped};
use crate::summary;
use crate::tables::{self, Table};

/// A part of a page that this program writes, between two lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The costs of calls, what is left, sizes, and the budgets.
    Calls,
    /// The six figures of the README.
    Summary,
    Packets,
    /// Packets with `fastPath`, where they are measured alone: small kernels lack flowtables.
    FastPath,
    Crowds,
    /// Full hosts.
    Density,
    /// Links that a small kernel lacks, where they are measured alone.
    Links,
}

const PARTS: [Part; 7] = [
    Part::Calls,
    Part::Summary,
    Part::Packets,
    Part::FastPath,
    Part::Crowds,
    Part::Density,
    Part::Links,
];

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Calls => "calls",
            Part::Summary => "six figures",
            Part::Packets => "packets",
            Part::FastPath => "packets with fastPath",
            Part::Crowds => "crowds",
            Part::Density => "full hosts",
            Part::Links => "links",
        }
    }

    /// The groups that it is made of. The first part needs more than those that it names: all that
    /// are in no other part.
    fn groups(self) -> &'static [&'static str] {
        match self {
            Part::Calls | Part::Summary => {
                &["chain", "host-local", "connections", "leaks-after-kill"]
            }
            Part::Packets => &["packets", "packets-nftables", "packets-netavark"],
            Part::FastPath => &["packets-fast-path"],
            Part::Crowds => &["crowd-of-chains"],
            Part::Density => &["density", "memory"],
            Part::Links => &["macvlan", "ipvlan", "vlan", "vrf"],
        }
    }

    /// Whether a run with these options measures all of it.
    fn is_measured(self, options: &Options) -> bool {
        let wanted = self.groups().iter().all(|group| options.wants(group));
        let is_in_another = match self {
            Part::Links => Part::Calls.is_measured(options),
            Part::FastPath => Part::Packets.is_measured(options),
            Part::Calls | Part::Summary | Part::Packets | Part::Crowds | Part::Density => false,
        };
        wanted && !is_in_another
    }

    /// Its whole tables, by the names of their files; a table without rows was not measured.
    fn evidence(self, report: &Report) -> Vec<(&'static str, Table)> {
        let book = report.book;
        match self {
            Part::Calls => vec![
                ("calls", tables::calls(book)),
                ("run", report.run_table()),
                ("left", tables::left(book)),
                ("sizes", report.size_table()),
                ("budgets", report.budget_table()),
            ],
            Part::Summary => vec![],
            Part::Packets => vec![("packets", tables::packets(book))],
            Part::FastPath => vec![("packets-fast-path", tables::packets(book))],
            Part::Crowds => vec![("crowds", tables::crowds(book))],
            Part::Density => vec![
                ("density", tables::density(book, report.densities)),
                ("memory", tables::memory(book)),
            ],
            Part::Links => vec![("links", tables::calls(book))],
        }
    }

    /// What the page has of it: the rows that decide. `None` if the machine could not measure it.
    fn content(self, bench: &Bench, report: &Report) -> Result<Option<String>> {
        if self == Part::Summary {
            return summary::table(bench, report).map(Some);
        }
        let table = self.evidence(report).swap_remove(0).1;
        let shown = self.excerpt(&table);
        if shown.is_empty() {
            return Ok(None);
        }
        let mut text = format!("{}\n\n{}", report.machine, piped(&shown));
        if self == Part::Calls {
            text += &format!("\n{}", report.closing());
        }
        Ok(Some(text))
    }

    /// The rows and columns that decide, of the first of its tables.
    fn excerpt(self, table: &Table) -> Table {
        let hosts = table.iter().filter_map(|row| containers(&row[0]));
        let most = hosts.max();
        let [port, outside] = [&names::TO_PORT, &names::TO_OUTSIDE];
        let packets = ["host with", "traffic", "unit", "ours", "reference", "time ratio"];
        let of_full_host = |traffic: &[&str], row: &[String]| {
            containers(&row[0]) == most && traffic.contains(&&*row[1])
        };
        match self {
            Part::Calls => tables::excerpt(
                table,
                &[
                    "case",
                    "operation",
                    "ours ms",
                    "reference ms",
                    "floor ms",
                    "wall ratio",
                    "CPU ratio",
                ],
                |row| DECIDING.contains(&(&*row[0], &*row[1])),
            ),
            Part::Summary => vec![],
            Part::Packets => tables::excerpt(table, &packets, |row| {
                of_full_host(&[port.connections, port.datagrams], row)
            }),
            Part::FastPath => tables::excerpt(table, &packets, |row| {
                let ways = [port, outside].map(|way| [way.datagrams, way.stream]);
                of_full_host(&ways.concat(), row)
            }),
            Part::Crowds => tables::excerpt(
                table,
                &[
                    "crowd",
                    "operation",
                    "ours p50 ms",
                    "reference p50 ms",
                    "ours per second",
                    "reference per second",
                    "rate ratio",
                ],
                |row| row[0].ends_with("20 at a time"),
            ),
            Part::Density => table.clone(),
            Part::Links => tables::excerpt(
                table,
                &["case", "operation", "ours ms", "reference ms", "wall ratio", "CPU ratio"],
                |row| row[1] == "ADD",
            ),
        }
    }

    /// The lines around it.
    fn marks(self) -> [String; 2] {
        [format!("<!-- generated: {} -->", self.name()), "<!-- end of generated -->".to_owned()]
    }

    /// The page's text with this content between the marks; an error if it does not have them.
    fn replace_in(self, page: &Path, text: &str, content: &str) -> Result<String> {
        let [begin, end] = self.marks();
        let parts = text.split_once(&begin).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(&end)?;
            Some((before, after))
        });
        let (before, after) =
            parts.ok_or_else(|| format!("{page:?} has no line `{begin}` before a line `{end}`"))?;
        Ok(format!("{before}{begin}\n\n{}\n\n{end}{after}", content.trim_end()))
    }
}

/// The calls that the page shows beside the six figures.
const DECIDING: [(&str, &str); 5] = [
    (names::VERSION, ""),
    (names::BRIDGE, "ADD"),
    (names::CHAIN, "ADD"),
    (names::CHAIN, "DEL"),
    (names::CNITOOL, "DEL"),
];

/// The number of containers that the name of a case begins with.
fn containers(case: &str) -> Option<usize> {
    case.split(' ').next()?.parse().ok()
}

/// Whether this file is a page with marks for the figures.
pub fn has_figures(page: &Path) -> bool {
    let [begin, _] = Part::Calls.marks();
    std::fs::read_to_string(page).is_ok_and(|text| text.contains(&begin))
}

/// Refuses options with which a page could not be written, before minutes of measurement, and a file
/// that would be overwritten.
pub fn check(options: &Options) -> Result<()> {
    let is_other = |file: &Path| file.exists() && !has_figures(file);
    if let Some(file) = options.markdown.as_deref().filter(|file| is_other(file)) {
        return Err(format!("{file:?} is there and has no marks for figures; name a new file"));
    }
    if let Some(page) = options.markdown.as_ref().filter(|page| has_figures(page)) {
        if measured_parts(options).is_empty() {
            return Err(format!("{page:?} has no part with these groups alone"));
        }
        replace_all(
            page,
            measured_parts(options).into_iter().map(|part| Ok((part, String::new()))),
        )?;
    }
    let Some(page) = &options.readme else { return Ok(()) };
    replace_all(page, [Ok((Part::Summary, String::new()))])?;
    if Part::Summary.is_measured(options) {
        Ok(())
    } else {
        Err(format!("{page:?} needs the groups {}", Part::Summary.groups().join(", ")))
    }
}

/// Writes the measured parts into docs/performance.md, and their whole tables beside it.
pub fn write_figures(page: &Path, options: &Options, bench: &Bench, report: &Report) -> Result<()> {
    let evidence = page.with_file_name("evidence");
    std::fs::create_dir_all(&evidence).map_err(|e| format!("create {evidence:?}: {e}"))?;
    let tables = measured_parts(options).into_iter().flat_map(|part| part.evidence(report));
    for (name, table) in tables.filter(|(_, table)| !table.is_empty()) {
        write(&evidence.join(name).with_extension("csv"), tables::csv(&table))?;
    }
    let contents = measured_parts(options).into_iter().filter_map(|part| {
        let content = part.content(bench, report).transpose()?;
        Some(content.map(|content| (part, content)))
    });
    write(page, replace_all(page, contents)?)
}

/// Writes the README's figures.
pub fn write_summary(page: &Path, bench: &Bench, report: &Report) -> Result<()> {
    write(page, replace_all(page, [Ok((Part::Summary, summary::table(bench, report)?))])?)
}

fn measured_parts(options: &Options) -> Vec<Part> {
    PARTS.into_iter().filter(|part| part.is_measured(options)).collect()
}

/// The page's text with the parts; an error if it has no marks for one.
fn replace_all(
    page: &Path,
    parts: impl IntoIterator<Item = Result<(Part, String)>>,
) -> Result<String> {
    let text = std::fs::read_to_string(page).map_err(|e| format!("read {page:?}: {e}"))?;
    parts.into_iter().try_fold(text, |text, part| {
        let (part, content) = part?;
        part.replace_in(page, &text, &content)
    })
}

fn write(page: &Path, text: String) -> Result<()> {
    std::fs::write(page, text).map_err(|e| format!("write {page:?}: {e}"))
}
