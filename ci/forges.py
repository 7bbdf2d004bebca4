#!/usr/bin/python3
"""Checks the files for forges, which run the tests and ask the reporters of issues: only fields that the forges have, of the
right types. Prints each mistake.

usage: ci/forges.py DIR      DIR: the repository
"""
import pathlib
import re
import sys

from strict import check, expect, load, mistakes

# The known fields, as in manifests.py. YAML reads the key "on" as true.
WORKFLOW = {
    "name": str, "permissions": dict,
    True: {"push": {"branches": [str]}, "pull_request": type(None)},
    "jobs": {"test": {
        "runs-on": str, "timeout-minutes": int, "container": {"image": str, "options": str},
        "steps": [{"uses": str, "run": str}],
    }},
}
FORM = {
    "name": str, "description": str,
    "body": [{
        "type": str, "id": str, "validations": {"required": bool}, "attributes": {"label": str, "value": str, "render": str},
    }],
}
PIPELINE = {"test": {"image": str, "tags": [str], "timeout": str, "script": [str]}}


def read(path, schema):
    value = load(path.read_text(encoding="utf-8"))
    check(str(path), value, schema)
    if mistakes:
        sys.exit("\n".join(mistakes))
    return value


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    home = pathlib.Path(sys.argv[1])
    forms = sorted((home / ".github/ISSUE_TEMPLATE").iterdir())
    expect(forms, "there is no form for issues")
    for path in forms:
        questions = [part for part in read(path, FORM)["body"] if part["type"] != "markdown"]
        ids = [question["id"] for question in questions]
        expect(len(set(ids)) == len(ids), f"{path}: an ID occurs twice")
        expect(all(question["attributes"]["label"] for question in questions), f"{path}: a question without a label")
        # GitLab has no forms: its templates have the same questions.
        text = (home / ".gitlab/issue_templates" / path.with_suffix(".md").name).read_text(encoding="utf-8")
        expect(re.findall(r"^## (.*)$", text, re.MULTILINE) == [question["attributes"]["label"] for question in questions],
               f"{path}: GitLab's template has other questions")
        expect(any(question.get("validations") for question in questions), f"{path}: no question needs an answer")
    workflow = read(home / ".github/workflows/test.yml", WORKFLOW)["jobs"]["test"]
    pipeline = read(home / ".gitlab-ci.yml", PIPELINE)["test"]
    expect(workflow["container"]["image"] == pipeline["image"], "the forges test in different images")
    expect("--privileged" in workflow["container"]["options"], "test.yml: the tests need privileges")
    expect(all(("uses" in step) != ("run" in step) for step in workflow["steps"]), "test.yml: a step needs one of uses and run")
    commands = pipeline["script"] + [step["run"] for step in workflow["steps"] if "run" in step]
    own = [command.split()[0] for command in commands if not command.startswith("git ")]
    expect(own == ["ci/test"] * 2, f"the forges run {own}")
    for path in (home / ".github/SECURITY.md", home / own[0]):
        expect(path.is_file(), f"there is no {path}")


main()
if mistakes:
    sys.exit("\n".join(mistakes))
