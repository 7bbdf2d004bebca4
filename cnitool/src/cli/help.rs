//! The help of cnitool and of each command.

use super::table::{COMMANDS, ENVIRONMENT, EXIT_CODES};
use super::{Occurs, Opt, Spec};

/// What cnitool is.
pub(super) const SUMMARY: &str = "A CNI runtime for the command line: calls plugins and inspects the node.";

/// Returns the help of the program.
pub(super) fn overview() -> String {
    let mut text = format!("{SUMMARY}\n\nusage: cnitool <command> [arguments]\n\n");
    for spec in COMMANDS {
        let call = format!("{} {}", spec.name, operands(spec));
        text += &format!("  {:<28}{}\n", call.trim_end(), spec.summary);
    }
    text + "\nRun cnitool <command> --help for details.\n\n" + ENVIRONMENT + "\n" + EXIT_CODES
}

/// Returns the help of a command.
pub(super) fn page(spec: &'static Spec) -> String {
    let mut text = usage(spec);
    text += &format!("\n\n{}: {}\n", spec.name, spec.summary);
    if !spec.text.is_empty() {
        text += &format!("\n{}\n", spec.text);
    }
    if !spec.options.is_empty() {
        text += "\noptions:\n";
    }
    let width = spec.options.iter().map(|option| self::option(option).len()).max().unwrap_or_default();
    for option in spec.options {
        text += &format!("  {:<width$}  {}\n", self::option(option), option.meaning);
    }
    text + "\n" + ENVIRONMENT + "\n" + EXIT_CODES
}

/// Returns the line that shows how a command is called.
pub(super) fn usage(spec: &Spec) -> String {
    format!("usage: cnitool {}", call(spec))
}

/// Returns the command with its options and operands.
pub(super) fn call(spec: &Spec) -> String {
    let options: String = spec.options.iter().map(|option| format!(" [{}]", self::option(option))).collect();
    format!("{}{options} {}", spec.name, operands(spec)).trim_end().to_owned()
}

fn operands(spec: &Spec) -> String {
    let words = spec.operands.iter().map(|operand| {
        let placeholder = operand.value.placeholder();
        match operand.occurs {
            Occurs::Once => placeholder.to_owned(),
            Occurs::AtMostOnce => format!("[{placeholder}]"),
            Occurs::Repeatedly => format!("[{placeholder}...]"),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns an option with its value.
pub(super) fn option(option: &Opt) -> String {
    let value = option.value.map_or_else(String::new, |value| format!(" {}", value.placeholder()));
    format!("{}{value}", option.name)
}
