"""A JupyterLab of its own for the browser tests: own folders, own port, a copy of the notebooks."""

import contextlib
import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from minipaged.cli import surroundings_of_lab
from minipaged.course.notebook_tools.notebook import Notebook, read_notebook, write_notebook

ROOT = Path(__file__).parents[2]
SETTINGS = {"notebook-extension/tracker": '{"windowingMode": "none"}'}  # every cell stays in the page
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextlib.contextmanager
def running_lab(folder: Path) -> Iterator[tuple[str, str]]:
    """Start JupyterLab on a copy of the notebooks; yields (its address, its token)."""
    root, home = folder / "course", folder / "home"
    root.mkdir()
    shutil.copytree(ROOT / "notebooks", root / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for path in (root / "notebooks").glob("*.ipynb"):
        write_notebook(path, without_outputs(read_notebook(path)))
    for name, text in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "MINIPAGED_HOME": "minipaged",
    }
    own = {"MINIPAGED_COURSE": str(ROOT), **{key: str(home / at) for key, at in places.items()}}
    environment = {**surroundings_of_lab(), **own}  # the settings are those of `minipaged lab`
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, log = secrets.token_hex(16), home / "lab.log"
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
        "--LabApp.expose_app_in_browser=True",  # the tests give its commands by name
        *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}"),
    ]
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        _wait_until_it_answers(f"http://127.0.0.1:{port}/api/status?token={token}", server, log)
        yield f"http://127.0.0.1:{port}", token
    finally:
        server.terminate()
        server.wait(20)


def without_outputs(notebook: Notebook) -> Notebook:
    """As if never run: what the page shows afterwards comes from this run."""
    fresh = {"execution_count": None, "outputs": []}
    cells = [cell | fresh if cell["cell_type"] == "code" else cell for cell in notebook["cells"]]
    metadata = {key: value for key, value in notebook["metadata"].items() if key != "widgets"}
    return {**notebook, "cells": cells, "metadata": metadata}


def wait_for_idle_kernel(address: str, token: str, name: str, seconds: float = 60) -> None:
    """Wait until the server says that this notebook's kernel has started and does nothing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{address}/api/sessions?token={token}", timeout=5) as answer:
            sessions = json.load(answer)
        states = [each["kernel"]["execution_state"] for each in sessions if each["path"].endswith(name)]
        if states == ["idle"]:
            return
        time.sleep(0.25)
    raise TimeoutError(f"the kernel of {name} did not become idle in {seconds:g} s")


def _wait_until_it_answers(address: str, server: subprocess.Popen, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(address, timeout=2).close()
            return
        except OSError:
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}") from None
            time.sleep(0.25)
