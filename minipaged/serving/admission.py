"""The door: what can never run is refused here, with the numbers, before anything has changed."""

from __future__ import annotations

from collections.abc import Sequence

from minipaged.kv_cache import KVCacheManager
from minipaged.serving.protocols import SchedulerConfig
from minipaged.serving.sampling import BeamSearchParams, SamplingParams


def check_prompt(prompt: str | Sequence[int], tokenizer, vocab_size: int) -> tuple[str | None, list[int]]:
    """Returns (text or None, token ids). Raises for an empty prompt, a wrong type, an id outside the vocabulary."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise TypeError("the prompt is a string, but this engine has no tokenizer; give a list of token ids")
        token_ids = tokenizer.encode(prompt)
        text = prompt
    elif isinstance(prompt, list | tuple):
        token_ids, text = list(prompt), None
        # A long prompt is looked at without a loop in Python; the loop is for what is wrong, or at least unusual.
        usual = set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size
        if not usual:
            check_tokens(token_ids, vocab_size)
    else:
        raise TypeError(f"the prompt is a {type(prompt).__name__}; give a string or a list of token ids")
    if not token_ids:
        raise ValueError("the prompt is empty: there is no token to predict from; give at least 1 token")
    return text, token_ids


def check_tokens(token_ids: Sequence[object], vocab_size: int) -> None:
    """Raises for the first token that is no id of the vocabulary, and says where it stands."""
    for place, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(
                f"token {place} of the prompt is {token!r} ({type(token).__name__}); a prompt is a string or a "
                "list of token ids"
            )
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token id {token} at place {place} of the prompt is outside the vocabulary of {vocab_size} "
                f"tokens; ids run from 0 to {vocab_size - 1}. Encode the text with this model's tokenizer"
            )


def check_params(params: object, tokenizer, vocab_size: int) -> None:
    """Raises when the parameters are no parameters, or cannot work with this model."""
    if not isinstance(params, SamplingParams | BeamSearchParams):
        raise TypeError(f"params is a {type(params).__name__}; give SamplingParams or BeamSearchParams")
    if isinstance(params, BeamSearchParams):
        return
    if params.stop_strings and tokenizer is None:
        raise ValueError("stop strings need a tokenizer, and this engine has none; use stop_token_ids")
    bad = [token for token in params.stop_tokens if token >= vocab_size]
    if bad:
        raise ValueError(f"stop_token_ids holds {min(bad)}, but the vocabulary ends at {vocab_size - 1}")


def check_size(
    num_prompt_tokens: int,
    params: SamplingParams | BeamSearchParams,
    manager: KVCacheManager,
    config: SchedulerConfig,
    max_model_len: int,
) -> int:
    """Returns max_tokens, filled in where it is None. Raises ValueError when the request could never run.

    The last generated token is never written to the cache, so a sequence needs prompt + max_tokens − 1 slots. Only
    one sequence of a group must fit: the others can be preempted. Beam search moves all its sequences together, so
    all of them must fit, each with blocks of its own in the worst case.
    """
    block_size, num_blocks = manager.block_size, manager.num_usable_blocks
    together = params.beam_width if isinstance(params, BeamSearchParams) else 1
    most_slots = num_blocks // together * block_size
    longest = min(max_model_len, most_slots + 1)  # prompt and output, in tokens
    max_tokens = params.max_tokens if params.max_tokens is not None else max(1, longest - num_prompt_tokens)
    total = num_prompt_tokens + max_tokens
    asked = f"prompt ({num_prompt_tokens} tokens) + max_tokens ({max_tokens}) = {total} tokens"
    way_out = "shorten the prompt"
    if longest > num_prompt_tokens:
        way_out += f", or set max_tokens to at most {longest - num_prompt_tokens}"
    if total > max_model_len:
        raise ValueError(f"{asked}, but the model's length is {max_model_len}; {way_out}")
    needed = together * -(-(total - 1) // block_size)
    if needed > num_blocks:
        beams = f" for each of {together} beams, which run together" if together > 1 else ""
        raise ValueError(
            f"{asked} need {needed // together} blocks of {block_size} tokens{beams}"
            f"{f' ({needed} in all)' if together > 1 else ''}, but the pool has {num_blocks}; {way_out}, or give the "
            f"pool num_blocks={needed + manager.pool.num_blocks - num_blocks}"
        )
    seats = together if together > 1 else getattr(params, "n", 1)
    if seats > config.max_num_seqs:
        what = "beam_width" if together > 1 else "n"
        raise ValueError(f"{what} is {seats}, but max_num_seqs is {config.max_num_seqs}; lower one or raise the other")
    if not config.enable_chunked_prefill and total - 1 > config.max_num_batched_tokens:
        most = config.max_num_batched_tokens + 1 - num_prompt_tokens
        way_out = "shorten the prompt" + (f", or set max_tokens to at most {most}" if most > 0 else "")
        raise ValueError(
            f"{asked}, but one step computes at most {config.max_num_batched_tokens} (max_num_batched_tokens) and "
            f"chunked prefill is off; {way_out}, raise max_num_batched_tokens, or set enable_chunked_prefill=True"
        )
    return max_tokens
