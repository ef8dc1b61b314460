"""What is released: the sdist is complete, and the wheel works in an environment that has nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import caslock

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("build")]

ROOT = Path(__file__).parents[2]

NEEDED = ("tenacity", "click", "platformdirs")
"""What the wheel and its command need; they are copied, so that the test needs no network."""

PROGRAM = """
import caslock

with caslock.connect("sqlite:///locks.db") as store, caslock.Lock(store, "room:42", timeout=0) as hold:
    print(caslock.__version__, hold.fence > 0, caslock.__file__)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from it; give the folder."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Give the only wheel."""
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a new environment; give the folder of its commands."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    python = next(iter(commands(folder).glob("python*")))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    (packages,) = [*folder.glob("lib/python*/site-packages"), *folder.glob("Lib/site-packages")]
    for name in NEEDED:
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    run(*pip, "install", "--quiet", "--no-index", f"{wheel}[cli]", "--no-deps", cwd=folder)
    return commands(folder)


def commands(folder: Path) -> Path:
    return folder / ("Scripts" if sys.platform == "win32" else "bin")


def run(*command: str, cwd: Path) -> str:
    """Run a command in an environment without our own settings; give its output."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("CASLOCK_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources(*patterns: str) -> Iterator[str]:
    for pattern in patterns:
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / "caslock").rglob(pattern))


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Its modules, its scripts and the mark that it has types; no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(sources("*.py", "*.lua", "py.typed"))
    assert "caslock/py.typed" in names
    assert "caslock/stores/redis/put.lua" in names


def test_the_sdist_has_all_that_is_needed_to_test_it(built: Path) -> None:
    """The package, its tests and its pages; no cache, and no environment."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert set(sources("*.py", "*.lua", "py.typed")) <= names
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "Makefile"} <= names
    assert {"docs/index.md", "tests/conftest.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


def test_the_wheel_works_in_a_new_environment(fresh: Path, tmp_path: Path) -> None:
    """It takes a lock, and its command says its version and runs another under a lock."""
    (tmp_path / "program.py").write_text(PROGRAM)
    python = str(next(iter(fresh.glob("python*"))))
    version, fence, file = run(python, "program.py", cwd=tmp_path).split(maxsplit=2)
    assert (version, fence) == (caslock.__version__, "True")
    assert Path(file).is_relative_to(fresh.parent)
    assert version == importlib.metadata.version("caslock")
    caslock_command = str(fresh / "caslock")
    assert run(caslock_command, "--version", cwd=tmp_path) == f"caslock {version}\n"
    ran = run(
        caslock_command, "run", "job", "--store", "sqlite:///locks.db", "--", python, "-c", "print(6 * 7)", cwd=tmp_path
    )
    assert ran == "42\n"


def test_ci_pins_each_package_that_the_tests_need() -> None:
    """`make pins` was run after the last change of pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = [Requirement(line) for line in (ROOT / ".ci" / "pins.txt").read_text().splitlines()]
    needed = [Requirement(each) for name in extras if name != "bench" for each in extras[name]]
    unmet = [need for need in needed if need.name != "caslock" and not any(_meets(pin, need) for pin in pinned)]
    assert not unmet, f"not in .ci/pins.txt; run `make pins`: {unmet}"


def _meets(pin: Requirement, need: Requirement) -> bool:
    (version,) = pin.specifier
    return canonicalize_name(pin.name) == canonicalize_name(need.name) and need.specifier.contains(version.version)
