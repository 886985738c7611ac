"""Compile a kernel for a GPU that need not be there, and read what the compiler made of it.

    minipaged inspect-kernel decode --target sm90
    minipaged inspect-kernel all --json
    minipaged inspect-kernel decode --target sm90 --text ptx

Compilation needs Triton without its interpreter, and that is decided once a process: so the work runs in a process
of its own. Read from the result: registers and spills a thread, shared memory a program, how wide the loads from
global memory are, and which matrix instructions stand in the code.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

KERNELS = ("decode", "split", "merge", "prefill", "write", "copy")
TARGETS = {
    "sm80": ("cuda", 80, 32),
    "sm90": ("cuda", 90, 32),
    "sm100": ("cuda", 100, 32),
    "gfx942": ("hip", "gfx942", 64),
}
DTYPES = ("bf16", "fp16", "fp32")
CACHE_DTYPES = (*DTYPES, "fp8e4nv", "fp8e5")
LIMITS = {"head_dim": 256, "group": 64, "num_kv_heads": 1 << 10, "block_size": 1 << 16}


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for. ``dtype`` of queries and output, ``cache_dtype`` of K and V."""

    head_dim: int = 128
    group: int = 4
    num_kv_heads: int = 8
    block_size: int = 16
    dtype: str = "bf16"
    cache_dtype: str = "bf16"
    window: bool = False
    soft_cap: bool = False
    alibi: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ValueError(f"{name} is {value!r}, but it must be a whole number between 1 and {limit}")
        for name, known in (("dtype", DTYPES), ("cache_dtype", CACHE_DTYPES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown: choose from {', '.join(known)}")


@dataclass
class Report:
    """What the compiler made of one kernel for one target.

    registers, spills     a thread; spills in bytes of memory (AMD's scalar registers spill to vector ones: no memory)
    shared                bytes a program
    loads                 {bits: number of load instructions from global memory of that width}
    matrix                {matrix instruction: count}
    """

    kernel: str
    target: str
    registers: int
    spills: int
    shared: int
    loads: dict[int, int]
    matrix: dict[str, int]
    seconds: float
    text: str = ""


def inspect_kernels(
    kernels: list[str], targets: list[str], shape: Shape | None = None, text: str = "", timeout: float = 300
) -> list[Report]:
    """Every kernel for every target, of one shape. See ``inspect_jobs``."""
    shape = shape or Shape()
    return inspect_jobs([(kernel, target, shape) for kernel in kernels for target in targets], text, timeout)


def inspect_jobs(jobs: list[tuple[str, str, Shape]], text: str = "", timeout: float = 300) -> list[Report]:
    """Compile each (kernel, target, shape), all in one process of its own.

    ``text``: also return the assembly of this kind ("ptx", "sass", "ttgir", "amdgcn", …) in ``Report.text``.
    Raises ValueError for an unknown name, RuntimeError with the compiler's message when a kernel does not compile.
    """
    for kernel, target, _ in jobs:
        for what, name, known in (("kernel", kernel, KERNELS), ("target", target, TARGETS)):
            if name not in known:
                raise ValueError(f"{what} {name!r} is unknown: choose from {', '.join(known)}")
    request = {"jobs": [(kernel, target, asdict(shape)) for kernel, target, shape in jobs], "text": text}
    # "0" keeps minipaged from switching the interpreter on.
    done = subprocess.run(
        [sys.executable, "-m", "minipaged.attention.inspect", "--worker"],
        input=json.dumps(request), capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"a kernel did not compile:\n{done.stderr.strip()[-3000:]}")
    reports = json.loads(done.stdout.splitlines()[-1])
    return [Report(**{**r, "loads": {int(bits): n for bits, n in r["loads"].items()}}) for r in reports]


def _worker() -> None:
    request = json.load(sys.stdin)
    compiled = [_compile(kernel, target, Shape(**shape), request["text"]) for kernel, target, shape in request["jobs"]]
    print(json.dumps([asdict(report) for report in compiled]))


def _file_worker() -> None:
    """Compile a function of a file: the other end of ``own_kernel.inspect_own``."""
    request = json.load(sys.stdin)
    specification = importlib.util.spec_from_file_location("own", request.pop("file"))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    report = compile_function(fn=getattr(module, request["name"]), **request)
    print(json.dumps(asdict(report)))


def _compile(kernel: str, target: str, shape: Shape, text: str) -> Report:
    from minipaged.attention.triton import launch_kernels

    fn, constants = _kernel_and_constants(kernel, shape)
    signature, constants = _signature(fn, constants, shape)
    rows = constants.get("ROWS", 0)
    warps = launch_kernels.PREFILL_WARPS if kernel == "prefill" else launch_kernels.decode_warps(_itemsize(shape), rows)
    return compile_function(kernel, fn, signature, constants, target, warps, text)


def compile_function(
    name: str, fn, signature: dict[str, str], constants: dict, target: str, warps: int = 4, text: str = ""
) -> Report:
    """Compile a ``triton.jit`` function here and now: in a process in which Triton's interpreter is off."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(signature)
    # Tensors come from an allocator that aligns to 256 bytes, and strides of whole heads are multiples of 16: the
    # launcher finds that out by itself, here it has to be said. With it, loads are 128 bits wide.
    aligned = [n for n in names if signature[n].startswith("*") or ("stride" in n and signature[n] == "i32")]
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned if n != "tables_stride"}
    backend, arch, warp = TARGETS[target]
    started = time.perf_counter()
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget(backend, arch, warp), options={"num_warps": warps})
    seconds = time.perf_counter() - started
    read = _read_nvidia if backend == "cuda" else _read_amd
    assembly = dict(compiled.asm)
    if text == "sass":
        assembly["sass"] = _nvidia_tool("nvdisasm", assembly["cubin"], "-c")
    if text and text not in assembly:
        raise ValueError(f"no text {text!r} for {target}: there are {', '.join(k for k in assembly if k != 'cubin')}")
    return Report(name, target, **read(compiled), seconds=round(seconds, 2), text=assembly.get(text, ""))


def _kernel_and_constants(kernel: str, shape: Shape):
    import triton
    import triton.language as tl

    from minipaged.attention.triton import cache, decode, launch_kernels, prefill, split

    def power(n: int) -> int:
        return triton.next_power_of_2(n)

    types = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
    itemsize = _itemsize(shape)
    padded = {"D": shape.head_dim, "D_PAD": max(16, power(shape.head_dim))}
    common = {
        "GROUP": shape.group, "BLOCK_SIZE": shape.block_size, **padded,
        "TILE": launch_kernels.gpu_tile(shape.head_dim, itemsize),
        "WINDOW": shape.window, "SOFT_CAP": shape.soft_cap, "ALIBI": shape.alibi,
        "DOT_TYPE": types[shape.dtype], "PRECISION": "ieee",
    }  # fmt: skip
    rows = max(launch_kernels.GPU_ROWS, power(shape.group))
    heads = shape.num_kv_heads
    return {
        "decode": (decode.decode_kernel, {**common, "ROWS": rows, "SINKS": shape.sinks}),
        "split": (split.split_kernel, {**common, "ROWS": rows}),
        "merge": (split.merge_kernel, {"SPLITS_PAD": 16, **padded, "SINKS": shape.sinks}),
        "prefill": (
            prefill.prefill_kernel,
            {**common, "GROUP_PAD": power(shape.group), "SINKS": shape.sinks,
             "QUERY_TILE": launch_kernels.gpu_query_tile(power(shape.group), itemsize)},
        ),
        "write": (
            cache.write_kernel,
            {"BLOCK_SIZE": shape.block_size, "TOKENS": max(1, 32 // power(heads)), "HEADS": heads,
             "HEADS_PAD": power(heads), **padded},
        ),
        "copy": (cache.copy_blocks_kernel, {"HEADS": heads, "ROWS": 32, **padded}),
    }[kernel]  # fmt: skip


def _itemsize(shape: Shape) -> int:
    return 4 if shape.dtype == "fp32" else 2


def _signature(fn, constants: dict, shape: Shape) -> tuple[dict[str, str], dict]:
    """The type of every argument, found from its name; strides of 1 are compiled in, as the launcher does."""
    bits = {"fp32": "*i32"}.get(shape.cache_dtype, "*u8" if shape.cache_dtype.startswith("fp8") else "*i16")
    moves_bits = "DOT_TYPE" not in constants and "SPLITS_PAD" not in constants
    cache = bits if moves_bits else f"*{shape.cache_dtype}"
    pointers = {
        "q_ptr": f"*{shape.dtype}", "out_ptr": f"*{shape.dtype}",
        "k_ptr": cache, "v_ptr": cache,
        "key_ptr": bits, "value_ptr": bits, "slots_ptr": "*i64", "pairs_ptr": "*i64",
        "part_ptr": "*fp32", "part_lse_ptr": "*fp32", "lse_ptr": "*fp32", "slopes_ptr": "*fp32", "sinks_ptr": "*fp32",
    }  # fmt: skip
    signature, constants = {}, dict(constants)
    for name in fn.arg_names:
        if name.endswith("stride_dim"):
            constants[name] = 1
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("scale", "v_scale", "soft_cap"):
            signature[name] = "fp32"
        else:
            signature[name] = pointers.get(name, "*i32" if name.endswith("_ptr") else "i32")
    return signature, constants


def _nvidia_tool(tool: str, cubin: bytes, *arguments: str) -> str:
    import triton

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
        return subprocess.run([path, *arguments, file], capture_output=True, text=True, check=True).stdout


def _read_nvidia(compiled) -> dict:
    ptx = compiled.asm["ptx"]
    usage = _nvidia_tool("cuobjdump", compiled.asm["cubin"], "--dump-resource-usage")
    registers, stack, local = (int(re.search(rf"{key}:(\d+)", usage).group(1)) for key in ("REG", "STACK", "LOCAL"))
    loads: Counter[int] = Counter()
    for vector, bits in re.findall(r"ld\.global(?:\.[\w:]+)*?(?:\.v(\d))?\.b(\d+)", ptx):
        loads[int(vector or 1) * int(bits)] += 1
    for size in re.findall(r"cp\.async\.c[ag]\.shared\.global[^,]*,[^,]*, (0x[0-9a-f]+|\d+)", ptx):
        loads[8 * int(size, 0)] += 1
    matrix = Counter(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)[\w.:]*", ptx))
    return {
        "registers": registers, "spills": stack + local, "shared": compiled.metadata.shared,
        "loads": dict(sorted(loads.items())), "matrix": dict(matrix),
    }  # fmt: skip


def _read_amd(compiled) -> dict:
    code = compiled.asm["amdgcn"]
    widths = {"ubyte": 8, "ushort": 16, "short": 16, "dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128}
    loads: Counter[int] = Counter()
    for width in re.findall(r"\b(?:global|buffer)_load_(?:d16_)?([a-z0-9]+)", code):
        loads[widths.get(width, 0)] += 1

    def number(key: str) -> int:
        return int(re.search(rf"\.{key}:\s*(\d+)", code).group(1))

    return {
        "registers": number("vgpr_count"), "spills": number("private_segment_fixed_size"),
        "shared": compiled.metadata.shared, "loads": dict(sorted(loads.items())),
        "matrix": dict(Counter(re.findall(r"\bv_mfma\w+", code))),
    }  # fmt: skip


def format_table(reports: list[Report]) -> str:
    """The reports as a table of plain text."""
    rows = [("kernel", "target", "registers", "spills", "shared", "loads: bits × count", "matrix instructions")]
    for r in reports:
        loads = ", ".join(f"{bits} × {n}" for bits, n in r.loads.items())
        matrix = ", ".join(f"{n} {name}" for name, n in r.matrix.items())
        rows.append(
            (r.kernel, r.target, *map(str, (r.registers, r.spills, r.shared)), loads or "none", matrix or "none")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def main(argv: list[str] | None = None) -> int:
    """The command line of ``minipaged inspect-kernel``."""
    parser = argparse.ArgumentParser(
        prog="minipaged inspect-kernel",
        description="Compile a Triton kernel for a GPU (none is needed here) and show registers, spills, shared "
        "memory, widths of loads from global memory, and matrix instructions.",
    )
    parser.add_argument("kernel", choices=[*KERNELS, "all"])
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--group", type=int, default=4, help="query heads that share one KV head (1 … 64)")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--cache-dtype", choices=CACHE_DTYPES, help="of K and V; default: --dtype")
    parser.add_argument("--text", default="", metavar="KIND", help="print this instead: ptx, sass, ttgir, amdgcn, …")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args(argv)
    try:
        shape = Shape(
            arguments.head_dim, arguments.group, block_size=arguments.block_size, dtype=arguments.dtype,
            cache_dtype=arguments.cache_dtype or arguments.dtype,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    kernels = list(KERNELS) if arguments.kernel == "all" else [arguments.kernel]
    targets = list(TARGETS) if arguments.target == "all" else [arguments.target]
    try:
        reports = inspect_kernels(kernels, targets, shape, arguments.text)
    except RuntimeError as error:
        print(f"minipaged inspect-kernel: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([asdict(report) for report in reports], indent=2))
    elif arguments.text:
        print("\n".join(report.text for report in reports))
    else:
        print(format_table(reports))
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        _worker()
    elif sys.argv[1:] == ["--file"]:
        _file_worker()
    else:
        sys.exit(main())
