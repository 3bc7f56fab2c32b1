//! What SECURITY.md says: which rights are needed, which files are made, what is executed and where
//! code is unsafe.

mod capabilities;
mod files;
mod source;
