#!/usr/bin/env python3
"""Writes a package for Alpine Linux (version 2 of the format) from a tree of files. The same input gives the same bytes. The
package has no signature: install it with "apk add --allow-untrusted FILE".

usage: ci/apk.py OUTPUT ROOT KEY=VALUE...      the fields of .PKGINFO; size, builddate and datahash are added

A package is two compressed tar archives, one after the other: the description without the blocks that end an archive, then
the files, each with its SHA-1 in an extended header. Environment: SOURCE_DATE_EPOCH.
"""
import hashlib
import io
import os
import subprocess
import sys
import tarfile

EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])


def entry(name, kind, mode, content=b"", link=""):
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, EPOCH, len(content), link
    info.uname = info.gname = "root"
    return info


def files(root):
    """Returns the archive of the files, and the number of their bytes."""
    out, size = io.BytesIO(), 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, dirs, names in os.walk(root):
            dirs.sort()
            if path != root:
                archive.addfile(entry(os.path.relpath(path, root), tarfile.DIRTYPE, 0o755))
            for name in sorted(names):
                source = os.path.join(path, name)
                place = os.path.relpath(source, root)
                if os.path.islink(source):
                    target = os.readlink(source)
                    info, content = entry(place, tarfile.SYMTYPE, 0o777, link=target), target.encode()
                    archive.addfile(checksummed(info, content))
                    continue
                with open(source, "rb") as file:
                    content = file.read()
                info = entry(place, tarfile.REGTYPE, 0o755 if os.access(source, os.X_OK) else 0o644, content)
                archive.addfile(checksummed(info, content), io.BytesIO(content))
                size += len(content)
    return out.getvalue(), size


def checksummed(info, content):
    info.pax_headers = {"APK-TOOLS.checksum.SHA1": hashlib.sha1(content).hexdigest()}
    return info


def compress(content):
    """Not with Python's zlib, whose output depends on its version."""
    return subprocess.run(["gzip", "-9n"], input=content, stdout=subprocess.PIPE, check=True).stdout


def main():
    if len(sys.argv) < 4 or not all("=" in field for field in sys.argv[3:]):
        sys.exit(__doc__.strip())
    archive, size = files(sys.argv[2])
    data = compress(archive)
    fields = [*sys.argv[3:], f"builddate={EPOCH}", f"size={size}", f"datahash={hashlib.sha256(data).hexdigest()}"]
    info = "".join(field.replace("=", " = ", 1) + "\n" for field in fields).encode()
    control = io.BytesIO()
    with tarfile.open(fileobj=control, mode="w", format=tarfile.USTAR_FORMAT) as description:
        description.addfile(entry(".PKGINFO", tarfile.REGTYPE, 0o644, info), io.BytesIO(info))
        end = description.offset # before the blocks that end the archive
    with open(sys.argv[1], "wb") as file:
        file.write(compress(control.getvalue()[:end]) + data)


main()
