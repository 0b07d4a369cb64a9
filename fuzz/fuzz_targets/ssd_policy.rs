#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pagetier_sim::fuzz::ssd_policy(input));
