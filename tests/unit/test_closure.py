"""A stage's digest changes with the code that shapes its result and with nothing else."""

from pathlib import Path

import pytest

from draftproof import closure


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "__init__.py": "",
        "shared.py": "X = 1\n",
        "one/__init__.py": "",
        "one/command.py": "from draftproof.shared import X\n\n\ndef run():\n    from draftproof.one import late\n    return late\n",
        "one/late.py": "Y = 2\n",
        "one/data.yaml": "a: 1\n",
        "two/__init__.py": "",
        "two/command.py": "from draftproof import shared\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(closure, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "one_changes", "two_changes"),
    [
        ("shared.py", "X = 2\n", True, True),
        ("shared.py", "# a comment\nX = 1\n", False, False),
        ("one/late.py", "Y = 3\n", True, False),
        ("one/data.yaml", "a: 2\n", True, False),
        ("two/command.py", "Z = 3\n", False, True),
    ],
)
def test_digest_follows_the_import_closure(
    package: Path, file: str, text: str, one_changes: bool, two_changes: bool
) -> None:
    before = [closure.code_digest(f"draftproof.{stage}.command") for stage in ("one", "two")]
    (package / file).write_text(text)
    after = [closure.code_digest(f"draftproof.{stage}.command") for stage in ("one", "two")]
    assert [a != b for a, b in zip(after, before, strict=True)] == [one_changes, two_changes]


@pytest.mark.usefixtures("package")
def test_an_entry_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="three"):
        closure.code_digest("draftproof.three")
