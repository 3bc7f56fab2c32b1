//! The kill sweep.
