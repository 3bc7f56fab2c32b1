//! System calls that newer processors lack, as they have others for the same (`openat` for `open`). There the names
//! have numbers that no call has.

#[cfg(target_arch = "x86_64")]
pub use libc::{
    SYS_chmod, SYS_dup2, SYS_fork, SYS_link, SYS_mkdir, SYS_open, SYS_poll, SYS_readlink,
    SYS_rename, SYS_rmdir, SYS_symlink, SYS_unlink, SYS_vfork,
};

#[cfg(not(target_arch = "x86_64"))]
mod none {
    macro_rules! numbers {
        ($($name:ident $number:literal)*) => { $(pub const $name: i64 = -$number;)* };
    }
    numbers! {
        SYS_chmod 1001 SYS_dup2 1002 SYS_fork 1003 SYS_link 1004 SYS_mkdir 1005 SYS_open 1006 SYS_poll 1007
        SYS_readlink 1008 SYS_rename 1009 SYS_rmdir 1010 SYS_symlink 1011 SYS_unlink 1012 SYS_vfork 1013
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub use self::none::*;
