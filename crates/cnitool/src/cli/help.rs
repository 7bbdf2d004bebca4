//! The help of cnitool and of each command.

use super::table::{COMMANDS, ENVIRONMENT, UNHEALTHY};
use super::{Occurs, Opt, Spec, Variable};

/// What cnitool is.
pub(super) const SUMMARY: &str = "A CNI runtime for the command line: calls plugins and inspects the node.";

/// Returns the help of the program.
pub(super) fn overview() -> String {
    let mut text = format!("{SUMMARY}\n\nusage: cnitool <command> [arguments]\n\n");
    for spec in COMMANDS {
        let call = format!("{} {}", spec.name, operands(spec));
        text += &format!("  {:<28}{}\n", call.trim_end(), spec.summary);
    }
    text + "\nRun cnitool <command> --help for details.\n"
        + &section("environment", &environment(ENVIRONMENT))
        + &section("exit codes", &exit_codes(Some(UNHEALTHY)))
}

/// Returns the help of a command.
pub(super) fn page(spec: &'static Spec) -> String {
    let mut text = usage(spec);
    text += &format!("\n\n{}: {}\n", spec.name, spec.summary);
    if !spec.text.is_empty() {
        text += &format!("\n{}\n", spec.text);
    }
    let options: Vec<_> = spec.options.iter().map(|option| (self::option(option), option.meaning)).collect();
    text + &section("options", &list(&options))
        + &section("environment", &environment(spec.environment))
        + &section("exit codes", &exit_codes(spec.unhealthy))
}

/// Returns a list under its title, or nothing if the list is empty.
fn section(title: &str, list: &str) -> String {
    if list.is_empty() { String::new() } else { format!("\n{title}:\n{list}") }
}

/// Returns the list of these variables.
pub(super) fn environment(variables: &[Variable]) -> String {
    let items: Vec<_> = variables.iter().map(|variable| (variable.name.to_owned(), variable.meaning)).collect();
    list(&items)
}

/// Returns the list of exit codes, the last one with this meaning.
pub(super) fn exit_codes(unhealthy: Option<&'static str>) -> String {
    let common = ["success", "failure: one line on stderr gives the reason", "invalid command line"];
    let meanings = common.into_iter().chain(unhealthy);
    let items: Vec<_> = meanings.enumerate().map(|(code, meaning)| (code.to_string(), meaning)).collect();
    list(&items)
}

/// Returns a list of terms and their meanings, in two columns.
fn list(items: &[(String, &str)]) -> String {
    let width = items.iter().map(|(term, _)| term.len()).max().unwrap_or_default();
    let indent = format!("\n{:width$}    ", "");
    items.iter().map(|(term, meaning)| format!("  {term:<width$}  {}\n", meaning.replace('\n', &indent))).collect()
}

/// Returns the line that shows how a command is called.
pub(super) fn usage(spec: &Spec) -> String {
    format!("usage: cnitool {}", call(spec))
}

/// Returns the command with its options and operands. Options that do not fit into a line are not named: their list
/// follows.
pub(super) fn call(spec: &Spec) -> String {
    const ROOM: usize = 50;
    let options: String = spec.options.iter().map(|option| format!(" [{}]", self::option(option))).collect();
    let options = if options.len() > ROOM { " [<option>...]".to_owned() } else { options };
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
