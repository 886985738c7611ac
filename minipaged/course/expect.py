"""What a check says about an answer: `Expect` states what must hold, and stops at the first thing that does not."""

import contextlib
import inspect
import math
import operator
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from minipaged.course.frames import last_learner_frame


class Unmet(Exception):
    """An expectation that does not hold: the broken rule, the counter-example, what to think about."""

    def __init__(self, rule: str, case: str = "", want: str = "", got: str = "", hint: str = "", picture: str = ""):
        super().__init__(rule)
        self.rule, self.case, self.want, self.got, self.hint, self.picture = rule, case, want, got, hint, picture


class NotNumbers(TypeError):
    """A value that is neither a number nor a regular array of numbers."""


class AnswerRaised(Exception):
    """The answer raised while the check called it: keeps the call beside the exception (`__cause__`)."""

    def __init__(self, case: str):
        super().__init__(case)
        self.case = case


class Expect:
    """Handed to every check. Each method returns when the expectation holds, and ends the check when it does not.

    All methods share these texts, shown to the learner:

    * `rule`: what must hold, in one sentence, as the lesson says it;
    * `case`: the input that shows it broken (`returns` and `raises` fill it in from the call);
    * `hint`: what to think about, meant for the mistake that breaks this case;
    * `mistakes`: {wrong value: hint}, for wrong results that give their cause away; goes before `hint`;
    * `picture`: a drawing in text, for example from `minipaged.course.pictures.block_table_text`.
    """

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the learner's function; what it raises is shown together with this call."""
        try:
            return function(*args, **kwargs)
        except Unmet:
            raise
        except Exception as error:
            raise AnswerRaised(describe_call(function, args, kwargs)) from error

    def returns(
        self,
        want: Any,
        function: Callable[..., Any],
        *args: Any,
        rule: str,
        hint: str = "",
        mistakes: Mapping[Any, str] | None = None,
        picture: str = "",
    ) -> Any:
        """`function(*args)` must equal `want` (see `equal`). Returns what it returned."""
        case = describe_call(function, args, {})  # before the call: the function may change its arguments
        got = self.call(function, *args)
        if got is None and want is not None:
            hint = f"None came back: on this way through the function, `return` is missing. {hint}".strip()
        self.equal(got, want, rule=rule, case=case, hint=hint, mistakes=mistakes, picture=picture)
        return got

    def equal(
        self,
        got: Any,
        want: Any,
        *,
        rule: str,
        case: str = "",
        hint: str = "",
        mistakes: Mapping[Any, str] | None = None,
        picture: str = "",
    ) -> None:
        """Exact equality. Lists and tuples of the same items are equal; 2.0 is not the integer 2; tensors compare
        by shape and by every element."""
        if same(got, want):
            return
        for wrong, meant in (mistakes or {}).items():
            if same(got, wrong):
                hint = meant
        if isinstance(got, float) and isinstance(want, int) and got == want:
            hint = "The answer counts something: return an integer (// divides without a remainder)."
        raise Unmet(rule, case, show(want), show(got), hint, picture)

    def close(
        self, got: Any, want: Any, *, rule: str, case: str = "", hint: str = "", rtol: float = 1e-5, atol: float = 1e-5
    ) -> None:
        """Numbers, sequences of numbers or tensors that agree to |got − want| ≤ atol + rtol · |want|.

        The counter-example is the first element that differs; a wrong shape and a NaN are named as such.
        """
        want_shape, want_flat = flatten(want)
        try:
            got_shape, got_flat = flatten(got)
        except NotNumbers:
            wanted = f"{want_flat[0]:.6g}" if want_shape == () else f"numbers of shape {want_shape}"
            hint = f"The answer is a number, or numbers; this is of type {type(got).__name__}. {hint}".strip()
            raise Unmet(rule, case, wanted, show(got), hint) from None
        if got_shape != want_shape:
            raise Unmet(rule, case, f"shape {want_shape}", f"shape {got_shape}", hint)
        for index, (mine, true) in enumerate(zip(got_flat, want_flat, strict=True)):
            if math.isnan(mine) and not math.isnan(true):
                count = sum(map(math.isnan, got_flat))
                raise Unmet(
                    rule, at(case, got_shape, index), f"{true:.6g}", f"NaN ({count} of {len(got_flat)} are NaN)", hint
                )
            if mine != true and not abs(mine - true) <= atol + rtol * abs(true):
                raise Unmet(rule, at(case, got_shape, index), f"{true:.6g}", f"{mine:.6g}", hint)

    def that(
        self, condition: object, *, rule: str, case: str = "", want: Any = None, got: Any = None, hint: str = "",
        picture: str = "",
    ) -> None:
        """Any condition; give `want` and `got` where they help."""
        if not condition:
            shown_want, shown_got = ("" if value is None else show(value) for value in (want, got))
            raise Unmet(rule, case, shown_want, shown_got, hint, picture)

    def raises(
        self, error: type[Exception], function: Callable[..., Any], *args: Any, rule: str, hint: str = "",
        names: tuple[Any, ...] = (),
    ) -> None:
        """`function(*args)` must raise `error`, with every value of `names` in its message."""
        case = describe_call(function, args, {})
        try:
            result = function(*args)
        except NotImplementedError:
            raise  # a stub, not an answer
        except error as raised:
            missing = [str(value) for value in names if str(value) not in str(raised)]
            if missing:
                want = f"a message that names {' and '.join(missing)}"
                raise Unmet(rule, case, want, f"{type(raised).__name__}: {raised}", hint) from None
            return
        except Exception as other:
            if last_learner_frame(other.__traceback__) is None:
                raise AnswerRaised(case) from other
            raise Unmet(rule, case, error.__name__, f"{type(other).__name__}: {other}", hint) from None
        raise Unmet(rule, case, f"{error.__name__} is raised", f"no error; it returned {show(result)}", hint)

    @contextlib.contextmanager
    def no_error(self, *, rule: str, case: str = "", hint: str = "") -> Iterator[None]:
        """For code of minipaged that runs on the learner's part: an exception in it means that the part broke the
        rule. An exception out of the learner's own lines stays what it is, the outcome *error*."""
        try:
            yield
        except (Unmet, AnswerRaised, NotImplementedError):
            raise
        except Exception as error:
            if last_learner_frame(error.__traceback__) is not None:
                raise
            shown = traceback.format_exception_only(error)[-1].strip()
            raise Unmet(rule, case, "no error", shown, hint) from error

    def fail(self, *, rule: str, case: str = "", hint: str = "", picture: str = "") -> NoReturn:
        """End the check here."""
        raise Unmet(rule, case, hint=hint, picture=picture)


def same(got: Any, want: Any) -> bool:
    """Equality as `Expect.equal` means it."""
    if hasattr(got, "shape") or hasattr(want, "shape"):
        if getattr(want, "shape", ()) == () and getattr(got, "shape", ()) == ():
            got, want = (value.item() if hasattr(value, "item") else value for value in (got, want))
            return same(got, want)
        return as_list(got) == as_list(want) and flatten(got)[0] == flatten(want)[0]
    if isinstance(want, list | tuple) and isinstance(got, list | tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, bool) or isinstance(got, bool):
        return isinstance(got, bool) and isinstance(want, bool) and got == want
    if isinstance(want, int):
        try:
            return operator.index(got) == want
        except TypeError:
            return False
    if isinstance(want, dict) and isinstance(got, dict):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    equal = type(want).__eq__(want, got)  # asked of the wanted value: the other may say yes to everything
    if equal is NotImplemented:
        return type(got).__module__ != "__main__" and bool(got == want)
    return bool(equal)


def as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def flatten(value: Any) -> tuple[tuple[int, ...], list[float]]:
    """(shape, every element as a float) of a number, a nested sequence, an array or a tensor.

    Raises NotNumbers for anything else: a text, None, True, rows of different lengths.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "shape") and hasattr(value, "reshape"):
        return tuple(value.shape), [float(x) for x in value.reshape(-1).tolist()]
    if isinstance(value, list | tuple):
        parts = [flatten(item) for item in value]
        inner = parts[0][0] if parts else ()
        if any(shape != inner for shape, _ in parts):
            raise NotNumbers("rows of different lengths")
        return (len(parts), *inner), [x for _, flat in parts for x in flat]
    if isinstance(value, str | bytes | bool):  # float() would take "34.7" and True
        raise NotNumbers(type(value).__name__)
    try:
        return (), [float(value)]
    except (TypeError, ValueError):
        raise NotNumbers(type(value).__name__) from None


def at(case: str, shape: tuple[int, ...], index: int) -> str:
    """`case`, and the place of flat element `index` in an array of this shape."""
    place = []
    for size in reversed(shape):
        index, here = divmod(index, size)
        place.append(here)
    where = f"element [{', '.join(map(str, reversed(place)))}]" if place else ""
    return ", ".join(filter(None, (case, where)))


LINE = 100  # characters: a call that is longer has a line for each argument


def describe_call(function: Callable[..., Any], args: tuple, kwargs: dict) -> str:
    """`f(7, [1, 2])`. Of a tensor only the shape and the first numbers; a long call names each argument in a line."""
    name = getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]
    named = [("", arg) for arg in args] + list(kwargs.items())
    call = f"{name}({', '.join(_argument(*one) for one in named)})"
    if len(call) <= LINE:
        return call
    with contextlib.suppress(TypeError, ValueError):  # another number of arguments, or no signature: without names
        named = list(inspect.signature(function).bind(*args, **kwargs).arguments.items())
    return "\n".join([f"{name}(", *(f"    {_argument(*one)}," for one in named), ")"])


def _argument(name: str, value: Any) -> str:
    return f"{name}={show(value, 60, numbers=3)}" if name else show(value, 60, numbers=3)


def show(value: Any, limit: int = 200, numbers: int = 8) -> str:
    """A short text for a value: never an address, never a page of numbers. Of a tensor its shape and its first
    numbers; of a long list of tensors the first one."""
    if hasattr(value, "shape") and getattr(value, "shape", ()) != ():
        flat = flatten(value)[1]
        few = len(flat) if len(flat) <= 8 else numbers
        first = ", ".join(f"{x:.4g}" for x in flat[:few]) + (", …" if len(flat) > few else "")
        return f"shape {tuple(value.shape)}: {first}"
    if isinstance(value, list | tuple) and any(hasattr(part, "shape") for part in _leaves(value)):
        left, right = "[]" if isinstance(value, list) else "()"
        items = ", ".join(show(part, limit, min(numbers, 3)) for part in value)
        if len(items) + 2 > limit and len(value) > 1:
            items = f"{show(value[0], limit, min(numbers, 3))}, … {len(value)} items"
        return f"{left}{items}{right}"
    if hasattr(value, "item"):
        value = value.item()
    text = repr(value)
    if " at 0x" in text or "\n" in text or "tensor(" in text:
        kind = type(value).__name__
        text = f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value
