"""Compile somebody's own kernel for a GPU: one typed in a notebook, in a process where kernels are interpreted.

    report = inspect_own(my_kernel, {"out_ptr": "*fp32", "n": "i32"}, {"BLOCK": 128}, target="sm90")

Triton decides once a process whether it interprets or compiles, so the compiling is done in another process. The
kernel's source goes there as a file, together with the helpers and constants of the notebook that it refers to.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType

from minipaged.attention import inspect as inspect_module
from minipaged.attention.inspect import TARGETS, Report

# Run as a file and not as a module of the package: so it need not wait for torch to be imported.
_RUN_FILE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


class DoesNotCompile(Exception):
    """The compiler refuses the kernel; the message is the compiler's."""


def inspect_own(
    kernel, signature: dict[str, str], constants: dict[str, int | float | bool], target: str = "sm90",
    text: str = "", timeout: float = 120,
) -> Report:  # fmt: skip
    """Compile ``kernel`` (a ``triton.jit`` function) for ``target``.

    Args:
        signature: the type of each argument that is no constant: "*fp32" (a pointer), "i32", "fp32", …
        constants: the value of each ``tl.constexpr`` argument.
        text: also return the assembly of this kind in ``Report.text``.

    Raises ValueError for an unknown target or an argument that is described nowhere, DoesNotCompile with the
    compiler's message.
    """
    if target not in TARGETS:
        raise ValueError(f"target {target!r} is unknown: choose from {', '.join(TARGETS)}")
    left_out = [name for name in kernel.arg_names if name not in signature and name not in constants]
    if left_out:
        raise ValueError(f"argument {left_out[0]!r} has no type: put it into signature, or its value into constants")
    types = {name: "constexpr" if name in constants else signature[name] for name in kernel.arg_names}
    with tempfile.TemporaryDirectory(prefix="minipaged-kernel-") as folder:
        file = Path(folder) / "own.py"
        file.write_text(kernel_source(kernel), encoding="utf-8")
        name = function_of(kernel).__name__
        request = {"file": str(file), "name": name, "signature": types, "constants": constants, "target": target}
        done = subprocess.run(
            [sys.executable, "-c", _RUN_FILE, inspect_module.__file__, "--file"],
            input=json.dumps({**request, "text": text}), capture_output=True, text=True, timeout=timeout,
            env={**os.environ, "TRITON_INTERPRET": "0"},
        )  # fmt: skip
    if done.returncode:
        raise DoesNotCompile(_last_words(done.stderr))
    report = json.loads(done.stdout.splitlines()[-1])
    return Report(**{**report, "loads": {int(bits): n for bits, n in report["loads"].items()}})


def function_of(kernel) -> FunctionType:
    """The Python function inside a ``triton.jit`` function, interpreted or not."""
    return getattr(kernel, "fn", kernel)


def kernel_source(kernel) -> str:
    """The text of a module with this kernel and all that it refers to: helper kernels, constants, imports."""
    parts: dict[str, str] = {"triton": "import triton", "tl": "import triton.language as tl"}
    _collect(function_of(kernel), parts)
    return "\n\n".join(parts.values()) + "\n"


def _collect(function: FunctionType, parts: dict[str, str]) -> None:
    """Put the definition of all names of ``function`` before its own into ``parts``."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    parts.setdefault(function.__name__, "")  # a kernel may call itself by mistake: no endless collecting
    for name in sorted(set(function.__code__.co_names) & set(function.__globals__)):
        if name not in parts:
            _define(name, function.__globals__[name], parts)
    del parts[function.__name__]
    parts[function.__name__] = "\n".join(["@triton.jit", *lines[start:]])


def _define(name: str, value: object, parts: dict[str, str]) -> None:
    inner = function_of(value)
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif inner is not value and isinstance(inner, FunctionType):
        _collect(inner, parts)
        if inner.__name__ != name:
            parts[name] = f"{name} = {inner.__name__}"
    elif type(value).__name__ == "constexpr":
        parts[name] = f"{name} = tl.constexpr({value.value!r})"
    elif isinstance(value, bool | int | float | str | tuple | None):
        parts[name] = f"{name} = {value!r}".replace("= inf", '= float("inf")').replace("= -inf", '= -float("inf")')
    elif getattr(value, "__module__", "").startswith("triton"):
        parts[name] = f"from {value.__module__} import {value.__name__} as {name}"


def _last_words(stderr: str) -> str:
    """The end of a traceback: the line of the kernel, and the compiler's reason."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    at = max((i for i, line in enumerate(lines) if "CompilationError" in line), default=len(lines) - 1)
    return "\n".join(lines[at:])[-1500:]
