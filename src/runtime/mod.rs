//! The other side of the protocol, what libcni and cnitool are: networks are loaded from a directory, their plugins
//! run one after the other, and the result of each attachment is kept until it goes.
//!
//! [`list`] reads a network, [`derive`] makes the configuration that one of its plugins gets, [`chain`] runs them all,
//! [`cache`] keeps results, and [`net`] is `cni-multi net …`, the command line of it.

pub mod cache;
pub mod chain;
pub mod derive;
pub mod list;
pub mod net;

#[cfg(test)]
mod scratch {
    //! A directory for one test.

    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub struct Scratch(PathBuf);

    impl Scratch {
        pub fn new(test: &str) -> Scratch {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let dir = std::env::temp_dir().join(format!("cni-multi-{test}-{}-{count}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }

        pub fn write(&self, name: &str, text: &str) {
            let file = self.0.join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
