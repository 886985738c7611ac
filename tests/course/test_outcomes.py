"""The four outcomes of a check, the card, and what is refused as an answer."""

import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from minipaged.course import CheckFailed, check, expected_error, framework, progress
from minipaged.course.checking import grade_answer, hint_text
from minipaged.course.errors import CourseError
from minipaged.course.expect import Expect, Unmet, describe_call, same, show
from minipaged.course.framework import Exercise, exercise, get_exercise
from minipaged.course.own_work import refusal
from minipaged.course.pictures import block_table_text


@pytest.fixture(autouse=True)
def fresh_home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPAGED_HOME", str(tmp_path / "home"))


@pytest.fixture
def new_exercise() -> Iterator[Callable[..., Exercise]]:
    """Registers an exercise with a given check for one test."""

    def make(check_function: Callable[[Any, Expect], None], **options: Any) -> Exercise:
        # A check lives in the package; its frames are not the learner's.
        check_function = types.FunctionType(
            check_function.__code__.replace(co_filename=framework.__file__), check_function.__globals__
        )
        exercise("97.1", title="A test", stars=1, minutes=1, hints=("q", "r", "p"), vllm="file · symbol", **options)(
            check_function
        )
        return framework._registry["97.1"]

    yield make
    framework._registry.pop("97.1", None)


def double(answer: Callable[[int], int], expect: Expect) -> None:
    mistakes = {3: "Not + 2."}
    for number in (1, 2, 7):
        expect.returns(2 * number, answer, number, rule="It doubles.", hint="Add it to itself.", mistakes=mistakes)


def test_passed_names_the_place_in_vllm(new_exercise) -> None:
    outcome = grade_answer(new_exercise(double), lambda x: x + x)
    assert outcome.status == "passed"
    assert outcome.row(f"in vLLM {framework.VLLM_RELEASE}") == "file · symbol"


def test_failed_names_rule_counter_example_and_next_hint(new_exercise) -> None:
    def answer(x: int) -> int:
        return x * x + 1

    outcome = grade_answer(new_exercise(double), answer)
    assert outcome.status == "failed"
    assert dict(outcome.rows) == {
        "rule": "It doubles.",
        "case": "answer(2)",
        "expected": "4",
        "got": "5",
        "think": "Add it to itself.",
        "next": 'hint("97.1") gives hint 1 of 3, a question',
    }


def test_a_missing_return_is_named(new_exercise) -> None:
    assert "`return` is missing. Add it" in grade_answer(new_exercise(double), lambda x: print(end="")).row("think")


def test_an_answer_that_leaves_python_is_an_error(new_exercise) -> None:
    outcome = grade_answer(new_exercise(double), lambda x: sys.exit())
    assert (outcome.status, outcome.row("error")) == ("error", "SystemExit")


def test_a_known_mistake_gets_its_own_hint(new_exercise) -> None:
    outcome = grade_answer(new_exercise(double), lambda x: x + 2)
    assert outcome.row("think") == "Not + 2."


@pytest.mark.parametrize("answer", [..., None, (1, ...), [None], {"a": 1, "b": ...}])
def test_placeholders_are_not_attempted(new_exercise, answer: Any) -> None:
    assert grade_answer(new_exercise(double), answer).status == "not attempted"


def test_stubs_are_not_attempted(new_exercise) -> None:
    def raises(x: int) -> int:
        raise NotImplementedError

    def empty(x: int) -> int:
        """A docstring and nothing else."""

    for stub in (raises, empty):
        assert grade_answer(new_exercise(double), stub).status == "not attempted"


def test_error_shows_the_learners_line_and_the_call(new_exercise) -> None:
    def answer(x: int) -> int:
        return [1][x]  # the line to name

    outcome = grade_answer(new_exercise(double), answer)
    assert outcome.status == "error"
    assert outcome.row("error") == "IndexError: list index out of range"
    assert re.fullmatch(r"line \d+ of test_outcomes.py:  return \[1\]\[x\]  # the line to name", outcome.row("where"))
    assert outcome.row("case") == "answer(1)"


class Layer(torch.nn.Module):
    """Its repr has a line for each part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)


def test_a_long_call_has_a_line_for_each_argument_and_no_page_of_numbers() -> None:
    def answer(query, caches, layer, scale=1.0): ...

    caches = [(torch.full((9, 4, 2, 8), float("nan")),) * 2] * 2
    assert describe_call(answer, (torch.ones(7, 2, 8), caches, Layer()), {"scale": torch.tensor(0.5)}) == "\n".join(
        [
            "answer(",
            "    query=shape (7, 2, 8): 1, 1, 1, …,",
            "    caches=[(shape (9, 4, 2, 8): nan, nan, nan, …, … 2 items), … 2 items],",
            "    layer=a Layer,",
            "    scale=0.5,",
            ")",
        ]
    )
    unnamed = describe_call(answer, (torch.ones(7, 2, 8), caches, Layer(), 1, "one too many"), {})
    assert "\n    shape (7, 2, 8): 1, 1, 1, …,\n" in unnamed
    assert describe_call(answer, (torch.ones(2), (3, 4), Layer()), {}) == "answer(shape (2,): 1, 1, (3, 4), a Layer)"


def test_values_that_hold_tensors() -> None:
    assert show([torch.tensor(3), 4]) == "[3, 4]"
    assert show((torch.ones(2), torch.ones(9))) == "(shape (2,): 1, 1, shape (9,): 1, 1, 1, …)"
    assert show({"k": torch.ones(2)}) == "a dict"


def test_not_implemented_deep_in_a_library_is_an_error(new_exercise) -> None:
    def answer(x: int) -> int:
        import torch

        return torch.ones(2, device="meta").tolist()[x]  # raises NotImplementedError

    assert grade_answer(new_exercise(double), answer).status == "error"


def test_a_wrong_signature_is_an_error(new_exercise) -> None:
    outcome = grade_answer(new_exercise(double), lambda: 1)
    assert outcome.status == "error"
    assert "positional argument" in outcome.row("error")


def test_a_bug_of_the_check_is_raised(new_exercise) -> None:
    def broken(answer: Any, expect: Expect) -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        grade_answer(new_exercise(broken), lambda x: x)


def test_the_engines_error_on_a_learners_part_is_failed(new_exercise) -> None:
    def plug_in(answer: Callable[[], Any], expect: Expect) -> None:
        part = expect.call(answer)
        with expect.no_error(rule="Lengths are numbers.", hint="What does it return?"):
            block_table_text([(0, part)], 4)

    outcome = grade_answer(new_exercise(plug_in), lambda: "three")
    assert outcome.status == "failed"
    assert outcome.row("got").startswith("TypeError")


def test_a_missing_package_comes_with_its_cure(new_exercise) -> None:
    outcome = grade_answer(new_exercise(double, requires=("no_such_package",)), lambda x: x)
    assert outcome.status == "error"
    assert "no_such_package" in outcome.row("error")
    assert "pip install" in outcome.row("cure")


def test_check_raises_unless_passed_and_remembers(new_exercise, capsys: pytest.CaptureFixture) -> None:
    new_exercise(double)
    with pytest.raises(CheckFailed, match=r"97\.1: failed"):
        check("97.1", lambda x: x)
    check("97.1", lambda x: 2 * x)
    with pytest.raises(CheckFailed):
        check("97.1", ...)
    entry = progress.get("97.1")
    assert (entry.status, entry.passed, entry.attempts) == ("not attempted", True, 2)
    assert capsys.readouterr().out.count("97.1 A test") == 3


def test_the_card_is_the_same_text_each_time_and_valid_html(new_exercise) -> None:
    one = grade_answer(new_exercise(double), lambda x: f"<b>{x}</b>")
    two = grade_answer(get_exercise("97.1"), lambda x: f"<b>{x}</b>")
    assert repr(one) == repr(two)
    assert one._repr_html_() == two._repr_html_()
    assert "&lt;b&gt;" in one._repr_html_()
    assert "<b>" not in one._repr_html_()


def test_hints_come_one_at_a_time_then_the_solution() -> None:
    texts = [hint_text("2.1") for _ in range(4)]
    assert [text.split("\n")[0].partition(": ")[2] for text in texts] == [
        "hint 1 of 3, a question",
        "hint 2 of 3, the rule",
        "hint 3 of 3, pseudocode",
        "a solution",
    ]
    assert "def num_blocks" in texts[3]
    assert "###" not in texts[3]
    assert "hint 2" in hint_text("2.1", number=2)
    assert progress.get("2.1").solution_shown
    with pytest.raises(CourseError, match="hints 1 to 3, not 4"):
        hint_text("2.1", number=4)


@pytest.mark.parametrize("wrong", ["2", "two", 2.1, "2.1.1", None])
def test_a_wrong_id_says_how_ids_look(wrong: Any) -> None:
    with pytest.raises(CourseError, match="named by a text like"):
        get_exercise(wrong)


def test_an_unknown_id_lists_those_there_are() -> None:
    with pytest.raises(CourseError, match=r"no exercise 2\.99; month 2 has 2\.1"):
        get_exercise("2.99")
    with pytest.raises(CourseError, match=r"no exercise 50\.1; the months with exercises are"):
        get_exercise("50.1")


def test_declarations_are_checked() -> None:
    def declare(**changes: Any) -> None:
        whole = {"title": "t", "stars": 1, "minutes": 1, "hints": ("a", "b", "c"), "vllm": "v"} | changes
        exercise("97.2", **whole)

    for changes in ({"hints": ("a", "b")}, {"stars": 4}, {"minutes": 0}, {"title": ""}, {"hints": ("a", "", "c")}):
        with pytest.raises(CourseError, match=r"97\.2"):
            declare(**changes)


# --- minipaged's own work is not graded ---------------------------------------------------------------------------


def test_minipageds_own_functions_and_classes_are_refused(new_exercise) -> None:
    import functools

    from minipaged.course.progress import ExerciseProgress

    one = new_exercise(double)
    for answer in (
        block_table_text,
        functools.partial(block_table_text, block_size=4),
        Expect().close,
        ExerciseProgress,
        (lambda x: x, block_table_text),
        {"a": block_table_text},
        progress,
        Expect().equal,
    ):
        assert "minipaged" in refusal(one, answer) or "module" in refusal(one, answer), answer
        assert grade_answer(one, answer).status == "failed"


def test_a_subclass_is_refused_unless_the_exercise_allows_it(new_exercise) -> None:
    class Mine(Expect):
        pass

    assert "inherits from minipaged's own Expect" in refusal(new_exercise(double), Mine)
    assert refusal(new_exercise(double, subclass_ok=True), Mine) == ""


def test_an_answer_that_calls_the_reference_is_refused(new_exercise) -> None:
    one = new_exercise(double, reference=("minipaged.course.pictures.block_table_text",))

    def by_name(x: int) -> str:
        return block_table_text([(x, 1)], 4)

    def by_import(x: int) -> str:
        from minipaged.course.pictures import block_table_text as draw

        return draw([(x, 1)], 4)

    class InAMethod:
        def draw(self) -> Any:
            return [block_table_text([], 4) for _ in range(2)]

    def by_a_helper(x: int) -> str:
        return helper_of_a_learner(x)

    for answer in (by_name, by_import, InAMethod, by_a_helper):
        assert "minipaged.course.pictures.block_table_text" in refusal(one, answer)
    assert refusal(one, lambda x: 2 * x) == ""
    method = new_exercise(double, reference=("minipaged.kv_cache.block_table.BlockTable.slot_mapping",))

    def by_an_object(x: int) -> list[int]:
        from minipaged.kv_cache.block_table import BlockTable

        return BlockTable(4).slot_mapping(0, x)

    assert "BlockTable.slot_mapping" in refusal(method, by_an_object)


def helper_of_a_learner(x: int) -> str:
    return block_table_text([(x, 1)], 4)


# --- Expect -------------------------------------------------------------------------------------------------------


class AgreesWithAll:
    __module__ = "__main__"  # as in a notebook

    def __eq__(self, other: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (2, 2, True),
        (2.0, 2, False),
        (True, 1, False),
        (1, True, False),
        ([7, 1], (7, 1), True),
        ([(7, 4), (1, 3)], [(7, 4), (1, 3)], True),
        ([7], [7, 1], False),
        ({"a": [1]}, {"a": (1,)}, True),
        ({"a": 1}, {"b": 1}, False),
        ("2", 2, False),
        ({1, 2}, {2, 1}, True),
        ({1: 2}.keys(), {1}, True),
        (AgreesWithAll(), "a", False),
        (AgreesWithAll(), 2.5, False),
        (AgreesWithAll(), 2, False),
        ([AgreesWithAll()], [2], False),
    ],
)
def test_same(got: Any, want: Any, equal: bool) -> None:
    assert same(got, want) is equal


def test_close_names_the_first_difference_shape_and_nan() -> None:
    import torch

    expect, rule = Expect(), "Same numbers."
    expect.close(torch.ones(2, 3), torch.ones(2, 3) + 1e-7, rule=rule)
    expect.close([1.0, 2.0], torch.tensor([1.0, 2.0]), rule=rule)
    wrong = torch.ones(2, 3)
    wrong[1, 2] = 5
    with pytest.raises(Unmet) as unmet:
        expect.close(wrong, torch.ones(2, 3), rule=rule, case="a case")
    assert (unmet.value.case, unmet.value.want, unmet.value.got) == ("a case, element [1, 2]", "1", "5")
    with pytest.raises(Unmet) as unmet:
        expect.close(torch.ones(3, 2), torch.ones(2, 3), rule=rule)
    assert unmet.value.got == "shape (3, 2)"
    wrong[0, 1] = float("nan")
    with pytest.raises(Unmet) as unmet:
        expect.close(wrong, torch.ones(2, 3), rule=rule)
    assert unmet.value.got == "NaN (1 of 6 are NaN)"
    with pytest.raises(Unmet):
        expect.close(float("inf"), 1.0, rule=rule)


@pytest.mark.parametrize("answer", ["34.7", "text", b"1", True, None, [1.0, None], [[1.0, 2.0], [3.0]], {}, print])
def test_close_takes_numbers_only(answer: object) -> None:
    with pytest.raises(Unmet) as unmet:
        Expect().close(answer, 34.7, rule="Same number.", case="a case", hint="Think.")
    assert (unmet.value.rule, unmet.value.case, unmet.value.want) == ("Same number.", "a case", "34.7")
    assert type(answer).__name__ in unmet.value.hint
    assert unmet.value.hint.endswith("Think.")


def test_raises_wants_the_error_and_the_values_in_its_message() -> None:
    def free(block: int) -> None:
        raise ValueError(f"block {block} is free already")

    expect = Expect()
    expect.raises(ValueError, free, 3, rule="r", names=(3,))
    with pytest.raises(Unmet) as unmet:
        expect.raises(ValueError, free, 3, rule="r", names=(3, "owner"))
    assert "owner" in unmet.value.want
    with pytest.raises(Unmet):
        expect.raises(KeyError, free, 3, rule="r")
    with pytest.raises(Unmet) as unmet:
        expect.raises(ValueError, lambda: 5, rule="r")
    assert "it returned 5" in unmet.value.got


def test_expected_error_prints_one_line_and_insists(capsys: pytest.CaptureFixture) -> None:
    with expected_error(ValueError):
        raise ValueError("7 blocks asked, 3 free")
    assert capsys.readouterr().out == "ValueError: 7 blocks asked, 3 free\n"
    with pytest.raises(AssertionError, match="ValueError was expected"), expected_error(ValueError):
        pass
    with pytest.raises(KeyError), expected_error(ValueError):
        raise KeyError("another")


def test_block_table_text() -> None:
    assert block_table_text([(7, 4), (1, 3)], 4).splitlines()[1] == "logical 1 -> physical 1  [###.]  3 of 4 filled"


def test_importing_the_course_stays_light() -> None:
    """An exercise notebook's first cell must not take seconds."""
    code = (
        "import sys, minipaged.course; "
        "print([name for name in ('torch', 'triton', 'matplotlib', 'ipywidgets', 'nbformat') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
