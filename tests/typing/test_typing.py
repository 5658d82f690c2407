"""mypy and basedpyright find what public_api.py says of the types, and no mistake but those of wrong.py and typos.py."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECKED = [HERE / name for name in ("public_api.py", "usage.py", "wrong.py", "typos.py")]
COMMANDS = {
    "mypy": ["--strict", *map(str, [*CHECKED, *sorted(ROOT.glob("examples/*.py"))])],
    "basedpyright": ["--project", str(HERE), "--pythonpath", sys.executable],
}


def mistakes() -> set[tuple[str, int]]:
    """The lines that are meant to be wrong."""
    return {
        (path.name, number)
        for path in CHECKED
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if line.endswith(("# mistake", "# wrong"))
    }


@pytest.mark.timeout(300)  # mypy without a cache reads everything
@pytest.mark.parametrize("checker", COMMANDS)
def test_types_of_the_public_api_and_the_examples(checker: str) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    command = [sys.executable, "-m", checker, *COMMANDS[checker]]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = {(Path(name).name, int(line)) for name, line in re.findall(r"(\S+\.py):(\d+)\S* (?:- )?error:", ended.stdout)}
    wanted = mistakes()
    assert {name for name, _ in wanted} == {"wrong.py", "typos.py"}
    assert found == wanted, ended.stdout
