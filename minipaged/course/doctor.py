"""`minipaged doctor`: is this machine set up? Each problem comes with its cure; what is optional is only told."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import minipaged
from minipaged.course import progress
from minipaged.course.errors import CourseError
from minipaged.course.paths import course_root
from minipaged.course.words import counted

OK, NOTE, PROBLEM = "ok", "note", "PROBLEM"
NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "tqdm")
LESSONS = ("jupyterlab", "ipykernel", "ipywidgets", "matplotlib", "nbval", "pytest")
MIN_FREE = 1 << 30
PORTS = {8888: "JupyterLab", 8000: "minipaged serve"}
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """One line of the report. `cure` says what to do about a note or a problem."""

    status: str
    what: str
    cure: str = ""


def examine() -> list[Finding]:
    """Everything the doctor looks at, in order."""
    looks = (_python, _packages, _torch, _triton, _gpu, _kernel, _course, _folders, _ports)
    return [finding for look in looks for finding in look()]


def report(findings: list[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<8} {finding.what}")
        lines += [f"{'':<8} cure: {finding.cure}"] if finding.cure else []
    problems = sum(finding.status == PROBLEM for finding in findings)
    lines += ["", f"{counted(problems, 'problem')}." if problems else "Everything that the course needs is here."]
    return "\n".join(lines).strip()


def summary() -> str:
    """The problems only, or one sentence when there are none: the same text on every machine that is set up."""
    return report([finding for finding in examine() if finding.status == PROBLEM])


def pins(constraints: Path) -> dict[str, str]:
    """{package: version} of a constraints file, names in lower case with dashes."""
    return {_normal(name): version for name, version in _PIN.findall(constraints.read_text(encoding="utf-8"))}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _python() -> Iterator[Finding]:
    version, inside = platform.python_version(), f"{sys.prefix}"
    if (3, 11) <= sys.version_info[:2] <= (3, 13):
        yield Finding(OK, f"Python {version} in {inside}")
    else:
        cure = "install Python 3.11, 3.12 or 3.13, delete .venv, then: make install PYTHON=python3.11"
        yield Finding(PROBLEM, f"Python {version}; the course needs 3.11 to 3.13", cure)


def _packages() -> Iterator[Finding]:
    try:
        pinned = pins(course_root() / "constraints.txt")
    except (CourseError, FileNotFoundError):
        pinned = {}
    installed = {_normal(dist.name): dist.version for dist in importlib.metadata.distributions() if dist.name}
    for group, names, cure in (("package", NEEDED, "make install"), ("lesson", LESSONS, "make lab")):
        missing = [name for name in names if name not in installed]
        if missing:
            yield Finding(PROBLEM, f"{group} packages are missing: {', '.join(missing)}", cure)
        else:
            yield Finding(OK, f"{group} packages are installed: {', '.join(names)}")
    other = [
        f"{name} {installed[name]} (pinned {version})"
        for name, version in pinned.items()
        if name in installed and installed[name].split("+")[0] != version
    ]
    if other:
        cure = "pip install -c constraints.txt -e '.[lab]' (lessons were tested with the pinned versions)"
        yield Finding(NOTE, f"other versions than the pinned ones: {', '.join(other)}", cure)


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    try:
        torch = importlib.import_module("torch")
        yield Finding(OK, f"torch {torch.__version__} can be imported, {counted(torch.get_num_threads(), 'thread')}")
    except Exception as error:
        cure = "reinstall it: pip install --force-reinstall -c constraints.txt torch"
        yield Finding(PROBLEM, f"torch is installed but cannot be imported: {error}", cure)


def _triton() -> Iterator[Finding]:
    if importlib.util.find_spec("triton") is None:
        cure = "only Month 6 needs it, and it has Linux wheels only: use WSL, a devcontainer or a hosted notebook there"
        yield Finding(NOTE, "triton is not installed", cure)
    else:
        interpreter = os.environ.get("TRITON_INTERPRET") == "1"
        how = "kernels run in its CPU interpreter" if interpreter else "kernels are compiled for the GPU"
        yield Finding(OK, f"triton {importlib.metadata.version('triton')}: {how}")


def _gpu() -> Iterator[Finding]:
    if minipaged.gpu_present():
        yield Finding(OK, "a GPU is present")
    else:
        yield Finding(NOTE, "no GPU: the course needs none")


def _kernel() -> Iterator[Finding]:
    """Jupyter must start this Python, not another one that registered a kernel of the same name."""
    if importlib.util.find_spec("jupyter_client") is None:
        return
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding(PROBLEM, "Jupyter finds no kernel `python3`", "python -m ipykernel install --sys-prefix")
        return
    found = shutil.which(command) or command
    if Path(found).resolve() == Path(sys.executable).resolve() and Path(found).parent == Path(sys.executable).parent:
        yield Finding(OK, "the notebook kernel `python3` is this Python")
    elif not os.path.isabs(command):
        yield Finding(OK, f"the notebook kernel `python3` starts {command!r} of the environment JupyterLab runs in")
    else:
        cure = "python -m ipykernel install --sys-prefix, or remove the other kernel: jupyter kernelspec list"
        yield Finding(PROBLEM, f"the notebook kernel `python3` is another Python: {command}", cure)


def _course() -> Iterator[Finding]:
    try:
        root = course_root()
    except CourseError as error:
        yield Finding(PROBLEM, str(error), "git clone the course and start inside it")
        return
    lessons = len(list((root / "notebooks").glob("month_*.ipynb")))
    yield Finding(OK, f"the course's notebooks are in {root} ({counted(lessons, 'lesson')})")
    tiny = Path(minipaged.__file__).parent / "model" / "tiny"
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (tiny / name).is_file()]
    if missing:
        cure = "git checkout minipaged/model/tiny, or train it again: python -m minipaged.model.train_tiny"
        yield Finding(PROBLEM, f"the bundled model `tiny` lacks {', '.join(missing)}", cure)
    else:
        yield Finding(OK, "the bundled model `tiny` is there")


def _folders() -> Iterator[Finding]:
    home = progress.home()
    nearest = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    if _can_write(nearest):
        yield Finding(OK, f"your progress is kept in {home}")
    else:
        yield Finding(PROBLEM, f"{home} cannot be written", "set MINIPAGED_HOME to a folder that you can write")
    free = shutil.disk_usage(nearest).free
    status, cure = (OK, "") if free >= MIN_FREE else (NOTE, "make some room: notebooks and caches need about 1 GiB")
    yield Finding(status, f"{free / (1 << 30):.1f} GiB free on that disk", cure)


def _can_write(folder: Path) -> bool:
    """Tried, not asked: root may write everywhere, but not into a file or a read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _ports() -> Iterator[Finding]:
    for port, user in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                yield Finding(OK, f"port {port} is free for {user}")
            except OSError:
                yield Finding(NOTE, f"port {port} is in use; {user} can take another one", "add --port NUMBER")


def main(argv: list[str]) -> int:
    """`minipaged doctor`; exits 1 when something the course needs is missing."""
    if argv:
        print(f"minipaged doctor takes no arguments, got {' '.join(argv)}", file=sys.stderr)
        return 2
    findings = examine()
    print(report(findings))
    return int(any(finding.status == PROBLEM for finding in findings))
