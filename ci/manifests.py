#!/usr/bin/python3
"""Checks the manifests in deploy/: only fields that Kubernetes and kustomize have, of the right types, and what the pods
need to work on a node without a network. Prints each mistake.

usage: ci/manifests.py DIR VERSION      DIR: deploy, VERSION: that of the project, which is the tag of the image
"""
import copy
import json
import os
import pathlib
import sys

from strict import check, expect, load, mistakes

# The known fields. A list has one element, which describes all; text may be empty only where a field says so.
META = {"name": str, "namespace": str, "labels": dict}
CONTAINER = {
    "name": str, "image": str, "imagePullPolicy": str, "args": [str],
    "securityContext": {
        "runAsUser": int, "runAsGroup": int, "runAsNonRoot": bool, "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool, "capabilities": {"drop": [str], "add": [str]}, "seLinuxOptions": {"type": str},
    },
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"memory": str}},
    "env": [{"name": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}
POD = {
    "hostNetwork": bool, "priorityClassName": str, "tolerations": [{"operator": str}], "nodeSelector": dict,
    "automountServiceAccountToken": bool, "terminationGracePeriodSeconds": int,
    "securityContext": {"seccompProfile": {"type": str}},
    "initContainers": [CONTAINER], "containers": [CONTAINER],
    "volumes": [{"name": str, "hostPath": {"path": str, "type": str}, "configMap": {"name": str, "optional": bool}}],
}
KINDS = {
    ("v1", "Namespace"): {"metadata": META},
    ("v1", "ConfigMap"): {"metadata": META, "data": dict},
    ("apps/v1", "DaemonSet"): {
        "metadata": META,
        "spec": {
            "selector": {"matchLabels": dict},
            "updateStrategy": {"type": str, "rollingUpdate": {"maxUnavailable": str}},
            "template": {"metadata": {"labels": dict}, "spec": POD},
        },
    },
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): {
        "namespace": str, "resources": [str], "images": [{"name": str, "newName": str, "newTag": str}],
        "patches": [{"target": {"kind": str, "name": str}, "patch": str}],
    },
}


# The commands of cni0-install.
COMMANDS = ["install", "rollback", "network", "remove-network", "wait"]


def read(path):
    """Returns the only object of a file, without its kind."""
    value = load(path.read_text())
    kind = value.pop("apiVersion", None), value.pop("kind", None)
    if kind not in KINDS:
        sys.exit(f"{path}: unknown kind {kind}")
    check(str(path), value, KINDS[kind])
    return value


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    home, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    objects = {path.relative_to(home).as_posix(): read(path) for path in sorted(home.rglob("*.yaml"))}
    if mistakes:
        return
    for path in home.rglob("kustomization.yaml"):
        for resource in objects[path.relative_to(home).as_posix()]["resources"]:
            target = (path.parent / resource).resolve()
            expect(target.is_file() or (target / "kustomization.yaml").is_file(), f"{path}: there is no {resource}")
            # kustomize takes it for a cycle.
            expect(not path.resolve().is_relative_to(target), f"{path}: the resource {resource} contains this file")
    top = objects["install/kustomization.yaml"]
    expect(objects["install/namespace.yaml"]["metadata"]["name"] == top["namespace"], "the namespace is not that of the resources")
    expect(top["images"][0]["newTag"] == version, f"install/kustomization.yaml: the tag of the image is not {version}")
    for path in home.rglob("kustomization.yaml"):
        check_overlay(path.parent.name, render(objects, path.parent.relative_to(home)), top)


def render(objects, directory):
    """Returns the objects of a directory by kind and name, with its patches."""
    kustomization = objects[(directory / "kustomization.yaml").as_posix()]
    found = {}
    for resource in kustomization["resources"]:
        path = pathlib.PurePath(os.path.normpath(directory / resource))
        if path.suffix == ".yaml":
            value = copy.deepcopy(objects[path.as_posix()])
            kind = "DaemonSet" if "spec" in value else "ConfigMap" if "data" in value else "Namespace"
            found[kind, value["metadata"]["name"]] = value
        else:
            found |= render(objects, path)
    for patch in kustomization.get("patches", []):
        target = patch["target"]
        if (target["kind"], target["name"]) not in found:
            mistakes.append(f"{directory}: a patch changes {target}, which does not exist")
            continue
        for step in load(patch["patch"]):
            try:
                change(found[target["kind"], target["name"]], step)
            except (KeyError, IndexError, ValueError) as error:
                mistakes.append(f"{directory}: the step {step} of a patch fails: {error!r}")
    return found


def change(value, step):
    """Applies a step of a JSON patch (RFC 6902)."""
    def at(path):
        *parents, last = [part.replace("~1", "/") for part in path.split("/")[1:]]
        place = value
        for part in parents:
            place = place[int(part) if isinstance(place, list) else part]
        return place, int(last) if isinstance(place, list) else last
    place, last = at(step["path"])
    if step["op"] == "replace":
        place[last] # pylint: disable=pointless-statement
        place[last] = step["value"]
        return
    if step["op"] == "copy":
        source, name = at(step["from"])
        new = copy.deepcopy(source[name])
    elif step["op"] == "add":
        new = step["value"]
    else:
        raise ValueError("unknown operation")
    if isinstance(place, list):
        if last > len(place):
            raise IndexError(step["path"])
        place.insert(last, new)
    else:
        place[last] = new


def check_overlay(name, found, top):
    """Checks the objects of a directory as they are applied."""
    daemons = [value for (kind, _), value in found.items() if kind == "DaemonSet"]
    expect(len(daemons) == 1, f"{name}: {len(daemons)} DaemonSets")
    for (kind, of), value in found.items():
        version = "apps/v1" if kind == "DaemonSet" else "v1"
        check(f"{name}: {kind} {of}", value, KINDS[version, kind])
        namespace = value["metadata"].get("namespace", top["namespace"])
        expect(namespace == top["namespace"], f"{name}: {kind} {of} is in another namespace")
        for file, text in value.get("data", {}).items():
            try:
                json.loads(text.replace('"$RANGES"', '[]'))
            except ValueError as error:
                mistakes.append(f"{name}: {file} is not JSON: {error}")
    for daemon in daemons:
        template = daemon["spec"]["template"]
        expect(daemon["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(),
               f"{name}: the selector does not match the pods")
        pod = template["spec"]
        expect(pod["hostNetwork"], f"{name}: the pods need a network before there are plugins")
        expect(pod["tolerations"] == [{"operator": "Exists"}], f"{name}: a taint keeps pods away")
        volumes = {volume["name"] for volume in pod["volumes"]}
        maps = {volume["configMap"]["name"] for volume in pod["volumes"]
                if "configMap" in volume and not volume["configMap"].get("optional")}
        expect(maps <= {of for kind, of in found if kind == "ConfigMap"}, f"{name}: a ConfigMap is missing")
        names = [container["name"] for container in pod["initContainers"] + pod["containers"]]
        expect(len(set(names)) == len(names), f"{name}: two containers have the same name")
        for container in pod["initContainers"] + pod["containers"]:
            title, context = f"{name}: {container['name']}", container["securityContext"]
            expect(container["image"] == top["images"][0]["name"], f"{title}: install/kustomization.yaml does not name its image")
            expect({mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, f"{title}: a volume is missing")
            expect(context["capabilities"]["drop"] == ["ALL"] and not context["allowPrivilegeEscalation"]
                   and context["readOnlyRootFilesystem"], f"{title}: more privileges than necessary")
            expect(container["args"][0] in COMMANDS, f"{title}: cni0-install has no command {container['args'][0]}")


main()
if mistakes:
    sys.exit("\n".join(mistakes))
