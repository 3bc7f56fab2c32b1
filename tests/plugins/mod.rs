//! One module a plugin, as in src/plugins.

mod main;
