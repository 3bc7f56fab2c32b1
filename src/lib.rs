//! cni-multi: every CNI plugin in one binary.
//!
//! # The map
//!
//! Each layer imports only from those above it in this list (`tests/layers.rs` enforces it):
//!
//! | layer | what it is |
//! |---|---|
//! | [`error`], [`deadline`], [`timing`], [`rollback`], [`repair`], [`plain_file`], [`file_lock`] | the one error type; how long an operation waits; what it waits for; the undo stack; changes of a repair; files that other programs may have written; locks with a timeout |
//! | [`hex`], [`family`], [`sys`] | octets as digits; IPv4 or IPv6; the process and its machine: capabilities, system calls, signals, clocks, local sockets |
//! | [`cni`] | the protocol: environment, configuration, versions, results, delegation. Knows no kernel |
//! | [`net`] | the kernel: namespaces, netlink, nftables, iptables, sysctls. Knows no CNI |
//! | [`service`] | what a daemon stands on: event loop, socket, journal, confinement, log, metrics. Knows no CNI and no network |
//! | [`terminal`] | output for people: streams, columns, foreign text made harmless |
//! | [`plugin`] | what a plugin is, and what it is given |
//! | [`steps`] | what an attachment needs: do, check and undo of a thing in one file |
//! | [`plugins`] | one file (or folder) a plugin, named as in configurations |
//! | [`registry`] | two lines a plugin |
//! | [`runner`], [`runtime`] | one plugin execution; whole lists of plugins |
//! | [`commands`], [`cli`] | what people type; from argv to what runs |
//!
//! # The walk of one ADD
//!
//! A runtime starts `/opt/cni/bin/bridge` with CNI_* in the environment and a configuration on
//! stdin. [`cli`] finds `bridge` in the [`registry`] by argv[0]. [`runner`] checks environment,
//! configuration and version and refuses its own namespace, then decodes the plugin's configuration
//! and calls `add`. That reads as a list of steps inside [`rollback::transaction`]: each changes the kernel and registers its undo. `runner` converts the result to the
//! configuration's version and writes it, once.

pub mod cli;
pub mod cni;
pub mod commands;
pub mod deadline;
pub mod error;
pub mod family;
pub mod file_lock;
pub mod hex;
pub mod net;
pub mod plain_file;
pub mod plugin;
pub mod plugins;
pub mod registry;
pub mod repair;
pub mod rollback;
pub mod runner;
pub mod runtime;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod scratch;
pub mod service;
pub mod steps;
pub mod sys;
pub mod terminal;
pub mod timing;
