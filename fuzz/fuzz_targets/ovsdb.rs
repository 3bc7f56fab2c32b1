#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cni_multi_fuzz::ovsdb::run(bytes));
