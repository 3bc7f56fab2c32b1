//! Reads the parts of resolv.conf(5) that a result has fields for.

use std::path::Path;

use crate::cni::result::Dns;
use crate::error::{Error, Result};
use crate::plain_file;

/// Reads the resolver settings from the file.
pub fn read(path: &Path) -> Result<Dns> {
    let text = plain_file::read_configuration(path)
        .map_err(|e| Error::io(format_args!("open {path:?}"), &e))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// Parses the lines. Comments, and lines without an argument, are ignored.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let [key, first, ..] = &words[..] else { continue };
        // Name servers, search domains and options accumulate; the last `domain` wins.
        match key.as_str() {
            "nameserver" => dns.nameservers.push(first.clone()),
            "domain" => dns.domain.clone_from(first),
            "search" => dns.search.extend_from_slice(&words[1..]),
            "options" => dns.options.extend_from_slice(&words[1..]),
            _ => (), // sortlist, and keywords that resolvers may add
        }
    }
    dns
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line() {
        let text = "# a comment\n; another\n\n nameserver 192.0.2.0 ignored\nnameserver\t192.0.2.1\ndomain a.example\ndomain b.example\n\
                    search c.example d.example\nsearch e.example\noptions debug ndots:2\noptions x\nsortlist 1\nnameserver\nnonsense";
        let list = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let dns = Dns {
            nameservers: list("192.0.2.0 192.0.2.1"),
            domain: "b.example".into(),
            search: list("c.example d.example e.example"),
            options: list("debug ndots:2 x"),
        };
        assert_eq!(parse(text), dns);
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = read(Path::new("/nowhere/resolv.conf")).unwrap_err();
        assert_eq!(
            (error.code.0, error.msg.as_str()),
            (5, "open \"/nowhere/resolv.conf\": no such file or directory")
        );
    }
}
