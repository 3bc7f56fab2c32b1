//! The pages that figures are written into: docs/performance.md and the README.

use std::path::Path;

use crate::Result;
use crate::cases::Bench;
use crate::options::Options;
use crate::report::Report;
use crate::summary;

/// A part of a page that this program writes, between two lines.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The costs of calls, and the budgets.
    Figures,
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
    Part::Figures,
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
            Part::Figures => "figures",
            Part::Summary => "summary",
            Part::Packets => "packets",
            Part::FastPath => "fast path",
            Part::Crowds => "crowds",
            Part::Density => "density",
            Part::Links => "links",
        }
    }

    /// The groups that it is made of. The first part needs more than those that it names: all that
    /// are in no other part.
    fn groups(self) -> &'static [&'static str] {
        match self {
            Part::Figures | Part::Summary => {
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
            Part::Links => Part::Figures.is_measured(options),
            Part::FastPath => Part::Packets.is_measured(options),
            Part::Figures | Part::Summary | Part::Packets | Part::Crowds | Part::Density => false,
        };
        wanted && !is_in_another
    }

    /// `None` if the machine could not measure it.
    fn content(self, bench: &Bench, report: &Report) -> Result<Option<String>> {
        Ok(match self {
            Part::Figures => Some(report.markdown()),
            Part::Summary => Some(summary::table(bench, report)?),
            Part::Packets | Part::FastPath => report.packets(),
            Part::Crowds => report.crowds(),
            Part::Density => report.density(),
            Part::Links => report.costs(),
        })
    }

    /// The lines around it.
    fn marks(self) -> [String; 2] {
        let name = self.name();
        let options = if self == Part::Summary { "--markdown and --readme" } else { "--markdown" };
        [
            format!("<!-- benches: {name}, by {options} -->"),
            format!("<!-- benches: end of the {name} -->"),
        ]
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

/// Whether this file is a page with marks for the figures.
pub fn has_figures(page: &Path) -> bool {
    let [begin, _] = Part::Figures.marks();
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

/// Writes the measured parts into docs/performance.md.
pub fn write_figures(page: &Path, options: &Options, bench: &Bench, report: &Report) -> Result<()> {
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
