"""A model as a file that needs neither aspire nor the model's code."""

from __future__ import annotations

import copy
import io
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aspire.arguments import shown
from aspire.problem.conversion import each, first_line
from aspire.problem.copies import arguments_of
from aspire.runs import files as rundir

KINDS = (".pt2", ".onnx")


def export(model: nn.Module, path: Path, inputs: Any) -> None:
    """Write the model in eval mode; `inputs` is a batch of two or more, whose size may change."""
    if path.suffix not in KINDS:
        raise ValueError(f"path={str(path)!r}: expected a name that ends in .pt2 or .onnx")
    if path.suffix == ".onnx" and (find_spec("onnx") is None or find_spec("onnxscript") is None):
        raise ImportError("ONNX is not installed: pip install 'aspire-ease[export]'")
    model = copy.deepcopy(model).eval()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = program_of(model, inputs)
            data = as_pt2(program) if path.suffix == ".pt2" else as_onnx(program)
    except Exception as error:
        raise ValueError(
            f"{path}: torch cannot export {shown(model)}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
    with rundir.whole(path) as beside:
        beside.write_bytes(data)


def program_of(model: nn.Module, inputs: Any) -> torch.export.ExportedProgram:
    """The first axis of every tensor of the inputs may have any length."""
    args, named = arguments_of(model, inputs)
    any_length: Any = {0: torch.export.Dim.AUTO}
    lengths = each(lambda x: any_length, named or args)
    return torch.export.export(model, args, named, dynamic_shapes=lengths)


def as_pt2(program: torch.export.ExportedProgram) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def as_onnx(program: torch.export.ExportedProgram) -> bytes:
    made = torch.onnx.export(program, dynamo=True, verbose=False)
    if made is None:
        raise ValueError("the exporter gave nothing")
    return made.model_proto.SerializeToString()
