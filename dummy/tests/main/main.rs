//! Tests of the `dummy` plugin. Most of them need a kernel with dummy interfaces, such as that of `ci/vm`; elsewhere
//! they are skipped.

mod commands;
mod suite;
