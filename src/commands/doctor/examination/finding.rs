//! The findings of a run.

use crate::cni::json::Value;
use crate::commands::fault::{Fault, Severity};
use crate::error::{Aspect, Error};

/// What a finding is about; the order is that of the output.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// The host as a whole.
    Node,
    /// A network, or the file that should have one.
    Network(String),
    /// One interface of a container.
    Attachment {
        /// What people call the container.
        container: String,
        /// The network.
        network: String,
        /// The interface.
        ifname: String,
    },
}

impl Object {
    /// The first column of the output.
    pub fn label(&self) -> String {
        match self {
            Object::Node => "node".to_owned(),
            Object::Network(_) => "network".to_owned(),
            Object::Attachment { container, ifname, .. } if ifname == "eth0" => container.clone(),
            Object::Attachment { container, ifname, .. } => format!("{container}/{ifname}"),
        }
    }

    /// Its members in JSON.
    fn members(&self) -> Vec<(&'static str, Value)> {
        match self {
            Object::Node => vec![("scope", Value::text("node"))],
            Object::Network(name) => {
                vec![("scope", Value::text("network")), ("network", Value::text(name.as_str()))]
            }
            Object::Attachment { container, network, ifname } => vec![
                ("scope", Value::text("attachment")),
                ("container", Value::text(container.as_str())),
                ("network", Value::text(network.as_str())),
                ("ifname", Value::text(ifname.as_str())),
            ],
        }
    }
}

/// A fault that was seen.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its kind.
    pub fault: &'static Fault,
    /// What has it.
    pub object: Object,
    /// What was seen.
    pub evidence: String,
    /// The command that repairs it, or the advice where no command can; may be empty.
    pub fix: String,
    /// The command that shows its cause, where none repairs it; may be empty.
    pub show: String,
    /// The links that have seen the packet which it is about, in this order; None without a packet.
    seen_by: Option<Vec<String>>,
    /// The differences of CHECK that are its consequences.
    explains: Vec<Aspect>,
}

impl Finding {
    /// A finding without a fix.
    pub fn new(fault: &'static Fault, object: Object, evidence: impl Into<String>) -> Finding {
        let (fix, show, seen_by, explains) = Default::default();
        Finding { fault, object, evidence: evidence.into(), fix, show, seen_by, explains }
    }

    /// The same with more evidence.
    #[must_use]
    pub fn saying(self, more: &str) -> Finding {
        Finding { evidence: self.evidence + more, ..self }
    }

    /// The same with the links that have seen the packet.
    #[must_use]
    pub fn seen_by(self, links: Vec<String>) -> Finding {
        let finding = self.saying(&format!("; seen by {}", links.join(", ")));
        Finding { seen_by: Some(links), ..finding }
    }

    /// The same with the differences of CHECK that are its consequences.
    #[must_use]
    pub fn explaining(self, explains: impl IntoIterator<Item = Aspect>) -> Finding {
        Finding { explains: explains.into_iter().collect(), ..self }
    }

    /// The same with its fix.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Finding {
        Finding { fix: fix.into(), ..self }
    }

    /// The same with the command that shows its cause.
    #[must_use]
    pub fn show(self, show: impl Into<String>) -> Finding {
        Finding { show: show.into(), ..self }
    }

    /// Whether this is a consequence of the finding, about whichever attachment. That a setting of
    /// the host is off is one of the finding that names the setting.
    fn explains(&self, aspect: &Aspect) -> bool {
        let is_named = |name: &str| self.evidence.starts_with(&format!("sysctl {name} is "));
        self.explains.contains(aspect) || matches!(aspect, Aspect::Setting(name) if is_named(name))
    }

    /// The finding for programs.
    pub fn value(&self) -> Value {
        let mut members = vec![
            ("code", Value::text(self.fault.code)),
            ("severity", Value::text(self.fault.severity.word())),
            ("title", Value::text(self.fault.title)),
        ];
        members.extend(self.object.members());
        members.push(("evidence", Value::text(self.evidence.as_str())));
        members.push(("fix", Value::text(self.fix.as_str())));
        members.push(("show", Value::text(self.show.as_str())));
        if let Some(links) = &self.seen_by {
            members.push(("seenBy", Value::Array(links.iter().map(Value::text).collect())));
        }
        Value::object(members)
    }
}

/// The findings of a run.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Adds a finding.
    pub fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    /// Whether there is an error about the object, or about the node.
    pub fn has_error(&self, object: &Object) -> bool {
        let is_about = |it: &&Finding| it.object == *object || it.object == Object::Node;
        self.0.iter().filter(is_about).any(|it| it.fault.severity == Severity::Error)
    }

    /// Whether a finding about the object, or about the node, has this as its consequence.
    pub fn explain(&self, object: &Object, aspect: &Aspect) -> bool {
        let is_about = |it: &&Finding| it.object == *object || it.object == Object::Node;
        self.0.iter().filter(is_about).any(|known| known.explains(aspect))
    }

    /// All findings, grouped by object, those of one object by severity and code.
    pub fn sorted(mut self) -> Vec<Finding> {
        self.0.sort_by(|a, b| {
            let key = |finding: &Finding| (finding.fault.severity, finding.fault.code);
            a.object.cmp(&b.object).then(key(a).cmp(&key(b)))
        });
        self.0
    }
}

/// Message and details of an error.
pub fn text_of(error: &Error) -> String {
    let details = error.details();
    if details.is_empty() { error.msg.clone() } else { format!("{}; {details}", error.msg) }
}

/// A word as a shell reads it back.
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./@%+,:=-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    ["'", &word.replace('\'', r"'\''"), "'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_back() {
        assert_eq!(quoted("/run/netns/red-1.2"), "/run/netns/red-1.2");
        assert_eq!(quoted("net1;reboot"), "'net1;reboot'");
        assert_eq!(quoted("it's $(id)"), r"'it'\''s $(id)'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn findings_are_sorted_by_object_and_then_by_severity() {
        const BAD: Fault = Fault::error("D009", "bad");
        const ODD: Fault = Fault::warning("D001", "odd");
        let at = |name: &str| Object::Attachment {
            container: name.to_owned(),
            network: "pods".to_owned(),
            ifname: "eth0".to_owned(),
        };
        let mut findings = Findings::default();
        for (fault, object) in [
            (&ODD, at("red")),
            (&BAD, at("red")),
            (&ODD, Object::Node),
            (&BAD, Object::Network("pods".to_owned())),
        ] {
            findings.add(Finding::new(fault, object, ""));
        }
        let order: Vec<String> = findings
            .sorted()
            .iter()
            .map(|it| format!("{} {}", it.object.label(), it.fault.code))
            .collect();
        assert_eq!(order, ["node D001", "network D009", "red D009", "red D001"]);
    }
}
