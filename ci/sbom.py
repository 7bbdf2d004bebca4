#!/usr/bin/env python3
"""Writes the list of all crates that are part of the programs, with licences and checksums, as SPDX 2.3 in JSON. The same
commit gives the same bytes.

usage: ci/sbom.py OUTPUT TARGET PROGRAM...
       ci/sbom.py --check FILE      checks that the file has what SPDX 2.3 requires

Environment: SOURCE_DATE_EPOCH and VERSION. Crates that only tests or the compiler use, such as macros, are left out: no part
of them is in a program.
"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib

NOASSERTION = "NOASSERTION"


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments, "--locked"], stdout=subprocess.PIPE, check=True, text=True).stdout


def in_programs(target, programs):
    """Returns the descriptions of all packages whose code is in one of the programs."""
    selected = [word for program in programs for word in ("--package", program)]
    options = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--target", target]
    # Each line is a name, a version with a "v", and remarks.
    used = {tuple(line.replace(" v", " ", 1).split(" ")[:2]) for line in cargo("tree", *selected, *options).splitlines() if line}
    packages = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", target))["packages"]
    found = [package for package in packages if (package["name"], package["version"]) in used]
    return sorted(found, key=lambda package: (package["name"], package["version"]))


def checksums():
    with open("Cargo.lock", "rb") as file:
        locked = tomllib.load(file)["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in locked if "checksum" in package}


def spdx_id(name, version):
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}")


def licence(package):
    """Returns the SPDX expression; crates of long ago separate alternatives with a slash."""
    return re.sub(r" ?/ ?", " OR ", package["license"] or NOASSERTION)


def describe(package, sums):
    name, version = package["name"], package["version"]
    entry = {
        "SPDXID": spdx_id(name, version), "name": name, "versionInfo": version,
        "downloadLocation": NOASSERTION, "filesAnalyzed": False, "copyrightText": NOASSERTION,
        "licenseConcluded": licence(package), "licenseDeclared": licence(package),
    }
    if package["source"] is not None:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": sums[name, version]}]
        entry["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:cargo/{name}@{version}",
        }]
    return entry


def write(path, target, programs):
    version, epoch = os.environ["VERSION"], int(os.environ["SOURCE_DATE_EPOCH"])
    sums = checksums()
    packages = [describe(package, sums) for package in in_programs(target, programs)]
    roots = [spdx_id(program, version) for program in programs]
    document = "SPDXRef-DOCUMENT"
    relations = [(document, "DESCRIBES", root) for root in roots]
    relations += [(roots[0], "DEPENDS_ON", package["SPDXID"]) for package in packages if package["SPDXID"] not in roots]
    content = json.dumps(packages, sort_keys=True).encode()
    spdx = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": document, "name": f"cni0-plugins-{version}",
        # It identifies the document, and leads nowhere.
        "documentNamespace": f"https://cni0.invalid/spdx/{version}/{hashlib.sha256(content).hexdigest()}",
        "creationInfo": {
            "created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: ci-sbom"],
        },
        "packages": packages,
        "relationships": [
            {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other} for one, kind, other in relations
        ],
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spdx, file, indent=1, sort_keys=True)
        file.write("\n")


def check(path):
    """Stops at the first requirement that the document does not meet."""
    with open(path, encoding="utf-8") as file:
        spdx = json.load(file)

    def expect(condition, what):
        if not condition:
            sys.exit(f"{path}: {what}")

    fixed = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT"}
    for key, value in fixed.items():
        expect(spdx.get(key) == value, f"{key} is not {value}")
    expect(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", spdx["creationInfo"]["created"]), "the time is not that of SPDX")
    expect(spdx["creationInfo"]["creators"] and spdx["name"], "there is no creator or no name")
    expect(re.fullmatch(r"https://[^#]+", spdx["documentNamespace"]), "the namespace is not an address without a fragment")
    ids = [package["SPDXID"] for package in spdx["packages"]]
    expect(len(set(ids)) == len(ids) > 10, "an ID occurs twice, or crates are missing")
    known = ["Apache-2.0", "MIT", "BSD-3-Clause", "Unicode-3.0", "Zlib", "Unlicense", "0BSD", "LLVM-exception", "OR", "AND", "WITH"]
    for package in spdx["packages"]:
        name = package["name"]
        expect(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", package["SPDXID"]), f"{name}: invalid ID")
        expect(package["downloadLocation"] and package["filesAnalyzed"] is False, f"{name}: a required field is missing")
        words = re.findall(r"[^() ]+", package["licenseDeclared"])
        expect(words and all(word in known for word in words), f"{name}: unknown licence {package['licenseDeclared']}")
        sums = [entry["checksumValue"] for entry in package.get("checksums", [])]
        expect(package["versionInfo"] and all(re.fullmatch("[0-9a-f]{64}", value) for value in sums), f"{name}: invalid sum")
        expect(sums or "externalRefs" not in package, f"{name}: no checksum")
    for relation in spdx["relationships"]:
        for end in ("spdxElementId", "relatedSpdxElement"):
            expect(relation[end] in [*ids, "SPDXRef-DOCUMENT"], f"unknown element {relation[end]}")
    described = [r for r in spdx["relationships"] if r["relationshipType"] == "DESCRIBES"]
    expect(described, "the document describes nothing")


if len(sys.argv) == 3 and sys.argv[1] == "--check":
    check(sys.argv[2])
elif len(sys.argv) > 3:
    write(sys.argv[1], sys.argv[2], sys.argv[3:])
else:
    sys.exit(__doc__.strip())
