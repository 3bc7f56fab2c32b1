//! A page of the documentation: its blocks, headings and tables.

use std::collections::BTreeSet;
use std::fs;

use super::root;

/// A page, by its path in the repository.
pub struct Page {
    pub path: String,
    pub text: String,
}

/// A fenced block.
pub struct Block {
    pub info: String,
    pub text: String,
    pub line: usize,
}

impl Block {
    pub fn is_network(&self) -> bool {
        self.info.starts_with("json conflist")
    }

    /// The kind of link, with its arguments, that the kernel must support for it.
    pub fn needs(&self) -> Option<&str> {
        self.info.strip_prefix("json conflist needs ")
    }
}

impl Page {
    pub fn read(path: &str) -> Page {
        let text = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        Page { path: path.to_owned(), text }
    }

    pub fn of_plugin(name: &str) -> Page {
        Page::read(&format!("docs/{name}.md"))
    }

    pub fn all() -> Vec<Page> {
        let docs =
            fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut paths: Vec<String> =
            docs.map(|name| format!("docs/{}", name.to_str().unwrap())).collect();
        paths.retain(|path| path.ends_with(".md"));
        paths.extend(
            ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(str::to_owned),
        );
        paths.sort();
        paths.iter().map(|path| Page::read(path)).collect()
    }

    /// Compares what stands between the markers of this name with a text, or writes it there.
    pub fn assert_generated(&self, name: &str, text: &str) {
        let begin = format!("<!-- generated: {name} -->\n");
        let parts = self.text.split_once(&begin).and_then(|(before, rest)| {
            let (found, after) = rest.split_once("<!-- end of generated -->\n")?;
            Some((before, found, after))
        });
        let (before, found, after) =
            parts.unwrap_or_else(|| panic!("{} has no {begin}", self.path));
        if std::env::var_os("CNI_BLESS").is_some() {
            let page = [before, &begin, text, "<!-- end of generated -->\n", after].concat();
            return fs::write(root().join(&self.path), page).unwrap();
        }
        assert_eq!(found, text, "{}: CNI_BLESS=1 writes it", self.path);
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = vec![];
        let mut open: Option<Block> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(info), None) => {
                    open = Some(Block { info: info.to_owned(), text: String::new(), line: number })
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text.extend([line, "\n"]),
                (None, None) => (),
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path);
        blocks
    }

    /// The text without its fenced blocks.
    pub fn prose(&self) -> String {
        let mut inside = false;
        let mut outside = |line: &&str| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        };
        self.text.lines().filter(|line| outside(line)).map(|line| format!("{line}\n")).collect()
    }

    /// The kinds of links that its networks need.
    pub fn needs(&self) -> BTreeSet<String> {
        self.blocks().iter().filter_map(|block| block.needs().map(str::to_owned)).collect()
    }

    pub fn headings(&self) -> Vec<String> {
        let prose = self.prose();
        let heading = |line: &str| {
            Some(line.trim_start_matches('#').trim().to_owned()).filter(|_| line.starts_with('#'))
        };
        prose.lines().filter_map(heading).collect()
    }

    /// The rows of the tables in a chapter, cell by cell, without heads; those of the whole page if
    /// no chapter is named.
    pub fn rows(&self, chapter: Option<&str>) -> Vec<Vec<String>> {
        let prose = self.prose();
        let mut now = String::new();
        let mut rows: Vec<Vec<String>> = vec![];
        for line in prose.lines() {
            if let Some(heading) = line.strip_prefix("## ") {
                heading.clone_into(&mut now);
            }
            if !line.starts_with('|') || chapter.is_some_and(|chapter| chapter != now) {
                continue;
            }
            if line.starts_with("|---") {
                rows.pop(); // the row before was the head
                continue;
            }
            let cells = line.trim().trim_matches('|').replace("\\|", "\u{0}");
            rows.push(cells.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect());
        }
        rows
    }
}

/// The texts between backticks.
pub fn code_spans(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
