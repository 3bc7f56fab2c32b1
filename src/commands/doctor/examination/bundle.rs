//! `--bundle`: everything that was looked at, in one text for an issue.

use std::path::Path;
use std::process::{Command, Stdio};

use super::attachment::Attachment;
use super::finding::text_of;
use super::node::Node;
use crate::error::{Error, Result};
use crate::net::netlink::{Address, FoundRoute, Link};
use crate::net::nft::Nft;
use crate::plain_file;
use crate::runtime::directory;
use crate::terminal::visible::push_visible;

/// The text; `report` is what people read.
pub fn text(node: &Node<'_>, report: &str) -> String {
    let mut bundle = Bundle::default();
    bundle.section("versions", &versions(node));
    bundle.section("findings", report);
    write_configurations(node, &mut bundle);
    let links = Links { links: &node.links, addresses: &node.addresses, routes: &node.routes };
    bundle.section("host", &links.text());
    node.attachments.iter().for_each(|attachment| write_attachment(attachment, &mut bundle));
    bundle.section("rules of the host", &or_problem(rules()));
    bundle.0
}

/// The text that grows.
#[derive(Default)]
struct Bundle(String);

impl Bundle {
    /// Adds a section. What containers and files say is shown without control characters.
    fn section(&mut self, title: &str, text: &str) {
        self.0.push_str("== ");
        self.push(title);
        self.0.push_str("\n\n");
        self.push(text.trim_end());
        self.0.push_str("\n\n");
    }

    fn push(&mut self, text: &str) {
        for letter in text.chars() {
            if matches!(letter, '\n' | '\t') {
                self.0.push(letter);
            } else {
                push_visible(&mut self.0, letter);
            }
        }
    }
}

fn versions(node: &Node<'_>) -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.unwrap_or_else(|error| error.to_string());
    format!(
        "cni-multi {} on Linux {} {}\nCNI_PATH {}",
        env!("CARGO_PKG_VERSION"),
        release.trim(),
        std::env::consts::ARCH,
        node.request.plugin_path
    )
}

/// Adds each file of the directory of networks, also those that do not load.
fn write_configurations(node: &Node<'_>, bundle: &mut Bundle) {
    let files = directory::files(&node.request.conf_dir).unwrap_or_default(); // D201 says why
    for file in files {
        let text = plain_file::read_configuration(&file);
        let text = text.map(|text| String::from_utf8_lossy(&text).into_owned());
        bundle.section(
            &format!("file {}", file.display()),
            &text.unwrap_or_else(|error| error.to_string()),
        );
    }
}

/// Adds the record of an attachment, and what is in the namespace.
fn write_attachment(attachment: &Attachment, bundle: &mut Bundle) {
    let file = &attachment.recorded.found.file;
    let text = plain_file::read_of_others(file, plain_file::LARGEST_CONFIGURATION);
    let text = text.map(|text| String::from_utf8_lossy(&text).into_owned());
    let title = format!("record {}", file.display());
    bundle.section(&title, &text.unwrap_or_else(|error| error.to_string()));
    let inside = attachment.inside.as_ref().map(|inside| Links {
        links: &inside.links,
        addresses: &inside.addresses,
        routes: &inside.routes,
    });
    let why = if attachment.is_in_host { "the host's own" } else { "gone, or cannot be read" };
    let gone = || format!("{} is {why}", attachment.at().netns);
    let title = format!("container {}", attachment.at().name());
    bundle.section(&title, &inside.map_or_else(gone, |links| links.text()));
    if let Some(rules) = rules_of(attachment).transpose() {
        let title = format!("rules of container {}", attachment.at().name());
        bundle.section(&title, &or_problem(rules));
    }
}

/// The rules of a container; None without a namespace.
fn rules_of(attachment: &Attachment) -> Result<Option<String>> {
    attachment.open()?.map(|netns| netns.enter(rules)).transpose()
}

/// What a namespace has.
struct Links<'a> {
    links: &'a [Link],
    addresses: &'a [Address],
    routes: &'a [FoundRoute],
}

impl Links<'_> {
    /// A line for each link, with its addresses, and one for each route.
    fn text(&self) -> String {
        let links = self.links.iter().map(|link| self.link_line(link));
        links.chain(self.routes.iter().map(|route| self.route_line(route))).collect()
    }

    fn link_line(&self, link: &Link) -> String {
        let mut line = format!("{} {} {}", link.index, link.name, link.kind_text());
        let state = if link.up { link.operstate_text() } else { "set down" };
        line.push_str(&format!(" {state} mtu {} mac {}", link.mtu, link.mac()));
        if let Some(master) = link.master {
            line.push_str(&format!(" master {}", self.name(master)));
        }
        if let Some(lower) = link.lower {
            line.push_str(&format!(" link {lower}"));
        }
        if !link.alias.is_empty() {
            line.push_str(&format!(" alias {:?}", link.alias));
        }
        let addresses = self.addresses.iter().filter(|address| address.link == link.index);
        addresses.for_each(|address| line.push_str(&format!(" {}", address.net)));
        line + "\n"
    }

    fn route_line(&self, route: &FoundRoute) -> String {
        let mut line = format!("route {}", route.dst);
        route.gateways.iter().for_each(|gateway| line.push_str(&format!(" via {gateway}")));
        if let Some(index) = route.link {
            line.push_str(&format!(" dev {}", self.name(index)));
        }
        line + &format!(" table {}\n", route.table)
    }

    fn name(&self, index: u32) -> String {
        let link = self.links.iter().find(|link| link.index == index);
        link.map_or_else(|| index.to_string(), |link| link.name.clone())
    }
}

/// Where nft(8) is. PATH is not searched: this runs as root.
const NFT: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];

/// The rules of this thread's namespace as nft(8) prints them; without that program in the kernel's
/// form.
fn rules() -> Result<String> {
    let Some(program) = NFT.iter().find(|program| Path::new(program).is_file()) else {
        let Some(nft) = Nft::open_if_there()? else { return Ok("not in this kernel".to_owned()) };
        return Ok(nft.ruleset()?.join("\n"));
    };
    let printed = Command::new(program).args(["list", "ruleset"]).stdin(Stdio::null()).output();
    let printed = printed.map_err(Error::at_path("run", Path::new(program)))?;
    let text = if printed.status.success() { printed.stdout } else { printed.stderr };
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The text, or why there is none.
fn or_problem(text: Result<String>) -> String {
    text.unwrap_or_else(|error| text_of(&error))
}
