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
    check(r"^a\{,2}$", &["a{,2}"], &["a", "aa"]);
    check("^(a{10}){100}$", &[&"a".repeat(1000)], &["a"]);
    check("^(a{1000}|(b{1000}){0}){1,1}(c{1000})*$", &[&"a".repeat(1000)], &["a"]);
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
    check("^(?m)a$", &["a\nb"], &["ab"]);
    check("^(?U)a+(?-U:b)c(?i)*$", &["aabc", "abcc"], &["abC"]);
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
    check(r"^[\[a]$", &["[", "a"], &["b"]);
    check("^[-[:digit:]*-/-]+$", &["-1*+,/"], &[":"]);
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

/// Verifies that the message names the construct. Go rejects most of these patterns, and gives the others another
/// meaning.
#[test]
fn what_is_not_supported_is_refused() {
    for (pattern, part) in [
        ("*a", "repetition"),
        ("a|+", "repetition"),
        ("(?i)*", "repetition"),
        ("(?)", "flag"),
        ("{2}", "repetition"),
        ("a**", "follows another"),
        ("a*{2}", "follows another"),
        ("a{2}{3}", "follows another"),
        ("a*??", "follows another"),
        ("a*(?i)+", "follows another"),
        ("a{3,2}", "repetition"),
        ("a{1001}", "at most 1000"),
        ("a{99999999999}", "at most 1000"),
        ("a{02}", "escape other braces"),
        ("a{ 2 }", "escape other braces"),
        ("a{,2}", "escape other braces"),
        ("a{x}", "escape other braces"),
        ("{a", "escape other braces"),
        ("(a{90}){100}", "nested repetitions"),
        ("((){1000}){1000}", "nested repetitions"),
        ("(a{1000}b){2}?", "nested repetitions"),
        ("(a", "group"),
        ("(?:a", "group"),
        ("a)", "'('"),
        ("[a", "class"),
        ("[]", "class"),
        ("[a-", "class"),
        (r"[\", "escape"),
        ("[c-a]", "range"),
        ("[[a]", r"write \["),
        ("[A-[:alpha:]]", r"write \["),
        ("[[:foo:]]", "class"),
        ("[[:alpha]]", "class"),
        ("[--/]", "begins with"),
        ("[^]-a]", "begins with"),
        (r"[\b]", "class"),
        ("[a&&b]", "intersection"),
        (r"\", "escape"),
        (r"\pL", "Unicode"),
        (r"\Qa\E", "escape"),
        (r"(a)\1", "backreferences"),
        (r"\012", "backreferences"),
        (r"\Z", "escape"),
        (r"\é", "escape"),
        (r"\<a\>", r"\\<"),
        (r"[\>]", r"\\>"),
        (r"\u0061", r"\\u"),
        (r"\b{start}", "escape other braces"),
        (r"\x", "hexadecimal"),
        (r"\xg0", "hexadecimal"),
        (r"\x{110000}", "hexadecimal"),
        (r"\x{41", "hexadecimal"),
        (r"\x+1", "hexadecimal"),
        ("(?P<a>b)", "names of groups"),
        ("(?<a>b)", "names of groups"),
        ("(?=a)", "\"=\""),
        ("(?!a)", "\"!\""),
        ("(?x) a", "\"x\""),
        ("(?R)a", "\"R\""),
        ("(?", "\"\""),
        ("(?i", "\"\""),
        ("(?-)", "flag"),
        ("(?i)é", "flag i"),
        (r"(?i)\x{212a}", "flag i"),
        ("(?i)[[:^upper:]]", "flag i"),
        (&"(".repeat(200), "100 groups"),
        (&format!("{}{}", "(".repeat(99), ")".repeat(99)), "nesting"),
        (&"a".repeat(1001), "1000 characters"),
        (r"(\w\d){1000}.{1000}.{1000}[[:punct:]]{1000}", "limit"),
    ] {
        let mistake = Pattern::parse(pattern).err().unwrap_or_else(|| panic!("{pattern} is accepted"));
        assert!(mistake.contains(part), "{pattern}: {mistake}");
        assert!(pattern.len() > 1000 || mistake.starts_with(&format!("pattern {pattern:?}: ")), "{mistake}");
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
    assert!(!matches(&format!("{}(.{{10}}b){{100}}", "()".repeat(99)), &text));
}
