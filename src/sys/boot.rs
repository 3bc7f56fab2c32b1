//! The kernel's id of the current boot (proc_sys_kernel(5)).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::error::{Code, Error, Result};

const PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The id. What is confirmed or recorded with it is void in another boot, so without it there is an error and
/// never an empty id.
pub fn id_of_boot() -> Result<String> {
    read(Path::new(PATH))
}

/// The line with the id as the kernel prints it, with its end.
pub fn line() -> io::Result<String> {
    content(Path::new(PATH))
}

fn content(path: &Path) -> io::Result<String> {
    let mut text = [0; 64];
    let count = File::open(path)?.read(&mut text)?;
    Ok(String::from_utf8_lossy(&text[..count]).into_owned())
}

fn read(path: &Path) -> Result<String> {
    let id = content(path).map_err(Error::at_path("read", path))?;
    match id.trim() {
        "" => {
            let msg = format!("read {}: it is empty, expected the id of this boot", path.display());
            Err(Error::new(Code::IO, msg)
                .with_details("mount procfs at /proc, without another file on that path"))
        }
        id => Ok(id.to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn an_id_that_cannot_be_read_is_an_error_and_never_empty() {
        let dir = Scratch::new();
        let path = dir.path().join("boot_id");
        let missing = read(&path).unwrap_err().to_string();
        assert!(missing.contains(&format!("read {}: no such file", path.display())), "{missing}");
        for (text, id) in [("", None), ("\n", None), ("0-1\n", Some("0-1"))] {
            dir.write("boot_id", text);
            match read(&path) {
                Ok(read) => assert_eq!(Some(read.as_str()), id),
                Err(e) => assert!(id.is_none() && e.msg.contains("boot_id: it is empty"), "{e}"),
            }
        }
        assert_eq!(id_of_boot().unwrap().len(), 36);
    }
}
