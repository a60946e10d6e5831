"""What must be equal for equal bits is set explicitly and recorded."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from semisilo.common.data.form import ImageForm
from semisilo.common.learning.batch_norm import StaticBatchNorm, measure
from semisilo.common.learning.tensors import parameters_of
from semisilo.common.methods.numerics import MemoryFormat, Numerics, NumericsRecord, Precision
from semisilo.common.models.small_cnn import SmallCNN
from semisilo.common.numerics import numerics
from semisilo.common.numerics.side_by_side import lanes


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    numerics.apply(Numerics(threads=1))
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize(("threads", "deterministic"), [(1, True), (2, False)])
def test_apply_puts_the_numerics_in_force_and_says_so(threads: int, deterministic: bool) -> None:
    found = numerics.apply(Numerics(threads=threads, deterministic=deterministic))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, deterministic)
    assert (found.threads, found.deterministic) == (threads, deterministic)
    assert found == numerics.record()


def test_the_record_names_device_version_and_instruction_set() -> None:
    found = numerics.record()
    assert found.device == "cpu"
    assert found.torch == str(torch.__version__)
    assert found.cpu_capability


def test_tensorfloat_32_is_off_whatever_the_default_is() -> None:
    torch.backends.cudnn.allow_tf32 = True
    numerics.apply(Numerics())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_tensorfloat_32_is_on_where_the_study_asks_for_it() -> None:
    numerics.apply(Numerics(precision="tf32"))
    assert torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32
    numerics.apply(Numerics())
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(("threads", "processors", "expected"), [(1, 4, 4), (2, 4, 2), (4, 4, 1), (8, 4, 1), (0, 3, 3)])
def test_processors_that_one_operation_leaves_free_are_for_other_passes(threads: int, processors: int,
                                                                        expected: int) -> None:
    numerics.apply(Numerics(threads=threads), processors=processors)
    assert lanes() == expected
    assert torch.get_num_threads() == max(1, threads)


def _conv(precision: Precision = "fp32", memory_format: MemoryFormat = "auto") -> tuple[nn.Module, NumericsRecord]:
    record = numerics.apply(Numerics(threads=1, precision=precision, memory_format=memory_format))
    torch.manual_seed(0)
    return numerics.at_work(SmallCNN(num_classes=3, channels=3, size=8)), record


@pytest.mark.parametrize(("asked", "lies"), [("auto", True), ("channels_last", True), ("contiguous", False)])
def test_filters_lie_in_memory_as_the_study_asks_and_on_a_cpu_with_channels_last(asked: MemoryFormat,
                                                                                 lies: bool) -> None:
    model, record = _conv(memory_format=asked)
    filters = next(each.weight for each in model.modules() if isinstance(each, nn.Conv2d))
    assert filters.is_contiguous(memory_format=torch.channels_last) is lies
    assert record.memory_format == ("channels_last" if lies else "contiguous")
    assert all(tensor.is_contiguous() for tensor in parameters_of(model).values()), "what leaves is contiguous"


def test_a_network_without_convolutions_keeps_its_memory_format() -> None:
    numerics.apply(Numerics())
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert numerics.at_work(model) is model
    assert model[1].weight.is_contiguous()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_short_precision_computes_near_float32_and_answers_in_it(precision: Precision) -> None:
    images_BCHW = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    plain = _conv()[0].train()(images_BCHW)
    model, record = _conv(precision)
    short = model.train()(images_BCHW)
    assert record.precision == precision
    assert short.dtype == torch.float32
    assert not torch.equal(short, plain), "the control: something is computed otherwise"
    assert torch.allclose(short, plain, atol=0.1)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_network_in_a_short_precision_is_still_of_its_class_and_can_be_copied() -> None:
    model = _conv("bf16")[0]
    assert isinstance(model, SmallCNN)
    assert type(numerics.at_work(model)) is type(model), "it is done once"
    twin, images_BCHW = copy.deepcopy(model).train(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        next(twin.parameters()).zero_()
        assert not torch.equal(twin(images_BCHW), model.train()(images_BCHW)), "a copy goes through its own weights"


def test_statistics_of_batch_norm_are_float32_whatever_the_precision() -> None:
    """A third of the pixels are 1: the mean has no place among bfloat16's numbers, which are 0.002 apart there."""
    numerics.apply(Numerics(threads=1, precision="bf16"))
    convolution = nn.Conv2d(1, 1, 1, bias=False)
    nn.init.ones_(convolution.weight)
    pixels = torch.zeros(3, 1, 10, 10, dtype=torch.uint8)
    pixels[0] = 255
    found = measure(numerics.at_work(nn.Sequential(convolution, StaticBatchNorm(1))), pixels,
                    form=ImageForm(size=10, channels=1, mean=(0.0,), std=(1.0,)), generator=torch.Generator())
    assert float(found["1"].mean) == pytest.approx(1 / 3, abs=1e-6)
    assert float(found["1"].var) == pytest.approx(2 / 9 * 300 / 299, abs=1e-6)


def test_a_model_that_is_handed_over_is_run_as_it_was_measured_and_all_is_as_it_was_afterwards() -> None:
    numerics.apply(Numerics(threads=1, deterministic=False, precision="tf32"))
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]

    def in_force() -> tuple[bool, ...]:
        return (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark,
                torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled(),
                bool(torch.utils.deterministic.fill_uninitialized_memory))  # type: ignore[attr-defined]

    before = in_force()
    assert before == (True, True, True, False, False, True)
    with numerics.as_handed_over():
        assert in_force() == (False, False, False, True, True, False)
    assert in_force() == before
    with pytest.raises(RuntimeError, match="out of memory"), numerics.as_handed_over():
        raise RuntimeError("out of memory")
    assert in_force() == before
    torch.set_deterministic_debug_mode("error")
    with numerics.as_handed_over():
        assert torch.get_deterministic_debug_mode() == 2, "who asked for errors has them"
    assert torch.get_deterministic_debug_mode() == 2
