"""What a test leaves behind must not reach the next one: which tests share a process is the scheduler's choice."""

import os
from collections.abc import Iterator

import pytest
import torch

WATCHED = ("CUDA", "HF_", "MINIPAGED", "MKL_", "MPL", "NUMBA", "OMP_", "PYTHON", "TOKENIZERS", "TRANSFORMERS", "TRITON")


@pytest.fixture(autouse=True)
def the_process_stays_as_it_was() -> Iterator[None]:
    """A test that leaves a `WATCHED` setting changed fails; the folder, torch's threads and default type are put back.

    Some libraries read the environment again later (Numba does at every compilation), far from the test that set it.
    """
    before, folder = _settings(), os.getcwd()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    os.chdir(folder)
    now = _settings()
    for name in now.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    assert not changed, f"this test left its mark on the environment: {', '.join(changed)}; use monkeypatch.setenv"


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(WATCHED)}
