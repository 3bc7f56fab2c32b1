//! Schedules that were found by the simulation, and cases of the table.
