//! The host's iptables programs, for who asks for that backend and for what the reference plugins
//! left.
//!
//! Rules of iptables are opaque to everything else: they are read and written by the host's own
//! programs, in one `iptables-restore` a family. Whether there is anything to read is seen without
//! starting a program.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::nft::{Family, Nft};
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::file_lock::{self, Mode, Patience, Place};
use crate::plain_file;

/// Where the programs are when PATH, which is the runtime's, does not say.
const USUAL_PLACES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// Seconds to wait for another's lock: those of [`file_lock::PATIENCE`]. kube-proxy alone can have
/// it for several.
const PATIENCE: &str = "30";
/// The lock of iptables-legacy.
const XTABLES_LOCK: &str = "/run/xtables.lock";
/// How often a change is planned anew because the rules changed in between.
const TRIES: usize = 5;
/// Held while rules are looked at and changed.
const LOCK: &str = "/run/cni/iptables/lock";
const LOCK_DIR: &str = "/run/cni/iptables";
/// The programs' exit status when another held the lock all the time, among other reasons.
const LOCKED: i32 = 4;

/// The variant whose rules are in nf_tables, or the one that has its own kernel tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// What `iptables` means on the host.
    Default,
    /// iptables-nft.
    Nft,
    /// iptables-legacy.
    Legacy,
}

/// A table as `iptables-save` lists it: its chains, each with its rules without `-A CHAIN`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    chains: BTreeMap<String, Vec<String>>,
    words: Words,
}

/// The words of each rule of those chains that were asked for a rule.
#[derive(Clone, Debug, Default)]
struct Words(RefCell<HashMap<String, HashSet<Vec<String>>>>);

/// They say no more than the rules do.
impl PartialEq for Words {
    fn eq(&self, _: &Words) -> bool {
        true
    }
}

impl Eq for Words {}

impl Saved {
    /// Reads what iptables-save prints.
    pub fn parse(text: &str) -> Saved {
        let mut chains = BTreeMap::<String, Vec<String>>::new();
        // Not `lines()`: that takes a carriage return at the end of a comment for part of the
        // line's end.
        for line in text.split('\n') {
            if let Some(chain) = line.strip_prefix(':').and_then(|line| line.split(' ').next()) {
                chains.entry(chain.to_owned()).or_default();
            } else if let Some((chain, rule)) =
                line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
            {
                chains.entry(chain.to_owned()).or_default().push(rule.to_owned());
            }
        }
        Saved { chains, words: Words::default() }
    }

    /// The rules of a chain; None where there is no such chain.
    pub fn chain(&self, name: &str) -> Option<&[String]> {
        self.chains.get(name).map(Vec::as_slice)
    }

    /// The chains by their names, each with its rules.
    pub fn chains(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.chains.iter().map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }

    /// The rules that lead to a chain, each with the chain that it is in.
    pub fn leading_to(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let targets = [format!("-j {name}"), format!("-g {name}")];
        let leads = move |rule: &str| targets.iter().any(|target| rule.ends_with(target.as_str()));
        let rules = self
            .chains()
            .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule.as_str())));
        rules.filter(move |(_, rule)| leads(rule))
    }

    /// Whether the chain has the rule, in whatever order its words are shown.
    pub fn has(&self, chain: &str, rule: &str) -> bool {
        let words = |rule: &str| {
            let mut words: Vec<String> = rule.split_whitespace().map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        let Some(rules) = self.chain(chain) else { return false };
        let mut known = self.words.0.borrow_mut();
        let of_chain = match known.get(chain) {
            Some(of_chain) => of_chain,
            None => known
                .entry(chain.to_owned())
                .or_insert(rules.iter().map(|rule| words(rule)).collect()),
        };
        of_chain.contains(&words(rule))
    }
}

/// The host's programs of every family, for one operation or those of a chain. It waits for a stuck
/// lock holder once; later attempts fail at once, for the same reason.
#[derive(Default)]
pub struct Programs {
    /// Until when it waits for the lock.
    deadline: Deadline,
    given_up: OnceCell<Error>,
}

/// The programs of one address family.
#[derive(Clone, Copy)]
pub struct Iptables<'p> {
    programs: &'p Programs,
    is_v6: bool,
    variant: Variant,
}

impl Programs {
    /// What the host calls iptables (or ip6tables), for addresses like this one.
    pub fn for_address(&self, ip: IpAddr) -> Iptables<'_> {
        self.of(ip.is_ipv6(), Variant::Default)
    }

    fn of(&self, is_v6: bool, variant: Variant) -> Iptables<'_> {
        Iptables { programs: self, is_v6, variant }
    }

    /// The programs whose `nat` table may have this chain, of both families; empty where no program
    /// needs to be asked.
    pub fn with_nat_chain(&self, nft: Option<&Nft>, chain: &str) -> Result<Vec<Iptables<'_>>> {
        self.with_nat(nft, |nft, family| Ok(nft.chain(family, "nat", chain)?.is_some()))
    }

    /// The same, where the chain has rules, as far as that can be seen. No more than `jumps` rules
    /// lead there.
    pub fn with_nat_chain_in_use(
        &self,
        nft: Option<&Nft>,
        chain: &str,
        jumps: u32,
    ) -> Result<Vec<Iptables<'_>>> {
        self.with_nat(nft, |nft, family| match nft.chain(family, "nat", chain)? {
            None => Ok(false),
            Some(info) if info.uses > jumps => Ok(true),
            // So few are read: an administrator may have deleted what leads there.
            Some(info) => Ok(info.uses > 0 && !nft.rules(family, "nat", chain)?.is_empty()),
        })
    }

    fn with_nat(
        &self,
        nft: Option<&Nft>,
        is_there: impl Fn(&Nft, Family) -> Result<bool>,
    ) -> Result<Vec<Iptables<'_>>> {
        self.settle()?;
        let mut found = vec![];
        for (is_v6, family) in [(false, Family::Ip), (true, Family::Ip6)] {
            if nft.map_or(Ok(false), |nft| is_there(nft, family))? {
                found.push(self.of(is_v6, Variant::Nft));
            }
            // A host without the programs can have no rules of ours there, whoever made the table.
            let legacy = self.legacy_with("nat", is_v6)?;
            found.extend(legacy.filter(|iptables| iptables.require().is_ok()));
        }
        Ok(found)
    }

    /// The programs of iptables-legacy for addresses of one family, where that has a table of this
    /// name. No program is asked.
    pub fn legacy_with(&self, table: &str, is_v6: bool) -> Result<Option<Iptables<'_>>> {
        Ok(has_legacy_table(table, is_v6)?.then_some(self.of(is_v6, Variant::Legacy)))
    }

    /// Waits until no rules are being changed, so that a search for rules finds those of an ADD
    /// that was killed.
    pub fn settle(&self) -> Result<()> {
        match fs::symlink_metadata(LOCK) {
            // Nothing has been changed since the host was started, or there is something else in
            // the directory's place.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(e) => Err(Error::io(format_args!("look for {LOCK:?}"), &e)),
            Ok(_) => self.lock().map(drop),
        }
    }

    /// Keeps other processes of ours from changing rules of iptables until it is dropped; the
    /// kernel ends it with the process and the programs that it has started. One of those goes on
    /// when the process is killed.
    fn lock(&self) -> Result<File> {
        self.require_hope()?;
        let failed = |e: std::io::Error| Error::io(format_args!("lock {LOCK:?}"), &e);
        let path = Path::new(LOCK);
        plain_file::make_private_directory(Path::new(LOCK_DIR)).map_err(failed)?;
        let file = plain_file::open_or_create(path).map_err(failed)?;
        let file =
            file_lock::take(file, path, Mode::Exclusive, Patience::of_operation(self.deadline))
                .map_err(|error| self.give_up(error))?;
        fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty())).map_err(|errno| failed(errno.into()))?;
        Ok(file)
    }

    /// Why the first wait was in vain, if one was.
    fn require_hope(&self) -> Result<()> {
        self.given_up.get().cloned().map_or(Ok(()), Err)
    }

    fn give_up(&self, error: Error) -> Error {
        if error.code == Code::TRY_AGAIN {
            let _ = self.given_up.set(error.clone()); // only the first was waited for
        }
        error
    }
}

impl Iptables<'_> {
    /// What people call them.
    pub fn name(&self) -> &'static str {
        match (self.is_v6, self.variant) {
            (false, Variant::Legacy) => "iptables-legacy",
            (true, Variant::Legacy) => "ip6tables-legacy",
            (false, _) => "iptables",
            (true, _) => "ip6tables",
        }
    }

    /// Code 105 where the host has not got the programs.
    pub fn require(&self) -> Result<()> {
        ["-save", "-restore"].iter().try_for_each(|suffix| self.program(suffix).map(drop))
    }

    /// All of a table, with its chains.
    pub fn save(&self, table: &str) -> Result<Saved> {
        let output = self.run("-save", &["-t", table], "")?;
        if !output.status.success() {
            return Err(self.failed("save table", table, &output));
        }
        Ok(Saved::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Whether these programs are for addresses like this one.
    pub fn is_for(&self, ip: IpAddr) -> bool {
        self.is_v6 == ip.is_ipv6()
    }

    /// The rules of a chain as `-A …` lines; None where there is no such chain.
    pub fn chain(&self, table: &str, chain: &str) -> Result<Option<Vec<String>>> {
        let output = self.run("", &["-w", PATIENCE, "-t", table, "-S", chain], "")?;
        match output.status.code() {
            Some(0) => {
                let text = String::from_utf8_lossy(&output.stdout);
                Ok(Some(
                    text.lines()
                        .filter(|line| line.starts_with("-A "))
                        .map(str::to_owned)
                        .collect(),
                ))
            }
            Some(1) => Ok(None),
            _ => Err(self.failed("list chain", chain, &output)),
        }
    }

    /// Does the lines of `iptables-restore` that `plan` finds necessary, all or none. Nobody else
    /// of ours comes between what the plan sees and what is done. Where another program did,
    /// and a line fails for it, the plan is made anew.
    pub fn change(&self, table: &str, plan: &dyn Fn() -> Result<Vec<String>>) -> Result<()> {
        let _lock = self.programs.lock()?;
        let attempt = || {
            let lines = plan()?;
            if lines.is_empty() { Ok(()) } else { self.restore(table, &lines) }
        };
        let mut outcome = attempt();
        for _ in 1..TRIES {
            match outcome {
                Err(error) if error.code == Code::HOST_PROGRAM => outcome = attempt(),
                _ => break,
            }
        }
        outcome
    }

    fn restore(&self, table: &str, lines: &[String]) -> Result<()> {
        let text = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
        let output = self.run("-restore", &["--noflush", "-w", PATIENCE], &text)?;
        if output.status.success() {
            Ok(())
        } else {
            Err(self.failed("change the rules of table", table, &output))
        }
    }

    fn run(&self, suffix: &str, args: &[&str], input: &str) -> Result<Output> {
        self.programs.require_hope()?;
        let program = self.program(suffix)?;
        let starting = |e: std::io::Error| {
            Error::io(format_args!("run {}", program.display()), &e).with_code(Code::HOST_PROGRAM)
        };
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(starting)?;
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input.as_bytes()); // one that ends early says why by its status
        }
        child.wait_with_output().map_err(starting)
    }

    fn program(&self, suffix: &str) -> Result<PathBuf> {
        let family = if self.is_v6 { "ip6tables" } else { "iptables" };
        let names = match self.variant {
            Variant::Default => vec![format!("{family}{suffix}")],
            Variant::Nft => vec![format!("{family}-nft{suffix}"), format!("{family}{suffix}")],
            Variant::Legacy => {
                vec![format!("{family}-legacy{suffix}"), format!("{family}{suffix}")]
            }
        };
        names.iter().find_map(|name| find_program(name)).ok_or_else(|| {
            Error::new(Code::HOST_PROGRAM, format!("program {:?} not found", names[0]))
                .with_details("the nftables backend needs no program")
        })
    }

    fn failed(&self, what: &str, object: &str, output: &Output) -> Error {
        let said = String::from_utf8_lossy(&output.stderr);
        // With the same status iptables-nft says that its transaction was refused, as where another
        // has removed the chain.
        let is_locked = output.status.code() == Some(LOCKED) && said.contains("xtables lock");
        let code = if is_locked { Code::TRY_AGAIN } else { Code::HOST_PROGRAM };
        let family = if self.is_v6 { "ip6tables" } else { "iptables" };
        let error = Error::new(code, format!("{what} {object:?}: {family}: {}", output.status))
            .with_details(said.trim());
        self.programs.give_up(
            match Place::at(Path::new(XTABLES_LOCK))
                .filter(|_| is_locked)
                .and_then(|lock| lock.holder())
            {
                Some(holder) => error.with_details(format_args!("{holder} has {XTABLES_LOCK}")),
                None => error,
            },
        )
    }
}

/// Whether iptables-legacy, which has its own tables in the kernel, has this one.
fn has_legacy_table(table: &str, is_v6: bool) -> Result<bool> {
    let names = format!(
        "/proc/thread-self/net/{}",
        if is_v6 { "ip6_tables_names" } else { "ip_tables_names" }
    );
    match fs::read_to_string(&names) {
        Ok(tables) => Ok(tables.lines().any(|found| found == table)),
        // No such file, no such tables; an ordinary user, who may not read it, can have made none.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            Ok(false)
        }
        Err(e) => Err(Error::io(format_args!("read {names}"), &e)),
    }
}

/// The program in PATH or where distributions put it. The name is one of ours, never from a
/// configuration.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(USUAL_PLACES.iter().map(PathBuf::from));
    places
        .filter(|place| place.is_absolute())
        .map(|place| place.join(name))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_and_not_locked_out_tries_again() {
        let refused = |said: &str| {
            let status = std::os::unix::process::ExitStatusExt::from_raw(LOCKED << 8);
            let output = Output { status, stdout: vec![], stderr: said.into() };
            Programs::default()
                .of(false, Variant::Default)
                .failed("change the rules of table", "filter", &output)
                .code
        };
        assert_eq!(refused("RULE_APPEND failed (No such file or directory)"), Code::HOST_PROGRAM);
        assert_eq!(
            refused("Another app is currently holding the xtables lock; still 0s"),
            Code::TRY_AGAIN
        );
    }

    #[test]
    fn a_saved_table_has_chains_without_rules_too() {
        let saved = Saved::parse(
            "# x\n*filter\n:FORWARD DROP [0:0]\n:CNI-ADMIN - [0:0]\n-A FORWARD -j CNI-ADMIN\nCOMMIT\n",
        );
        assert!(saved.has("FORWARD", "-j CNI-ADMIN") && !saved.has("FORWARD", "-j"));
        assert_eq!((saved.chain("CNI-ADMIN"), saved.chain("CNI")), (Some(&[][..]), None));
    }
}
