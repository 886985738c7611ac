"""Checks in a process of their own: crashes and endless loops are messages, everything else is as in this process."""

import ctypes
import operator
import os
import time

import pytest

from minipaged.course.checking import grade_answer
from minipaged.course.framework import Exercise
from minipaged.course.own_process import ProcessEnded, TookTooLong, can_fork, in_own_process

pytestmark = pytest.mark.skipif(not can_fork(), reason="this system cannot fork safely")


def check_double(answer, expect) -> None:
    expect.returns(6, answer, 3, rule="Twice the number.", hint="Multiply.")


def graded(answer, check=check_double, seconds=20.0):
    exercise = Exercise("6.99", "A title", 1, 5, ("a", "b", "c"), "nowhere", check, own_process=seconds)
    return grade_answer(exercise, answer)


def test_the_outcome_comes_back():
    assert graded(lambda n: 2 * n).passed
    outcome = graded(lambda n: n)
    assert (outcome.status, outcome.row("got"), outcome.row("think")) == ("failed", "3", "Multiply.")
    outcome = graded(lambda n: n / 0)
    assert "ZeroDivisionError" in outcome.row("error")
    assert "n / 0" in outcome.row("where")


def test_nothing_that_the_answer_changes_stays():
    seen = []
    assert graded(lambda n: seen.append(n) or 2 * n).passed
    assert seen == []


def test_a_crash_is_a_message():
    outcome = graded(lambda n: ctypes.string_at(8))
    assert outcome.status == "failed"
    assert outcome.row("got") == "the process ended with SIGSEGV"
    assert "address far outside" in outcome.row("think")


def test_an_exit_is_not_called_a_crash():
    outcome = graded(lambda n: os._exit(3))
    assert (outcome.status, outcome.row("got")) == ("failed", "the process ended with exit code 3")
    assert "does not exit" in outcome.row("think")


def test_an_endless_loop_is_a_message():
    def endless(n):
        while True:
            pass

    outcome = graded(endless, seconds=0.3)
    assert outcome.status == "failed"
    assert outcome.row("got") == "no result after 0.3 s"
    assert "loops" in outcome.row("think")


def test_waiting_is_no_work_but_ends_too():
    assert in_own_process(lambda: time.sleep(0.4) or 5, 0.2) == 5
    with pytest.raises(TookTooLong):
        in_own_process(lambda: time.sleep(60), 0.1)


def test_a_fault_of_the_check_is_raised():
    with pytest.raises(RuntimeError, match="TypeError: unsupported operand"):
        graded(lambda n: n, check=operator.truediv)  # fails without a line of an answer in it


def test_the_process_alone():
    assert in_own_process(lambda: [1, "two"], 20) == [1, "two"]
    with pytest.raises(ProcessEnded, match="exit code 3"):
        in_own_process(lambda: os._exit(3), 20)
    with pytest.raises(TookTooLong):
        in_own_process(lambda: os.read(os.pipe()[0], 1), 0.3)
