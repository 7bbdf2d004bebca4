//! Completion in shells. The scripts pass the words of the command line to cnitool, which knows how to complete the
//! last.

use std::ffi::OsString;

use super::table::COMMANDS;
use super::{Occurs, Spec, Value, find, is_option, split_option};
use crate::{conf, netns, settings};

/// The command that the scripts call. Not for users.
pub(super) const COMMAND: &str = "__complete";

const SHELLS: [(&str, &str); 3] = [("bash", BASH), ("zsh", ZSH), ("fish", FISH)];

// Without a candidate, each shell completes names of files.
const BASH: &str = r#"# bash completion for cnitool
_cnitool() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _cnitool cnitool
"#;

const ZSH: &str = r#"#compdef cnitool
# zsh completion for cnitool
_cnitool() {
    local -a candidates
    local line
    while IFS= read -r line; do
        candidates+=("${line//$'\t'/:}")
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( ${#candidates} )); then
        _describe -t cnitool 'cnitool' candidates
    else
        _files
    fi
}
# A file in $fpath is run as the function itself; otherwise the script was sourced.
if [[ ${funcstack[1]} == _cnitool ]]; then
    _cnitool "$@"
else
    compdef _cnitool cnitool
fi
"#;

const FISH: &str = r#"# fish completion for cnitool
function __cnitool_complete
    set -l words (commandline -opc)
    set -l found ($words[1] __complete $words[2..-1] (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c cnitool -f -a '(__cnitool_complete)'
"#;

/// Returns the script for a shell.
pub(super) fn script(shell: &str) -> Result<&'static str, String> {
    let script = SHELLS.iter().find(|(name, _)| *name == shell).map(|(_, script)| *script);
    let names = SHELLS.map(|(name, _)| name).join(", ");
    script.ok_or_else(|| format!("completion: unknown shell {shell:?}; the shells are {names}"))
}

/// A word that completes the last one, and its meaning.
type Candidate = (String, &'static str);

/// Returns the lines for the scripts: how the last of these words, which may be empty, can be completed.
pub(crate) fn candidates(words: &[OsString]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((last, before)) = words.split_last() else { return String::new() };
    let fitting = all(before, last).into_iter().filter(|(word, _)| word.starts_with(last));
    fitting.map(|(word, meaning)| format!("{word}\t{meaning}\n")).collect()
}

/// Returns all words that can follow `before`, of the kind that `last` begins.
fn all(before: &[String], last: &str) -> Vec<Candidate> {
    let Some(at) = before.iter().position(|word| !is_option(word)) else {
        return match last.starts_with('-') {
            true => vec![("--help".to_owned(), "print the help"), ("--version".to_owned(), "print the version")],
            false => commands(),
        };
    };
    let (name, before) = (before.get(at).map_or("", String::as_str), before.get(at + 1..).unwrap_or_default());
    if name == "help" {
        return if before.is_empty() { commands() } else { Vec::new() };
    }
    find(name).map_or_else(|_| Vec::new(), |spec| arguments(spec, before, last))
}

/// Returns the arguments of a command that can follow `before`.
fn arguments(spec: &Spec, before: &[String], last: &str) -> Vec<Candidate> {
    let takes_value = |word: &String| spec.option(word).is_some_and(|option| option.value.is_some());
    if before.last().is_some_and(takes_value) {
        return Vec::new();
    }
    if last.starts_with('-') {
        // The value of an option, in the same word, is the name of a file.
        let options = spec.options.iter().filter(|_| split_option(last).1.is_none());
        let options = options.map(|option| (option.name.to_owned(), option.meaning));
        return options.chain([("--help".to_owned(), "print the help")]).collect();
    }
    let is_operand = |at: usize, word: &String| {
        let is_value = at.checked_sub(1).and_then(|at| before.get(at)).is_some_and(takes_value);
        !is_option(word) && !is_value
    };
    let given = before.iter().enumerate().filter(|(at, word)| is_operand(*at, word)).count();
    let repeated = spec.operands.last().filter(|operand| operand.occurs == Occurs::Repeatedly);
    spec.operands.get(given).or(repeated).map_or_else(Vec::new, |operand| values(operand.value))
}

fn commands() -> Vec<Candidate> {
    COMMANDS.iter().map(|spec| (spec.name.to_owned(), spec.summary)).collect()
}

/// Returns the values that exist on this host.
fn values(value: Value) -> Vec<Candidate> {
    let with_meaning = |names: Vec<String>, meaning| names.into_iter().map(|name| (name, meaning)).collect();
    match value {
        Value::Network | Value::What => with_meaning(networks(), "network"),
        Value::Netns => with_meaning(namespaces(), "namespace"),
        Value::Command => commands(),
        Value::Shell => with_meaning(SHELLS.map(|(name, _)| name.to_owned()).into(), "shell"),
        Value::Plugin => with_meaning(cni0::PLUGINS.iter().map(|plugin| plugin.name().to_owned()).collect(), "plugin"),
        Value::File | Value::Name | Value::Subnet | Value::Address | Value::Number => Vec::new(),
    }
}

fn networks() -> Vec<String> {
    let found = conf::all(&settings::configurations()).unwrap_or_default();
    let mut names: Vec<String> = found.lists.iter().map(|list| list.name.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the names of namespaces that need no quotes in any shell.
fn namespaces() -> Vec<String> {
    let is_plain =
        |name: &String| name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-+@".contains(letter));
    netns::names().into_iter().filter(is_plain).collect()
}
