//! `cni-multi net …`: networks from the operator's hand, with cnitool's arguments, variables and container ids.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Arg, ArgMatches, Command};

use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result};
use crate::plugin::Entry;
use crate::runner::Streams;
use crate::runtime::cache::{self, Cache};
use crate::runtime::chain::{OnFailure, Runtime};
use crate::runtime::list;
use crate::runtime::parameters::{self, Parameters};

/// Where networks are configured unless told otherwise.
const CONF_DIR: &str = "/etc/cni/net.d";

/// Where `ip netns` names its namespaces.
const NETNS_DIR: &str = "/run/netns";

/// The command line.
pub fn command() -> Command {
    let of_attachment = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([network(), netns()]).args(attachment()).args([conf_dir()]).args(plugins())
    };
    let of_network = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([network(), conf_dir()]).args(plugins())
    };
    Command::new("net")
        .about("Attach network namespaces to networks, as a runtime does")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(of_attachment("add", "Attach a namespace and print the result; a failure is undone"))
        .subcommand(of_attachment("check", "Verify an attachment"))
        .subcommand(of_attachment("del", "Detach"))
        .subcommand(of_network("gc", "Detach what has no namespace any more and remove what is left of it"))
        .subcommand(of_network("status", "Ask whether the network can take attachments"))
        .subcommand(Command::new("list").about("The networks, their versions and files").args([conf_dir()]))
}

fn network() -> Arg {
    Arg::new("network").required(true).help("The network's name in its configuration")
}

fn netns() -> Arg {
    Arg::new("netns").required(true).help("The namespace: a path, or a name that `ip netns` knows")
}

fn conf_dir() -> Arg {
    option("conf-dir", "DIR", "Directory of network configurations [NETCONFPATH, else /etc/cni/net.d]")
}

fn attachment() -> [Arg; 4] {
    [
        option("ifname", "NAME", "The interface's name in the namespace [CNI_IFNAME, else eth0]").short('i'),
        option("container-id", "ID", "The container's id [made from the path of the namespace]"),
        option("args", "K=V;K=V", "Arguments for plugins [CNI_ARGS]"),
        option("capability-args", "JSON", "Capability arguments, an object [CAP_ARGS]"),
    ]
}

fn plugins() -> [Arg; 2] {
    [
        option(
            "plugin-path",
            "DIRS",
            "Directories of plugins, with : between them [CNI_PATH, else where this binary is]",
        ),
        option("cache-dir", "DIR", "Where results are kept [/var/lib/cni]"),
    ]
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Runs it: a result goes to stdout, a failure in one or two lines to stderr.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((verb, matches)) = matches.subcommand() else { return 2 }; // clap has required one
    let done = Operator { matches, env }.operate(verb, plugins, io.stderr).and_then(|text| {
        let written = io.stdout.write_all(text.as_bytes()).and_then(|()| io.stdout.flush());
        written.map_err(|e| Error::io("write to stdout", &e))
    });
    let Err(error) = done else { return 0 };
    let _ = writeln!(io.stderr, "{}", error.msg); // the status says it too
    if !error.details.is_empty() {
        let _ = writeln!(io.stderr, "{}", error.details);
    }
    1
}

/// What the operator says, in arguments or else in variables.
struct Operator<'a> {
    matches: &'a ArgMatches,
    env: &'a Environment,
}

impl Operator<'_> {
    /// Returns what is to be printed.
    fn operate(&self, verb: &str, plugins: &'static [Entry], stderr: &mut dyn Write) -> Result<String> {
        let conf_dir = PathBuf::from(self.option("conf-dir", "NETCONFPATH").unwrap_or_else(|| CONF_DIR.to_owned()));
        if verb == "list" {
            return table_of(&conf_dir);
        }
        let network = NetworkName::parse(&self.argument("network"))?;
        let list = list::find(&conf_dir, network.as_str())?;
        let mut runtime = Runtime {
            plugins,
            env: self.env,
            path: self.plugin_path()?,
            cache: self.cache(),
            stderr,
            handles: Rc::default(),
        };
        let nothing = |()| String::new();
        match verb {
            "add" => runtime.add(&list, &self.parameters(network)?, OnFailure::Undo).map(|result| result.to_text()),
            "check" => runtime.check(&list, &self.parameters(network)?).map(nothing),
            "del" => runtime.del(&list, &self.parameters(network)?).map(nothing),
            "gc" => runtime.gc_dead(&list).map(nothing),
            "status" => runtime.status(&list).map(nothing),
            other => Err(Error::new(Code::BUG, format!("net has no command {other:?}"))),
        }
    }

    fn argument(&self, name: &str) -> String {
        self.matches.get_one::<String>(name).cloned().unwrap_or_default()
    }

    /// The option, or else the variable; empty is not given.
    fn option(&self, name: &str, variable: &str) -> Option<String> {
        [self.argument(name), self.env.get(variable)].into_iter().find(|text| !text.is_empty())
    }

    fn cache(&self) -> Cache {
        let dir = self.argument("cache-dir");
        Cache::new(if dir.is_empty() { cache::DEFAULT_DIR.to_owned() } else { dir })
    }

    /// Without a word about it plugins are where this binary is, so that it works alone.
    fn plugin_path(&self) -> Result<String> {
        if let Some(path) = self.option("plugin-path", "CNI_PATH") {
            return Ok(path);
        }
        let own = std::env::current_exe().map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
        Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
    }

    fn parameters(&self, network: NetworkName) -> Result<Parameters> {
        let capability_args =
            parameters::parse_capability_args(&self.option("capability-args", "CAP_ARGS").unwrap_or_default())?;
        let args = parameters::parse_args(&self.option("args", "CNI_ARGS").unwrap_or_default())?;
        let ifname = IfName::parse(&self.option("ifname", "CNI_IFNAME").unwrap_or_else(|| "eth0".to_owned()))?;
        let netns = parameters::absolute(&netns_path(&self.argument("netns")))?;
        let container_id = match self.argument("container-id") {
            id if id.is_empty() => parameters::container_id(&netns)?,
            id => ContainerId::parse(&id)?,
        };
        Ok(Parameters { key: Key { network, container_id, ifname }, netns, args, capability_args })
    }
}

/// One line a file, in the order of the search; a file that cannot be read has its error in place of a network.
fn table_of(dir: &Path) -> Result<String> {
    let line = |file: &PathBuf| match list::load(file) {
        Ok(list) => format!("{:<20} {:<8} {}\n", list.name, list.version, file.display()),
        Err(error) => format!("{:<20} {:<8} {}: {}\n", "-", "-", file.display(), error.msg),
    };
    Ok(list::files(dir)?.iter().map(line).collect())
}

/// A word that is no file here is a name that `ip netns` gave; whether or not there still is such a namespace, since
/// DEL must come to the same container id as ADD did.
fn netns_path(argument: &str) -> PathBuf {
    let path = Path::new(argument);
    if argument.contains('/') || path.is_file() { path.to_owned() } else { Path::new(NETNS_DIR).join(path) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::json::Value;

    fn matches(line: &str) -> ArgMatches {
        command().try_get_matches_from(format!("net {line}").split(' ')).unwrap()
    }

    fn parameters(line: &str, env: &[(&str, &str)]) -> Result<Parameters> {
        let env = env.iter().map(|(key, value)| (key.into(), value.into())).collect();
        let matches = matches(line);
        let (_, matches) = matches.subcommand().unwrap();
        Operator { matches, env: &env }.parameters(NetworkName::parse("n").unwrap())
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn without_options_the_variables_and_cnitool_s_defaults_count() {
        let at = parameters("add n /var/run/netns/t", &[]).unwrap();
        assert_eq!((at.key.ifname.as_str(), at.netns.as_str(), at.args.len()), ("eth0", "/var/run/netns/t", 0));
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
        assert!(at.key.container_id.as_str().starts_with("cnitool-"), "a variable for plugins says nothing to us");

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
            ("--capability-args []", "decode the capability arguments: expected an object, found array"),
            ("--ifname a/b", "interface name contains / or : or whitespace characters"),
            ("--container-id ../x", "invalid characters in containerID; ../x"),
        ];
        for (option, text) in cases {
            assert_eq!(parameters(&format!("add n /x {option}"), &[]).unwrap_err().to_string(), text, "{option}");
        }
    }

    #[test]
    fn a_namespace_is_a_path_or_a_name_of_ip_netns() {
        let path = |argument: &str| parameters::absolute(&netns_path(argument)).unwrap();
        let here = std::env::current_dir().unwrap().to_string_lossy().into_owned();
        assert_eq!(path("blue"), "/run/netns/blue");
        assert_eq!(path("/var/run/netns/blue"), "/var/run/netns/blue");
        assert_eq!(path("/a/./b//../c/"), "/a/c");
        assert_eq!(path("/../x"), "/x");
        assert_eq!(path("./blue"), format!("{here}/blue"));
        assert_eq!(path("Cargo.toml"), format!("{here}/Cargo.toml"), "a file of that name goes first");
        assert_eq!(path("src"), "/run/netns/src", "a directory is no namespace");
    }

    #[test]
    fn without_a_path_plugins_are_where_this_binary_is() {
        let path = |line: &str, env: &Environment| {
            let matches = matches(line);
            Operator { matches: matches.subcommand().unwrap().1, env }.plugin_path().unwrap()
        };
        let own = std::env::current_exe().unwrap().parent().unwrap().to_string_lossy().into_owned();
        let env = Environment::default();
        assert_eq!(path("status n", &env), own);
        assert_eq!(path("status n", &env.with("CNI_PATH", "/a:/b")), "/a:/b");
        assert_eq!(path("status n --plugin-path /c", &env.with("CNI_PATH", "/a:/b")), "/c");
    }
}
