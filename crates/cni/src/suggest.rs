//! Suggests what a misspelt word was meant to be.

/// Returns the known word that is most similar to `word`, in any letter case, or else the only one that begins with it;
/// `None` if there is neither. A known word is similar if at most a third of the letters of `word`, and at most three,
/// are wrong, missing, surplus or swapped.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    most_similar(word, known.iter().copied()).or_else(|| completed(&letters(word), &known))
}

/// Returns the known word that is most similar to `word`, as [`nearest`] does, if there is one.
pub(crate) fn most_similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = letters(word);
    let most = (word.len() / 3).min(3);
    let similar = known.into_iter().filter_map(|candidate| {
        let letters = letters(candidate);
        // Skips what is too long or too short anyway, so that a word of any length takes no time.
        let mistakes = (letters.len().abs_diff(word.len()) <= most).then(|| mistakes(&word, &letters))?;
        (mistakes <= most).then_some((mistakes, candidate))
    });
    similar.min_by_key(|(mistakes, _)| *mistakes).map(|(_, candidate)| candidate)
}

/// Returns the only known word that begins with `word`, of which one letter says too little.
fn completed<'a>(word: &[char], known: &[&'a str]) -> Option<&'a str> {
    let mut longer = known.iter().filter(|candidate| word.len() > 1 && letters(candidate).starts_with(word));
    longer.next().filter(|_| longer.next().is_none()).copied()
}

fn letters(word: &str) -> Vec<char> {
    word.chars().map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Returns how many letters have to be replaced, inserted, removed, or swapped with their neighbour to turn `from` into
/// `to` (the optimal string alignment distance).
fn mistakes(from: &[char], to: &[char]) -> usize {
    let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX / 2);
    // The numbers for the letters of `from` so far, and each beginning of `to`.
    let mut older = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    let mut letter_before = None;
    for (done, letter) in from.iter().enumerate() {
        let mut row = vec![done + 1];
        let mut wanted_before = None;
        for (column, wanted) in to.iter().enumerate() {
            let replaced = at(&last, column) + usize::from(letter != wanted);
            let inserted_or_removed = at(&row, column).min(at(&last, column + 1)) + 1;
            let is_swapped = letter_before == Some(wanted) && wanted_before == Some(letter);
            let swapped = if is_swapped { at(&older, column.wrapping_sub(1)) + 1 } else { usize::MAX };
            row.push(replaced.min(inserted_or_removed).min(swapped));
            wanted_before = Some(wanted);
        }
        letter_before = Some(letter);
        older = std::mem::replace(&mut last, row);
    }
    at(&last, to.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_is_recognised() {
        let known = ["isGateway", "isDefaultGateway", "ipMasq", "ipMasqBackend", "mtu", "vlan", "id"];
        for (word, wanted) in [
            ("isDefaultGatway", Some("isDefaultGateway")),
            ("isdefaultgateway", Some("isDefaultGateway")),
            ("is_default_gateway", Some("isDefaultGateway")),
            ("isGatewya", Some("isGateway")),
            ("ipMsaq", Some("ipMasq")),
            ("ipMasqBackends", Some("ipMasqBackend")),
            ("mtuu", Some("mtu")),
            ("umt", None),
            ("vaaln", None),
            ("vlna", Some("vlan")),
            ("ip", None),
            ("vl", Some("vlan")),
            ("v", None),
            ("isdef", Some("isDefaultGateway")),
            ("ID", Some("id")),
            ("", None),
            ("comment", None),
        ] {
            assert_eq!(nearest(word, known), wanted, "{word:?}");
        }
    }

    #[test]
    fn the_fewest_mistakes_win_and_then_the_first_word() {
        assert_eq!(nearest("statue", ["state", "status"]), Some("state"));
        assert_eq!(nearest("podss", ["pads", "pods"]), Some("pods"));
        assert_eq!(nearest("cat", ["bat", "hat"]), Some("bat"));
    }

    #[test]
    fn mistakes_are_counted() {
        for (from, to, wanted) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("abcd", "badc", 2),
            ("kitten", "sitting", 3),
            ("ca", "abc", 3),
            ("größe", "grösse", 2),
        ] {
            assert_eq!(mistakes(&letters(from), &letters(to)), wanted, "{from} {to}");
        }
    }

    #[test]
    fn a_long_word_takes_no_time() {
        assert_eq!(nearest(&"a".repeat(1 << 20), ["abc"; 1000]), None);
    }
}
