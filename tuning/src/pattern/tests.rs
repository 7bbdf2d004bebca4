use super::*;

#[track_caller]
fn matches(pattern: &str, text: &str) -> bool {
    Pattern::parse(pattern).unwrap_or_else(|mistake| panic!("{pattern}: {mistake}")).matches(text)
}

#[track_caller]
fn check(pattern: &str, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(matches(pattern, text), "{pattern} should match {text:?}");
    }
    for text in no {
        assert!(!matches(pattern, text), "{pattern} should not match {text:?}");
    }
}

#[test]
fn a_pattern_is_searched_anywhere() {
    check("somaxconn", &["net.core.somaxconn", "somaxconn", "xsomaxconnx"], &["", "somaxcon"]);
    check("^net", &["net.x"], &["xnet"]);
    check("x$", &["net.x"], &["x.net", "x\n"]);
    check("^net.core.somaxconn$", &["net.core.somaxconn", "net/core/somaxconn"], &["net.core.somaxconn.x"]);
    check("", &["", "anything"], &[]);
    check("^$", &[""], &["a"]);
}

#[test]
fn the_list_of_openshift() {
    let pattern = r"^net.ipv4.conf.IFNAME.accept_redirects$";
    check(pattern, &["net.ipv4.conf.IFNAME.accept_redirects"], &["net.ipv4.conf.all.accept_redirects"]);
    let pattern = r"^net\.ipv4\.conf\.all\.[a-z_]*$";
    check(pattern, &["net.ipv4.conf.all.log_martians"], &["net.ipv4.conf.other.log_martians", "net.ipv4.conf.all.A"]);
    check(r"^net\.ipv6\.conf\.(all|IFNAME)\.\w+$", &["net.ipv6.conf.all.mtu"], &["net.ipv6.conf.eth0.mtu"]);
}

#[test]
fn repetitions() {
    check("^a*b$", &["b", "aaab"], &["a", "ba"]);
    check("^a+b$", &["ab", "aab"], &["b"]);
    check("^a?b$", &["b", "ab"], &["aab"]);
    check("^a{2}$", &["aa"], &["a", "aaa"]);
    check("^a{2,}$", &["aa", "aaaaa"], &["a"]);
    check("^a{1,3}$", &["a", "aaa"], &["", "aaaa"]);
    check("^a{0}$", &[""], &["a"]);
    check("^(ab){2}?c*?d+?e??$", &["ababd", "ababcccdde"], &["abd", "abab"]);
    check("^(a*)*b$", &["b", "aab"], &["ac"]);
    check("^(a|b*)+$", &["", "abba"], &["c"]);
    check("^^*a", &["a"], &["ba"]);
    check("^a{,2}$", &["a{,2}"], &["a", "aa"]);
    check("^a{x}{$", &["a{x}{"], &["a"]);
    check("^{a$", &["{a"], &["a"]);
}

#[test]
fn groups_and_alternatives() {
    check("^(a|bc|)d$", &["ad", "bcd", "d"], &["bd", "abcd"]);
    check("^(?:x(?:y|z))+$", &["xy", "xyxz"], &["x", "yx"]);
    check("a||b", &["", "c"], &[]);
    check("^()$", &[""], &["a"]);
    check("^(?i)Net(?-i)X$", &["netX", "NETX"], &["netx"]);
    check("^(?i:net)x$", &["NeTx"], &["netX"]);
    check("^((?i)a)b$", &["Ab", "ab"], &["aB"]);
    check("^(?i)[b-d]+$", &["BCD", "bcd"], &["A", "e"]);
    check("^(?s).$", &["\n"], &[]);
    check("^.$", &["a", "é"], &["\n"]);
}

#[test]
fn classes() {
    check("^[a-c_.]+$", &["a.c_b"], &["d", "A"]);
    check("^[^a-c]$", &["d", "é", "\n"], &["a"]);
    check("^[]a]+$", &["]a"], &["b"]);
    check("^[^]a]$", &["b"], &["]", "a"]);
    check("^[a-]+$", &["-a"], &["b"]);
    check("^[-a]+$", &["-a"], &["b"]);
    check(r"^[\d\-x]+$", &["12-x"], &["y"]);
    check(r"^[\D]$", &["x"], &["1"]);
    check(r"^[\]\\]+$", &["]\\"], &["x"]);
    check("^[[:alnum:]_]+$", &["aZ9_"], &["-"]);
    check("^[[:^alpha:]]$", &["1", "é"], &["a"]);
    check("^[[:xdigit:]]+$", &["0aF"], &["g"]);
    check("^[[:punct:]]$", &[".", "_"], &["a"]);
    check("^[[a]$", &["[", "a"], &["b"]);
    check(r"^\d\D\w\W\s\S$", &["1a_- x"], &["aa_- x"]);
    check(r"^[\x41-\x{43}]$", &["B"], &["D"]);
}

#[test]
fn escapes_and_boundaries() {
    check(r"^\.\*\+\?\(\)\[\]\{\}\|\^\$\\\/\-\_$", &[r".*+?()[]{}|^$\/-_"], &[]);
    check(r"^\t\n\r\f\v\a\x20$", &["\t\n\r\x0c\x0b\x07 "], &[]);
    check(r"\bcore\b", &["net.core.x", "core"], &["score", "core_x"]);
    check(r"\Bor\B", &["core"], &["or"]);
    check(r"\Anet\z", &["net"], &["net.x"]);
    check("é+", &["éé"], &["e"]);
    check("a]}", &["a]}"], &[]);
}

/// Verifies that the message names the construct.
#[test]
fn what_is_not_supported_is_refused() {
    for (pattern, part) in [
        ("*a", "\"*\""),
        ("a|+", "\"+\""),
        ("(?i)*", "\"*\""),
        ("(?)", "\")\""),
        ("{2}", "\"{\""),
        ("a**", "follows another"),
        ("a*{2}", "follows another"),
        ("a{2}{3}", "follows another"),
        ("a{3,2}", "count of a repetition"),
        ("a{1001}", "count of a repetition"),
        ("a{99999999999}", "count of a repetition"),
        ("(a", "not closed"),
        ("(?:a", "not closed"),
        ("a)", "not opened"),
        ("[a", "not closed by ]"),
        ("[]", "not closed by ]"),
        ("[a-", "not closed by ]"),
        (r"[\", "not closed by ]"),
        ("[c-a]", "'c' to 'a'"),
        ("[[:foo:]]", "[:foo:]"),
        ("[[:alpha]]", "[:alpha:]"),
        (r"[\b]", r"\\b"),
        (r"\", "backslash"),
        (r"\pL", r"\\p"),
        (r"\Qa\E", r"\\Q"),
        (r"(a)\1", r"\\1"),
        (r"\Z", r"\\Z"),
        (r"\é", r"\\é"),
        (r"\x", "hexadecimal"),
        (r"\xg0", "hexadecimal"),
        (r"\x{110000}", "hexadecimal"),
        (r"\x{41", "hexadecimal"),
        (r"\x+1", "hexadecimal"),
        ("(?P<a>b)", "names of groups"),
        ("(?<a>b)", "names of groups"),
        ("(?=a)", "\"=\""),
        ("(?!a)", "\"!\""),
        ("(?m)a", "\"m\""),
        ("(?", "\"\""),
        ("(?i", "\"\""),
        ("(?-)", "\")\""),
        (&"(".repeat(200), "nested"),
        (&"a".repeat(1001), "1000 characters"),
        ("((a{100}){100}){100}", "too large"),
        ("(((){1000}){1000}){1000}a{1000}", "too large"),
    ] {
        let mistake = Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern} is accepted"));
        assert!(mistake.to_string().contains(part), "{pattern}: {mistake}");
    }
}

/// A backtracking matcher would need 2^1000 steps for the first pattern.
#[test]
fn the_time_is_linear() {
    let text = "a".repeat(1000);
    assert!(!matches("^(a+)+$", &format!("{text}b")));
    assert!(!matches("^(a|a)*b$", &text));
    assert!(matches("(a?){500}a{500}", &text));
    assert!(!matches("^(((a*)*)*)*b$", &text));
    let largest = Pattern::parse("(a{90}){100}").unwrap();
    assert!(largest.size() <= MAX_SIZE);
    assert!(!largest.matches(&text));
}
