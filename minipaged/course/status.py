"""`minipaged status`: months, exercises, what comes next, how long it takes."""

from pathlib import Path
from typing import TYPE_CHECKING

from minipaged.course import progress
from minipaged.course.framework import Exercise, exercises_of, months
from minipaged.course.notebook_tools.syllabus import lessons_by_month
from minipaged.course.paths import course_root

if TYPE_CHECKING:
    from minipaged.course.charts import Table

MONTHS = {
    0: "The KV cache and the driving question",
    1: "OS paging",
    2: "The block table",
    3: "The prefix cache",
    4: "Fragmentation experiments",
    5: "Serving",
    6: "The Triton paged kernel",
    7: "Scale out and give back",
}
QUESTIONS = {
    0: "What does a model keep for each token, and what goes wrong when memory is reserved for the longest answer?",
    1: "How did operating systems solve this problem in the 1960s?",
    2: "How does a sequence lie in blocks that are scattered over memory, and how do two sequences share them?",
    3: "How is the work on an equal beginning done once, for all requests?",
    4: "How much memory does each way of allocating waste?",
    5: "Who runs next, who waits, who is put back?",
    6: "How does a GPU read a scattered cache as fast as a contiguous one?",
    7: "How do several GPUs share one block table, and how do you contribute to vLLM?",
}
_MARKS = {"passed": "✓", "failed": "✗", "error": "!", "not attempted": "·"}


def course_map(root: Path | None = None) -> "Table":
    """The months, their questions and their lessons, as a table for a notebook in notebooks/."""
    from minipaged.course.charts import Table

    lessons = lessons_by_month(root or course_root())
    rows = []
    for month, title in MONTHS.items():
        links = [f"[{path.stem}]({path.name})" for path in lessons.get(month, [])]
        rows.append((month, title, QUESTIONS[month], ", ".join(links) or "not written yet"))
    return Table(("month", "topic", "question", "lesson"), rows)


def next_exercise() -> Exercise | None:
    """The first exercise that has not been passed yet; None when all have."""
    known = progress.load()
    todo = (one for month in months() for one in exercises_of(month))
    return next((one for one in todo if not known.get(one.id, progress.ExerciseProgress()).passed), None)


class StatusPage:
    """Where the learner stands, for START_HERE: a bar a month, hours to go, and a link to what comes next."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __repr__(self) -> str:
        return status_text(self.root)

    def _repr_html_(self) -> str:
        known, rows = progress.load(), []
        for month, title in MONTHS.items():
            exercises = exercises_of(month)
            passed = sum(known.get(one.id, progress.ExerciseProgress()).passed for one in exercises)
            minutes = sum(
                one.minutes for one in exercises if not known.get(one.id, progress.ExerciseProgress()).passed
            )
            cells = (
                f"{month}",
                f'<a href="../exercises/month_{month}.ipynb">{title}</a>',
                f'<progress value="{passed}" max="{max(1, len(exercises))}" aria-label="month {month}"></progress>',
                f"{passed} of {len(exercises)}",
                f"{minutes / 60:.1f}",
            )
            rows.append("".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells))
        heads = "".join(f"<th>{head}</th>" for head in ("month", "exercises", "", "passed", "hours to go"))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><tr>{heads}</tr>{body}</table>{self._next()}"

    def _next(self) -> str:
        one = next_exercise()
        if one is None:
            return "<p>All exercises are passed. Congratulations.</p>"
        lessons = ", ".join(
            f'<a href="{path.name}">{path.stem}</a>' for path in lessons_by_month(self.root).get(one.month, [])
        )
        where = f'<a href="../exercises/month_{one.month}.ipynb">{one.id} {one.title}</a>'
        return f"<p><b>Next:</b> {where} ({one.minutes} minutes); lessons: {lessons}</p>"


def status_page(root: Path | None = None) -> StatusPage:
    """The page of `minipaged status`, for a notebook in notebooks/."""
    return StatusPage(root or course_root())


def status_text(root: Path) -> str:
    """The page that `minipaged status` prints."""
    known, lessons = progress.load(), lessons_by_month(root)
    lines, minutes_left, done, total = [], 0, 0, 0
    for month, title in MONTHS.items():
        exercises = exercises_of(month)
        if not exercises and month not in lessons:
            continue
        entries = [known.get(one.id, progress.ExerciseProgress()) for one in exercises]
        passed = sum(entry.passed for entry in entries)
        marks = " ".join(_MARKS["passed" if entry.passed else entry.status] for entry in entries)
        lines.append(f"Month {month}  {title:<38} {passed:>2} of {len(exercises):<2}  {marks}".rstrip())
        done, total = done + passed, total + len(exercises)
        pairs = zip(exercises, entries, strict=True)
        minutes_left += sum(one.minutes for one, entry in pairs if not entry.passed)
    lines += ["", f"{done} of {total} exercises passed; about {minutes_left / 60:.1f} hours of exercises to go."]
    following = next_exercise()
    if following is not None:
        lines.append(f"Next: {following.id} {following.title} ({following.minutes} minutes)")
        lines += [f"      lesson   {path.relative_to(root)}" for path in lessons.get(following.month, [])]
        lines.append(f"      exercise exercises/month_{following.month}.ipynb")
    lines.append(f"({', '.join(f'{mark} {words}' for words, mark in _MARKS.items())})")
    return "\n".join(lines)
