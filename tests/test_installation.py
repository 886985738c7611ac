"""One place of pins: pyproject.toml, constraints.txt, environment.yml and the Makefile tell the same story."""

import re
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from minipaged.course.doctor import pins
from tests.browser.jupyterlab import BROWSERS, chromium

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


def conda_python() -> str:
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"][0]


def conda_pip_section() -> list[str]:
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert conda_python() == "python=3.11"
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


BINDER = ROOT / ".binder"


def test_binder_installs_what_make_lab_does_at_the_pins() -> None:
    lines = (BINDER / "requirements.txt").read_text().splitlines()
    constraint, editable = (line.split(" ", 1) for line in lines if not line.startswith("#"))
    assert constraint[0] == "-c"
    assert (BINDER / constraint[1]).resolve() == ROOT / "constraints.txt"  # pip takes it from this file's folder
    assert editable == ["-e", ".[lab]"]  # and this one from the folder it runs in: the repository's root
    assert "lab" in PROJECT["optional-dependencies"]
    assert "lab: .venv/.installed-lab" in (ROOT / "Makefile").read_text()


def test_pip_accepts_binders_requirements(tmp_path: Path) -> None:
    """Nothing but the package itself is left to install in this environment; no index is asked."""
    shutil.copytree(BINDER, tmp_path / ".binder")
    for name in ("constraints.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "minipaged").mkdir()
    (tmp_path / "minipaged" / "__init__.py").touch()
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation"]
    command = [*pip, "-r", ".binder/requirements.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Would install minipaged-{PROJECT['version']}\n" in done.stdout


def test_binder_takes_a_python_that_the_package_runs_on_and_makes_its_kernel() -> None:
    """repo2docker reads one folder of settings only, and runs postBuild as a script."""
    assert not (ROOT / "binder").exists()
    assert (BINDER / "runtime.txt").read_text() == f"{conda_python().replace('=', '-')}\n"
    script = BINDER / "postBuild"
    assert script.stat().st_mode & stat.S_IXUSR
    first, *lines = script.read_text().splitlines()
    assert first == "#!/bin/bash"
    assert "set -e" in lines
    assert any(line.startswith("python -m ipykernel install --sys-prefix") for line in lines)


def test_the_page_on_hosted_notebooks_names_extras_that_there_are() -> None:
    page = (ROOT / "docs" / "hosted_notebooks.md").read_text()
    (extras,) = re.findall(r'%pip install -q -e "\.\[([\w,]+)\]"', page)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


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
    assert commands == ["bash .ci/install_chromium", "make test"]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "course.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert "bash .ci/run" in [step.get("run") for step in steps]


class Machine:
    """A machine for `.ci/install_chromium`: a PATH with some real tools, and with commands that are made up."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.called = folder / "bin", folder / "apt-get was called"
        self.bin.mkdir()
        for tool in ("bash", "sh", "timeout", "tail", "sleep"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.has("id", "echo 0")

    def has(self, command: str, *lines: str) -> None:
        path = self.bin / command
        path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
        path.chmod(0o755)

    def has_apt_get(self, *lines: str) -> None:
        self.has("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> "{self.called}"', *lines)

    def installs(self, limit: float = 30) -> str:
        """What the script prints; it must succeed."""
        command = [self.bin / "bash", ROOT / ".ci" / "install_chromium"]
        environment = {"PATH": str(self.bin), "CHROMIUM_LIMIT": str(limit)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def calls(self) -> list[str]:
        return self.called.read_text().splitlines() if self.called.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


UPDATE_AND_INSTALL = ["noninteractive -q update", "noninteractive -qy install chromium"]
SKIPPED = "Without Chromium, so the browser tests will be skipped: "


def test_ci_installs_chromium_as_root_and_says_nothing(machine: Machine) -> None:
    machine.has_apt_get("echo Reading package lists")
    assert machine.installs() == ""
    assert machine.calls() == UPDATE_AND_INSTALL


@pytest.mark.parametrize(
    ("fails", "calls"), [("update", UPDATE_AND_INSTALL[:1]), ("install", UPDATE_AND_INSTALL)], ids=str
)
def test_ci_tells_in_one_line_what_apt_answered(machine: Machine, fails: str, calls: list[str]) -> None:
    machine.has_apt_get("echo Hit:1", f'case "$*" in *{fails}*) echo "E: no such host" >&2; exit 100;; esac')
    assert machine.installs() == f"{SKIPPED}apt-get failed with status 100: E: no such host.\n"
    assert machine.calls() == calls


def test_ci_does_not_wait_for_an_apt_that_hangs(machine: Machine) -> None:
    machine.has_apt_get("sleep 50")
    assert machine.installs(limit=0.5) == f"{SKIPPED}apt-get did not end within 0.5 seconds.\n"


def test_ci_asks_apt_for_nothing_where_it_is_not_root(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has_apt_get()
    assert machine.installs() == f"{SKIPPED}not root, so it cannot be installed.\n"
    assert machine.calls() == []


def test_ci_goes_on_where_there_is_no_apt(machine: Machine) -> None:
    assert machine.installs() == f"{SKIPPED}there is no apt-get to install it.\n"


@pytest.mark.parametrize("name", BROWSERS)
def test_ci_leaves_a_browser_that_the_tests_find_as_it_is(
    machine: Machine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has(name)
    machine.has_apt_get()
    assert machine.installs() == ""
    assert machine.calls() == []
    monkeypatch.setenv("PATH", str(machine.bin))
    assert chromium() == str(machine.bin / name)
