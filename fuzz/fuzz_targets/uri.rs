#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol_tests::fuzz::uri(input));
