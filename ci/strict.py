"""Reads YAML strictly, and compares values with a description of their fields. Used by manifests.py and forges.py.

A description is a type, a list with the description of each element, or an object with those of the known fields.
"""
import yaml # of the distribution: package python3-yaml

mistakes = []


class Strict(yaml.SafeLoader):
    """Refuses a key that occurs twice, which YAML forbids and PyYAML ignores."""


def mapping(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} occurs twice", node.start_mark)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)


def load(text):
    return yaml.load(text, Strict)


def check(place, value, schema):
    """Compares a value with its description."""
    if isinstance(schema, type):
        if type(value) is not schema or value in ("", {}):
            mistakes.append(f"{place}: {value!r} is not a {schema.__name__}, or is empty")
        elif schema is dict and not all(isinstance(text, str) for pair in value.items() for text in pair):
            mistakes.append(f"{place}: labels are texts, not {value!r}")
    elif isinstance(schema, list):
        if not isinstance(value, list) or not value:
            mistakes.append(f"{place}: {value!r} is not a list, or is empty")
            return
        for n, element in enumerate(value):
            check(f"{place}[{n}]", element, schema[0])
    elif not isinstance(value, dict):
        mistakes.append(f"{place}: {value!r} is not an object")
    else:
        for key in value:
            if key in schema:
                check(f"{place}.{key}", value[key], schema[key])
            else:
                mistakes.append(f"{place}: unknown field {key!r}")


def expect(condition, what):
    if not condition:
        mistakes.append(what)
