#!/usr/bin/env python3
"""Writes a container image for several architectures as an archive of an OCI image layout, without a registry and without
a container engine. The same input gives the same bytes.

usage: ci/image.py OUTPUT ARCH=DIR...

  OUTPUT    the archive, for "podman load", "skopeo copy oci-archive:OUTPUT ..." and "ctr images import"
  ARCH=DIR  the programs of "ci/build --tool" for an architecture: amd64, arm64, arm or riscv64

Environment: SOURCE_DATE_EPOCH, VERSION, REVISION and LICENCE, the time, version, commit and licence of the image.

The image has one layer: the directory /cni0 with all files of DIR. The entry point is cni0-install, which copies the others to the
node. It runs as root: it writes to a directory of the node that belongs to root.
"""
import datetime
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
VERSION = os.environ["VERSION"]
CREATED = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
NAME = f"localhost/cni0:{VERSION}"
LABELS = {
    "org.opencontainers.image.created": CREATED,
    "org.opencontainers.image.description": "Installs the CNI plugins of cni0 on a node",
    "org.opencontainers.image.licenses": os.environ["LICENCE"],
    "org.opencontainers.image.revision": os.environ["REVISION"],
    "org.opencontainers.image.title": "cni0",
    "org.opencontainers.image.version": VERSION,
}
VARIANTS = {"arm": "v7"}
OCI = "application/vnd.oci.image"


def entry(name, mode=0o644, **fields):
    """Returns the head of an entry of a tar archive, without anything of this machine."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, EPOCH
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def add_file(archive, name, content, mode=0o644):
    archive.addfile(entry(name, mode, size=len(content)), io.BytesIO(content))


def layer(directory):
    """Returns the tar archive of the only layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(entry("cni0", 0o755, type=tarfile.DIRTYPE))
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                add_file(archive, f"cni0/{name}", file.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
    return out.getvalue()


class Layout:
    """The files of an image layout, by name."""

    def __init__(self):
        self.files = {"oci-layout": encode({"imageLayoutVersion": "1.0.0"})}

    def add(self, kind, content):
        """Adds a blob. Returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    def add_image(self, arch, directory):
        """Adds the image of one architecture. Returns its descriptor in an index."""
        plain = layer(directory)
        # Not Python's zlib, whose output depends on its version.
        packed = subprocess.run(["gzip", "-9n"], input=plain, stdout=subprocess.PIPE, check=True).stdout
        platform = {"architecture": arch, "os": "linux"}
        if arch in VARIANTS:
            platform["variant"] = VARIANTS[arch]
        config = {
            "created": CREATED,
            **platform,
            "config": {
                "User": "0:0", "Entrypoint": ["/cni0/cni0-install"], "Cmd": ["install"], "WorkingDir": "/", "Labels": LABELS,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
            "history": [{"created": CREATED, "created_by": "ci/image.py"}],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": self.add("config.v1+json", encode(config)),
            "layers": [self.add("layer.v1.tar+gzip", packed)],
            "annotations": LABELS,
        }
        return {**self.add("manifest.v1+json", encode(manifest)), "platform": platform}

    def write(self, path):
        with tarfile.open(path, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name in ("blobs", "blobs/sha256"):
                archive.addfile(entry(name, 0o755, type=tarfile.DIRTYPE))
            for name in sorted(self.files):
                add_file(archive, name, self.files[name])


def encode(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def main():
    if len(sys.argv) < 3 or not all("=" in argument for argument in sys.argv[2:]):
        sys.exit(__doc__.strip())
    layout = Layout()
    images = [layout.add_image(*argument.split("=", 1)) for argument in sys.argv[2:]]
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": images, "annotations": LABELS}
    # podman and skopeo read the first name, containerd the second.
    names = {"org.opencontainers.image.ref.name": NAME, "io.containerd.image.name": NAME}
    top = {**layout.add("index.v1+json", encode(index)), "annotations": names}
    layout.files["index.json"] = encode({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [top]})
    layout.write(sys.argv[1])


main()
