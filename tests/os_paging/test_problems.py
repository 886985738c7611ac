"""The problem printer: fresh from a seed, solved by the package, and this room needs nothing but Python."""

import re
import subprocess
import sys

import pytest

from minipaged.os_paging import ALLOCATORS, POLICIES, count_faults
from minipaged.os_paging.__main__ import main
from minipaged.os_paging.problems import allocation_problem, replacement_problem, translation_problem


@pytest.mark.parametrize("policy", list(POLICIES))
def test_replacement_problem(policy):
    problem = replacement_problem(policy, frames=3, seed=7)
    trace = list(map(int, problem.task[1].split()))
    assert problem == replacement_problem(policy, frames=3, seed=7)
    assert problem.task != replacement_problem(policy, frames=3, seed=8).task
    assert len(problem.solution) == len(trace) + 1
    assert problem.solution[-1].startswith(f"{count_faults(trace, 3, policy)} faults")


@pytest.mark.parametrize("seed", range(20))
def test_translation_problem_solves_what_it_asks(seed):
    task, solution = (lambda p: (p.task, p.solution))(translation_problem(seed))
    frames = {int(m[1]): int(m[2]) for line in task if (m := re.match(r" +page +(\d+) -> frame (\d+)", line))}
    for line in solution:
        address = int(re.match(r"0x([0-9a-f]+)", line)[1], 16)
        page, offset = divmod(address, 16)
        if page in frames:
            assert line.endswith(f"= {frames[page] * 16 + offset:#04x}")
        else:
            assert line.endswith("page fault")
    assert any(line.endswith("page fault") for line in solution)


@pytest.mark.parametrize("page_size", [2, 4, 8, 16, 32, 64])
def test_every_translation_problem_has_a_fault(page_size):
    assert any(line.endswith("page fault") for line in translation_problem(1, page_size).solution)


@pytest.mark.parametrize("fit", list(ALLOCATORS))
def test_allocation_problem_shows_a_refusal(fit):
    for seed in range(5):
        problem = allocation_problem(fit, seed)
        assert len(problem.solution) == len(problem.task) - 2
        assert any("enough in all, but no hole fits" in line for line in problem.solution)
        assert problem == allocation_problem(fit, seed)


def test_the_command_line(capsys):
    assert main(["--policy", "lru", "--frames", "3", "--seed", "7"]) == 0
    alone = capsys.readouterr().out
    assert "policy lru, 3 frames" in alone
    assert "Solution" not in alone
    assert main(["--policy", "lru", "--frames", "3", "--seed", "7", "--solve"]) == 0
    solved = capsys.readouterr().out
    assert solved.startswith(alone.split("\n\n")[0])
    assert "5 faults, 5 hits" in solved
    for kind in ("translation", "allocation"):
        assert main(["--problem", kind, "--solve"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--frames", "1000000000"], "num_frames"),
        (["--length", "1000000000"], "length"),
        (["--problem", "allocation", "--length", "101"], "length"),
    ],
)
def test_a_problem_stays_on_paper(options, name, capsys):
    assert main(options) == 2
    assert f"{name} is {options[-1]}, but must be from 1 to 100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "mru"], "choose one of 'fifo', 'lru', 'clock', 'opt'"),
        (["--frames", "0"], "num_frames is 0"),
        (["--length", "0"], "length is 0"),
        (["--pages", "0"], "pages is 0"),
        (["--problem", "translation", "--page-size", "24"], "page_size is 24, which is no power of two"),
        (["--problem", "translation", "--page-size", "128"], "address_bits is 7"),
        (["--problem", "allocation", "--fit", "worst"], "there is no allocator 'worst'"),
    ],
)
def test_options_that_make_no_sense(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_room_needs_only_the_standard_library():
    code = """
import sys, minipaged.os_paging, minipaged.os_paging.__main__, minipaged.os_paging.benchmark
others = [name for name, module in sys.modules.items() if "site-packages" in (getattr(module, "__file__", None) or "")]
print([name for name in others if name.startswith(("torch", "triton", "numpy", "matplotlib"))])
print([n for n in sys.modules if n.startswith("minipaged.") and not n.startswith("minipaged.os_paging")])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n[]\n"
