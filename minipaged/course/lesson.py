"""Small helpers for lesson notebooks."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def expected_error(*kinds: type[Exception]) -> Iterator[None]:
    """Show an error that a lesson provokes, in one line instead of a traceback, and go on.

    Raises:
        AssertionError: no error came (or one of another kind: that one is raised as it is).
    """
    try:
        yield
    except (kinds or (Exception,)) as error:  # noqa: B030
        print(f"{type(error).__name__}: {error}")
    else:
        names = " or ".join(kind.__name__ for kind in kinds) or "an error"
        raise AssertionError(f"{names} was expected here, and none came")
