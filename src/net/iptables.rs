//! The host's iptables programs, for configurations that select that backend and for rules that the
//! reference plugins left.
//!
//! iptables rules are opaque to all other code: the host's own programs read and write them, with
//! one `iptables-restore` per family. Whether there is anything to read is determined without
//! starting a program.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::rc::Rc;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::nft::{NfFamily, Nft};
use super::xtables_legacy;
use crate::deadline::Clock;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::file_lock::{self, Mode, Patience, Place, StuckHolder};
use crate::plain_file;
use crate::timing::{self, Wait};

/// Where to look for the programs when the PATH, which is the runtime's, does not lead to them.
const USUAL_PLACES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// The lock of iptables-legacy.
const XTABLES_LOCK: &str = "/run/xtables.lock";
/// How often a change is planned again because the rules changed in between.
const TRIES: usize = 5;
/// The lock that is held while rules are read and changed.
const LOCK: &str = "/run/cni/iptables/lock";
/// The exit status of the programs when the lock stayed busy, among other reasons.
const LOCKED: i32 = 4;

/// The variant of the programs: with rules in nf_tables, or with kernel tables of its own.
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

/// The words of each rule, cached for the chains that [`Saved::has`] was called with.
#[derive(Clone, Debug, Default)]
struct Words(RefCell<HashMap<String, HashSet<Vec<String>>>>);

/// A cache that is derived from the rules, so it is irrelevant to equality.
impl PartialEq for Words {
    fn eq(&self, _: &Words) -> bool {
        true
    }
}

impl Eq for Words {}

impl Saved {
    /// Parses the output of iptables-save.
    pub fn parse(text: &str) -> Saved {
        let mut saved = Saved::default();
        // Not `lines()`: it takes a carriage return at the end of a comment for part of the line
        // ending.
        for line in text.split('\n') {
            if let Some(chain) = line.strip_prefix(':').and_then(|line| line.split(' ').next()) {
                saved.chains.entry(chain.to_owned()).or_default();
            } else if let Some((chain, rule)) =
                line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
            {
                saved.chains.entry(chain.to_owned()).or_default().push(rule.to_owned());
            }
        }
        saved
    }

    /// The rules of a chain; None if the chain does not exist.
    pub fn chain(&self, name: &str) -> Option<&[String]> {
        self.chains.get(name).map(Vec::as_slice)
    }

    /// The rules of a chain, if it exists.
    pub fn rules_in(&self, chain: &str) -> &[String] {
        self.chain(chain).unwrap_or_default()
    }

    /// The chains by name, each with its rules.
    pub fn chains(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.chains.iter().map(|(name, rules)| (name.as_str(), rules.as_slice()))
    }

    /// The rules that jump or go to a chain, each with the chain that contains it.
    pub fn leading_to(&self, name: &str) -> impl Iterator<Item = (&str, &str)> {
        let targets = [format!("-j {name}"), format!("-g {name}")];
        self.rules().filter(move |(_, rule)| targets.iter().any(|target| rule.ends_with(target)))
    }

    /// The rules of all chains, each with its chain.
    fn rules(&self) -> impl Iterator<Item = (&str, &str)> {
        self.chains()
            .flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain, rule.as_str())))
    }

    /// Whether the chain has the rule, whatever the order of its words.
    pub fn has(&self, chain: &str, rule: &str) -> bool {
        self.chain(chain).is_some_and(|rules| self.words.have(chain, rules, rule))
    }
}

impl Words {
    /// Whether one of the chain's rules has the words of `rule`.
    fn have(&self, chain: &str, rules: &[String], rule: &str) -> bool {
        let mut known = self.0.borrow_mut();
        let of_chain = match known.get(chain) {
            Some(of_chain) => of_chain,
            None => known
                .entry(chain.to_owned())
                .or_insert(rules.iter().map(|rule| sorted_words(rule)).collect()),
        };
        of_chain.contains(&sorted_words(rule))
    }
}

fn sorted_words(rule: &str) -> Vec<String> {
    let mut words: Vec<String> = rule.split_whitespace().map(str::to_owned).collect();
    words.sort_unstable();
    words
}

/// The host's iptables programs of both families, for one operation or for all those of a plugin
/// chain. They wait for a stuck lock holder once; later attempts fail at once, for the same reason.
#[derive(Default)]
pub struct Programs {
    /// When the wait for the lock ends.
    clock: Clock,
    stuck_holder: StuckHolder,
    kept: RefCell<Option<Kept>>,
}

/// What was read since [`Programs::remember`].
#[derive(Default)]
struct Kept {
    /// The tables of iptables-legacy by family.
    legacy: HashMap<Family, Vec<String>>,
    /// The tables that programs have saved, by program and table.
    saved: HashMap<[String; 2], Rc<Saved>>,
}

/// The programs of one address family.
#[derive(Clone, Copy)]
pub struct Iptables<'p> {
    programs: &'p Programs,
    family: Family,
    variant: Variant,
}

impl Programs {
    /// No wait of these programs is longer than this clock allows.
    pub fn new(clock: Clock) -> Programs {
        Programs { clock, ..Programs::default() }
    }

    /// The programs that the host calls iptables (or ip6tables), for the family of this address.
    pub fn for_address(&self, ip: IpAddr) -> Iptables<'_> {
        self.of(Family::of(ip), Variant::Default)
    }

    /// Requires that they can list a table. Only IPv4 is tried: a host with one family does not need
    /// the other's program.
    pub fn require_table(&self, table: &str) -> Result<()> {
        self.of(Family::V4, Variant::Default).save(table).map(drop)
    }

    fn of(&self, family: Family, variant: Variant) -> Iptables<'_> {
        Iptables { programs: self, family, variant }
    }

    /// The variant of what the host calls iptables (or ip6tables), if it has that and if the name of
    /// the file that it is a link to tells. A program that chooses by itself is of neither.
    pub fn variant_of_host(&self, family: Family) -> Option<Variant> {
        let program = find_program(&format!("{}tables", family.word()))?;
        let file = fs::canonicalize(program).ok()?;
        match file.file_name()?.to_str()? {
            name if name.contains("nft") => Some(Variant::Nft),
            name if name.contains("legacy") || name == "xtables-multi" => Some(Variant::Legacy),
            _ => None,
        }
    }

    /// The host's own programs of a family, if they are of iptables-legacy.
    pub fn legacy_of_host(&self, family: Family) -> Option<Iptables<'_>> {
        let is_legacy = self.variant_of_host(family) == Some(Variant::Legacy);
        is_legacy.then_some(self.of(family, Variant::Legacy))
    }

    /// The programs of both families whose `nat` table may have this chain; empty if no program
    /// needs to run.
    pub fn with_nat_chain(&self, nft: Option<&Nft>, chain: &str) -> Result<Vec<Iptables<'_>>> {
        self.with_nat(nft, |nft, family| Ok(nft.chain(family, "nat", chain)?.is_some()))
    }

    /// Like [`Programs::with_nat_chain`], but only where the chain has rules, as far as that is
    /// visible. At most `jumps` rules lead to the chain.
    pub fn with_nat_chain_in_use(
        &self,
        nft: Option<&Nft>,
        chain: &str,
        jumps: u32,
    ) -> Result<Vec<Iptables<'_>>> {
        self.with_nat(nft, |nft, family| has_rules(nft, family, chain, jumps))
    }

    fn with_nat(
        &self,
        nft: Option<&Nft>,
        is_there: impl Fn(&Nft, NfFamily) -> Result<bool>,
    ) -> Result<Vec<Iptables<'_>>> {
        self.settle()?;
        let mut found = vec![];
        for family in Family::ALL {
            if nft.map_or(Ok(false), |nft| is_there(nft, family.into()))? {
                found.push(self.of(family, Variant::Nft));
            }
            // A host without the programs has no rules of ours there, whichever program created the
            // table.
            let legacy = self.legacy_with("nat", family)?;
            found.extend(legacy.filter(|iptables| iptables.require().is_ok()));
        }
        Ok(found)
    }

    /// The programs of iptables-legacy for one address family, if that has a table of this name.
    /// Runs no program.
    pub fn legacy_with(&self, table: &str, family: Family) -> Result<Option<Iptables<'_>>> {
        let tables = match &mut *self.kept.borrow_mut() {
            None => xtables_legacy::tables(family)?,
            Some(Kept { legacy, .. }) => match legacy.get(&family) {
                Some(tables) => tables.clone(),
                None => legacy.entry(family).or_insert(xtables_legacy::tables(family)?).clone(),
            },
        };
        let has_table = tables.iter().any(|found| found == table);
        Ok(has_table.then_some(self.of(family, Variant::Legacy)))
    }

    /// From now on each table is read once, until [`Programs::forget`] or a change of ours.
    pub fn remember(&self) {
        *self.kept.borrow_mut() = Some(Kept::default());
    }

    /// From now on tables are read each time.
    pub fn forget(&self) {
        *self.kept.borrow_mut() = None;
    }

    /// Waits until no change of the rules is in progress, so that a search also finds the rules of
    /// an ADD that was killed.
    pub fn settle(&self) -> Result<()> {
        match fs::symlink_metadata(LOCK) {
            // No rule was changed since the host booted, or the path of the directory is something
            // else.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(e) => Err(Error::io(format_args!("look for {LOCK:?}"), &e)),
            Ok(_) => self.lock().map(drop),
        }
    }

    /// Keeps other processes of ours from changing iptables rules until the file is dropped. The
    /// kernel releases the lock when this process and the programs that it started have exited:
    /// such a program continues when this process is killed.
    fn lock(&self) -> Result<File> {
        self.stuck_holder.fail_again()?;
        let lock = Path::new(LOCK);
        let not_locked = |e: io::Error| Error::io(format_args!("lock {LOCK:?}"), &e);
        let file = plain_file::open_or_create_private(lock).map_err(not_locked)?;
        let patience = Patience::of_operation(self.clock.deadline());
        let file = file_lock::take(file, lock, Mode::Exclusive, patience)
            .map_err(|error| self.stuck_holder.record(error))?;
        let inheritable = fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()));
        inheritable.map_err(|errno| not_locked(errno.into()))?;
        Ok(file)
    }

    /// How many seconds the programs wait for the lock of all iptables programs, which kube-proxy
    /// alone can hold for several.
    fn seconds(&self) -> String {
        self.clock.deadline().limit(file_lock::PATIENCE).as_secs().to_string()
    }
}

impl Iptables<'_> {
    /// The name of the programs, for messages.
    pub fn name(&self) -> &'static str {
        match (self.family, self.variant) {
            (Family::V4, Variant::Legacy) => "iptables-legacy",
            (Family::V6, Variant::Legacy) => "ip6tables-legacy",
            (Family::V4, _) => "iptables",
            (Family::V6, _) => "ip6tables",
        }
    }

    /// Fails with code 105 if the host lacks the programs.
    pub fn require(&self) -> Result<()> {
        ["-save", "-restore"].iter().try_for_each(|suffix| self.program(suffix).map(drop))
    }

    /// Reads a whole table with its chains.
    pub fn save(&self, table: &str) -> Result<Rc<Saved>> {
        let name = [self.names("-save").swap_remove(0), table.to_owned()];
        let kept = &self.programs.kept;
        if let Some(saved) = kept.borrow().as_ref().and_then(|kept| kept.saved.get(&name)) {
            return Ok(Rc::clone(saved));
        }
        let output = self.run("-save", &["-t", table], "")?;
        if !output.status.success() {
            return Err(self.failed("save table", table, &output));
        }
        let saved = Rc::new(Saved::parse(&String::from_utf8_lossy(&output.stdout)));
        if let Some(kept) = &mut *kept.borrow_mut() {
            kept.saved.insert(name, Rc::clone(&saved));
        }
        Ok(saved)
    }

    /// The family that these programs are for.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether these programs are for the family of this address.
    pub fn is_for(&self, ip: IpAddr) -> bool {
        self.family == Family::of(ip)
    }

    /// These chains of a table, up to the first that does not exist. iptables-nft reads no other
    /// rules for it.
    pub fn chains(&self, table: &str, names: &[&str]) -> Result<Saved> {
        let mut listed = String::new();
        for name in names {
            let seconds = self.programs.seconds();
            let output = self.run("", &["-w", &seconds, "-t", table, "-S", name], "")?;
            match output.status.code() {
                Some(0) => {
                    let rules = String::from_utf8_lossy(&output.stdout);
                    listed += &format!(":{name} -\n{rules}\n");
                }
                Some(1) => break,
                _ => return Err(self.failed("list chain", name, &output)),
            }
        }
        Ok(Saved::parse(&listed))
    }

    /// Applies the lines of `iptables-restore` that `plan` returns, all or none. A lock keeps other
    /// processes of ours from changing rules between the plan and the change. If another program
    /// changed them and a line fails for that reason, the plan is made again.
    pub fn change(&self, table: &str, plan: &dyn Fn() -> Result<Vec<String>>) -> Result<()> {
        let _lock = self.programs.lock()?;
        let mut outcome = self.change_once(table, plan);
        for _ in 1..TRIES {
            match outcome {
                Err(error) if error.code == Code::HOST_PROGRAM => {
                    outcome = self.change_once(table, plan);
                }
                _ => break,
            }
        }
        outcome
    }

    fn change_once(&self, table: &str, plan: &dyn Fn() -> Result<Vec<String>>) -> Result<()> {
        let lines = plan()?;
        if lines.is_empty() {
            return Ok(());
        }
        if let Some(kept) = &mut *self.programs.kept.borrow_mut() {
            kept.saved.clear();
        }
        let text = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
        let seconds = self.programs.seconds();
        let output = self.run("-restore", &["--noflush", "-w", &seconds], &text)?;
        if !output.status.success() {
            return Err(self.failed("change the rules of table", table, &output));
        }
        Ok(())
    }

    fn run(&self, suffix: &str, args: &[&str], input: &str) -> Result<Output> {
        self.programs.stuck_holder.fail_again()?;
        let program = self.program(suffix)?;
        let output = timing::waiting(Wait::Programs, || output_of(&program, args, input));
        output.map_err(|e| {
            Error::io(format_args!("run {}", program.display()), &e).with_code(Code::HOST_PROGRAM)
        })
    }

    /// The names that a program may have, the preferred one first.
    fn names(&self, suffix: &str) -> Vec<String> {
        let ip = self.family.word();
        let plain = format!("{ip}tables{suffix}");
        match self.variant {
            Variant::Default => vec![plain],
            Variant::Nft => vec![format!("{ip}tables-nft{suffix}"), plain],
            Variant::Legacy => vec![format!("{ip}tables-legacy{suffix}"), plain],
        }
    }

    fn program(&self, suffix: &str) -> Result<PathBuf> {
        let names = self.names(suffix);
        let found = names.iter().find_map(|name| find_program(name));
        found.ok_or_else(|| {
            Error::new(Code::HOST_PROGRAM, format!("program {:?} not found", names[0]))
                .with_details("the nftables backend needs no program")
        })
    }

    fn failed(&self, what: &str, object: &str, output: &Output) -> Error {
        let said = String::from_utf8_lossy(&output.stderr);
        // Whether the program gave up waiting for the lock. iptables-nft exits with the same status
        // when its transaction is refused, for example after another process removed the chain.
        let is_locked = output.status.code() == Some(LOCKED) && said.contains("xtables lock");
        let code = if is_locked { Code::TRY_AGAIN } else { Code::HOST_PROGRAM };
        let ip = self.family.word();
        let mut error =
            Error::new(code, format!("{what} {object:?}: {ip}tables: {}", output.status))
                .with_details(said.trim());
        let lock = is_locked.then(|| Place::at(Path::new(XTABLES_LOCK))).flatten();
        if let Some(holder) = lock.and_then(|lock| lock.holder()) {
            error = error.with_details(format_args!("{holder} has {XTABLES_LOCK}"));
        }
        self.programs.stuck_holder.record(error)
    }
}

/// Whether the chain of nf_tables has rules, as far as that is visible; `jumps` rules at most lead
/// to it.
fn has_rules(nft: &Nft, family: NfFamily, chain: &str, jumps: u32) -> Result<bool> {
    match nft.chain(family, "nat", chain)? {
        None => Ok(false),
        Some(info) if info.uses > jumps => Ok(true),
        // The uses may all be jumps to the chain, or rules in it without a jump to it. The chain has
        // few rules: read them.
        Some(info) => Ok(info.uses > 0 && !nft.rules(family, "nat", chain)?.is_empty()),
    }
}

/// Runs a program to its end with this input.
fn output_of(program: &Path, args: &[&str], input: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes()); // an early exit reports why by its status
    }
    child.wait_with_output()
}

/// Finds a program in PATH or where distributions install it. The name is a constant of ours, never
/// from a configuration.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(USUAL_PLACES.iter().map(PathBuf::from))
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
                .of(Family::V4, Variant::Default)
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
