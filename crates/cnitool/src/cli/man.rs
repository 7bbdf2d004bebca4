//! Manual pages in the format of man(7), from the table of commands.

use super::help::{self, SUMMARY};
use super::table::{COMMANDS, ENVIRONMENT, UNHEALTHY};
use super::{Spec, Variable, find};

/// Returns the page of a command, or that of the program, which has all commands.
pub(super) fn print(command: Option<&str>) -> Result<String, String> {
    command.map_or_else(|| Ok(program()), |name| find(name).map(page))
}

fn program() -> String {
    let mut text = head("cnitool", "call CNI plugins and inspect what they created");
    text += ".SH SYNOPSIS\n";
    text += &synopsis("<command> [arguments]");
    text += &format!(".SH DESCRIPTION\n{}\n", escape(SUMMARY));
    text += ".SH COMMANDS\n";
    for spec in COMMANDS {
        text += &format!(".SS {}\n{}{}", escape(&help::call(spec)), paragraphs(spec.text), options(spec));
    }
    text + &tail(ENVIRONMENT, Some(UNHEALTHY))
}

fn page(spec: &Spec) -> String {
    let mut text = head(&format!("cnitool-{}", spec.name), spec.summary);
    text += ".SH SYNOPSIS\n";
    text += &synopsis(&help::call(spec));
    text += &format!(".SH DESCRIPTION\n{}", paragraphs(spec.text));
    if !spec.options.is_empty() {
        text += &format!(".SH OPTIONS\n{}", options(spec));
    }
    text + &tail(spec.environment, spec.unhealthy) + ".SH SEE ALSO\n\\fBcnitool\\fR(1)\n"
}

/// Returns the head of a page. It has no date, so that two builds of the same version have the same page. Words are not
/// hyphenated, because options and examples must stay as they are.
fn head(name: &str, summary: &str) -> String {
    let version = concat!("cni0 ", env!("CARGO_PKG_VERSION"));
    let title = escape(&name.to_uppercase());
    format!(".TH {title} 1 \"\" \"{version}\"\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n", escape(name), escape(summary))
}

fn synopsis(call: &str) -> String {
    format!("\\fBcnitool\\fR {}\n", escape(call))
}

/// Returns the list of a command's options.
fn options(spec: &Spec) -> String {
    spec.options.iter().map(|option| item(&help::option(option), option.meaning)).collect()
}

/// Returns the sections about variables, if there are any, and about exit codes.
fn tail(variables: &[Variable], unhealthy: Option<&'static str>) -> String {
    let section = |title: &str, list: &str| {
        if list.is_empty() { String::new() } else { format!(".SH {title}\n{}", paragraphs(list)) }
    };
    section("ENVIRONMENT", &help::environment(variables)) + &section("EXIT STATUS", &help::exit_codes(unhealthy))
}

/// Converts the text of a help page: paragraphs, and lists of lines that begin with two spaces. In a list, at least two
/// spaces separate the term from its description, which continues on lines that are indented further. A line without a
/// description is an example.
fn paragraphs(text: &str) -> String {
    let mut out = String::new();
    for block in text.trim_end().split("\n\n") {
        out += ".PP\n";
        for line in block.lines() {
            out += &match line.strip_prefix("  ") {
                None => format!("{}\n", escape(line)),
                Some(rest) if rest.starts_with(' ') => format!("{}\n", escape(rest.trim_start())),
                Some(rest) => match rest.split_once("  ") {
                    Some((term, description)) => item(term, description.trim_start()),
                    None => format!(".RS 4\n.nf\n{}\n.fi\n.RE\n", escape(rest)),
                },
            };
        }
    }
    out
}

/// Returns an item of a list.
fn item(term: &str, description: &str) -> String {
    format!(".TP\n\\fB{}\\fR\n{}\n", escape(term), escape(description))
}

/// Escapes characters that roff would interpret, or replace by typographic ones.
fn escape(line: &str) -> String {
    let mut out = String::new();
    // A line that begins with one of these is a request.
    if line.starts_with(['.', '\'']) {
        out += "\\&";
    }
    for letter in line.chars() {
        match letter {
            '\\' => out += "\\e",
            '-' => out += "\\-",
            '\'' => out += "\\(aq",
            '`' => out += "\\(ga",
            '^' => out += "\\(ha",
            '~' => out += "\\(ti",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_structured() {
        assert_eq!(escape(".it's a \\-"), "\\&.it\\(aqs a \\e\\-");
        let text = "One\ntwo.\n\n  term  meaning\n        more\n  last  x\n\n  example --now";
        let wanted = ".PP\nOne\ntwo.\n.PP\n.TP\n\\fBterm\\fR\nmeaning\nmore\n.TP\n\\fBlast\\fR\nx\n\
            .PP\n.RS 4\n.nf\nexample \\-\\-now\n.fi\n.RE\n";
        assert_eq!(paragraphs(text), wanted);
    }
}
