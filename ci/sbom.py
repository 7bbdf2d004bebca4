#!/usr/bin/env python3
"""Writes the list of everything that is linked into the programs, with licences, their texts and checksums, as SPDX 2.3 in JSON,
and all texts in one file. Prints the licence of the whole. The same commit and tools give the same bytes.

usage: ci/sbom.py OUTPUT TEXTS TARGET DEBUG PROGRAM...     DEBUG: the directory of the debug files
       ci/sbom.py --check FILE      checks that the file has what SPDX 2.3 requires

Environment: SOURCE_DATE_EPOCH and VERSION.
"""
import datetime
import hashlib
import json
import os
import re
import sys

import licences

# Files of Rust's toolchain and crates of this workspace have no address of their own.
NOWHERE = "NOASSERTION"


def spdx_id(name, version):
    return "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{name}-{version}")


def describe(component):
    name, version, licence = component.name, component.version, component.licence
    entry = {
        "SPDXID": spdx_id(name, version), "name": name, "versionInfo": version,
        "downloadLocation": NOWHERE, "filesAnalyzed": False,
        "copyrightText": "\n".join(component.holders) or "NONE", "licenseConcluded": licence, "licenseDeclared": licence,
        "attributionTexts": list(component.texts.values()),
    }
    if component.purl:
        entry["externalRefs"] = [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": component.purl,
        }]
    if component.checksum:
        entry["downloadLocation"] = f"https://static.crates.io/crates/{name}/{name}-{version}.crate"
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": component.checksum}]
    return entry


def write(path, texts, target, debug, programs):
    version, epoch = os.environ["VERSION"], int(os.environ["SOURCE_DATE_EPOCH"])
    own, others = licences.crates(target, programs)
    others += [*licences.rust_library(debug), licences.musl(target)]
    licences.write(texts, others, version)
    with open("LICENSE", encoding="utf-8") as file:
        text = file.read()
    holder = ["2026 the cni0 authors"]
    ours = [licences.Component(name, version, "Apache-2.0", {"LICENSE": text}, holders=holder) for name in own]
    packages = [describe(component) for component in [*ours, *others]]
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
    print(licences.expression(others))


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
    known = ["Apache-2.0", "MIT", "BSD-3-Clause", "BSD-2-Clause", "Unicode-3.0", "Unlicense", "LLVM-exception", "OR", "AND", "WITH"]
    for package in spdx["packages"]:
        name = package["name"]
        expect(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", package["SPDXID"]), f"{name}: invalid ID")
        expect(package["downloadLocation"] and package["filesAnalyzed"] is False, f"{name}: a required field is missing")
        words = re.findall(r"[^() ]+", package["licenseDeclared"])
        expect(words and all(word in known for word in words), f"{name}: unknown licence {package['licenseDeclared']}")
        sums = [entry["checksumValue"] for entry in package.get("checksums", [])]
        expect(package["versionInfo"] and all(re.fullmatch("[0-9a-f]{64}", value) for value in sums), f"{name}: invalid sum")
        expect(bool(sums) == package["downloadLocation"].startswith("https://"), f"{name}: an address without a checksum")
        expect(any(len(text) > 100 for text in package["attributionTexts"]), f"{name}: no text of the licence")
        expect(package["copyrightText"] not in ("", "NOASSERTION"), f"{name}: no holder of the copyright")
    for relation in spdx["relationships"]:
        for end in ("spdxElementId", "relatedSpdxElement"):
            expect(relation[end] in [*ids, "SPDXRef-DOCUMENT"], f"unknown element {relation[end]}")
    names = {package["name"] for package in spdx["packages"]}
    expect({"serde_json", "rust-std", "musl"} <= names, "a crate, the Rust library or musl is missing")
    described = [r for r in spdx["relationships"] if r["relationshipType"] == "DESCRIBES"]
    expect(described, "the document describes nothing")


if len(sys.argv) == 3 and sys.argv[1] == "--check":
    check(sys.argv[2])
elif len(sys.argv) > 5:
    write(*sys.argv[1:5], tuple(sys.argv[5:]))
else:
    sys.exit(__doc__.strip())
