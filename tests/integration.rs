//! All integration tests, linked into one binary. Each module is named after what it tests.

#![allow(clippy::unwrap_used)]

mod callers;
mod cnitool;
mod differences;
mod dispatch;
mod docs;
mod doctor;
mod example;
mod faults;
mod gc;
mod hostile;
mod hostile_host;
mod install;
mod ipam;
mod layers;
mod log;
mod manners;
mod metrics;
mod missing_module;
mod net;
mod null_plugin;
mod packet_socket;
mod parallel;
mod plugins;
mod preflight;
mod protocol;
mod runtime;
mod schema;
mod scripts;
mod security;
mod status;
mod support;
mod tiers;
mod traces;
mod upgrade;
mod validate;
mod whole_chain;
