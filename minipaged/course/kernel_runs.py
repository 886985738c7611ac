"""How Month 6's checks run a learner's kernel: between fences, under the referee, and with its findings made a card.

Every tensor lies alone, with poison far to both sides, so that a step too far falls on neither another tensor nor luck.
The referee does not carry out what would reach outside. All of it runs in Triton's interpreter, on small inputs.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from minipaged.attention.judge import fenced
from minipaged.attention.own_kernel import function_of
from minipaged.attention.referee import Finding, Referee, RefereeReport
from minipaged.course.expect import AnswerRaised, Expect
from minipaged.course.frames import is_learners_file

LIMIT = 45.0  # seconds for one check, in a process of its own
TOLERANCE = 1e-5

RULES = {
    "outside": "A kernel touches its own tensors only: no address outside of them.",
    "unwritten": "A kernel reads only what somebody has written.",
    "twice": "Each element of the result is written once.",
    "input": "A kernel stores into its results only: what it reads belongs to others.",
}
HINTS = {
    "outside": "Mask the load and the store: lanes without an element of their own must not touch memory.",
    "unwritten": "Which lanes stand for a token that is there? Mask all others out of the load.",
    "twice": "Two programs work on the same elements: where does tl.program_id come in?",
    "input": "This store changes an input. Which pointer is the result's?",
}


def unwritten(*shape: int) -> Tensor:
    """A fenced float32 result, NaN where the kernel writes nothing."""
    return fenced(torch.full(shape, float("nan")))


def launch(
    expect: Expect,
    kernel,
    grid: tuple[int, ...],
    arguments: Mapping[str, object],
    *,
    case: str,
    hints: Mapping[str, str],
    written: Mapping[str, Tensor | bool],
    results: Sequence[str] = (),
) -> RefereeReport:
    """Run ``kernel[grid](*arguments)`` under the referee; a finding ends the check.

    Args:
        arguments: name → value, in the order of the signature; the names are shown in findings.
        hints: what to think about, by "rule kind", "rule tensor" or "rule": "outside store", "unwritten v_cache", …
        written: which elements of a tensor hold something at the start; all of it where the name is not given.
        results: into which tensors the kernel may store; if none is named, into those of which nothing is written.
    """
    _expect_kernel(expect, kernel, arguments)
    return watch(
        expect, lambda: kernel[grid](*arguments.values()), arguments,
        case=case, hints=hints, written=written, results=results,
    )  # fmt: skip


def watch(
    expect: Expect,
    work: Callable[[], object],
    tensors: Mapping[str, object],
    *,
    case: str,
    hints: Mapping[str, str],
    written: Mapping[str, Tensor | bool] | None = None,
    results: Sequence[str] = (),
) -> RefereeReport:
    """Do ``work`` under the referee. An exception in it becomes the outcome *error*."""
    referee = Referee()
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.numel():
            holds = (written or {}).get(name, True)
            referee.watch(name, tensor, holds, read_only=name not in results and holds is not False)
    try:
        with referee:
            work()
    except Exception as error:
        raise AnswerRaised(case) from error
    report = referee.report()
    if report.findings:
        report_finding(expect, report.findings[0], case, hints)
    return report


def report_finding(expect: Expect, finding: Finding, case: str, hints: Mapping[str, str]) -> None:
    """End the check with the referee's first finding."""
    tensor = finding.where.partition("[")[0]
    keys = (f"{finding.rule} {finding.kind} {tensor}", f"{finding.rule} {tensor}", f"{finding.rule} {finding.kind}")
    hint = next((hints[key] for key in (*keys, finding.rule) if key in hints), HINTS[finding.rule])
    source = linecache.getline(finding.file, finding.line).strip()
    place = "your cell" if is_learners_file(finding.file) else "minipaged"
    expect.that(
        False,
        rule=RULES[finding.rule],
        case=case,
        got=Words(f"the {finding.kind} in line {finding.line} of {place}, program {finding.program}: {finding.where}"),
        picture="\n".join(filter(None, (source, finding.picture))),
        hint=hint,
    )


class Words(str):
    """A text that a card shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _expect_kernel(expect: Expect, kernel, arguments: Mapping[str, object]) -> None:
    names = getattr(kernel, "arg_names", None)
    expect.that(
        names is not None,
        rule="The answer is a Triton kernel.",
        got=kernel,
        hint="Keep the line @triton.jit over the function.",
    )
    expect.equal(
        len(names),
        len(arguments),
        rule="The check launches the kernel with the arguments of its stub.",
        case=f"{function_of(kernel).__name__}({', '.join(names)})",
        hint="Keep the signature as it was given.",
    )


def expect_close(expect: Expect, got: Tensor, want: Tensor, *, rule: str, case: str, hint: str) -> None:
    """Equal to 1e-5 of the largest true value (float32 sums in another order)."""
    atol = TOLERANCE * float(want.abs().max()) if want.numel() else 0.0
    expect.close(got, want.to(torch.float32), rule=rule, case=case, hint=hint, rtol=0.0, atol=atol)


def agrees(got: Tensor, want: Tensor) -> bool:
    """True where ``expect_close`` would pass: to tell a known mistake by its result."""
    return got.shape == want.shape and bool(
        ((got.double() - want.double()).abs() <= TOLERANCE * want.double().abs().max()).all()
    )
