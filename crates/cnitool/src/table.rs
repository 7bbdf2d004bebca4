//! Output for a terminal: tables that fit its width, bars, and colours.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::Duration;

use linux::process;

/// The width of the output without a terminal, in columns.
pub(crate) const WIDTH: usize = 80;
/// The narrowest output: a narrower terminal breaks lines.
const MIN_OUTPUT: usize = 20;
/// The minimum width of a cell that is shortened.
const MIN_WIDTH: usize = 8;
/// The end of a shortened cell. ASCII like all other output, because not every console supports more.
const ELLIPSIS: &str = "..";
const GAP: usize = 2;

/// Returns the width of the output in columns: `COLUMNS`, or the width of the terminal, or 80.
pub(crate) fn width() -> usize {
    static CACHED: OnceLock<usize> = OnceLock::new();
    *CACHED.get_or_init(|| {
        let given = process::env("COLUMNS").and_then(|value| value.to_str()?.parse().ok()).filter(|width| *width > 0);
        given.or_else(process::terminal_width).unwrap_or(WIDTH).max(MIN_OUTPUT)
    })
}

/// The meaning of a text, which determines its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Bold,
    Good,
    Warning,
    Bad,
}

/// Formats texts with colours or without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    colours: bool,
}

impl Paint {
    /// Returns a formatter for stdout. Uses colours only on a terminal, and not if `NO_COLOR` is set (no-color.org).
    pub(crate) fn of_stdout() -> Paint {
        let no_color = process::env("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = process::env("TERM").is_none_or(|term| term == "dumb");
        Paint { colours: io::stdout().is_terminal() && !no_color && !dumb }
    }

    /// Returns the text in its colour, without control characters.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let text = sanitize(text);
        let code = match tone {
            _ if !self.colours => return text,
            Tone::Plain => return text,
            Tone::Bold => 1,
            Tone::Good => 32,
            Tone::Warning => 33,
            Tone::Bad => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A table whose columns are as wide as their cells, and shortened if the table is too wide.
#[derive(Debug)]
pub(crate) struct Table {
    heads: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Column {
    head: &'static str,
    shortening: Shortening,
}

/// Whether the cells of a column may be shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortening {
    Never,
    /// If shorter IDs are not enough.
    Late,
    /// Before all others: the start of an ID is enough to recognise it.
    First,
}

#[derive(Debug)]
enum Row {
    Cells(Vec<(Tone, String)>),
    /// A remark on the row above, wrapped between words.
    More(String),
}

impl Table {
    /// Creates a table with these heads. Cells of a column whose head ends in `*` may be shortened; those of `**`
    /// first.
    pub(crate) fn new(heads: &[&'static str]) -> Table {
        let column = |head: &&'static str| {
            let name = head.trim_end_matches('*');
            let shortening = match head.len() - name.len() {
                0 => Shortening::Never,
                1 => Shortening::Late,
                _ => Shortening::First,
            };
            Column { head: name, shortening }
        };
        Table { heads: heads.iter().map(column).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<(Tone, String)>) {
        self.rows.push(Row::Cells(cells));
    }

    /// Adds a remark on the last row, below its second column.
    pub(crate) fn more(&mut self, text: String) {
        self.rows.push(Row::More(text));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the text of the table, each line indented by `indent` spaces.
    pub(crate) fn render(&self, paint: Paint, indent: usize) -> String {
        let widths = self.widths(indent);
        let heads = self.heads.iter().map(|column| (Tone::Bold, column.head.to_owned())).collect::<Vec<_>>();
        let mut text = line(&heads, &widths, paint, indent);
        for row in &self.rows {
            match row {
                Row::Cells(cells) => text += &line(cells, &widths, paint, indent),
                Row::More(more) => {
                    let at = indent + widths.first().map_or(0, |width| width + GAP);
                    text += &wrap(more, at);
                }
            }
        }
        text
    }

    fn widths(&self, indent: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.heads.iter().map(|column| column.head.len()).collect();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, (_, cell)) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let room = width().saturating_sub(indent + GAP * widths.len().saturating_sub(1));
        for shortening in [Shortening::First, Shortening::Late] {
            self.shrink(&mut widths, room, shortening);
        }
        widths
    }

    /// Makes columns narrower, the widest first, until the sum is at most `room`.
    fn shrink(&self, widths: &mut [usize], room: usize, shortening: Shortening) {
        while widths.iter().sum::<usize>() > room {
            let columns = widths.iter_mut().zip(&self.heads);
            let candidates = columns.filter(|(width, column)| column.shortening == shortening && **width > MIN_WIDTH);
            match candidates.max_by_key(|(width, _)| **width) {
                Some((width, _)) => *width -= 1,
                None => return,
            }
        }
    }
}

fn line(cells: &[(Tone, String)], widths: &[usize], paint: Paint, indent: usize) -> String {
    let mut text = " ".repeat(indent);
    let last = cells.len().saturating_sub(1);
    for (at, ((tone, cell), width)) in cells.iter().zip(widths).enumerate() {
        let cell = shorten(cell, *width);
        text += &paint.paint(*tone, &cell);
        if at < last {
            text += &" ".repeat((width + GAP).saturating_sub(cell.chars().count()));
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// Replaces control characters by `?`, so that the text cannot control the terminal.
pub(crate) fn sanitize(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Shortens the text to at most `width` characters, and marks the cut.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(ELLIPSIS.len())).collect();
    kept + ELLIPSIS
}

/// Wraps `text` into lines that fit the output, each indented by `indent` spaces. Splits a word only if it is longer
/// than a line.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    let room = width().saturating_sub(indent).max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = sanitize(word).chars().collect();
        while rest.len() > room {
            let tail = rest.split_off(room);
            lines.push(rest.into_iter().collect());
            rest = tail;
        }
        let word: String = rest.into_iter().collect();
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines.iter().map(|line| format!("{}{line}\n", " ".repeat(indent))).collect()
}

/// Returns a bar of `width` characters that shows `used` of `all`. It is empty only if nothing is used, and full only
/// if everything is.
pub(crate) fn bar(used: u128, all: u128, width: usize) -> String {
    let share = u128::try_from(width).unwrap_or_default();
    let filled = match all {
        0 => share,
        _ if used >= all => share,
        _ if used == 0 => 0,
        // A saturated product makes the bar too short, but so many addresses are never used.
        _ => used.saturating_mul(share).checked_div(all).unwrap_or_default().clamp(1, share.saturating_sub(1).max(1)),
    };
    let filled = usize::try_from(filled).unwrap_or(width).min(width);
    format!("[{}{}]", "#".repeat(filled), "-".repeat(width - filled))
}

/// Formats a time for a reader.
pub(crate) fn duration(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1000.0;
    match milliseconds {
        ..1.0 => format!("{milliseconds:.2} ms"),
        ..1000.0 => format!("{milliseconds:.1} ms"),
        _ => format!("{:.2} s", milliseconds / 1000.0),
    }
}

/// Returns the number and the noun in singular or plural, such as `1 lease` or `2 leases`.
pub(crate) fn count(number: usize, what: &str) -> String {
    match what {
        _ if number == 1 => format!("{number} {what}"),
        _ if what.ends_with('s') => format!("{number} {what}es"),
        _ => match what.strip_suffix("cy") {
            Some(start) => format!("{number} {start}cies"),
            None => format!("{number} {what}s"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Paint = Paint { colours: false };

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_table_is_as_narrow_as_its_cells_and_never_wider_than_a_terminal() {
        let mut table = Table::new(&["ADDRESS", "CONTAINER**", "STATE"]);
        table.row(vec![(Tone::Plain, "10.0.0.2".into()), (Tone::Plain, "c1".into()), (Tone::Good, "alive".into())]);
        assert_eq!(table.render(PLAIN, 2), "  ADDRESS   CONTAINER  STATE\n  10.0.0.2  c1         alive\n");
        let id = "0123456789abcdef".repeat(8);
        table.row(vec![(Tone::Plain, "10.0.0.3".into()), (Tone::Plain, id.clone()), (Tone::Bad, "gone".into())]);
        table.more(format!("{id} {id}"));
        let text = table.render(PLAIN, 2);
        assert_eq!(widest(&text), width(), "{text}");
        assert!(text.contains("..  gone"), "{text}");
    }

    #[test]
    fn colours_do_not_shift_columns() {
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![(Tone::Good, "alive".into()), (Tone::Plain, "x".into())]);
        let plain = table.render(PLAIN, 0);
        let coloured = table.render(Paint { colours: true }, 0);
        assert!(coloured.contains("\x1b[32malive\x1b[0m  x"), "{coloured:?}");
        let stripped: String = coloured.replace("\x1b[32m", "").replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_bar_is_full_only_if_everything_is_used() {
        assert_eq!(bar(0, 253, 10), "[----------]");
        assert_eq!(bar(1, 253, 10), "[#---------]");
        assert_eq!(bar(252, 253, 10), "[#########-]");
        assert_eq!(bar(253, 253, 10), "[##########]");
        assert_eq!(bar(300, 253, 10), "[##########]", "a range can shrink");
        assert_eq!(bar(7, u128::MAX, 10), "[#---------]");
        assert_eq!(bar(u128::MAX - 1, u128::MAX, 10), "[#---------]", "a saturated number");
        assert_eq!(bar(0, 0, 10), "[##########]");
    }

    #[test]
    fn words_are_split_only_if_too_long() {
        let text = wrap(&"word ".repeat(40), 6);
        assert!(widest(&text) <= width() && text.lines().all(|line| line.starts_with("      word")), "{text}");
        assert_eq!(widest(&wrap(&"x".repeat(200), 6)), width());
        assert_eq!(wrap("", 6), "");
    }

    #[test]
    fn nouns_have_a_plural() {
        assert_eq!((count(1, "lease").as_str(), count(2, "lease").as_str()), ("1 lease", "2 leases"));
        assert_eq!(count(2, "address"), "2 addresses");
        assert_eq!(count(2, "ingress policy"), "2 ingress policies");
    }
}
