//! All integration tests, one binary. Each module has the name of what it tests.

#![allow(clippy::unwrap_used)]

mod differences;
mod install;
mod parallel;
mod plugins;
mod support;
mod upgrade;
