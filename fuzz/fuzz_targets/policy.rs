#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| untrusted::policy::check(data));
