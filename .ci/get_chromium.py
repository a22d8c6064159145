"""Fetch what the tests of the pages need, by npm and node: on an x86-64 Linux a headless Chromium.

It goes to the user's cache folder, once, and its path to stdout. It brings its own libraries and a
font. Beside it goes axe-core, which looks for what keeps people from using a page. Each package is
checked against the digest below before anything of it is run.

    HIERROUTER_CHROMIUM=$(python .ci/get_chromium.py) pytest tests/browser
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "@sparticuz/chromium"
VERSION = "153.0.0"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
AXE = "axe-core", "4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"
UNPACK = (
    "const [from, to] = process.argv.slice(1), fs = require('fs');"
    "fs.createReadStream(from).pipe(require('zlib').createBrotliDecompress())"
    ".pipe(fs.createWriteStream(to))"
)
LAUNCHER = """#!/bin/sh
here=$(dirname "$0")
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chromium" "$@"
"""
FONTS = """<?xml version="1.0"?>
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir prefix="relative">fonts</dir>
</fontconfig>
"""


def kept() -> Path:
    """Where the browser is, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hierrouter" / f"chromium-{VERSION}" / "headless"


def get() -> Path:
    """The browser; fetched if it is not there."""
    launcher = kept()
    if launcher.exists():
        return launcher
    launcher.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=launcher.parent.parent) as scratch:
        package = _fetched(Path(scratch), PACKAGE, VERSION, SHA256) / "bin"
        made = Path(scratch) / "made"
        made.mkdir()
        for name in ("chromium", "al2023.tar", "fonts.tar"):
            _unpacked(package / f"{name}.br", made / name)
        for name in ("al2023.tar", "fonts.tar"):  # lib/ and fonts/
            with tarfile.open(made / name) as archive:
                archive.extractall(made, filter="data")
            (made / name).unlink()
        (made / "fonts.conf").write_text(FONTS)
        (made / "headless").write_text(LAUNCHER)
        for name in ("chromium", "headless"):
            (made / name).chmod(0o755)
        made.rename(launcher.parent)
    return launcher


def get_axe() -> None:
    """axe-core; fetched if it is not there."""
    name, version, _ = AXE
    script = kept().parent.parent / f"{name}-{version}" / "axe.min.js"
    if not script.exists():
        with tempfile.TemporaryDirectory(dir=script.parent.parent) as scratch:
            _fetched(Path(scratch), *AXE).rename(script.parent)


def _fetched(scratch: Path, name: str, version: str, digest: str) -> Path:
    """The package's folder; npm is asked for this very version."""
    command = ["npm", "pack", "--silent", "--pack-destination", scratch, f"{name}@{version}"]
    subprocess.run(command, check=True, cwd=scratch, stdout=subprocess.DEVNULL)
    [archive] = scratch.glob("*.tgz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"not the package that was looked at: {archive.name}: sha256 {found}")
    with tarfile.open(archive) as package:
        package.extractall(scratch, filter="data")
    return scratch / "package"


def _unpacked(source: Path, target: Path) -> None:
    subprocess.run(["node", "-e", UNPACK, source, target], check=True)


if __name__ == "__main__":
    sys.stdout.write(f"{get()}\n")
    get_axe()
