"""An engine or a manager in a process of its own, in whatever interpreter it is installed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any


class PeerProcess:
    """Runs a script that first prints {"name": …} and then answers each line on its input with one line of JSON.

    Raises OSError when the interpreter cannot be started, RuntimeError with the script's last words when it stops.
    """

    def __init__(self, python: str, script: Path, *arguments: str) -> None:
        self._notes = tempfile.TemporaryFile("w+")  # noqa: SIM115 - stderr; no pipe, for nobody would empty it
        try:
            self._process = subprocess.Popen(
                [python, str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._notes,
                text=True,
            )
        except OSError:
            self._notes.close()
            raise
        self.name = script.stem
        try:
            self.name = str(self._answer()["name"])
        except BaseException:
            self.close()
            raise

    def ask(self, line: str) -> dict[str, Any]:
        """Send one line and wait for the answer."""
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already: _answer tells why
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        # A peer may print notes of its own first; an answer is a line that begins an object.
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._notes.seek(0)
        last = [line.strip() for line in self._notes.read().splitlines() if line.strip()][-3:]
        raise RuntimeError(f"{self.name} stopped: {' | '.join(last) or 'without a word'}")

    def close(self) -> None:
        """End the process, kindly first."""
        with contextlib.suppress(BrokenPipeError):  # what was still to be sent, nobody reads any more
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._notes.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
