//! The other side of the protocol, as in libcni: loads networks from a directory, runs their
//! plugins one after the other, and keeps the result of each attachment until its DEL.
//!
//! [`directory`] finds a network, [`list`] parses it, [`derive`] makes the configuration for each
//! of its plugins, [`chain`] runs them all ([`check`] is one of its operations, [`gc`] is
//! one without an attachment), [`cache`] keeps results, [`lock`] serializes
//! operations on one container, [`living`] decides which containers are alive, [`find`] finds
//! attachments by what people call a container, [`leave`] removes what stays when other plugins take
//! over, [`handover`] makes what they look for, [`repair`] says what the host has lost and makes it
//! again, [`programs`] finds the program of a plugin, [`trace`] reports calls, and [`parameters`] is what is known of an attachment
//! besides its network.

pub mod cache;
pub mod chain;
pub mod check;
pub mod derive;
pub mod directory;
pub mod find;
pub mod gc;
pub mod handover;
pub mod leave;
pub mod list;
pub mod living;
mod lock;
pub mod parameters;
mod programs;
pub mod repair;
mod trace;
