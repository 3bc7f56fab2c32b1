//! The findings for people, in columns, and for programs.

use super::finding::{Finding, Object};
use super::kernel;
use super::node::{Leases, Node};
use crate::cni::json::Value;
use crate::commands::fault::Severity;
use crate::family::Family;
use crate::net::sysctl::Sysctl;
use crate::terminal::style::Style;
use crate::terminal::table;
use crate::terminal::visible::visible;

/// A line, of a finding or of what is in order, with what is before and behind severity and code.
struct Row<'f> {
    finding: Option<&'f Finding>,
    label: String,
    evidence: String,
}

/// The findings as JSON.
pub fn json(findings: &[Finding]) -> String {
    let count = |severity| findings.iter().filter(|it| it.fault.severity == severity).count();
    let values = findings.iter().map(Finding::value).collect();
    table::json(&Value::object([
        ("findings", Value::Array(values)),
        ("errors", Value::number(count(Severity::Error))),
        ("warnings", Value::number(count(Severity::Warning))),
    ]))
}

/// The findings for people. What is in order has a line of its own.
pub fn text(node: &Node<'_>, findings: &[Finding], style: Style) -> String {
    let rows = rows(node, findings);
    let width = |cell: fn(&Row) -> usize| rows.iter().map(cell).max().unwrap_or_default();
    let widths = (
        width(|row| row.label.chars().count()),
        width(|row| row.word().len()),
        width(|row| row.code().len()),
    );
    let mut text = match node.sent.get() {
        0 => String::new(),
        sent => match node.note.borrow().as_str() {
            "" => format!("{sent} packets were sent\n"),
            note => format!("{sent} packets were sent; {note}\n"),
        },
    };
    for row in &rows {
        row.write(&mut text, widths, style);
    }
    // A node whose facts are in order may still drop packets.
    let is_node = node.request.subject.is_empty() && !node.attachments.is_empty();
    let more =
        if is_node && findings.is_empty() { "; doctor CONTAINER follows packets" } else { "" };
    text + &totals(findings) + more + "\n"
}

/// The width of the gap between two columns.
const GAP: usize = 2;

impl<'f> Row<'f> {
    fn of(finding: &'f Finding) -> Row<'f> {
        Row { finding: Some(finding), ..Row::ok(&finding.object.label(), &finding.evidence) }
    }

    fn ok(label: &str, evidence: &str) -> Row<'f> {
        Row { finding: None, label: visible(label), evidence: visible(evidence) }
    }

    fn code(&self) -> &'static str {
        self.finding.map_or("", |it| it.fault.code)
    }

    fn word(&self) -> &'static str {
        self.finding.map_or("ok", |it| it.fault.severity.word())
    }

    fn write(&self, text: &mut String, widths: (usize, usize, usize), style: Style) {
        let (label, word, code) = widths;
        let pad =
            |cell: &str, width: usize| " ".repeat(width.saturating_sub(cell.chars().count()) + GAP);
        let coloured = match self.finding.map(|it| it.fault.severity) {
            None => style.good("ok"),
            Some(Severity::Error) => style.bad(self.word()),
            Some(Severity::Warning) => style.warning(self.word()),
        };
        let before = [&self.label, &pad(&self.label, label), &coloured, &pad(self.word(), word)];
        let line = [before.map(String::as_str).concat(), self.code().to_owned()].concat();
        let gap = if code == 0 { String::new() } else { pad(self.code(), code) };
        let line = [&line, &gap, &self.evidence].map(String::as_str).concat();
        text.push_str(line.trim_end());
        text.push('\n');
        let indent = " ".repeat(label + word + code + 3 * GAP);
        if let Some(finding) = self.finding {
            for (word, command) in [("fix: ", &finding.fix), ("show: ", &finding.show)] {
                if !command.is_empty() {
                    text.push_str(&[&indent, word, &visible(command), "\n"].concat());
                }
            }
        }
    }
}

fn rows<'f>(node: &Node<'_>, findings: &'f [Finding]) -> Vec<Row<'f>> {
    let mut rows = vec![];
    let of = |is_it: fn(&Object) -> bool| findings.iter().filter(move |it| is_it(&it.object));
    let is_of_node = |object: &Object| *object == Object::Node;
    let is_of_network = |object: &Object| matches!(object, Object::Network(_));
    let is_of_attachment = |object: &Object| matches!(object, Object::Attachment { .. });
    rows.extend(of(is_of_node).map(Row::of));
    if rows.is_empty() {
        rows.push(Row::ok("node", &node_text(node)));
    }
    let before = rows.len();
    rows.extend(of(is_of_network).map(Row::of));
    if rows.len() == before && !node.networks.is_empty() {
        rows.push(Row::ok("network", &networks_text(node)));
    }
    rows.extend(of(is_of_attachment).map(Row::of));
    rows.extend(healthy(node, findings));
    rows
}

/// The lines of the attachments without findings: one each if a container was asked for, else one
/// for all.
fn healthy<'f>(node: &Node<'_>, findings: &[Finding]) -> Vec<Row<'f>> {
    let has_none = |object: &Object| !findings.iter().any(|it| it.object == *object);
    let fine = node.attachments.iter().filter(|attachment| has_none(&attachment.object()));
    if node.request.subject.is_empty() {
        let count = fine.count();
        let evidence = format!("{count} of {} attachments have no finding", node.attachments.len());
        return if count == 0 { vec![] } else { vec![Row::ok("others", &evidence)] };
    }
    let row = |attachment: &super::attachment::Attachment| {
        let ips = attachment.result.iter().flat_map(|result| &result.ips);
        let ips: Vec<String> = ips.map(|ip| ip.address.to_string()).collect();
        let network = attachment.at().key.network.as_str();
        let evidence = format!("attached to {network:?} with {}", ips.join(", "));
        Row::ok(&attachment.object().label(), &evidence)
    };
    fine.map(row).collect()
}

/// What is in order on the node.
fn node_text(node: &Node<'_>) -> String {
    let mut parts = vec![];
    let needs: Vec<String> =
        kernel::needs(&node.networks).iter().map(ToString::to_string).collect();
    if !needs.is_empty() {
        parts.push(format!("kernel has {}", needs.join(", ")));
    }
    if let Ok(value) = Sysctl::forwarding(Family::V4).read() {
        parts.push(format!("ip_forward={value}"));
    }
    parts.extend(node.leases.iter().flat_map(ranges_text));
    parts.join("; ")
}

fn ranges_text(leases: &Leases) -> impl Iterator<Item = String> {
    let network = leases.network.network.as_str();
    leases.holdings.ranges.iter().map(move |range| {
        format!("{} of {} addresses of {network:?} are held", range.held, range.size)
    })
}

fn networks_text(node: &Node<'_>) -> String {
    let names: Vec<&str> = node.networks.iter().map(|net| net.list.name.as_str()).collect();
    format!("{} in {}", names.join(", "), node.request.conf_dir.display())
}

/// The last line: `2 errors, 1 warning`.
fn totals(findings: &[Finding]) -> String {
    let words = [Severity::Error, Severity::Warning].map(|severity| {
        let count = findings.iter().filter(|it| it.fault.severity == severity).count();
        let plural = if count == 1 { "" } else { "s" };
        (count, format!("{count} {}{plural}", severity.word()))
    });
    let some: Vec<String> =
        words.into_iter().filter(|(count, _)| *count > 0).map(|(_, words)| words).collect();
    if some.is_empty() { "no findings".to_owned() } else { some.join(", ") }
}
