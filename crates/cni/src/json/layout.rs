//! The reference's layouts: indented, or on one line. Both escape the characters that could end an HTML
//! script.

use std::io;

use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter};

pub(super) struct Layout<F>(F);

impl Layout<PrettyFormatter<'static>> {
    pub(super) fn indented(by: &'static [u8]) -> Self {
        Layout(PrettyFormatter::with_indent(by))
    }
}

impl Layout<CompactFormatter> {
    pub(super) fn compact() -> Self {
        Layout(CompactFormatter)
    }
}

impl<F: Formatter> Formatter for Layout<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let special = ['<', '>', '&', '\u{2028}', '\u{2029}'];
        // Most strings have none of these characters. The last two begin with byte 0xe2.
        if !fragment.bytes().any(|byte| matches!(byte, b'<' | b'>' | b'&' | 0xe2)) {
            return out.write_all(fragment.as_bytes());
        }
        for piece in fragment.split_inclusive(special) {
            let plain = piece.trim_end_matches(special);
            out.write_all(plain.as_bytes())?;
            for c in piece.chars().skip(plain.chars().count()) {
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        self.0.write_char_escape(out, escape)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}
