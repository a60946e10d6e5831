"""The model as an ONNX graph, and the proof that it gives what the network gives.

Input `images`: float32 (batch, C, S, S) from 0 to 1, that is pixels / 255 in the study's geometry; mean and standard
deviation are applied inside. Output `logits`: float32 (batch, K). Class names, preprocessing and everything else that
is known of the model stand in the metadata of the graph.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from semisilo.common.config import canonical_json
from semisilo.common.data.augmentation.augment import standardised
from semisilo.common.data.form import ImageForm, Reading
from semisilo.common.errors import BadData, ComputeFailed, UsageError
from semisilo.common.measures.multi_label import AVERAGE_CUT
from semisilo.common.models.exported import METADATA_KEY, ModelFacts
from semisilo.common.models.onnx_runtime import onnx_runtime
from semisilo.common.text.installing import how_to_install

__all__ = ["ABSOLUTE_TOLERANCE", "RELATIVE_TOLERANCE", "OnnxCheck", "check_onnx", "needs_onnx", "preprocessing_of",
           "write_onnx"]

ABSOLUTE_TOLERANCE = 1e-4
RELATIVE_TOLERANCE = 1e-4
"""A logit may differ by the first and the second times the largest logit of its image: other kernels add in another
order."""
_CHECK_BATCHES = (1, 32)
_MOST_CHECKED = 250


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxCheck:
    """How the graph compares with the network."""

    images: int
    """That both have answered."""
    source: str
    """Which images: "test", "validation", "labelled", or "random" where the coordinator has none."""
    largest_difference: float
    """Between two logits."""
    largest_logit: float
    same_predictions: int
    """Images for which both predict the same class."""
    opset: int
    versions: dict[str, str]


class _FromFractions(nn.Module):
    """The network with the study's normalisation, or that of each image, before it."""

    def __init__(self, model: nn.Module, form: ImageForm) -> None:
        super().__init__()
        self.model = model
        self._by_image = form.standardise == "image"
        self.register_buffer("mean", torch.tensor(form.mean, dtype=torch.float32)[:, None, None])
        self.register_buffer("std", torch.tensor(form.std, dtype=torch.float32)[:, None, None])

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of fractions 0 to 1."""
        assert isinstance(self.mean, Tensor)
        assert isinstance(self.std, Tensor)
        logits_BK: Tensor = self.model(standardised(images_BCHW) if self._by_image
                                       else (images_BCHW - self.mean) / self.std)
        return logits_BK


def needs_onnx() -> None:
    """Raises: UsageError, naming the extra, where the packages are not installed."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401

        onnx_runtime()
    except ImportError as error:
        raise UsageError(f"ONNX needs the package {error.name}, which is not installed.",
                         remedy=f"{how_to_install('semisilo[onnx]')} Or leave it out: --format safetensors.") from None


def preprocessing_of(form: ImageForm) -> str:
    """In words, what whoever calls the graph must do to a picture."""
    words = {"fit": "padded with black to a square, then scaled", "crop": "cut to its centre square, then scaled",
             "stretch": "scaled, each side by itself", "pad": "padded with black on all sides, never scaled"}
    colours = "as ITU-R 601 luminance" if form.channels == 1 else "as red, green, blue"
    seen = ("subtracts from each channel of each image its mean over all pixels and divides by sqrt(variance + 0.001)"
            if form.standardise == "image" else f"subtracts the mean {list(form.mean)} and divides by the standard"
            f" deviation {list(form.std)} of each channel")
    deep = "" if form.reading == Reading() else f" Files of more than 8 bits: {canonical_json(form.reading)}."
    return (f"8-bit pixels {colours}; {words[form.resize]} to {form.size} x {form.size} by an antialiased bilinear"
            f" filter; float32 (batch, {form.channels}, {form.size}, {form.size}), divided by 255. The graph itself"
            f" {seen}.{deep}")


def write_onnx(path: Path, model: nn.Module, facts: ModelFacts) -> None:
    """Writes the graph with a dynamic batch size.

    Args:
        model: with its statistics, on the CPU; unchanged.
    Raises: ComputeFailed when the network has an operation that ONNX has not.
    """
    import onnx

    form = facts.image
    wrapped = _FromFractions(model, form).eval()
    example_BCHW = torch.zeros(2, form.channels, form.size, form.size)
    try:
        with _quietly():
            torch.onnx.export(
                wrapped, (example_BCHW,), str(path), input_names=["images"], output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch", min=1)},), dynamo=True, external_data=False,
                verbose=False)
    except Exception as error:
        path.unlink(missing_ok=True)
        lines = str(error).strip().splitlines()
        raise ComputeFailed(f"The network {facts.model.name} cannot be written as ONNX: {type(error).__name__}:"
                            f" {lines[0] if lines else ''}", remedy="Leave it out: --format safetensors.") from error
    graph = onnx.load(str(path))
    for key, value in {METADATA_KEY: facts.to_json(), "classes": json.dumps(facts.model.classes, ensure_ascii=False),
                       "preprocessing": preprocessing_of(form),
                       **_answers_in_words(facts)}.items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, value
    # What the exporter notes of its own sources: paths of this machine.
    for node in (*graph.graph.node, *(node for function in graph.functions for node in function.node)):
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*graph.graph.value_info, *graph.graph.input, *graph.graph.output, *graph.graph.initializer):
        del value.metadata_props[:]
    graph.doc_string = f"semisilo: study {facts.study}, round {facts.round}. {preprocessing_of(form)}"
    onnx.save(graph, str(path))


def _answers_in_words(facts: ModelFacts) -> dict[str, str]:
    """What is to be done with the logits: entries of the metadata, the numbers as JSON."""
    temperature = {"temperature": repr(facts.temperature)}
    if facts.task == "single_label":
        return {"output": "logits; divide by `temperature`, then softmax, for probabilities", **temperature}
    scaling = {} if not facts.scaling else {
        "slopes": json.dumps([each.slope for each in facts.scaling]),
        "offsets": json.dumps([each.offset for each in facts.scaling])}
    how = "the sigmoid of slopes x logits + offsets" if scaling else "the sigmoid of each"
    cuts = facts.thresholds or (AVERAGE_CUT,) * len(facts.model.classes)
    return {"output": f"logits; {how} is the class's probability; a class counts as shown where it is at least its"
                      " number in `thresholds`",
            "task": facts.task, "thresholds": json.dumps(cuts), **scaling, **temperature}


def check_onnx(path: Path, logits_NK: NDArray[np.float32], images_NCHW: NDArray[np.uint8], *, source: str) -> OnnxCheck:
    """Whether the graph is sound and gives the network's logits, image by image and in batches.

    Args:
        logits_NK: the network's own, of the same images.
    Raises: BadData when the graph is not valid, or an answer differs by more than the tolerance; the file stays where
        it is, for the caller to remove.
    """
    import onnx

    onnxruntime = onnx_runtime()
    try:
        graph = onnx.load(str(path))
        onnx.checker.check_model(graph, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadData(f"{path.name}: is not a valid ONNX graph: {str(error).strip().splitlines()[0]}.",
                      remedy="Leave it out: --format safetensors.") from error
    largest = logit = 0.0
    same = count = 0
    limit = min(len(images_NCHW), _MOST_CHECKED)
    for start, stop in _batches(limit):
        fractions_BCHW = images_NCHW[start:stop].astype(np.float32) / np.float32(255)
        found_BK = np.asarray(_answer(session, fractions_BCHW, path))
        wanted_BK = logits_NK[start:stop]
        if found_BK.shape != wanted_BK.shape:
            raise BadData(f"{path.name}: answers {stop - start} images with {found_BK.shape}, expected"
                          f" {wanted_BK.shape}.", remedy="Leave it out: --format safetensors.")
        difference_B = np.abs(found_BK - wanted_BK).max(axis=1)
        allowed_B = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * np.abs(wanted_BK).max(axis=1)
        if not bool((difference_B <= allowed_B).all()):  # so that NaN does not pass
            raise BadData(f"{path.name}: a logit differs from the network's by {difference_B.max():.3g}, more than"
                          f" {ABSOLUTE_TOLERANCE:g} and {RELATIVE_TOLERANCE:g} of the largest logit.",
                          remedy="Leave it out: --format safetensors.")
        largest, logit = max(largest, float(difference_B.max())), max(logit, float(np.abs(wanted_BK).max()))
        same += int((found_BK.argmax(axis=1) == wanted_BK.argmax(axis=1)).sum())
        count += stop - start
    return OnnxCheck(images=count, source=source, largest_difference=largest, largest_logit=logit,
                     same_predictions=same,
                     opset=max(each.version for each in graph.opset_import if each.domain in ("", "ai.onnx")),
                     versions={"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__})


def _answer(session: Any, fractions_BCHW: NDArray[np.float32], path: Path) -> Any:
    try:
        return session.run(["logits"], {"images": fractions_BCHW})[0]
    except Exception as error:
        raise BadData(f"{path.name}: fails on a batch of {len(fractions_BCHW)}: {str(error).strip().splitlines()[0]}.",
                      remedy="Leave it out: --format safetensors.") from error


def _batches(count: int) -> Iterator[tuple[int, int]]:
    """A single image first, then batches: the batch size must be free."""
    start = 0
    for size in _CHECK_BATCHES[:1]:
        yield start, min(start + size, count)
        start += size
    while start < count:
        yield start, min(start + _CHECK_BATCHES[-1], count)
        start += _CHECK_BATCHES[-1]


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporter has much to say about its own workings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
