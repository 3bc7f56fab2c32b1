//! The claims of SECURITY.md: required capabilities, files, executed programs and unsafe code.

mod capabilities;
mod files;
mod source;
