"""Ranks of the tests are forks of the test's process: they need not import torch, nor what building a model imports."""

import pytest
import torch

from minipaged.model import load_model


@pytest.fixture(autouse=True, scope="session")
def imported():
    load_model("tiny")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
