"""Whose code raised? Tells the learner's stack frames from those of Python, its packages and minipaged."""

import linecache
import sysconfig
from pathlib import Path
from types import CodeType, TracebackType

_OURS = str(Path(__file__).resolve().parents[1])
_PYTHONS = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_learners(code: CodeType) -> bool:
    """True for code typed in a notebook cell or kept in the learner's own file."""
    return is_learners_file(code.co_filename)


def is_learners_file(filename: str) -> bool:
    return not filename.startswith((_OURS, *_PYTHONS, "<frozen", "<string>"))


def last_learner_frame(trace: TracebackType | None) -> TracebackType | None:
    """The innermost frame of a traceback that is the learner's own code, or None."""
    found = None
    while trace is not None:
        if is_learners(trace.tb_frame.f_code):
            found = trace
        trace = trace.tb_next
    return found


def innermost(trace: TracebackType) -> TracebackType:
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def is_stub_line(trace: TracebackType) -> bool:
    """True for a `raise` in the learner's code: a stub's NotImplementedError, not one out of a library in C."""
    code = trace.tb_frame.f_code
    source = linecache.getline(code.co_filename, trace.tb_lineno).strip()
    return is_learners(code) and (not source or source.startswith("raise"))


def describe_line(trace: TracebackType) -> str:
    """"line 3 of your cell: return n // b"."""
    filename = trace.tb_frame.f_code.co_filename
    source = linecache.getline(filename, trace.tb_lineno).strip()
    file = Path(filename)
    place = file.name if file.suffix == ".py" and "ipykernel" not in filename else "your cell"
    return f"line {trace.tb_lineno} of {place}" + (f":  {source}" if source else "")
