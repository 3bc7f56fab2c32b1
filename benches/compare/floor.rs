//! The C programs that set the lower bound for a plugin: built if a C compiler is installed.

use std::path::PathBuf;
use std::process::Command;

use crate::namespaces::SCRATCH;
use crate::process::find_program;

/// Compiles `benches/floor/NAME.c`; prints a note and returns `None` if that fails.
pub fn build(name: &str) -> Option<PathBuf> {
    let compiler = ["gcc", "cc"].into_iter().find_map(find_program);
    let Some(compiler) = compiler else {
        eprintln!("note: no C compiler, so no floor for {name}");
        return None;
    };
    let source = format!("{}/benches/floor/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = PathBuf::from(format!("{SCRATCH}/{name}"));
    let output = Command::new(compiler)
        .args(["-O2", "-static", "-Wall", "-o"])
        .arg(&program)
        .arg(source)
        .output();
    match output {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            eprintln!("note: no floor for {name}: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(e) => {
            eprintln!("note: no floor for {name}: {e}");
            None
        }
    }
}
