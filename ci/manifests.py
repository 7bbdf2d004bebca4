#!/usr/bin/python3
"""Checks the manifests in deploy/: only fields that Kubernetes and kustomize have, of the right types, and what the pods
need to work on a node without a network. Prints each mistake.

usage: ci/manifests.py DIR VERSION      DIR: deploy, VERSION: that of the project, which is the tag of the image
"""
import pathlib
import sys

from strict import check, expect, load, mistakes

# The known fields. A list has one element, which describes all; text may be empty only where a field says so.
META = {"name": str, "labels": dict}
CONTAINER = {
    "name": str, "image": str, "imagePullPolicy": str, "args": [str],
    "securityContext": {
        "runAsUser": int, "runAsGroup": int, "runAsNonRoot": bool, "allowPrivilegeEscalation": bool,
        "readOnlyRootFilesystem": bool, "capabilities": {"drop": [str], "add": [str]}, "seLinuxOptions": {"type": str},
    },
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"memory": str}},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
POD = {
    "hostNetwork": bool, "priorityClassName": str, "tolerations": [{"operator": str}], "nodeSelector": dict,
    "automountServiceAccountToken": bool, "terminationGracePeriodSeconds": int,
    "securityContext": {"seccompProfile": {"type": str}},
    "initContainers": [CONTAINER], "containers": [CONTAINER],
    "volumes": [{"name": str, "hostPath": {"path": str, "type": str}}],
}
KINDS = {
    ("v1", "Namespace"): {"metadata": META},
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
    top, daemon = objects["install/kustomization.yaml"], objects["install/daemonset.yaml"]
    expect(objects["install/namespace.yaml"]["metadata"]["name"] == top["namespace"], "the namespace is not that of the resources")
    expect(top["images"][0]["newTag"] == version, f"install/kustomization.yaml: the tag of the image is not {version}")
    template = daemon["spec"]["template"]
    expect(daemon["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(),
           "daemonset.yaml: the selector does not match the pods")
    pod = template["spec"]
    expect(pod["hostNetwork"], "daemonset.yaml: the pods need a network before there are plugins")
    expect(pod["tolerations"] == [{"operator": "Exists"}], "daemonset.yaml: a taint keeps pods away")
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["initContainers"] + pod["containers"]:
        name, context = container["name"], container["securityContext"]
        expect(container["image"] == top["images"][0]["name"], f"{name}: kustomization.yaml does not name its image")
        expect({mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, f"{name}: a volume is missing")
        expect(context["capabilities"]["drop"] == ["ALL"] and not context["allowPrivilegeEscalation"]
               and context["readOnlyRootFilesystem"], f"{name}: more privileges than necessary")
    patch = load(objects["uninstall/kustomization.yaml"]["patches"][0]["patch"])[0]
    expect(patch["path"] == "/spec/template/spec/initContainers/0/args" and pod["initContainers"][0]["args"] == ["install"],
           "uninstall/kustomization.yaml: the patch changes something else")
    target = objects["uninstall/kustomization.yaml"]["patches"][0]["target"]["name"]
    expect(target == daemon["metadata"]["name"], "uninstall/kustomization.yaml: the patch changes another object")


main()
if mistakes:
    sys.exit("\n".join(mistakes))
