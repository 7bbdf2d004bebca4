//! Entry points for the fuzzer.
