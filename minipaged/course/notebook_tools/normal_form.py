"""The normal form of an executed notebook: what two runs on one machine write must be the same bytes."""

import copy
import json
import re
from typing import Any

from minipaged.course.notebook_tools.notebook import METADATA, Notebook, with_ids

WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
KEPT_METADATA = ("tags", "minipaged", "nbgrader")
"""What a cell's metadata may hold; timings, collapsed flags and the like are dropped."""


def normal_form(notebook: Notebook) -> Notebook:
    """Ids from content, execution counts 1…n, no timings, widget models numbered in the order they appear."""
    notebook = _with_numbered_widgets(copy.deepcopy(notebook))
    count = 0
    for cell in notebook["cells"]:
        cell["metadata"] = {key: cell["metadata"][key] for key in KEPT_METADATA if cell["metadata"].get(key)}
        if cell["cell_type"] != "code":
            continue
        if cell["execution_count"] is not None:
            count += 1
            cell["execution_count"] = count
        cell["outputs"] = _merged_streams(cell["outputs"])
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = count
            if output.get("metadata"):
                kept = {kind: value for kind, value in output["metadata"].items() if kind in output["data"]}
                output["metadata"] = kept
    metadata = dict(METADATA)
    if notebook["metadata"].get("widgets", {}).get(WIDGET_STATE, {}).get("state"):
        metadata["widgets"] = notebook["metadata"]["widgets"]
    return with_ids({"cells": notebook["cells"], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def _merged_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring pieces of one stream as one output: how a kernel cuts its text is chance."""
    merged: list[dict[str, Any]] = []
    for output in outputs:
        if "text" in output:
            output["text"] = "".join(output["text"])
        same_stream = merged and output["output_type"] == "stream" == merged[-1]["output_type"]
        if same_stream and merged[-1]["name"] == output["name"]:
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    return merged


def _with_numbered_widgets(notebook: Notebook) -> Notebook:
    """Widget models get random ids: number those that a cell shows, and what they refer to; drop the others."""
    saved = notebook["metadata"].get("widgets", {}).get(WIDGET_STATE)
    if not saved:
        return notebook
    state = saved["state"]
    numbers: dict[str, str] = {}

    def visit(model: str) -> None:
        if model in numbers or model not in state:
            return
        numbers[model] = f"{len(numbers) + 1:032x}"
        for child in re.findall(r"IPY_MODEL_([0-9a-f]{32})", json.dumps(state[model], sort_keys=True)):
            visit(child)

    shown = json.dumps([cell.get("outputs", []) for cell in notebook["cells"]])
    for model in re.findall(r'"model_id": "([0-9a-f]{32})"', shown):
        visit(model)
    saved["state"] = {model: state[model] for model in numbers}
    for model in saved["state"].values():
        if "msg_id" in model.get("state", {}):
            model["state"]["msg_id"] = ""
    text = re.sub(r"[0-9a-f]{32}", lambda match: numbers.get(match[0], match[0]), json.dumps(notebook))
    return json.loads(text)
