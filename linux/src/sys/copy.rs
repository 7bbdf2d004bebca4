//! `memcpy` and `memmove`, optimised for short copies.
//!
//! musl's versions begin with `rep movsq`, which takes 40 ns before it moves the first byte. A call makes some thousand
//! copies of a few bytes each, and would spend a twentieth of its time there. Here up to 128 bytes are read completely
//! before they are written, so source and destination may overlap. Longer copies use `rep movsb`, which is fast on most
//! processors.

use std::arch::global_asm;

// SAFETY: names and behaviour are those of C: the third argument is the number of bytes to copy from the second to the
// first, which is also returned. Only caller-saved registers are changed, and the direction flag is clear on return as
// it was on entry.
global_asm!(
    ".pushsection .text.cni0_copy, \"ax\", @progbits",
    ".p2align 4",
    ".globl cni0_copy",
    ".type cni0_copy, @function",
    "cni0_copy:",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jae 4f",
    "cmp edx, 8",
    "jae 3f",
    "cmp edx, 4",
    "jae 2f",
    "test edx, edx",
    "je 1f",
    // One to three bytes: the first, the last, and the middle one, which may equal either.
    "mov r9, rdx",
    "shr r9, 1",
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "movzx r10d, byte ptr [rsi + r9]",
    "mov byte ptr [rdi], cl",
    "mov byte ptr [rdi + rdx - 1], r8b",
    "mov byte ptr [rdi + r9], r10b",
    "1: ret",
    // From here on: the first and the last half, which may overlap.
    "2:",
    "mov ecx, dword ptr [rsi]",
    "mov r8d, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], ecx",
    "mov dword ptr [rdi + rdx - 4], r8d",
    "ret",
    "3:",
    "mov rcx, qword ptr [rsi]",
    "mov r8, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rcx",
    "mov qword ptr [rdi + rdx - 8], r8",
    "ret",
    "4:",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + rdx - 16]",
    "cmp rdx, 32",
    "jbe 6f",
    "cmp rdx, 128",
    "ja 7f",
    "movups xmm2, xmmword ptr [rsi + 16]",
    "movups xmm3, xmmword ptr [rsi + rdx - 32]",
    "cmp rdx, 64",
    "jbe 5f",
    "movups xmm4, xmmword ptr [rsi + 32]",
    "movups xmm5, xmmword ptr [rsi + 48]",
    "movups xmm6, xmmword ptr [rsi + rdx - 64]",
    "movups xmm7, xmmword ptr [rsi + rdx - 48]",
    "movups xmmword ptr [rdi + 32], xmm4",
    "movups xmmword ptr [rdi + 48], xmm5",
    "movups xmmword ptr [rdi + rdx - 64], xmm6",
    "movups xmmword ptr [rdi + rdx - 48], xmm7",
    "5:",
    "movups xmmword ptr [rdi + 16], xmm2",
    "movups xmmword ptr [rdi + rdx - 32], xmm3",
    "6:",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + rdx - 16], xmm1",
    "ret",
    "7:",
    "mov rcx, rdx",
    "mov r8, rdi",
    "sub r8, rsi",
    "cmp r8, rdx",
    "jb 8f",
    "rep movsb",
    "ret",
    // The destination begins inside the source: copy backwards.
    "8:",
    "lea rsi, [rsi + rdx - 1]",
    "lea rdi, [rdi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    ".size cni0_copy, . - cni0_copy",
    ".popsection",
);

#[cfg(target_env = "musl")]
// SAFETY: as above. Programs for musl use these functions; tests run with another C library and keep its own.
global_asm!(".globl memcpy", ".set memcpy, cni0_copy", ".globl memmove", ".set memmove, cni0_copy");

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    // SAFETY: the declaration matches the definition above.
    unsafe extern "C" {
        fn cni0_copy(to: *mut c_void, from: *const c_void, size: usize) -> *mut c_void;
    }

    /// Copies `size` bytes from one position of a pattern to another.
    fn copied(from: usize, to: usize, size: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0_u16..1024).map(|n| (n % 251).to_le_bytes()[0]).collect();
        assert!(from + size <= bytes.len() && to + size <= bytes.len());
        let start = bytes.as_mut_ptr();
        // SAFETY: both ranges are inside the bytes.
        let answer = unsafe { cni0_copy(start.add(to).cast(), start.add(from).cast_const().cast(), size) };
        assert_eq!(answer, start.wrapping_add(to).cast());
        bytes
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri runs no machine code")]
    fn every_length_is_copied_without_touching_other_bytes() {
        for size in 0..300 {
            for (from, to) in [(0, 512), (512, 0), (3, 601), (100, 101), (101, 100), (100, 117), (117, 100), (7, 7)] {
                let mut want: Vec<u8> = (0_u16..1024).map(|n| (n % 251).to_le_bytes()[0]).collect();
                want.copy_within(from..from + size, to);
                assert_eq!(copied(from, to, size), want, "{size} bytes from {from} to {to}");
            }
        }
    }
}
