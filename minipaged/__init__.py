"""minipaged: a small, real paged serving engine, and the course that explains it.

Importing this package is cheap: it imports neither torch nor triton. It does one thing that must come first
in a process: it decides whether Triton kernels run on a GPU or in Triton's CPU interpreter.
"""

import importlib
import os
import sys
from pathlib import Path

__version__ = "0.1.0"

_LAZY = {
    "LLM": "minipaged.serving",
    "SamplingParams": "minipaged.serving",
    "KVCacheManager": "minipaged.kv_cache",
    "BlockPool": "minipaged.kv_cache",
    "BlockTable": "minipaged.kv_cache",
}
__all__ = ["LLM", "BlockPool", "BlockTable", "KVCacheManager", "SamplingParams", "gpu_present"]


def gpu_present() -> bool:
    """True where a CUDA or ROCm device can be used; asks the driver, not torch (which takes a second to import)."""
    if Path("/dev/kfd").exists():
        return True
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    import ctypes  # here, so that a machine without ctypes can still read the lessons

    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


def _choose_triton_mode() -> None:
    """Without a GPU, switch Triton's interpreter on. This works only before triton is imported."""
    if "TRITON_INTERPRET" in os.environ or gpu_present():
        return
    if sys.modules.get("triton") is not None:  # None there: its import is blocked
        raise ImportError(
            "triton was imported before minipaged, and this machine has no GPU: triton kernels would fail with "
            "'0 active drivers'. Put `import minipaged` before `import triton` (and before importing a transformers "
            "model, which imports triton), or set the environment variable TRITON_INTERPRET=1, then restart Python."
        )
    os.environ["TRITON_INTERPRET"] = "1"


_choose_triton_mode()


def __getattr__(name: str):
    """Import the few public names on first use (PEP 562), so that `import minipaged.os_paging` stays light."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'minipaged' has no attribute {name!r}; the public names are {', '.join(__all__)}")
