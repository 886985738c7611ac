"""The glossary is kept: each word stands in it once and is used, and no other word is used for the same thing."""

import re
from pathlib import Path

import pytest

from minipaged.course.notebook_tools.notebook import read_notebook, source_of

ROOT = Path(__file__).parents[2]
OTHERS = {  # what other texts say, and the glossary's word for it
    r"KV-cache|kv cache": "KV cache",
    r"block-table|blocktable": "block table",
    r"slot-mapping": "slot mapping",
    r"[Rr]ef(erence)? ?counter|[Rr]ef ?count\b": "reference count",
    r"[Pp]re-fill|[Pp]refilling phase": "prefill",
    r"[Pp]re-empt": "preemption",
    r"[Ll]ogical page|[Vv]irtual block": "logical block",
    r"[Bb]lock manager|KV manager|[Cc]ache manager(?<!KV cache manager)": "KV cache manager",
    r"[Cc]ontinous|[Ii]n-flight batching|[Dd]ynamic batching": "continuous batching",
    r"[Tt]hread block|\bCTAs?\b": "program",
    r"\bSMs?\b|[Ss]treaming multiprocessor": "multiprocessor",
    r"[Tt]ime-to-first-token": "TTFT",
}


def rows() -> list[list[str]]:
    text = (ROOT / "notebooks" / "GLOSSARY.md").read_text(encoding="utf-8")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"][2:]


def notebooks() -> list[Path]:
    return [path for folder in ("notebooks", "solutions") for path in sorted((ROOT / folder).glob("*.ipynb"))]


def prose() -> dict[str, str]:
    """What is read: the Markdown of lessons and solutions, without names in `code`."""
    return {
        f"{path.name}, cell {number}": re.sub(r"`[^`]*`", "", source_of(cell))
        for path in notebooks()
        for number, cell in enumerate(read_notebook(path)["cells"])
        if cell["cell_type"] == "markdown"
    }


def test_each_word_stands_once_with_its_meaning_in_both_languages() -> None:
    words = [row[0] for row in rows()]
    assert len(words) == len(set(words))
    assert [row for row in rows() if len(row) != 4 or not all(row)] == []


def test_each_word_is_used() -> None:
    cells = [cell for path in notebooks() for cell in read_notebook(path)["cells"]]
    everything = letters(" ".join(map(source_of, cells)))
    words = [re.sub(r" \(.*\)", "", row[0]).split(", ")[0] for row in rows()]
    assert [word for word in words if letters(word) not in everything] == []


def letters(text: str) -> str:
    """`cache_salt` is "cache salt", and PagedAttention paged attention."""
    return re.sub(r"[^a-z]", "", text.lower())


@pytest.mark.parametrize("other", OTHERS, ids=OTHERS.get)
def test_no_other_word_is_used(other: str) -> None:
    assert [place for place, text in prose().items() if re.search(other, text)] == [], f"say {OTHERS[other]!r}"
