//! `short SECONDS TARGET`, in this directory: see [`cni_multi_fuzz::short`]. `short --list` names the targets; `short --try
//! TARGET FILE…` tries single inputs.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs, panic, process};

use cni_multi_fuzz::{TARGETS, short};

fn main() -> ExitCode {
    // The program catches a panic as a bug and continues to its end. Here a panic aborts.
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        told(panic);
        process::abort();
    }));
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--list"] => TARGETS.iter().for_each(|(name, _)| println!("{name}")),
        ["--try", name, ref files @ ..] => {
            let Some(target) = find(name) else { return unknown(name) };
            files.iter().for_each(|file| target(&fs::read(file).expect("it can be read")));
        }
        [seconds, name] => {
            let Some(target) = find(name) else { return unknown(name) };
            let seconds = seconds.parse().expect("the first word is a number of seconds");
            run(target, name, seconds);
        }
        _ => return unknown(&words.join(" ")),
    }
    ExitCode::SUCCESS
}

fn run(target: fn(&[u8]), name: &str, seconds: u64) {
    let seeds = short::files(&Path::new("seeds").join(name)).expect("the target has seeds");
    let dictionary = fs::read_to_string("words.dict").expect("there is a dictionary");
    let artifacts = Path::new("artifacts").join(name);
    fs::create_dir_all(&artifacts).expect("artifacts can be kept");
    let inputs = short::run(target, name, seconds, &seeds, &short::words(&dictionary), &artifacts.join("last"));
    println!("{name}: {inputs} inputs, {} of them seeds", seeds.len());
}

fn find(name: &str) -> Option<fn(&[u8])> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, target)| *target)
}

fn unknown(what: &str) -> ExitCode {
    eprintln!("{what:?} is unknown; see the beginning of fuzz/src/main.rs");
    ExitCode::from(2)
}
