"""Finds what is linked into the programs, each with its licence and the texts of it: crates, the Rust library and the crates
in it, and musl. Used by sbom.py. Stops at a component without a text.
"""
import html
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field

# Names of files with a licence, or with what it requires to be passed on.
LICENCE = re.compile(r"(un)?licen[cs]e|copying", re.IGNORECASE)
NOTICE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice|authors", re.IGNORECASE)
# Of Debian's package. musl has it in its sources, and Rust's copy of musl has none.
MUSL_TEXT = pathlib.Path("/usr/share/doc/musl/copyright")


def parts(expression):
    """Splits an SPDX expression at each AND, with the alternatives of each part in one order. Crates of long ago separate these
    with a slash."""
    found = (" OR ".join(sorted(re.split(r" ?/ ?| OR ", part.strip("()")))) for part in expression.split(" AND "))
    return list(dict.fromkeys(found))


def joined(found):
    return " AND ".join(f"({part})" if " OR " in part and len(found) > 1 else part for part in found)


@dataclass
class Component:
    name: str
    version: str
    licence: str # an SPDX expression
    texts: dict # by the name of the file
    purl: str = ""
    checksum: str = "" # the SHA-256 of a crate's archive
    holders: list = field(default_factory=list)

    def __post_init__(self):
        self.licence = joined(parts(self.licence))
        if not any(text.strip() for text in self.texts.values()):
            sys.exit(f"{self.name} {self.version}: no text of the licence {self.licence or '(none)'}")
        lines = (line.strip() for text in self.texts.values() for line in text.splitlines())
        written = (line for line in lines if re.match(r"(Copyright|©).*", line) and re.search(r"\d{4}|\(c\)|©|Authors", line))
        # Not the examples in texts of licences.
        self.holders = self.holders or sorted({line for line in written if not re.search(r"[\[<{](yyyy|year)", line)})


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def texts_in(directory):
    files = sorted(path for path in directory.iterdir() if path.is_file() and NOTICE.match(path.name))
    if not any(LICENCE.match(path.name) for path in files):
        return {}
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def crates(target, programs):
    """Returns the crates whose code is in one of the programs, except those of this workspace, and the names of the latter.
    Crates that only tests or the compiler use, such as macros, are left out."""
    selected = [word for program in programs for word in ("--package", program)]
    options = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--target", target, "--locked"]
    # Each line is a name, a version with a "v", and remarks.
    lines = run("cargo", "tree", *selected, *options).splitlines()
    used = {tuple(line.replace(" v", " ", 1).split(" ")[:2]) for line in lines if line}
    metadata = run("cargo", "metadata", "--format-version", "1", "--filter-platform", target, "--locked")
    packages = [package for package in json.loads(metadata)["packages"] if (package["name"], package["version"]) in used]
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    sums = {(package["name"], package["version"]): package["checksum"] for package in locked if "checksum" in package}
    own, others = [], []
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        name, version = package["name"], package["version"]
        if package["source"] is None:
            if package["license"] != "Apache-2.0":
                sys.exit(f"{name}: the licence is not that of the workspace")
            own.append(name)
            continue
        texts = texts_in(pathlib.Path(package["manifest_path"]).parent)
        purl = f"pkg:cargo/{name}@{version}"
        others.append(Component(name, version, package["license"] or "", texts, purl, sums[name, version]))
    return own, others


def plain(page):
    """Returns the text of a part of a page in HTML."""
    return re.sub(r"\s*\n\s*\n\s*", "\n\n", html.unescape(re.sub(r"<[^>]+>", "", page))).strip() + "\n"


def rust_library(debug):
    """Returns the Rust library, and the crates in it that the debug files in a directory name, with the notices that Rust has."""
    home = pathlib.Path(run("rustc", "--print", "sysroot").strip()) / "share/doc/rust"
    version = re.match(r"rustc (\S+)", run("rustc", "--version")).group(1)
    try:
        page = (home / "COPYRIGHT-library.html").read_text(encoding="utf-8")
    except OSError as error:
        sys.exit(f"{error}: this Rust does not have the notices of its library (those of rustup do)")
    tree, entries = page[page.index('<h2 id="in-tree-files">'):].split('<h2 id="out-of-tree-dependencies">')
    licences = sorted(set(re.findall(r"<b>License:</b> ([^<]+)<", tree)))
    names = sorted({name for licence in licences for name in re.findall(r"[A-Z][\w.-]*\d[\w.-]*|MIT|ISC", licence)})
    texts = {"COPYRIGHT": plain(tree)}
    texts |= {name: (home / "licenses" / f"{name}.txt").read_text(encoding="utf-8") for name in names}
    holders = sorted(set(re.findall(r"<b>Copyright:</b> ([^<]+)<", tree)))
    found = [Component("rust-std", version, " AND ".join(licences), texts, f"pkg:generic/rust@{version}", holders=holders)]
    entries = dict(re.match(r"\S+ (\S+)</h3>(.*)", entry, re.DOTALL).groups() for entry in entries.split("<h3>")[1:])
    for crate in linked(debug):
        if crate not in entries:
            sys.exit(f"{crate}, which the programs have from the Rust library: Rust's notices do not name it")
        name, version = crate.rsplit("-", 1)
        licence = re.search(r"<b>License:</b> ([^<]+)<", entries[crate]).group(1)
        notices = re.findall(r"<summary><code>(.*?)</code></summary>\s*<pre>\n?(.*?)</pre>", entries[crate], re.DOTALL)
        texts = {name: html.unescape(text) for name, text in notices}
        found.append(Component(name, version, licence, texts, f"pkg:cargo/{name}@{version}"))
    return found


def linked(debug):
    """Returns the crates of the Rust library that debug files name, as NAME-VERSION."""
    files = [path for path in pathlib.Path(debug).rglob("*.debug")]
    found = {name for path in files for name in re.findall(rb"/rust/deps/([\w.+-]+)", path.read_bytes())}
    if not found:
        sys.exit(f"{debug}: no debug file names a crate of the Rust library")
    return sorted(name.decode() for name in found)


def musl(target):
    library = pathlib.Path(run("rustc", "--print", "target-libdir", "--target", target).strip()) / "self-contained/libc.a"
    version = re.search(rb"\0(1\.\d+\.\d+)\0", library.read_bytes()).group(1).decode()
    text = MUSL_TEXT.read_text(encoding="utf-8")
    holders = sorted(set(re.findall(r"^Copyright: (.*)$", text, re.MULTILINE)))
    return Component("musl", version, "MIT", {"copyright": text}, f"pkg:generic/musl@{version}", holders=holders)


def expression(others):
    """Returns the licence of the programs as a whole."""
    return joined(sorted({"Apache-2.0", *(part for other in others for part in parts(other.licence))}))


def write(path, others, version):
    """Writes all texts, each of them once."""
    texts = {} # with the components that have them
    for other in others:
        for text in other.texts.values():
            texts.setdefault("\n".join(line.rstrip() for line in text.strip("\n").splitlines()), []).append(other)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"The programs of cni0 {version} are under the Apache License 2.0, which is in the file LICENSE. They contain the\n"
                   "following software of others. The numbers are those of the texts below.\n\n")
        for other in others:
            numbers = ", ".join(str(n) for n, owners in enumerate(texts.values(), 1) if other in owners)
            file.write(f"{other.name} {other.version}: {other.licence} (text {numbers})\n")
        for n, (text, owners) in enumerate(texts.items(), 1):
            names = dict.fromkeys(f"{owner.name} {owner.version}" for owner in owners)
            file.write(f"\n{'=' * 80}\nText {n}: {', '.join(names)}\n{'=' * 80}\n\n{text}\n")
