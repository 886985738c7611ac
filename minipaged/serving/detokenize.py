"""The text of a running sequence: grown token by token, watched for stop strings."""

from __future__ import annotations

from minipaged.model import IncrementalDetokenizer, Tokenizer


class RunningText:
    """Text so far of one sequence. ``text`` never holds a part of an unfinished character.

    ``ends`` has one entry a token: where its text ends, in characters. The cut at a stop string does not change it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop = stop
        self._longest = max(map(len, stop), default=0)
        self.text = ""
        self.ends: list[int] = []

    def add(self, token_id: int) -> str | None:
        """Take the next token. Returns the stop string that now ends the text (and is cut off), or None."""
        new = self._detokenizer.add(token_id)
        self.ends.append(len(self.text) + len(new))
        return self._grow(new)

    def flush(self) -> str | None:
        """The sequence has ended: an unfinished character comes out as U+FFFD."""
        return self._grow(self._detokenizer.flush())

    def _grow(self, new: str) -> str | None:
        searched = max(0, len(self.text) - self._longest + 1)  # a stop string may have begun earlier
        self.text += new
        found = [(self.text.find(stop, searched), stop) for stop in self._stop] if new else []
        hits = [(start, stop) for start, stop in found if start >= 0]
        if not hits:
            return None
        start, stop = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
        self.text = self.text[:start]
        return stop

    def shown(self, finished: bool) -> str:
        """What a stream may show: while it runs, what could be the start of a stop string is held back."""
        if finished or self._longest < 2:
            return self.text
        return self.text[: max(0, len(self.text) - self._longest + 1)]
