//! The command line: its parser, and everything else that follows from the table of commands.

mod completion;
mod help;
mod man;
mod table;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use crate::trial;
use cni::nearest;
use table::COMMANDS;

pub(crate) use completion::candidates;

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Prints this text.
    Print(String),
    Version,
    /// Prints how the last of these words, of an incomplete command line, can be completed.
    Complete {
        words: Vec<OsString>,
    },
    Add {
        network: String,
        netns: PathBuf,
    },
    Del {
        network: String,
        netns: PathBuf,
    },
    Check {
        network: String,
        netns: PathBuf,
    },
    Gc {
        network: String,
    },
    Status {
        network: String,
    },
    Init {
        network: String,
        subnets: Vec<String>,
    },
    Demo,
    Networks {
        json: bool,
    },
    Leases {
        network: Option<String>,
        json: bool,
        watch: bool,
    },
    Show {
        what: Option<String>,
        json: bool,
    },
    Prune {
        network: Option<String>,
        dry_run: bool,
        force: bool,
        json: bool,
    },
    Repair {
        network: Option<String>,
        json: bool,
    },
    Doctor {
        network: Option<String>,
        quiet: bool,
        json: bool,
    },
    Test(trial::Options),
    Metrics {
        output: Option<PathBuf>,
    },
    /// Starts or stops the counting of calls.
    CountCalls {
        enable: bool,
    },
    Validate {
        paths: Vec<PathBuf>,
        strict: bool,
        json: bool,
    },
    Schema {
        plugin: Option<String>,
        single: bool,
    },
}

/// A command in the table.
struct Spec {
    name: &'static str,
    operands: &'static [Operand],
    /// Creates the command from valid arguments: all required operands, and only known options.
    build: fn(&mut Arguments) -> Result<Command, String>,
    /// One line, for the list of all commands.
    summary: &'static str,
    options: &'static [Opt],
    /// The description: paragraphs, and lists of lines that begin with two spaces.
    text: &'static str,
    /// The variables that the command reads.
    environment: &'static [Variable],
    /// The meaning of exit code 3, if the command can have it.
    unhealthy: Option<&'static str>,
}

/// An environment variable.
struct Variable {
    name: &'static str,
    /// One or more lines.
    meaning: &'static str,
}

/// An argument that is not an option.
struct Operand {
    value: Value,
    occurs: Occurs,
}

/// How often an operand can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occurs {
    Once,
    AtMostOnce,
    /// Any number of times. The last operand of its command.
    Repeatedly,
}

/// An option.
struct Opt {
    name: &'static str,
    /// What its value is; `None` if it has none.
    value: Option<Value>,
    meaning: &'static str,
}

/// What an argument stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Network,
    Netns,
    Command,
    Shell,
    File,
    Plugin,
    Name,
    Subnet,
    Address,
    Number,
    What,
}

impl Value {
    /// Returns the placeholder for the argument in a usage line.
    fn placeholder(self) -> &'static str {
        match self {
            Value::Network => "<network>",
            Value::Netns => "<netns>",
            Value::Command => "<command>",
            Value::Shell => "bash|zsh|fish",
            Value::File => "<file>",
            Value::Plugin => "<plugin>",
            Value::Name => "<name>",
            Value::Subnet => "<subnet>",
            Value::Address => "<address>",
            Value::Number => "<n>",
            Value::What => "<what>",
        }
    }
}

impl Spec {
    fn option(&self, name: &str) -> Option<&'static Opt> {
        self.options.iter().find(|option| option.name == name)
    }
}

/// The arguments of a command.
struct Arguments {
    words: VecDeque<OsString>,
    options: Vec<GivenOption>,
}

/// An option on the command line.
struct GivenOption {
    name: String,
    value: Option<OsString>,
}

impl Arguments {
    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| option.name == name)
    }

    /// Returns the value of an option; the last one, if it is given several times.
    fn value(&self, name: &str) -> Option<PathBuf> {
        self.options.iter().rev().find(|option| option.name == name)?.value.as_ref().map(PathBuf::from)
    }

    /// Returns all values of an option.
    fn values(&self, name: &str) -> Vec<String> {
        let given = self.options.iter().filter(|option| option.name == name);
        given.filter_map(|option| Some(option.value.as_ref()?.to_string_lossy().into_owned())).collect()
    }

    /// Parses the value of an option; the last one, if it is given several times. The error says what was `expected`.
    fn parsed<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let parsed = value.to_str().and_then(|text| text.parse().ok());
        parsed.map(Some).ok_or_else(|| format!("{name}: expected {expected}, got {value:?}"))
    }

    /// Returns the next operand.
    fn optional_text(&mut self) -> Option<String> {
        self.words.pop_front().map(|word| word.to_string_lossy().into_owned())
    }

    /// Returns the next operand, which is required.
    fn text(&mut self) -> String {
        self.optional_text().unwrap_or_default()
    }

    /// Returns the next operand, which is required, as a path.
    fn path(&mut self) -> PathBuf {
        self.words.pop_front().map(PathBuf::from).unwrap_or_default()
    }

    /// Returns all other operands as paths.
    fn paths(&mut self) -> Vec<PathBuf> {
        self.words.drain(..).map(PathBuf::from).collect()
    }
}

/// Parses the command line. The error is one line for the user.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut args = args.peekable();
    if args.next_if(|word| word == completion::COMMAND).is_some() {
        return Ok(Command::Complete { words: args.collect() });
    }
    let (name, arguments) = split(args);
    let Some(name) = name else { return without_command(&arguments) };
    let wants_help = arguments.has("-h") || arguments.has("--help");
    if name == "help" {
        let topic = arguments.words.front().map(|word| word.to_string_lossy().into_owned());
        return Ok(Command::Print(topic.map_or_else(|| Ok(help::overview()), |topic| find(&topic).map(help::page))?));
    }
    let spec = find(&name)?;
    if wants_help {
        return Ok(Command::Print(help::page(spec)));
    }
    validate(spec, &arguments)?;
    let mut arguments = arguments;
    (spec.build)(&mut arguments)
}

/// Separates the name of the command from its operands and options. After `--`, all words are operands.
fn split(mut args: impl Iterator<Item = OsString>) -> (Option<String>, Arguments) {
    let mut name: Option<String> = None;
    let mut arguments = Arguments { words: VecDeque::new(), options: Vec::new() };
    let mut only_words = false;
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--") if !only_words => only_words = true,
            Some(text) if is_option(text) && !only_words => {
                let (option, value) = split_option(text);
                let spec = name.as_deref().and_then(|name| find(name).ok());
                let takes_value = spec.and_then(|spec| spec.option(option)?.value).is_some();
                let value = value.map(OsString::from).or_else(|| takes_value.then(|| args.next())?);
                arguments.options.push(GivenOption { name: option.to_owned(), value });
            }
            _ if name.is_none() => name = Some(arg.to_string_lossy().into_owned()),
            _ => arguments.words.push_back(arg),
        }
    }
    (name, arguments)
}

fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// Splits `--name=value`.
fn split_option(word: &str) -> (&str, Option<&str>) {
    word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)))
}

fn without_command(arguments: &Arguments) -> Result<Command, String> {
    match arguments.options.first() {
        Some(_) if arguments.has("-h") || arguments.has("--help") => Ok(Command::Print(help::overview())),
        Some(_) if arguments.has("-V") || arguments.has("--version") => Ok(Command::Version),
        Some(option) => Err(format!("unknown option {} (see --help)", option.name)),
        None => Err("no command given (see --help)".to_owned()),
    }
}

/// Checks options and operands against the table.
fn validate(spec: &Spec, arguments: &Arguments) -> Result<(), String> {
    let name = spec.name;
    for given in &arguments.options {
        let Some(option) = spec.option(&given.name) else {
            let known = spec.options.iter().map(|option| option.name);
            let hint = nearest(&given.name, known).map_or_else(String::new, |near| format!("did you mean {near}? "));
            return Err(format!("{name}: unknown option {} ({hint}see {name} --help)", given.name));
        };
        match (option.value, &given.value) {
            (None, Some(_)) => return Err(format!("{name}: {} has no value (see {name} --help)", option.name)),
            (Some(value), None) => {
                return Err(format!("{name}: {} needs a value: {} {}", option.name, option.name, value.placeholder()));
            }
            (Some(_), Some(value)) if value.is_empty() => {
                return Err(format!("{name}: the value of {} is empty", option.name));
            }
            _ => {}
        }
    }
    let usage = || format!("{} (see {name} --help)", help::usage(spec));
    if arguments.words.len() < spec.operands.iter().filter(|operand| operand.occurs == Occurs::Once).count() {
        return Err(usage());
    }
    let is_repeated = spec.operands.last().is_some_and(|operand| operand.occurs == Occurs::Repeatedly);
    if let Some(surplus) = arguments.words.get(spec.operands.len()).filter(|_| !is_repeated) {
        return Err(format!("{name}: unexpected argument {surplus:?}; {}", usage()));
    }
    let mut pairs = spec.operands.iter().zip(&arguments.words);
    match pairs
        .any(|(operand, word)| operand.occurs == Occurs::Once && operand.value == Value::Netns && word.is_empty())
    {
        true => Err(format!("{name}: the path of the namespace is empty; {}", usage())),
        false => Ok(()),
    }
}

/// Returns the command `name`.
fn find(name: &str) -> Result<&'static Spec, String> {
    COMMANDS.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let all: Vec<&str> = COMMANDS.iter().map(|spec| spec.name).collect();
        let hint = nearest(name, all.iter().copied()).map_or_else(String::new, |near| format!("did you mean {near}? "));
        format!("unknown command {name:?}; {hint}the commands are {}", all.join(", "))
    })
}
