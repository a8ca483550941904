"""What CUDA's autocast does, done to meta tensors; ``tests/phantom/test_autocast.py`` holds it against CUDA's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import DefaultDeviceType, checkpoint  # noqa: E402

from nooom.profiler.known_values import KnownValues  # noqa: E402
from nooom.profiler.simulator import autocast as module  # noqa: E402
from nooom.profiler.simulator.autocast import CudaAutocast  # noqa: E402

HALF = torch.bfloat16
KEY = "AutocastHPU"


class Casts(TorchDispatchMode):
    """Counts casts and matrix products by the type of their result; what is read of floats is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.casts: list[Any] = []
        self.products: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0.0
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("_to_copy", "to"):
            self.casts.append(out.dtype)
        if name in ("mm", "addmm", "bmm"):
            self.products.append(out.dtype)
        return out


@pytest.fixture
def emulated() -> Iterator[CudaAutocast]:
    with CudaAutocast() as autocast:
        yield autocast


def meta(*shape: int, dtype: Any = torch.float32, **options: Any) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta", **options)


def weight(*shape: int) -> Any:
    return torch.nn.Parameter(meta(*shape))


def half(**options: Any) -> Any:
    return torch.autocast("cuda", dtype=HALF, **options)


def casts(function: Callable[[], Any]) -> int:
    with Casts() as found:
        function()
    return len(found.casts)


def test_the_lists_are_those_of_the_pytorch_that_is_installed(emulated: CudaAutocast) -> None:
    known = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
    assert {f"aten::{name}" for name in emulated._kernels()} == known
    assert set(torch._C._dispatch_get_registrations_for_dispatch_key(KEY)) == known


def test_products_are_made_in_the_lower_type_and_gradients_come_back_in_the_weights(emulated: CudaAutocast) -> None:
    layer = torch.nn.Linear(4, 4, device="meta")
    with half():
        out = layer(meta(2, 4))
    assert out.dtype == HALF
    out.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**2,
        lambda x: x.exp(),
        lambda x: functional.softmax(x, -1),
        lambda x: x.sum(0),
        lambda x: x.cumsum(0),
        lambda x: x.norm(),
        lambda x: torch.norm(x, 2, 0, keepdim=True),
        lambda x: functional.layer_norm(x, (4,)),
        lambda x: functional.rms_norm(x, (4,)),
        lambda x: functional.mse_loss(x, x),
        lambda x: functional.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device="meta")),
        lambda x: torch.addcmul(meta(4, 4), x, x),
    ],
)
def test_what_loses_precision_is_made_in_float32(emulated: CudaAutocast, function: Callable[[Any], Any]) -> None:
    with half():
        assert function(meta(4, 4, dtype=HALF)).dtype == torch.float32
    with half(enabled=False):
        assert function(meta(4, 4)).dtype == torch.float32


def test_what_is_on_no_list_keeps_its_type(emulated: CudaAutocast) -> None:
    x = meta(4, 4, dtype=HALF)
    with half():
        kept = [
            functional.gelu(x),
            x + x,
            x.mean(),
            torch.addcmul(x, x, x),
            x.softmax(-1, dtype=HALF),
            x.sum(dtype=HALF),
        ]
        assert {out.dtype for out in kept} == {HALF}
        wide = meta(4, 4, dtype=torch.float64)
        assert {(wide @ wide).dtype, wide.exp().dtype, wide.sum().dtype, wide.norm().dtype} == {torch.float64}
        assert meta(4, dtype=torch.int32).sum().dtype == torch.int64


def test_the_hosts_tensors_are_left_alone(emulated: CudaAutocast) -> None:
    x = torch.ones(4, 4, dtype=HALF)
    with half():
        assert {(x.float() @ x.float()).dtype, x.softmax(-1).dtype} == {torch.float32, HALF}
    with torch.autocast("cpu", dtype=HALF):
        assert (x.float() @ x.float()).dtype == HALF
        assert (meta(4, 4) @ meta(4, 4)).dtype == torch.float32


def test_what_cuda_forbids_is_forbidden(emulated: CudaAutocast) -> None:
    x = meta(4, dtype=HALF)
    with half(), pytest.raises(RuntimeError, match="unsafe to autocast"):
        functional.binary_cross_entropy(x, x)
    with half(), pytest.raises(RuntimeError, match="Unexpected floating"):
        torch.dot(meta(4, dtype=torch.float16), x)


def test_a_weight_is_cast_once_and_held_until_the_outermost_autocast_ends(emulated: CudaAutocast) -> None:
    kept, frozen, x = weight(4, 4), weight(4, 4).requires_grad_(False), meta(2, 4, dtype=HALF)
    with half():
        assert casts(lambda: x @ kept) == 1
        with half():
            assert casts(lambda: x @ kept) == 0
        assert casts(lambda: x @ kept) == 0
        assert len(emulated._cache) == 1
        with half(cache_enabled=False):
            assert casts(lambda: x @ kept) == 1
        assert casts(lambda: x @ frozen) == casts(lambda: x @ frozen) == 1
        assert casts(lambda: x @ kept.t()) == casts(lambda: x @ kept.t()) == 1  # a view
    assert not emulated._cache
    with half():
        assert casts(lambda: x @ kept) == 1


def test_a_first_cast_without_gradient_still_reaches_the_weight(emulated: CudaAutocast) -> None:
    kept, x = weight(4, 4), meta(2, 4, dtype=HALF)
    with half():
        with torch.inference_mode():
            assert casts(lambda: x @ kept) == casts(lambda: x @ kept) == 1  # never kept
        with torch.no_grad():
            assert casts(lambda: x @ kept) == 1
        out = x @ kept
    out.sum().backward()
    assert kept.grad is not None


def test_a_dead_weights_cast_stays_and_serves_no_other(emulated: CudaAutocast) -> None:
    x = meta(2, 4, dtype=HALF)
    with half():
        for count in range(1, 4):
            assert casts(lambda: x @ weight(4, 4)) == 1
            assert len(emulated._cache) == count


def test_contexts_nest(emulated: CudaAutocast) -> None:
    x, y = weight(4, 4), weight(4, 4)
    with half():
        with torch.amp.autocast("meta", enabled=False):
            assert (x @ x).dtype == torch.float32
            assert not torch.is_autocast_enabled()
        with torch.autocast("meta", dtype=torch.float16):
            assert (y @ y).dtype == torch.float16
        assert (x @ x).dtype == HALF
    assert (x @ x).dtype == torch.float32
    assert half()(torch.mm)(x, x).dtype == HALF
    with pytest.raises(KeyError), half():
        raise KeyError
    assert (x @ x).dtype == torch.float32


def test_meta_is_another_name_of_cuda(emulated: CudaAutocast) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context = torch.autocast("meta")
    with context:
        for name in ("meta", "cuda"):
            assert torch.is_autocast_enabled(name)
            assert torch.get_autocast_dtype(name) == torch.float16
            assert torch.amp.is_autocast_available(name)
        assert torch.is_autocast_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("meta")
    with pytest.raises(RuntimeError):
        torch.autocast("nothing")


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_is_cast_as_it_was(emulated: CudaAutocast, reentrant: bool) -> None:
    layers = [torch.nn.Linear(4, 4, device="meta") for _ in range(3)]

    def block(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    x = meta(2, 4, requires_grad=True)
    with KnownValues("meta"), Casts() as found:
        with half():
            out = checkpoint(block, x, use_reentrant=reentrant)
        (out**2).sum().backward()
    assert set(found.products) == {HALF}
    recomputed = 3 if reentrant else 2  # what only the output needed is not
    assert len(found.products) == 3 + recomputed + 6
    assert not emulated._cache


def test_a_backward_pass_under_autocast_is_cast_too(emulated: CudaAutocast) -> None:
    x = meta(4, 4, requires_grad=True)
    out = (x @ x).sum()
    with Casts() as found, half():
        out.backward()
    assert found.products == [HALF, HALF]


def test_arguments_are_cast_for_who_calls_another_operation(emulated: CudaAutocast) -> None:
    attend = functional.scaled_dot_product_attention
    args = (meta(1, 1, 4, 8), meta(1, 1, 4, 8), meta(1, 1, 4, 8))
    options: dict[str, Any] = {"attn_mask": meta(4, 4), "is_causal": False}
    assert emulated.casted(attend, args, options) == (args, options)
    with half():
        assert emulated.casted(functional.linear, args, options)[0] is args
        given, named = emulated.casted(attend, args, options)
        assert attend(*args).dtype == HALF
        normed, _ = emulated.casted(functional.rms_norm, (meta(4, 4, dtype=HALF), (4,), meta(4)), {})
    assert [item.dtype for item in given] == [HALF] * 3
    assert (named["attn_mask"].dtype, named["is_causal"]) == (HALF, False)
    assert (normed[0].dtype, normed[1], normed[2].dtype) == (torch.float32, (4,), torch.float32)


def test_models_turn_it_off_for_their_positions(emulated: CudaAutocast) -> None:
    generic = pytest.importorskip("transformers.utils.generic")
    x = meta(4, 4)
    with half(), generic.maybe_autocast(device_type="meta", enabled=False):
        assert (x @ x).dtype == torch.float32
    with generic.maybe_autocast(device_type="meta", enabled=False):
        assert (x @ x).dtype == torch.float32
    with generic.maybe_autocast("meta", HALF):
        assert (x @ x).dtype == HALF


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", HALF), ("fp16", torch.float16)])
def test_accelerate_trains_on_it(
    emulated: CudaAutocast, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: Any
) -> None:
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    states = accelerate.state.AcceleratorState
    states._reset_state(reset_partial_state=True)
    try:
        accelerator = accelerate.Accelerator(mixed_precision=precision)
        assert accelerator.device.type == "meta"
        assert (accelerator.scaler is not None) == (precision == "fp16")
        layer = torch.nn.Linear(4, 4, device="meta")
        model, steps = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
        with Casts() as found:
            accelerator.backward(model(meta(2, 4)).sum())
            accelerator.clip_grad_norm_(layer.parameters(), 1.0)
            steps.step()
        assert dtype in found.products
        assert not steps.step_was_skipped
        with accelerator.autocast():
            assert (meta(4, 4) @ meta(4, 4)).dtype == dtype
    finally:
        states._reset_state(reset_partial_state=True)


def patched() -> dict[str, Any]:
    """Everything that is another while it lasts."""
    from torch.amp import autocast_mode

    common: Any = torch.cuda.amp.common
    names = ("set_autocast_enabled", "clear_autocast_cache", "is_autocast_enabled", "get_autocast_dtype",
             "set_autocast_dtype")  # fmt: skip
    found = {name: getattr(torch, name) for name in names}
    found["available"] = torch._C._is_autocast_available
    found["default"] = DefaultDeviceType._default_device_type
    found["begin"] = autocast_mode.autocast.__init__
    found["no GPU"] = common.amp_definitely_not_available
    found["kernels"] = torch._C._dispatch_get_registrations_for_dispatch_key(KEY)
    found["fallback"] = KEY in torch._C._dispatch_dump_table("aten::add.Tensor")
    found["key"] = (
        torch._C._dispatch_tls_is_dispatch_key_included(module._KEY),
        torch._C._dispatch_tls_is_dispatch_key_excluded(module._KEY),
    )
    try:
        import accelerate
        from transformers.utils import generic
    except ImportError:
        return found
    found["accelerate"] = (accelerate.Accelerator.__init__, accelerate.Accelerator.device)
    found["transformers"] = generic.maybe_autocast.__code__
    return found


def test_nothing_of_it_stays() -> None:
    before = patched()
    for _ in range(2):
        with CudaAutocast(), half():
            assert (meta(4, 4) @ meta(4, 4)).dtype == HALF
            during = patched()
        assert [name for name, found in before.items() if during[name] == found] == []
        assert patched() == before
    assert (meta(4, 4) @ meta(4, 4)).dtype == torch.float32


def test_nothing_of_it_stays_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    before = patched()
    with pytest.raises(KeyError), CudaAutocast():
        raise KeyError
    assert patched() == before

    def fails(*_: Any) -> Any:
        raise KeyError

    with monkeypatch.context() as broken:
        broken.setattr(module, "_follow", fails)
        with pytest.raises(KeyError):
            CudaAutocast().__enter__()
    assert patched() == before
