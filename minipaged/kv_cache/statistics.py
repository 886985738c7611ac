"""Honest hit counting for the prefix cache.

A request counts once, when it gets its first slots. Tries that were refused count nothing; a request that was
preempted and computes its tokens again is counted apart. Otherwise a crowded server would report hits on its own work.

Source: vLLM 0.32, vllm/v1/metrics/stats.py (PrefixCacheStats, CachingMetrics).
"""

from collections import deque


class PrefixCacheStats:
    """Tokens asked (`queries`) and tokens found (`hits`), over all time and over the last `window` requests."""

    def __init__(self, window: int = 1000) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least 1 request")
        self.requests = 0
        self.queries = 0
        self.hits = 0
        self.recomputed_requests = 0
        self.recomputed_queries = 0
        self.recomputed_hits = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_queries = 0
        self._recent_hits = 0
        self._window = window

    def record(self, num_tokens: int, num_hits: int, again: bool) -> None:
        """Count one request of `num_tokens` tokens of which `num_hits` were found; `again`: after a preemption."""
        if again:
            self.recomputed_requests += 1
            self.recomputed_queries += num_tokens
            self.recomputed_hits += num_hits
            return
        self.requests += 1
        self.queries += num_tokens
        self.hits += num_hits
        self._recent.append((num_tokens, num_hits))
        self._recent_queries += num_tokens
        self._recent_hits += num_hits
        if len(self._recent) > self._window:
            old_tokens, old_hits = self._recent.popleft()
            self._recent_queries -= old_tokens
            self._recent_hits -= old_hits

    @property
    def hit_rate(self) -> float:
        """Hits per token asked since the start, 0 to 1; 0 before the first request."""
        return self.hits / self.queries if self.queries else 0.0

    @property
    def recent_hit_rate(self) -> float:
        """The same over the last `window` requests."""
        return self._recent_hits / self._recent_queries if self._recent_queries else 0.0
