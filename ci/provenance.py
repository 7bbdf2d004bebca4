#!/usr/bin/env python3
"""Writes how release files were built, as an in-toto statement (version 1) with SLSA's provenance (version 1) in JSON. The same
files, commit and tools give the same bytes.

usage: ci/provenance.py OUTPUT ARCH[,ARCH...] FILE...
       ci/provenance.py --check DIR STATEMENT     checks the statement, and that DIR has its files with these checksums

Environment: SOURCE_DATE_EPOCH, VERSION and REVISION; and BUILDER, the URI of the platform that builds, if that is not a machine
of a maintainer.
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# These identify, and lead nowhere.
BUILD = "https://cni0.invalid/ci/release/v1"
BY_HAND = "https://cni0.invalid/builder/by-hand"


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def dependencies():
    """Returns what the files were built from: the commit, the compiler, and all crates of the lock file."""
    said = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, check=True, text=True).stdout
    compiler = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    with open("Cargo.lock", "rb") as file:
        crates = [crate for crate in tomllib.load(file)["package"] if "checksum" in crate]
    return [
        {"name": "source", "digest": {"gitCommit": os.environ["REVISION"]}},
        {"name": "rustc", "uri": f"pkg:generic/rust@{compiler['release']}", "digest": {"gitCommit": compiler["commit-hash"]}},
        *({"uri": f"pkg:cargo/{crate['name']}@{crate['version']}", "digest": {"sha256": crate["checksum"]}} for crate in crates),
    ]


def write(path, archs, files):
    sums = sorted((os.path.basename(file), sha256(file)) for file in files)
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in sums],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": {"command": "ci/release", "architectures": archs, "version": os.environ["VERSION"]},
                "internalParameters": {"SOURCE_DATE_EPOCH": int(os.environ["SOURCE_DATE_EPOCH"])},
                "resolvedDependencies": dependencies(),
            },
            "runDetails": {"builder": {"id": os.environ.get("BUILDER") or BY_HAND}},
        },
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(statement, file, indent=1)
        file.write("\n")


def check(home, path):
    """Stops at the first mistake."""
    with open(path, encoding="utf-8") as file:
        statement = json.load(file)

    def expect(condition, what):
        if not condition:
            sys.exit(f"{path}: {what}")

    expect(statement["_type"] == STATEMENT and statement["predicateType"] == PREDICATE, "not a statement with provenance")
    names = [subject["name"] for subject in statement["subject"]]
    expect(names and len(set(names)) == len(names), "no file, or one twice")
    for subject in statement["subject"]:
        name = subject["name"]
        expect(sha256(os.path.join(home, name)) == subject["digest"]["sha256"], f"{name} has another checksum")
    definition = statement["predicate"]["buildDefinition"]
    expect(definition["externalParameters"]["architectures"], "no architecture")
    for uri in (definition["buildType"], statement["predicate"]["runDetails"]["builder"]["id"]):
        expect(re.fullmatch(r"[a-z]+:\S+", uri), f"{uri} is not a URI")
    lengths = {"gitCommit": 40, "sha256": 64}
    for dependency in definition["resolvedDependencies"]:
        for kind, value in dependency["digest"].items():
            expect(re.fullmatch(f"[0-9a-f]{{{lengths[kind]}}}", value), f"{dependency}: invalid digest")
    expect(len(definition["resolvedDependencies"]) > 20, "crates are missing")


if len(sys.argv) == 4 and sys.argv[1] == "--check":
    check(sys.argv[2], sys.argv[3])
elif len(sys.argv) > 3:
    write(sys.argv[1], sys.argv[2].split(","), sys.argv[3:])
else:
    sys.exit(__doc__.strip())
