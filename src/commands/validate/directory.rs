//! The checks of a directory: which of its files a runtime reads.

use std::path::Path;

use super::checker::Checker;
use super::files::files_of;
use super::picks::{self, Pick};
use crate::error::Result;

impl Checker<'_> {
    /// Checks every file of a directory.
    pub fn check_dir(&mut self, dir: &Path) -> Result<Vec<Pick>> {
        let files = files_of(dir).map_err(|e| e.context(dir.display()))?;
        let first = self.networks.len();
        let mut read = vec![];
        for (number, file) in files.iter().enumerate() {
            self.progress.count(number, files.len());
            if picks::extension(file).is_some() {
                let network = self.check_file(file);
                read.push((file.clone(), network));
            } else if looks_like_configuration(file) {
                self.tell_of_file("not-read", file, "no runtime reads a file of this name");
            }
        }
        if read.is_empty() {
            self.tell_of_file("no-files", dir, "there is no network configuration");
        }
        self.check_names(first);
        let picks = picks::of_dir(&read, &self.networks).into_iter();
        Ok(picks.map(|pick| pick.of(&dir.to_string_lossy())).collect())
    }

    /// Checks one file; returns the network in it.
    fn check_file(&mut self, file: &Path) -> Option<usize> {
        let bytes = self.read_file(file)?;
        self.check(file.to_string_lossy().into_owned(), &bytes)
    }
}

fn looks_like_configuration(file: &Path) -> bool {
    let name = file.to_string_lossy().to_ascii_lowercase();
    name.contains(".conf") || name.contains(".json")
}
