//! The host's iptables programs, for who asks for that backend and for what the reference plugins left.
//!
//! Rules of iptables are opaque to everything else: they are read and written by the host's own programs, in one
//! `iptables-restore` a family. Whether there is anything to read is seen without starting a program.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use super::nft::{Family, Nft};
use crate::error::{Code, Error, Result};

/// Where the programs are when PATH, which is the runtime's, does not say.
const USUAL_PLACES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];
/// Seconds to wait for another's lock.
const PATIENCE: &str = "5";
/// How often a change is planned anew because the rules changed in between.
const TRIES: usize = 5;
/// The programs' exit status when another held the lock all the time.
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

/// The programs of one address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iptables {
    is_v6: bool,
    variant: Variant,
}

impl Iptables {
    /// What the host calls iptables (or ip6tables), for addresses like this one.
    pub fn for_address(ip: IpAddr) -> Iptables {
        Iptables { is_v6: ip.is_ipv6(), variant: Variant::Default }
    }

    /// The programs whose `nat` table may have this chain, of both families; empty where no program needs to be asked.
    pub fn with_nat_chain(nft: Option<&Nft>, chain: &str) -> Result<Vec<Iptables>> {
        Iptables::with_nat_chain_used(nft, chain, 0)
    }

    /// The same, where rules and jumps to the chain are at least so many together, as far as that can be seen.
    pub fn with_nat_chain_used(nft: Option<&Nft>, chain: &str, least: u32) -> Result<Vec<Iptables>> {
        let mut found = vec![];
        for (is_v6, family, tables) in [(false, Family::Ip, "ip_tables_names"), (true, Family::Ip6, "ip6_tables_names")]
        {
            let in_nft = nft.map_or(Ok(None), |nft| nft.chain(family, "nat", chain))?;
            if in_nft.is_some_and(|info| info.uses >= least) {
                found.push(Iptables { is_v6, variant: Variant::Nft });
            }
            let tables = fs::read_to_string(format!("/proc/thread-self/net/{tables}")).unwrap_or_default(); // no such file, no such tables
            if tables.lines().any(|table| table == "nat") {
                found.push(Iptables { is_v6, variant: Variant::Legacy });
            }
        }
        Ok(found)
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
                Ok(Some(text.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect()))
            }
            Some(1) => Ok(None),
            _ => Err(self.failed("list chain", chain, &output)),
        }
    }

    /// The whole table, as lines of `iptables-save`.
    pub fn save(&self, table: &str) -> Result<Vec<String>> {
        let output = self.run("-save", &["-t", table], "")?;
        if !output.status.success() {
            return Err(self.failed("save table", table, &output));
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }

    /// Plans a change on what the table has and does it, again where somebody else changed it in between.
    pub fn rewrite(&self, table: &str, plan: impl Fn(&[String]) -> Result<Vec<String>>) -> Result<()> {
        let mut tries = 0;
        loop {
            let lines = plan(&self.save(table)?)?;
            let done = if lines.is_empty() { Ok(()) } else { self.restore(table, &lines) };
            tries += 1;
            if done.is_ok() || tries == TRIES {
                return done;
            }
        }
    }

    /// Whether the programs are there.
    pub fn require(&self) -> Result<()> {
        ["-save", "-restore"].iter().try_for_each(|suffix| self.program(suffix).map(drop))
    }

    /// Does all of `lines` in the table, or nothing.
    pub fn restore(&self, table: &str, lines: &[String]) -> Result<()> {
        let text = format!("*{table}\n{}\nCOMMIT\n", lines.join("\n"));
        let output = self.run("-restore", &["--noflush", "-w", PATIENCE], &text)?;
        if output.status.success() { Ok(()) } else { Err(self.failed("change the rules of table", table, &output)) }
    }

    fn run(&self, suffix: &str, args: &[&str], input: &str) -> Result<Output> {
        let program = self.program(suffix)?;
        let starting =
            |e: std::io::Error| Error::io(format_args!("run {}", program.display()), &e).with_code(Code::HOST_PROGRAM);
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
            Variant::Legacy => vec![format!("{family}-legacy{suffix}"), format!("{family}{suffix}")],
        };
        names.iter().find_map(|name| find_program(name)).ok_or_else(|| {
            Error::new(Code::HOST_PROGRAM, format!("program {:?} not found", names[0]))
                .with_details("the nftables backend needs no program")
        })
    }

    fn failed(&self, what: &str, object: &str, output: &Output) -> Error {
        let code = if output.status.code() == Some(LOCKED) { Code::TRY_AGAIN } else { Code::HOST_PROGRAM };
        let family = if self.is_v6 { "ip6tables" } else { "iptables" };
        let said = String::from_utf8_lossy(&output.stderr);
        Error::new(code, format!("{what} {object:?}: {family}: {}", output.status)).with_details(said.trim())
    }
}

/// The program in PATH or where distributions put it. The name is one of ours, never from a configuration.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(USUAL_PLACES.iter().map(PathBuf::from));
    places.filter(|place| place.is_absolute()).map(|place| place.join(name)).find(|program| program.is_file())
}
