//! The other side of the protocol, what libcni is: networks are loaded from a directory, their
//! plugins run one after the other, and the result of each attachment is kept until it goes.
//!
//! [`directory`] finds a network, [`list`] reads it, [`derive`] makes the configuration that one of
//! its plugins gets, [`chain`] runs them all ([`gc`] and [`versions`] are its operations without an
//! attachment), [`cache`] keeps results, [`lock`] keeps two operations on one container apart,
//! [`living`] decides which containers are alive, [`leave`] removes what stays when other plugins
//! take over, and [`parameters`] is what is known of an attachment besides its network.

pub mod cache;
pub mod chain;
pub mod derive;
pub mod directory;
pub mod gc;
pub mod leave;
pub mod list;
pub mod living;
mod lock;
pub mod parameters;
pub mod versions;
