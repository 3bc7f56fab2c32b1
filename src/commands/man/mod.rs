//! `cni-multi man [DIR]`: the manual, written from the command line that the binary parses, from
//! the [`Manual`] beside each command, and from the types that configurations decode into.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use clap::{ArgMatches, Command};

use super::cnitool;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::terminal::Streams;
use crate::terminal::arguments::{option, positional};
use crate::terminal::manual::{Manual, Terms};
use crate::terminal::nearest::nearest;
use crate::terminal::visible::visible;

mod conflist;
mod page;

/// The page about configurations.
const CONFLIST: &str = "cni.conflist";

/// The mode of a page: every user reads it.
const FOR_ALL: u32 = 0o644;

/// The sections of this command's page.
pub const MANUAL: Manual = Manual {
    description: &[
        "Without an argument, the names of the pages are printed.",
        "The directory is a share directory; the pages go into its man/man1 and man/man5, and \
         replace pages of the same names.",
    ],
    examples: &[
        ("cni-multi man /usr/local/share", "Write all pages to where man(1) looks."),
        ("cni-multi man --page cni-multi-net-add | man -l -", "Read a page that is not installed."),
    ],
    exit_status: EXIT_STATUS,
    see_also: &["man(1)", "cni.conflist(5)"],
    ..Manual::EMPTY
};

const EXIT_STATUS: Terms = &[
    ("0", "Success."),
    ("1", "A page could not be written."),
    ("2", "The command line is invalid, or there is no page of this name."),
];

/// The command line.
pub fn command() -> Command {
    let dir = "Write the pages below this directory, such as /usr/local/share";
    let page = "Print this page to stdout, as man(7) markup";
    Command::new("man")
        .about("Write the pages of the manual, or list them")
        .arg(positional("dir", "DIR", dir).required(false).conflicts_with("page"))
        .arg(option("page", "NAME", page))
}

/// Where the sections of a page come from: the words of a command lead to them.
pub type Manuals = fn(&[&str]) -> Manual;

/// Runs the command.
pub fn run(matches: &ArgMatches, pages: &Pages, io: &mut Streams<'_>) -> u8 {
    let text = |name| matches.get_one::<String>(name).map(String::as_str);
    let pages = pages.all();
    match (text("dir"), text("page")) {
        (Some(dir), _) => {
            let Err(error) = write(Path::new(dir), &pages) else { return 0 };
            io.complain(&error);
            1
        }
        (None, Some(name)) => print(name, &pages, io),
        (None, None) => {
            let names: Vec<String> = pages.iter().map(|page| page.title() + "\n").collect();
            io.print(&names.concat())
        }
    }
}

fn print(name: &str, pages: &[Page], io: &mut Streams<'_>) -> u8 {
    let Some(page) = pages.iter().find(|page| page.name == name || page.title() == name) else {
        let next = match nearest(name, pages.iter().map(|page| page.name.as_str())) {
            Some(near) => format!("did you mean {near:?}?"),
            None => "`cni-multi man` lists the pages".to_owned(),
        };
        let problem = format!("no page is named {name:?}; {next}");
        let _ = writeln!(io.stderr, "{}", visible(&problem)); // the status reports it too
        return 2;
    };
    io.print(&page.text)
}

fn write(dir: &Path, pages: &[Page]) -> Result<()> {
    for page in pages {
        let dir = dir.join(format!("man/man{}", page.section));
        fs::create_dir_all(&dir).map_err(Error::at_path("create", &dir))?;
        let file = dir.join(format!("{}.{}", page.name, page.section));
        let written = plain_file::create_anew(&file, page.text.as_bytes())
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(FOR_ALL)));
        written.map_err(Error::at_path("write", &file))?;
    }
    Ok(())
}

/// A page.
struct Page {
    name: String,
    section: u8,
    text: String,
}

impl Page {
    /// The name as pages refer to it.
    fn title(&self) -> String {
        format!("{}({})", self.name, self.section)
    }
}

/// What the pages describe.
pub struct Pages {
    /// The whole command line.
    pub commands: fn() -> Command,
    /// The sections of each page.
    pub manuals: Manuals,
}

impl Pages {
    fn all(&self) -> Vec<Page> {
        let mut command = (self.commands)();
        command.build();
        let mut pages = vec![];
        self.add(&command, &mut vec![], &mut pages);
        // The page by the name of the link.
        let mut tool = cnitool::command();
        tool.build();
        let manual = (self.manuals)(&[cnitool::NAME]);
        let text = page::of(&tool, cnitool::NAME, Some("cni-multi-cnitool"), &manual);
        pages.push(Page { name: cnitool::NAME.into(), section: 1, text });
        pages.push(Page { name: CONFLIST.into(), section: 5, text: conflist::page() });
        pages
    }

    /// Adds the page of a command and those of its subcommands; `words` lead to the command.
    fn add<'a>(&self, command: &'a Command, words: &mut Vec<&'a str>, pages: &mut Vec<Page>) {
        words.push(command.get_name());
        let name = words.join("-");
        let parent = words[..words.len() - 1].join("-");
        let parent = Some(parent.as_str()).filter(|parent| !parent.is_empty());
        let manual = (self.manuals)(&words[1..]);
        let text = page::of(command, &name, parent, &manual);
        pages.push(Page { name, section: 1, text });
        page::shown(command).for_each(|sub| self.add(sub, words, pages));
        words.pop();
    }
}
