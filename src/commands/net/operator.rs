//! The operator's input, from options or else from variables.

use std::io::Write;
use std::path::PathBuf;

use clap::ArgMatches;

use super::capability;
use crate::cni::answer::ErrorObject;
use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::commands::{CONF_DIR, plugin_path, typed_or_variable};
use crate::error::{Code, Error, Result};
use crate::registry::PLUGINS;
use crate::runtime::cache::{self, Cache};
use crate::runtime::chain::Runtime;
use crate::runtime::find;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::{self, Parameters};
use crate::terminal::arguments::{has_flag, text};
use crate::terminal::visible::visible;
use crate::terminal::{in_two_lines, table};

/// A parsed command line and its environment.
pub struct Operator<'a> {
    /// The matches from clap.
    pub matches: &'a ArgMatches,
    /// The process's variables.
    pub env: &'a Environment,
}

impl Operator<'_> {
    /// An argument or option; empty if not given or unknown to the command.
    pub fn argument(&self, name: &str) -> &str {
        text(self.matches, name)
    }

    /// Whether a flag is given; false if it is unknown to the command.
    pub fn has_flag(&self, name: &str) -> bool {
        has_flag(self.matches, name)
    }

    /// The option, else the variable, else the default `usual`; empty means not given.
    pub fn option(&self, name: &str, variable: &str, usual: &str) -> String {
        let text = typed_or_variable(self.argument(name), variable, self.env);
        if text.is_empty() { usual.to_owned() } else { text }
    }

    /// `-o json`.
    pub fn wants_json(&self) -> bool {
        self.argument("output") == "json"
    }

    /// Writes a remark on a line of its own; an object with `-o json`, so that each line of stderr
    /// is JSON.
    pub fn note(&self, note: &str, stderr: &mut dyn Write) {
        let text = if self.wants_json() {
            table::json_line(&Value::object([("note", Value::text(note))]))
        } else {
            visible(note) + "\n"
        };
        let _ = stderr.write_all(text.as_bytes()); // for information only
    }

    /// Writes the message, and the details on a second line; or the specification's error object on
    /// one line, since plugins may have written to stderr before.
    pub fn complain(&self, error: &Error, stderr: &mut dyn Write) {
        let text = if self.wants_json() {
            table::json_line(&ErrorObject::of(error, version::CURRENT))
        } else {
            in_two_lines(error)
        };
        let _ = stderr.write_all(text.as_bytes()); // the exit status says it too
    }

    /// Rejects arguments that are invalid for every command.
    pub fn require_readable(&self) -> Result<()> {
        let mistake = |problem: &str| Err(Error::new(Code::INVALID_ENVIRONMENT, problem));
        let is_netns_given = self.matches.try_contains_id("netns").unwrap_or(false);
        if is_netns_given && self.argument("netns").is_empty() {
            return mistake("NETNS is empty, expected a path or a name");
        }
        capability::require_readable(self.matches)?;
        parameters::parse_args(self.argument("args"))?;
        if !self.argument("ifname").is_empty() {
            IfName::parse(self.argument("ifname"))?;
        }
        if !self.argument("container-id").is_empty() {
            ContainerId::parse(self.argument("container-id"))?;
        }
        if !self.argument("on").is_empty() && self.has_flag("dry-run") {
            return mistake("--on and --dry-run are mutually exclusive");
        }
        Ok(())
    }

    /// The directory of networks.
    pub fn conf_dir(&self) -> PathBuf {
        PathBuf::from(self.option("conf-dir", "NETCONFPATH", CONF_DIR))
    }

    /// The network's name; None if it is optional and omitted.
    pub fn network(&self) -> Result<Option<NetworkName>> {
        let name = self.argument("network");
        if name.is_empty() && self.matches.value_source("network").is_none() {
            return Ok(None);
        }
        NetworkName::parse(name).map(Some)
    }

    /// The caches that are searched for an attachment: those of this host, or the one that is named
    /// by the option.
    pub fn caches(&self) -> Result<Vec<Cache>> {
        let is_named = !self.argument("cache-dir").is_empty();
        if is_named { Ok(vec![self.cache()]) } else { find::caches(&self.cache()) }
    }

    /// The cache of results.
    pub fn cache(&self) -> Cache {
        let dir = self.argument("cache-dir");
        Cache::new(if dir.is_empty() { cache::DEFAULT_DIR } else { dir })
    }

    /// The runtime that runs the plugins.
    pub fn runtime<'a>(&'a self, stderr: &'a mut dyn Write) -> Result<Runtime<'a>> {
        let path = plugin_path(self.argument("plugin-path"), self.env)?;
        let (cache, is_traced) = (self.cache(), self.has_flag("trace"));
        Ok(Runtime { path, cache, is_traced, ..Runtime::of(PLUGINS, self.env, stderr) })
    }

    /// The parameters of one attachment.
    pub fn parameters(&self, network: NetworkName, list: &NetworkList) -> Result<Parameters> {
        let netns = self.netns()?;
        let container_id = self.container_id(|| parameters::container_id(&netns))?;
        self.parameters_of(network, list, (netns, container_id))
    }

    /// The parameters of an attachment of this namespace and container.
    pub fn parameters_of(
        &self,
        network: NetworkName,
        list: &NetworkList,
        (netns, container_id): (String, ContainerId),
    ) -> Result<Parameters> {
        let capability_args = capability::args(self.matches, self.env, list)?;
        let args = parameters::parse_args(&self.option("args", "CNI_ARGS", ""))?;
        let key = self.key_of(network, container_id)?;
        Ok(Parameters { key, netns, args, capability_args })
    }

    /// The names of one attachment.
    pub fn key(&self, network: NetworkName) -> Result<Key> {
        let netns = self.netns()?;
        self.key_of(network, self.container_id(|| parameters::container_id(&netns))?)
    }

    /// The absolute path of the namespace.
    fn netns(&self) -> Result<String> {
        parameters::absolute(&find::netns_path(self.argument("netns")))
    }

    fn key_of(&self, network: NetworkName, container_id: ContainerId) -> Result<Key> {
        let ifname = IfName::parse(&self.option("ifname", "CNI_IFNAME", "eth0"))?;
        Ok(Key { network, container_id, ifname })
    }

    /// The container's id from the command line, else this one.
    pub fn container_id(&self, usual: impl FnOnce() -> Result<ContainerId>) -> Result<ContainerId> {
        match self.argument("container-id") {
            "" => usual(),
            id => ContainerId::parse(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Value;
    use crate::runtime::list::NetworkList;

    fn matches(line: &str) -> ArgMatches {
        super::super::command().try_get_matches_from(format!("net {line}").split(' ')).unwrap()
    }

    fn parameters(line: &str, env: &[(&str, &str)]) -> Result<Parameters> {
        let env = env.iter().map(|(key, value)| (key.into(), value.into())).collect();
        let matches = matches(line);
        let (_, matches) = matches.subcommand().unwrap();
        let list = r#"{"name":"n","plugins":[{"type":"x","capabilities":{"mac":true,"ips":true,"portMappings":true}}]}"#;
        let list = NetworkList::parse(list.as_bytes().to_vec()).unwrap();
        Operator { matches, env: &env }.parameters(NetworkName::parse("n").unwrap(), &list)
    }

    #[test]
    fn without_options_the_variables_and_cnitool_s_defaults_count() {
        let at = parameters("add n /var/run/netns/t", &[]).unwrap();
        assert_eq!(
            (at.key.ifname.as_str(), at.netns.as_str(), at.args.len()),
            ("eth0", "/var/run/netns/t", 0)
        );
        assert_eq!(at.capability_args, Value::Object(vec![]));

        let env = [
            ("CNI_IFNAME", "net1"),
            ("CNI_ARGS", "A=1;B=2"),
            ("CAP_ARGS", r#"{"mac":"x"}"#),
            ("CNI_CONTAINERID", "other"),
        ];
        let at = parameters("add n /x", &env).unwrap();
        assert_eq!(
            (at.key.ifname.as_str(), at.args.len(), at.capability_args.to_text().as_str()),
            ("net1", 2, r#"{"mac":"x"}"#)
        );
        assert!(
            at.key.container_id.as_str().starts_with("cnitool-"),
            "a variable for plugins says nothing to us"
        );

        let line = r#"del n /x -i lo1 --container-id abc --args C=3 --capability-args {"ips":[]}"#;
        let at = parameters(line, &env).unwrap();
        assert_eq!((at.key.ifname.as_str(), at.key.container_id.as_str()), ("lo1", "abc"));
        assert_eq!(
            (at.args, at.capability_args.to_text().as_str()),
            (vec![("C".to_owned(), "3".to_owned())], r#"{"ips":[]}"#)
        );
    }

    #[test]
    fn mistakes_of_the_operator_are_told() {
        let cases = [
            ("--args A", "invalid CNI_ARGS pair \"A\""),
            ("--args A=", "invalid CNI_ARGS pair \"A=\""),
            ("--args A=1;", "invalid CNI_ARGS pair \"\""),
            ("--args A=b=c", "invalid CNI_ARGS pair \"A=b=c\""),
            (
                "--capability-args []",
                "decode the capability arguments: expected an object, found array",
            ),
            ("--ifname a/b", "interface name contains / or : or whitespace characters"),
            ("--container-id ../x", "invalid characters in containerID; ../x"),
        ];
        for (option, text) in cases {
            assert_eq!(
                parameters(&format!("add n /x {option}"), &[]).unwrap_err().to_string(),
                text,
                "{option}"
            );
        }
    }

    #[test]
    fn a_namespace_is_a_path_or_a_name_of_ip_netns() {
        let path = |argument: &str| parameters::absolute(&find::netns_path(argument)).unwrap();
        let here = std::env::current_dir().unwrap().to_string_lossy().into_owned();
        assert_eq!(path("blue"), "/run/netns/blue");
        assert_eq!(path("/var/run/netns/blue"), "/var/run/netns/blue");
        assert_eq!(path("/a/./b//../c/"), "/a/c");
        assert_eq!(path("/../x"), "/x");
        assert_eq!(path("./blue"), format!("{here}/blue"));
        assert_eq!(
            path("Cargo.toml"),
            format!("{here}/Cargo.toml"),
            "a file of that name goes first"
        );
        assert_eq!(path("src"), "/run/netns/src", "a directory is not a namespace");
    }

    #[test]
    fn without_a_path_plugins_are_where_this_binary_is() {
        let path = |line: &str, env: &Environment| {
            let matches = matches(line);
            let operator = Operator { matches: matches.subcommand().unwrap().1, env };
            operator.runtime(&mut std::io::sink()).unwrap().path
        };
        let own = std::env::current_exe().unwrap().parent().unwrap().to_string_lossy().into_owned();
        let env = Environment::default();
        assert_eq!(path("status n", &env), own);
        assert_eq!(path("status n", &env.with("CNI_PATH", "/a:/b")), "/a:/b");
        assert_eq!(path("status n --plugin-path /c", &env.with("CNI_PATH", "/a:/b")), "/c");
    }
}
