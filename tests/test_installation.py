"""One place of pins: pyproject.toml, constraints.txt, environment.yml and the Makefile tell the same story."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml

from minipaged.course.doctor import pins

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = pins(ROOT / "constraints.txt")
FIRST_SIX = ["torch", "triton", "numpy", "matplotlib", "jupyterlab", "ipywidgets"]


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def direct() -> set[str]:
    """Every package that pyproject.toml names."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return {name_of(requirement) for requirements in lists for requirement in requirements} - {"minipaged"}


def conda_pip_section() -> list[str]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert dependencies[0] == "python=3.11"
    assert dependencies[1] == "pip"
    return dependencies[2]["pip"]


def test_every_direct_dependency_is_pinned_exactly() -> None:
    assert direct() - PINS.keys() == set()
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.]+", line)] == []
    names = [name_of(line) for line in lines]
    assert sorted(set(names)) == sorted(names), "a package is pinned twice"


def test_what_direct_dependencies_bring_along_is_pinned_too() -> None:
    """So that an install next year is the one of today. Only what is installed here can be looked at."""
    from packaging.requirements import Requirement

    unpinned, todo, seen = set(), sorted(direct()), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in PINS and not name.startswith(("nvidia", "cuda")):
            unpinned.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(Requirement, requirements):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(name_of(requirement.name))
    assert unpinned == set()


def test_the_pins_are_what_is_installed_here() -> None:
    installed = {name_of(dist.name): dist.version.split("+")[0] for dist in metadata.distributions() if dist.name}
    other = {name: installed[name] for name in PINS if name in installed and installed[name] != PINS[name]}
    assert other == {}


def test_the_conda_environment_has_the_same_pins() -> None:
    section = conda_pip_section()
    packages = [line for line in section if "==" in line]
    assert [name_of(line) for line in packages[:6]] == FIRST_SIX
    assert {name_of(line): line.split(";")[0].split("==")[1].strip() for line in packages} == {
        name: PINS[name] for name in direct()
    }
    assert section[len(packages) :] == ["--constraint constraints.txt", "--editable ."]


def test_the_conda_environments_pip_section_installs(tmp_path: Path) -> None:
    """pip finds nothing left to do in this environment, without asking any index."""
    (tmp_path / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    section = [line for line in conda_pip_section() if not line.startswith("--editable")]
    (tmp_path / "requirements.txt").write_text("\n".join(section) + "\n")
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "-r", "requirements.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Would install" not in done.stdout


def test_the_makefile_uses_the_constraints_and_every_target_is_told() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "-c constraints.txt" in makefile
    targets = re.findall(r"^(\w+):", makefile, re.MULTILINE)
    assert targets == ["install", "lab", "test", "grade", "notebooks", "bench", "docs", "lint"]
    readme = (ROOT / "README.md").read_text()
    assert [target for target in targets if f"make {target}" not in readme] == []


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make test"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "course.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert "bash .ci/run" in [step.get("run") for step in steps]
