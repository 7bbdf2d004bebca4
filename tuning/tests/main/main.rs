//! Black-box tests of the `tuning` plugin.
