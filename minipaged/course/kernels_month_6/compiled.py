"""Compile the lesson's kernels for GPUs that need not be there: ``compile_kernels(["decode"], ["sm90"])``.

As ``minipaged inspect-kernel`` does for the package's kernels: in a process of its own, because Triton decides once a
process whether it interprets. The shapes are those of a model like Llama-3.1-8B: bfloat16, head size 128, four query
heads per KV head, blocks of 16.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from minipaged.attention.inspect import TARGETS, Report, _read_amd, _read_nvidia

KERNELS = {
    "double": ("first_steps", "double_kernel"),
    "gather": ("first_steps", "gather_kernel"),
    "online softmax": ("online_softmax", "online_softmax_kernel"),
    "one head": ("one_head", "one_head_kernel"),
    "decode": ("decode", "decode_kernel"),
    "split": ("split", "split_kernel"),
    "merge": ("split", "merge_kernel"),
    "write": ("cache", "write_kernel"),
    "copy": ("cache", "copy_blocks_kernel"),
    "prefill": ("prefill", "prefill_kernel"),
}
CONSTANTS = {
    "GROUP": 4, "ROWS": 16, "GROUP_PAD": 4, "QUERY_TILE": 4, "BLOCK_SIZE": 16, "BLOCK_PAD": 16, "TILE": 32,
    "D": 128, "D_PAD": 128, "SPLITS_PAD": 8, "ROW": 1024, "ROW_PAD": 1024, "SIZE": 16384, "SIZE_PAD": 16384,
}  # fmt: skip
POINTERS = {
    "part_ptr": "*fp32", "lse_ptr": "*fp32", "scores_ptr": "*fp32", "values_ptr": "*fp32",
    "slots_ptr": "*i64", "pairs_ptr": "*i64",
    **dict.fromkeys(
        ("table_ptr", "tables_ptr", "seq_lens_ptr", "query_start_ptr", "tile_seq_ptr", "tile_start_ptr"), "*i32"
    ),
}  # fmt: skip


def compile_kernels(
    kernels: Sequence[str],
    targets: Sequence[str],
    aligned: bool | Sequence[bool] = True,
    tile: int = 32,
    timeout: float = 300,
) -> list[Report]:
    """One report a kernel, target and alignment.

    ``aligned``: pointers and cache strides are said to be multiples of 16. With both values, each kernel is compiled
    twice, in one process.

    Raises ValueError for an unknown name, RuntimeError with the compiler's message when a kernel does not compile.
    """
    for what, names, known in (("kernel", kernels, KERNELS), ("target", targets, TARGETS)):
        for name in names:
            if name not in known:
                raise ValueError(f"{what} {name!r} is unknown: choose from {', '.join(known)}")
    request = {"kernels": list(kernels), "targets": list(targets), "tile": tile}
    request["aligned"] = [aligned] if isinstance(aligned, bool) else list(aligned)
    done = subprocess.run(
        [sys.executable, "-m", "minipaged.course.kernels_month_6.compiled"],
        input=json.dumps(request), capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a kernel did not compile:\n{done.stderr.strip()[-3000:]}")
    reports = json.loads(done.stdout.splitlines()[-1])
    return [Report(**{**r, "loads": {int(bits): n for bits, n in r["loads"].items()}}) for r in reports]


def _compile(kernel: str, target: str, aligned: bool, tile: int) -> Report:
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, function = KERNELS[kernel]
    fn = getattr(importlib.import_module(f"minipaged.course.kernels_month_6.{module}"), function)
    constants = {name: value for name, value in CONSTANTS.items() if name in fn.arg_names}
    if "TILE" in constants:
        constants["TILE"] = tile
    signature = {name: "constexpr" if name in constants else _type(name) for name in fn.arg_names}
    wide = [n for n, kind in signature.items() if kind.startswith("*") or n in ("stride_block", "stride_slot")]
    names = list(signature)
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in wide} if aligned else {}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attributes)
    backend, arch, warp = TARGETS[target]
    compiled = triton.compile(source, target=GPUTarget(backend, arch, warp), options={"num_warps": 4})
    return Report(kernel, target, **(_read_nvidia if backend == "cuda" else _read_amd)(compiled), seconds=0.0)


def _type(name: str) -> str:
    if name == "scale":
        return "fp32"
    return POINTERS.get(name, "*bf16" if name.endswith("_ptr") else "i32")


if __name__ == "__main__":
    request = json.load(sys.stdin)
    reports = [
        _compile(kernel, target, aligned, request["tile"])
        for kernel in request["kernels"]
        for target in request["targets"]
        for aligned in request["aligned"]
    ]
    print(json.dumps([asdict(report) for report in reports]))
