"""Choice of the attention backend, and the checks in front of it."""

from __future__ import annotations

import importlib.util

import torch

from minipaged.attention.options import PLAIN, AttentionOptions
from minipaged.attention.protocols import AttentionBackend
from minipaged.attention.reference import ReferenceBackend
from minipaged.attention.validate import (
    validate_attend,
    validate_cache,
    validate_metadata,
    validate_pairs,
    validate_slots,
    validate_write,
)

BACKENDS = ("auto", "reference", "triton", "cpu")


def available(module: str) -> bool:
    """True when ``module`` is installed; does not import it."""
    return importlib.util.find_spec(module) is not None


def get_backend(
    backend: str | AttentionBackend | type = "auto",
    device: str | torch.device = "cpu",
    validate: bool = True,
    options: AttentionOptions = PLAIN,
) -> AttentionBackend:
    """The backend by name, or the caller's own object or class with the AttentionBackend protocol.

    "auto": on a GPU triton; on the CPU the Numba backend where numba is installed, else the reference.
    ``validate=False`` leaves the checks out (for benchmarks: a wrong block id then reads garbage or ends the
    process).

    Raises ValueError for an unknown name, ImportError when the backend's library is missing, TypeError for
    an object without the protocol.
    """
    if not isinstance(backend, str):
        return _own_backend(backend)
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {device!r} is unknown to torch: use 'cpu' or 'cuda'") from error
    if backend == "auto":
        if device.type == "cpu":
            backend = "cpu" if available("numba") else "reference"
        else:
            backend = "triton" if available("triton") else "reference"
    if backend == "reference":
        return ReferenceBackend(validate, options)
    if backend == "triton":
        return _triton_backend(device, validate, options)
    if backend == "cpu":
        return _cpu_backend(device, validate, options)
    raise ValueError(
        f"attention backend {backend!r} is unknown: choose one of {', '.join(BACKENDS)}, or pass an object "
        "with the methods write, attend and copy_blocks"
    )


def cache_dtype(backend: AttentionBackend, dtype: torch.dtype) -> torch.dtype:
    """The type of the KV cache that ``backend`` reads best in a model of the type ``dtype``.

    The model's own type, with one exception: the CPU's kernels compute in float32 and read nothing else, so they get
    a float32 cache for a model in 16 bits too. It takes twice the memory of 16 bits, and no step converts its context.
    """
    if dtype in (torch.bfloat16, torch.float16) and available("numba"):
        from minipaged.attention.cpu import CPUBackend

        if isinstance(backend, CPUBackend):
            return torch.float32
    return dtype


def _own_backend(backend: object) -> AttentionBackend:
    made = backend() if isinstance(backend, type) else backend
    missing = [name for name in ("name", "write", "attend", "copy_blocks") if not hasattr(made, name)]
    if missing:
        raise TypeError(
            f"{type(made).__name__} is no attention backend: it lacks {', '.join(missing)}; "
            "see minipaged.attention.protocols.AttentionBackend for the three methods and the name"
        )
    return made


def _triton_backend(device: torch.device, validate: bool, options: AttentionOptions) -> AttentionBackend:
    if not available("triton"):
        raise ImportError(
            "attention='triton' needs triton, which is not installed (triton has wheels for Linux only: on "
            "macOS and Windows use WSL, a devcontainer or a hosted notebook). Everything else works with "
            "attention='reference' or 'cpu'."
        )
    from minipaged.attention.triton import TritonBackend
    from minipaged.attention.triton.launch_kernels import interpreted

    if device.type == "cpu" and not interpreted():
        raise ValueError(
            "attention='triton' on the device 'cpu' needs Triton's interpreter, which is off because this "
            "machine has a GPU: use device='cuda', or set the environment variable TRITON_INTERPRET=1 "
            "before Python starts"
        )
    return TritonBackend(validate, options)


def _cpu_backend(device: torch.device, validate: bool, options: AttentionOptions) -> AttentionBackend:
    if not available("numba"):
        raise ImportError(
            "attention='cpu' needs numba, which is not installed: pip install 'minipaged[cpu]', or use "
            "attention='reference'"
        )
    if device.type != "cpu":
        raise ValueError(f"attention='cpu' cannot read a KV cache on {device}: use device='cpu' or attention='triton'")
    from minipaged.attention.cpu import CPUBackend

    return CPUBackend(validate, options)


__all__ = [
    "BACKENDS",
    "available",
    "cache_dtype",
    "get_backend",
    "validate_attend",
    "validate_cache",
    "validate_metadata",
    "validate_pairs",
    "validate_slots",
    "validate_write",
]
