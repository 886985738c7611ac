"""Where results are written: looked at before a benchmark runs, for afterwards it would be a pity."""

import argparse
import os
from pathlib import Path


def check_output(parser: argparse.ArgumentParser, option: str, path: Path, ending: str) -> None:
    """Exit with 2, before anything is measured, when a file could not be written."""
    if path.suffix.lower() != ending:
        parser.error(f"{option} is {path}; give a file name that ends in {ending}")
    if path.is_dir() or not path.parent.is_dir():
        parser.error(f"{option} is {path}; it must name a file in a folder that exists")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        parser.error(f"{option} is {path}; it may not be written there: choose another place")
