//! The output of `net plan`.

use std::io::Write;

use super::cast::{Cast, UNKNOWN};
use super::changes::Change;
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::commands::net::attached::addresses;
use crate::commands::net::publish::published;
use crate::error::Result;
use crate::runtime::list::{NetworkList, PluginConfig};
use crate::runtime::parameters::Parameters;
use crate::runtime::rehearsal::Played;
use crate::terminal;
use crate::terminal::table::{self, Members, put, put_text};

const COLUMNS: [(&str, &str); 3] = [("PLUGIN", "plugin"), ("WHERE", "where"), ("CHANGE", "change")];
/// What stands in place of a change of which nothing is known.
const NOT_KNOWN: &str = "not known: ";

/// A plan as it grows.
pub struct Report<'a> {
    list: &'a NetworkList,
    at: &'a Parameters,
    cast: &'a Cast,
    changes: Vec<(String, Change)>,
    gaps: Vec<(String, String)>,
}

impl<'a> Report<'a> {
    /// A plan without changes.
    pub fn begin(list: &'a NetworkList, at: &'a Parameters, cast: &'a Cast) -> Report<'a> {
        let absent = cast.absent.iter().map(|absent| {
            (
                absent.kind.clone(),
                format!("{}, so addresses and what depends on them are not known", absent.why),
            )
        });
        Report { list, at, cast, changes: vec![], gaps: absent.collect() }
    }

    /// Adds what a plugin has changed, apart from what depends on an address that is not known.
    pub fn add_changes(&mut self, plugin: &PluginConfig, changes: Vec<Change>) {
        let known = changes.into_iter().filter(|change| !self.depends_on_address(change));
        let known: Vec<_> = known.map(|change| (plugin.kind.clone(), change)).collect();
        self.changes.extend(known);
    }

    /// Adds what is done after the last plugin.
    pub fn add_record(&mut self, changes: Vec<Change>) {
        self.changes.extend(changes.into_iter().map(|change| ("net".to_owned(), change)));
    }

    fn depends_on_address(&self, change: &Change) -> bool {
        let of_family = ["ip_forward", "conf/all/forwarding"];
        !self.cast.absent.is_empty()
            && (change.what.contains(UNKNOWN)
                || of_family.iter().any(|name| change.what.contains(name)))
    }

    /// Adds why nothing is known of a plugin.
    pub fn add_gap(&mut self, plugin: &PluginConfig, played: Played<'_>) {
        let why = match played {
            Played::Done => return,
            Played::Omitted(why) => why,
            Played::Unknown => "it needs the result of the plugin before",
        };
        self.gaps.push((plugin.kind.clone(), why.to_owned()));
    }

    /// Prints the plan: a line for each change and for each gap, and in JSON the result as well.
    pub fn print(
        &self,
        result: Option<&Document>,
        as_json: bool,
        stdout: &mut dyn Write,
    ) -> Result<()> {
        let result = result.map(|result| self.cleaned(result));
        let text = if as_json {
            table::json(&self.to_json(result))
        } else {
            table::of_rows(self.rows(), &COLUMNS, false) + &self.summary(result.as_ref()) + "\n"
        };
        terminal::print(stdout, &text)
    }

    fn rows(&self) -> Vec<Value> {
        let changes =
            self.changes.iter().map(|(plugin, change)| row(plugin, change.place, &change.what));
        let gaps =
            self.gaps.iter().map(|(plugin, why)| row(plugin, "", &format!("{NOT_KNOWN}{why}")));
        changes.chain(gaps).collect()
    }

    /// `eth0 of red gets 10.88.0.2/24 and host port 8080:80/tcp`.
    fn summary(&self, result: Option<&Value>) -> String {
        let (ifname, name) = (self.at.key.ifname.as_str(), self.at.name());
        let addresses = result.map(|result| addresses(result, "")).unwrap_or_default();
        let ports = published(&self.at.capability_args);
        let mut text = match (result, addresses.is_empty()) {
            (None, _) => format!("what {ifname} of {name} gets is not known"),
            (Some(_), true) if !self.cast.absent.is_empty() => {
                format!("{ifname} of {name} gets an address that is not known")
            }
            (Some(_), true) => format!("{ifname} of {name} gets no address"),
            (Some(_), false) => format!("{ifname} of {name} gets {}", addresses.join(", ")),
        };
        if !ports.is_empty() {
            text += &format!("; published: {}", ports.join(", "));
        }
        text
    }

    fn to_json(&self, result: Option<Value>) -> Value {
        let at = self.at;
        let mut plan = Members::new();
        put_text(&mut plan, "network", at.key.network.as_str());
        put_text(&mut plan, "containerId", at.key.container_id.as_str());
        put_text(&mut plan, "ifname", at.key.ifname.as_str());
        put_text(&mut plan, "netns", &at.netns);
        put(&mut plan, "ports", table::texts(published(&at.capability_args)));
        put(
            &mut plan,
            "changes",
            Value::Array(
                self.changes
                    .iter()
                    .map(|(plugin, change)| row(plugin, change.place, &change.what))
                    .collect(),
            ),
        );
        put(&mut plan, "unknown", Value::Array(self.gaps.iter().map(gap).collect()));
        if let Some(result) = result {
            put(&mut plan, "result", result);
        }
        Value::Object(plan)
    }

    /// The result as ADD will return it, without what is not known: hardware addresses that are
    /// chosen at random, and addresses of a plugin that was not asked.
    fn cleaned(&self, result: &Document) -> Value {
        let mut result = result.to_value();
        let mut interfaces = result.get("interfaces").cloned().unwrap_or_default();
        if let Value::Array(items) = &mut interfaces {
            items.iter_mut().for_each(|interface| self.clean(interface));
            result.set("interfaces", interfaces);
        }
        if !self.cast.absent.is_empty() {
            ["ips", "ip4", "ip6"].iter().for_each(|key| result.remove(key));
        }
        result
    }

    fn clean(&self, interface: &mut Value) {
        let mac = interface.get("mac").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        if !self.is_chosen(&mac) {
            interface.remove("mac");
        }
        if interface.get("sandbox").and_then(Value::as_str).is_some_and(|path| !path.is_empty()) {
            interface.set("sandbox", Value::text(self.at.netns.as_str()));
        }
    }

    /// Whether the configuration or the arguments have the hardware address.
    fn is_chosen(&self, mac: &str) -> bool {
        let args = self.at.args.iter().map(|(_, value)| value.as_str()).collect::<String>();
        let plugins =
            self.list.plugins.iter().map(|plugin| plugin.value.to_text()).collect::<String>();
        let texts = [args, plugins, self.at.capability_args.to_text()];
        !mac.is_empty() && texts.iter().any(|text| text.to_lowercase().contains(mac))
    }
}

fn row(plugin: &str, place: &str, what: &str) -> Value {
    let mut row = Members::new();
    put_text(&mut row, "plugin", plugin);
    put_text(&mut row, "where", place);
    put_text(&mut row, "change", what);
    Value::Object(row)
}

fn gap((plugin, why): &(String, String)) -> Value {
    Value::object([("plugin", Value::text(plugin.as_str())), ("why", Value::text(why.as_str()))])
}
