"""Two real ranks for exercise 7.8: two processes with gloo between them, and a learner's attention in each.

The processes are forks, so a class that was defined in a notebook comes along. Where Python cannot fork (Windows,
macOS) the exercise ends with the two threads of `two_ranks`.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from time import monotonic

import torch

from minipaged.course.own_process import can_fork

__all__ = ["RanksFailed", "can_fork", "tokens_of_two_processes"]


class RanksFailed(RuntimeError):
    """The run on two processes gave no tokens; the message says what the ranks said."""


def tokens_of_two_processes(own_attention: type, prompts: Sequence[str], max_tokens: int, seconds: float = 60.0):
    """Token ids of each prompt, greedy, from one engine on two ranks with this attention.

    Raises RanksFailed: a rank raised or ended, or there was no result after so many seconds.
    """
    import torch.distributed as dist

    context = multiprocessing.get_context("fork")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    receivers, processes = [], []
    for rank in range(2):
        receive, send = context.Pipe(duplex=False)
        arguments = (send, rank, store.port, own_attention, list(prompts), max_tokens)
        processes.append(context.Process(target=_rank, args=arguments, daemon=True))
        processes[-1].start()
        send.close()
        receivers.append(receive)
    try:
        return _result(receivers, monotonic() + seconds)
    finally:
        for process, receive in zip(processes, receivers, strict=True):
            process.kill()
            process.join()
            receive.close()


def _result(receivers: list[Connection], until: float) -> list[list[int]]:
    """What rank 0 sends, once both ranks are done. The first complaint of any rank ends it."""
    waiting, tokens = dict(enumerate(receivers)), None
    while waiting:
        ready = wait(list(waiting.values()), max(0.0, until - monotonic()))
        if not ready:
            raise RanksFailed(f"rank {', rank '.join(map(str, waiting))} gave no answer within the time limit")
        for rank, receive in list(waiting.items()):
            if receive in ready:
                try:
                    found, error = receive.recv()
                except EOFError:
                    raise RanksFailed(f"rank {rank} ended without an answer") from None
                if error:
                    raise RanksFailed(f"rank {rank}: {error}")
                tokens = found if rank == 0 else tokens
                del waiting[rank]
    return tokens


def _rank(send: Connection, rank: int, port: int, own_attention: type, prompts: list[str], max_tokens: int) -> None:
    import torch.distributed as dist

    from minipaged.parallel import Shard, join, serve
    from minipaged.serving import SamplingParams

    torch.set_num_threads(1)  # torch's worker threads do not live on in a forked process
    try:
        group = join(rank, 2, dist.TCPStore("127.0.0.1", port), on_end=lambda problem: send.send((None, str(problem))))
        shard = Shard.load(group, "tiny", attention="reference", own_attention=own_attention)
        params = SamplingParams(max_tokens=max_tokens)

        def work(make_llm) -> list[list[int]]:
            llm = make_llm(num_blocks=10, block_size=4, check_integrity=True)
            return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

        tokens, _ = serve(group, shard, work)
        send.send((tokens, ""))
        group.close()
    except BaseException as error:
        send.send((None, traceback.format_exception_only(error)[-1].strip()))
