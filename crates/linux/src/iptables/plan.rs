//! Changes of a table of iptables, in nf_tables or of the legacy kind: the same steps change both.

use std::fmt::Write;

use super::rule::{Match, Rule};
use super::{LegacyTable, Tools};
use crate::error::{Error, Result};
use crate::ip::Cidr;
use crate::netlink::nft::{self, Edit, Hook, Nftables, Position, Table, Verdict};

/// Attempts to change a legacy table while other programs change it too.
const LEGACY_ATTEMPTS: u32 = 20;

/// A table of one address family, as it is listed.
#[derive(Debug)]
pub enum View<'a> {
    /// A table in nf_tables.
    Nft(&'a mut Nftables, Table<'static>),
    /// The lines of the save tool; none if the table does not exist.
    Legacy(&'a [String]),
}

/// A rule as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedRule {
    /// A rule in nf_tables, which has a unique handle.
    Nft(Box<nft::Rule>),
    /// The text of a rule without its chain.
    Legacy(String),
}

impl View<'_> {
    /// Returns the rules of a chain; none if it does not exist.
    pub fn rules(&mut self, chain: &str) -> Result<Vec<ListedRule>> {
        Ok(match self {
            View::Nft(nft, table) => {
                let rules = nft.rules(table.chain(chain))?.into_iter();
                rules.map(|rule| ListedRule::Nft(Box::new(rule))).collect()
            }
            View::Legacy(lines) => {
                let rule =
                    |line: &String| Some(line.strip_prefix("-A ")?.strip_prefix(chain)?.strip_prefix(' ')?.to_owned());
                lines.iter().filter_map(rule).map(ListedRule::Legacy).collect()
            }
        })
    }

    /// Returns the rules of a chain whose marks are `wanted`. Other rules are not parsed. Legacy rules have an empty
    /// mark.
    pub fn rules_with_mark(&mut self, chain: &str, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<ListedRule>> {
        match self {
            View::Nft(nft, table) => {
                let rules = nft.rules_with_mark(table.chain(chain), wanted)?.into_iter();
                Ok(rules.map(|rule| ListedRule::Nft(Box::new(rule))).collect())
            }
            View::Legacy(_) if wanted("") => self.rules(chain),
            View::Legacy(_) => Ok(Vec::new()),
        }
    }

    /// Returns whether a chain exists.
    pub fn has_chain(&mut self, chain: &str) -> Result<bool> {
        Ok(match self {
            View::Nft(nft, table) => nft.has_chain(table.chain(chain))?,
            View::Legacy(lines) => super::declare_chain(lines, chain),
        })
    }

    /// Returns whether a rule of one chain leads to another.
    pub fn has_jump(&mut self, chain: &str, target: &str) -> Result<bool> {
        match self {
            View::Nft(nft, table) => nft.has_jump_to(table.chain(chain), target),
            View::Legacy(_) => Ok(self.rules(chain)?.iter().any(|rule| rule.target().as_deref() == Some(target))),
        }
    }
}

impl ListedRule {
    /// Returns the chain in which packets continue, or in a legacy table the target.
    pub fn target(&self) -> Option<String> {
        match self {
            ListedRule::Nft(rule) => rule.target().map(str::to_owned),
            ListedRule::Legacy(text) => {
                words(text).into_iter().skip_while(|word| !matches!(word.as_str(), "-j" | "-g")).nth(1)
            }
        }
    }
}

impl ListedRule {
    /// Returns the mark; empty in a legacy table, which has no place for it.
    pub fn mark(&self) -> &str {
        match self {
            ListedRule::Nft(rule) => &rule.mark,
            ListedRule::Legacy(_) => "",
        }
    }

    /// Returns the comment.
    pub fn comment(&self) -> String {
        match self {
            ListedRule::Nft(rule) => rule.comment.clone(),
            ListedRule::Legacy(text) => {
                words(text).into_iter().skip_while(|word| word != "--comment").nth(1).unwrap_or_default()
            }
        }
    }

    /// Returns the network in which the source must be; `None` if the rule does not compare it.
    pub fn source(&self) -> Option<Cidr> {
        match self {
            ListedRule::Nft(rule) => rule.source(),
            ListedRule::Legacy(text) => {
                let options = options(text);
                options.iter().find_map(|option| option.strip_prefix("-s ")?.parse().ok())
            }
        }
    }

    /// Returns whether the rule masquerades.
    pub fn masquerades(&self) -> bool {
        match self {
            ListedRule::Nft(rule) => rule.masquerades,
            ListedRule::Legacy(_) => self.target().as_deref() == Some("MASQUERADE"),
        }
    }

    /// Returns the names of the links that packets must, or must not, arrive or leave on.
    pub fn links(&self) -> Vec<String> {
        match self {
            ListedRule::Nft(rule) => rule.links(),
            ListedRule::Legacy(text) => {
                let words = words(text);
                let is_option = |word: &String| matches!(word.as_str(), "-i" | "-o");
                words
                    .iter()
                    .zip(words.iter().skip(1))
                    .filter(|(word, _)| is_option(word))
                    .map(|(_, name)| name.clone())
                    .collect()
            }
        }
    }

    /// Returns whether every packet continues in the chain `target`, with any comment.
    pub fn is_jump_to(&self, target: &str) -> bool {
        match self {
            ListedRule::Nft(rule) => rule.is_unconditional() && rule.target() == Some(target),
            ListedRule::Legacy(text) => {
                let words = words(text);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                matches!(words[..], ["-j", found] | ["-m", "comment", "--comment", _, "-j", found] if found == target)
            }
        }
    }

    /// Returns whether every packet leaves the chain, with any comment.
    pub fn is_return(&self) -> bool {
        match self {
            ListedRule::Nft(rule) => rule.is_unconditional() && rule.verdict == Some(Verdict::Return),
            ListedRule::Legacy(_) => self.is_jump_to("RETURN"),
        }
    }

    /// Returns whether this is the given rule, with any mark and comment and in any chain.
    pub fn has_effect_of(&self, rule: &Rule<'_>, family: nft::Family) -> bool {
        let matches = rule.matches.iter().filter(|found| !matches!(found, Match::Comment(_)));
        let rule = Rule { matches: matches.cloned().collect(), ..rule.clone() };
        match self {
            ListedRule::Nft(listed) => {
                let comment = Match::Comment(&listed.comment);
                let comment = Some(comment).filter(|_| !listed.comment.is_empty());
                let matches = rule.matches.iter().cloned().chain(comment).collect();
                let rule = Rule { matches, ..rule };
                listed.is_same_as(&rule.spec(Table { family, name: "" }))
            }
            ListedRule::Legacy(text) => {
                let is_comment = |option: &String| option == "-m comment" || option.starts_with("--comment ");
                let listed: Vec<String> = options(text).into_iter().filter(|option| !is_comment(option)).collect();
                are_same(&listed, &options(&rule.text()))
            }
        }
    }

    /// Returns whether this is the given rule, with any mark and in any chain.
    pub fn is_same_as(&self, rule: &Rule<'_>, family: nft::Family) -> bool {
        match self {
            // Most rules differ in the verdict, which costs less to compare than the rest.
            ListedRule::Nft(listed) => {
                listed.verdict == rule.target.verdict() && listed.is_same_as(&rule.spec(Table { family, name: "" }))
            }
            ListedRule::Legacy(text) => are_same(&options(text), &options(&rule.text())),
        }
    }
}

/// Returns whether two rules have the same options, in any order.
fn are_same(options: &[String], others: &[String]) -> bool {
    let has_all = |a: &[String], b: &[String]| b.iter().all(|option| a.contains(option));
    options.len() == others.len() && has_all(options, others) && has_all(others, options)
}

/// Splits the text of a rule into options with their values, whose order does not matter.
fn options(text: &str) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for word in words(text) {
        match options.last_mut() {
            Some(option) if !word.starts_with(['-', '!']) || matches!(option.as_str(), "!" | "--comment") => {
                option.push(' ');
                option.push_str(&word);
            }
            _ => options.push(word),
        }
    }
    options
}

/// One change of a table.
#[derive(Clone, Debug)]
pub enum Step<'a> {
    /// Creates a chain at a hook unless it exists. Legacy tables always have them.
    CreateBaseChain(&'a str, Hook),
    /// Creates a chain; an error if it exists.
    CreateChain(&'a str),
    /// Appends a rule to its chain.
    Append(Rule<'a>),
    /// Inserts a rule before all others of its chain.
    Prepend(Rule<'a>),
    /// Inserts a rule before the one with this handle. Appends it to a legacy table, which has no handles.
    InsertBefore(u64, Rule<'a>),
    /// Deletes a rule of a chain.
    Delete(&'a str, ListedRule),
    /// Deletes all rules of a chain.
    Flush(&'a str),
    /// Deletes a chain without rules.
    DeleteChain(&'a str),
}

/// The changes of one table, and what they remove.
#[derive(Debug)]
pub struct TablePlan<'a, R = ()> {
    /// The changes, in order.
    pub steps: Vec<Step<'a>>,
    /// What the caller calls removed.
    pub removed: Vec<R>,
}

impl<R> Default for TablePlan<'_, R> {
    fn default() -> Self {
        TablePlan { steps: Vec::new(), removed: Vec::new() }
    }
}

impl<R> TablePlan<'_, R> {
    /// Returns the changes of a table in nf_tables.
    pub fn edits(&self, table: Table<'static>) -> Vec<Edit> {
        let mut edits = Vec::new();
        let creates = |step: &Step<'_>| matches!(step, Step::CreateBaseChain(..) | Step::CreateChain(_));
        if self.steps.iter().any(creates) {
            edits.push(Edit::add_table(table));
        }
        edits.extend(self.steps.iter().filter_map(|step| {
            Some(match step {
                Step::CreateBaseChain(chain, hook) => Edit::add_base_chain(table.chain(chain), *hook),
                Step::CreateChain(chain) => Edit::create_chain(table.chain(chain)),
                Step::Append(rule) => Edit::add_rule(&rule.spec(table)),
                Step::Prepend(rule) => Edit::insert_rule(&rule.spec(table), Position::First),
                Step::InsertBefore(handle, rule) => Edit::insert_rule(&rule.spec(table), Position::Before(*handle)),
                Step::Delete(chain, ListedRule::Nft(rule)) => Edit::delete_rule(table.chain(chain), rule),
                Step::Delete(_, ListedRule::Legacy(_)) => return None,
                Step::Flush(chain) => Edit::flush(table.chain(chain)),
                Step::DeleteChain(chain) => Edit::delete_chain(table.chain(chain)),
            })
        }));
        edits
    }

    /// Returns the changes as input for a restore tool. It creates a chain by a command, which fails if the chain
    /// exists; a declaration would flush the chain, and with it the rules that another process has added meanwhile.
    pub fn script(&self, table: &str) -> String {
        let mut text = format!("*{table}\n");
        for step in &self.steps {
            // Writing to a String cannot fail.
            let _ = match step {
                Step::CreateChain(chain) => writeln!(text, "-N {chain}"),
                Step::Append(rule) | Step::InsertBefore(_, rule) => writeln!(text, "-A {} {}", rule.chain, rule.text()),
                Step::Prepend(rule) => writeln!(text, "-I {} {}", rule.chain, rule.text()),
                Step::Delete(chain, ListedRule::Legacy(rule)) => writeln!(text, "-D {chain} {rule}"),
                Step::CreateBaseChain(..) | Step::Delete(_, ListedRule::Nft(_)) => Ok(()),
                Step::Flush(chain) => writeln!(text, "-F {chain}"),
                Step::DeleteChain(chain) => writeln!(text, "-X {chain}"),
            };
        }
        text.push_str("COMMIT\n");
        text
    }
}

/// Applies what `plan` computes for each family to the tables in nf_tables with this name, in one transaction. It is
/// repeated if any ruleset changes meanwhile. Returns what was removed.
pub fn change<'a, R, E: From<Error>>(
    nft: &mut Nftables,
    table: &'static str,
    families: &[&'static Tools],
    mut plan: impl FnMut(&'static Tools, &mut View<'_>) -> Result<TablePlan<'a, R>, E>,
) -> Result<Vec<R>, E> {
    let mut removed = Vec::new();
    nft.apply_guarded(|nft| -> Result<Vec<Edit>, E> {
        removed.clear();
        let mut edits = Vec::new();
        for tools in families {
            let table = tools.table(table);
            let plan = plan(tools, &mut View::Nft(nft, table))?;
            edits.extend(plan.edits(table));
            removed.extend(plan.removed);
        }
        Ok(edits)
    })?;
    Ok(removed)
}

/// Applies what `plan` computes to a legacy table, or to the table that the host's tools use if it does not exist yet.
/// Returns what was removed.
///
/// The tools apply a script as a whole, but cannot refuse one that was computed from an outdated listing. A script that
/// creates a chain or deletes a rule fails if another process was faster, and is computed again.
pub fn change_legacy<'a, R, E: From<Error>>(
    tools: &Tools,
    name: &str,
    mut plan: impl FnMut(&mut View<'_>) -> Result<TablePlan<'a, R>, E>,
) -> Result<Vec<R>, E> {
    let mut table = tools.legacy_table(name)?;
    let mut attempt = 1;
    loop {
        let plan = plan(&mut View::Legacy(lines_of(&table)))?;
        if plan.steps.is_empty() {
            return Ok(plan.removed);
        }
        let outcome = match &table {
            Some(table) => table.restore(&plan.script(name)),
            None => tools.restore(&plan.script(name)),
        };
        let Err(error) = outcome else { return Ok(plan.removed) };
        let now = tools.legacy_table(name)?;
        if attempt == LEGACY_ATTEMPTS || rules_in(lines_of(&now)).eq(rules_in(lines_of(&table))) {
            return Err(error.into());
        }
        (table, attempt) = (now, attempt + 1);
    }
}

fn lines_of(table: &Option<LegacyTable>) -> &[String] {
    table.as_ref().map(|table| table.lines.as_slice()).unwrap_or_default()
}

/// Returns the rules among the lines of a save tool, without counters.
pub fn rules_in(lines: &[String]) -> impl Iterator<Item = &String> {
    lines.iter().filter(|line| !line.starts_with(['#', ':']))
}

/// Splits the text of a rule into words, without the quotes and backslashes of comments.
pub fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut is_quoted, mut is_escaped) = (false, false);
    for letter in text.chars() {
        match letter {
            '\\' if !is_escaped => {
                is_escaped = true;
                continue;
            }
            '"' if !is_escaped => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            _ => words.last_mut().map(|word| word.push(letter)).unwrap_or_default(),
        }
        is_escaped = false;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::rule::Target;
    use super::*;
    use crate::netlink::nft::Family;

    const COMMENT: &str = "-m comment --comment \"CNI (\\\"x\\\")\"";

    fn listed(text: &str) -> ListedRule {
        ListedRule::Legacy(text.to_owned())
    }

    #[test]
    fn rules_of_legacy_tables_are_compared_by_their_text() {
        let rule = listed(&format!("-i br0 ! -o br1 {COMMENT} -j NEXT"));
        assert_eq!(rule.target().as_deref(), Some("NEXT"));
        assert_eq!((rule.comment().as_str(), rule.links()), ("CNI (\"x\")", vec!["br0".to_owned(), "br1".to_owned()]));
        assert!(!rule.is_jump_to("NEXT") && rule.mark().is_empty());
        let rule = listed(&format!("-s 10.1.0.2/32 ! -d 224.0.0.0/4 {COMMENT} -j MASQUERADE"));
        assert_eq!(rule.source(), "10.1.0.2/32".parse().ok());
        assert!(rule.masquerades() && !listed("-j MASQUERADES").masquerades());
        for text in ["! -s 10.1.0.2/32 -j NEXT", "-d 10.1.0.2/32 -j NEXT", "-m comment --comment \"-s 10.1.0.2/32\""] {
            assert_eq!(listed(text).source(), None, "{text}");
        }
        for text in ["-j NEXT", &format!("{COMMENT} -j NEXT")] {
            assert!(listed(text).is_jump_to("NEXT") && !listed(text).is_jump_to("OTHER"), "{text}");
        }
        assert!(listed("-j RETURN").is_return() && !listed("-i br0 -j RETURN").is_return());

        let wanted = |comment| {
            let mut matches = vec![Match::output_link("br0")];
            matches.extend(comment);
            Rule::new("C", matches, Target::Drop)
        };
        let rule = listed("-o br0 -m comment --comment \"a b\" -j DROP");
        for (comment, is_same) in [(Some("a b"), true), (Some("c"), false), (None, false)] {
            let wanted = wanted(comment.map(Match::Comment));
            assert_eq!(rule.is_same_as(&wanted, Family::Ipv4), is_same);
            assert!(rule.has_effect_of(&wanted, Family::Ipv4));
        }
        assert!(!listed("-o br1 -j DROP").has_effect_of(&wanted(None), Family::Ipv4));
        let rule = listed(&format!("-o br0 {COMMENT} -j DROP"));
        assert!(rule.has_effect_of(&wanted(None), Family::Ipv4));
    }

    #[test]
    fn a_legacy_table_has_the_rules_of_its_lines() {
        let lines = [":C - [0:0]", "-A C -j A", "-A CD -j B", "COMMIT"].map(str::to_owned);
        let mut view = View::Legacy(&lines);
        assert_eq!(view.rules("C").unwrap(), [listed("-j A")]);
        assert!(view.has_chain("C").unwrap() && !view.has_chain("CD").unwrap());
        assert!(view.has_jump("C", "A").unwrap() && !view.has_jump("C", "B").unwrap());
        assert_eq!(view.rules_with_mark("C", &|mark| mark == "m").unwrap(), []);
        assert_eq!(view.rules_with_mark("C", &str::is_empty).unwrap(), [listed("-j A")]);
    }

    #[test]
    fn a_plan_becomes_a_script() {
        let rule = || Rule::new("C", vec![], Target::Return);
        let steps = vec![
            Step::CreateBaseChain("FORWARD", Hook::FORWARD),
            Step::CreateChain("C"),
            Step::Append(rule()),
            Step::Prepend(rule()),
            Step::Delete("C", listed("-j A")),
            Step::Flush("C"),
            Step::DeleteChain("C"),
        ];
        let plan: TablePlan<'_> = TablePlan { steps, removed: vec![] };
        let script = "*filter\n-N C\n-A C -j RETURN\n-I C -j RETURN\n-D C -j A\n-F C\n-X C\nCOMMIT\n";
        assert_eq!(plan.script("filter"), script);
    }
}
