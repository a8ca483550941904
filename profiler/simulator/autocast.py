"""``torch.autocast("cuda")`` for meta tensors: the casts that CUDA's kernels would see, and the weight cache.

On a GPU autocast is a layer of the dispatcher, above autograd: for each operation on a list there is a kernel that
casts the arguments and calls the operation again.  Meta tensors pass no such layer.  While a :class:`CudaAutocast` is
entered they do: it stands at a dispatch key that no device of this process uses, holds a kernel for each operation that
CUDA's layer has one for, and is switched on and off with ``torch.autocast("cuda")``.  So what C++ calls by itself (the
``log_softmax`` in ``cross_entropy``, the ``matmul`` of a backward pass under autocast) is cast as on a GPU too.

Source: ``ATen/autocast_mode.h`` and ``autocast_mode.cpp`` of torch 2.13.  They free the cached weights in the order of
a hash table of addresses, which differs from run to run; here it is the order in which they were cast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from torch.utils.weak import WeakIdRef

from nooom.profiler.simulator.autocast_state import patched

_LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input"
    " conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul"
    " einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell"
    " _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention"
    " scaled_dot_product_attention"
)
_FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar"
    " pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim"
    " nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d"
    " hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss"
    " multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits"
    " dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d"
    " _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa"
)
_FP32_RESULT = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm"
    " linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
_FP32_NORM = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
_BANNED = "binary_cross_entropy"

_C: Any = torch._C
_KEY_NAME = "AutocastHPU"
_KEY = _C.DispatchKey.AutocastHPU
"""Autocast's key of a device that only a plug-in of PyTorch has, so that its place in the dispatcher is free."""
_exclude: Any = _C._dispatch_tls_set_dispatch_key_excluded
_include: Any = _C._dispatch_tls_set_dispatch_key_included

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Cast: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Call]


class CudaAutocast:
    """Makes ``torch.autocast`` do for meta tensors what it does for CUDA's, while entered, in the thread that entered.

    ``torch.autocast("meta")`` is ``torch.autocast("cuda")``; libraries that ask for a GPU before they use either, or a
    gradient scaler, find one.  Every patch is undone on exit.
    """

    def __init__(self) -> None:
        self._cache: dict[WeakIdRef, torch.Tensor] = {}
        self._replaced: dict[Any, Cast] = {
            functional.scaled_dot_product_attention: self._lower,
            functional.rms_norm: self._float,
        }
        self._stack = ExitStack()

    def __enter__(self) -> CudaAutocast:
        with ExitStack() as stack:
            stack.callback(self._cache.clear)
            self._register(stack)
            stack.enter_context(patched(_follow, self._cache.clear))
            stack.callback(_include, _KEY, False)
            _include(_KEY, True)
            stack.callback(_follow, False)
            _follow(torch.is_autocast_enabled("cuda"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def casted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The arguments of a call of torch from Python, for who makes another call of it than PyTorch would.

        Attention and RMSNorm, which on a GPU are one operation.  Everything else is cast further down, by the
        dispatcher.
        """
        cast = self._replaced.get(func)
        if cast is None or not torch.is_autocast_enabled("cuda"):
            return args, kwargs
        return cast(args, kwargs)

    # --- the kernels ----------------------------------------------------------------------------------------------

    def _register(self, stack: ExitStack) -> None:
        scoped: Any = torch.library._scoped_library
        stack.enter_context(scoped("_", "IMPL", _KEY_NAME)).fallback(torch.library.fallthrough_kernel)
        library = stack.enter_context(scoped("aten", "IMPL", _KEY_NAME))
        known = set(_C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
        for name, (operation, cast) in self._kernels().items():
            if f"aten::{name}" in known:  # of the PyTorch that is installed
                library.impl(name, _kernel(_overload(operation), cast), _KEY_NAME)

    def _kernels(self) -> dict[str, tuple[str, Cast]]:
        """What each operation becomes, and how its arguments are cast before."""
        return {
            **{name: (name, self._lower) for name in _LOWER.split()},
            **{name: (name, self._float) for name in _FP32.split()},
            **{name: (name, _with_type(_dtype_position(name))) for name in _FP32_RESULT.split()},
            **{name: (operation, _typed_norm) for name, operation in _FP32_NORM.items()},
            **{name: (name, self._promote) for name in _WIDEST.split()},
            _BANNED: (_BANNED, _banned),
        }

    def _lower(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return self._to(torch.get_autocast_dtype("cuda"), args, kwargs)

    def _float(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return self._to(torch.float32, args, kwargs)

    def _promote(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return self._to(_widest(args, kwargs), args, kwargs)

    def _to(self, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Last to first, as the compiler evaluates the arguments of the C++ call."""
        named = {name: self._cast(dtype, arg) for name, arg in reversed(kwargs.items())}
        return tuple([self._cast(dtype, arg) for arg in reversed(args)][::-1]), named

    def _cast(self, dtype: torch.dtype, arg: Any) -> Any:
        """``cached_cast``: a weight's first cast is differentiable, and serves until the outermost autocast ends."""
        if isinstance(arg, list):
            return [self._cast(dtype, item) for item in arg]
        if not isinstance(arg, torch.Tensor) or arg.dtype == dtype or not _is_eligible(arg):
            return arg
        if dtype != torch.get_autocast_dtype("cuda") or not _is_cached(arg):
            return arg.to(dtype)
        key = WeakIdRef(arg)  # a weight that dies leaves its cast behind
        found = self._cache.get(key)
        if found is None:
            with torch.enable_grad():
                found = self._cache[key] = arg.to(dtype)
        return found


def _follow(enabled: bool) -> None:
    """The kernels are there where autocast is on."""
    _exclude(_KEY, not enabled)


def _kernel(operation: Any, cast: Cast) -> Callable[..., Any]:
    """Cast, then call again, without autocast for what the operation calls in turn."""

    def run(*args: Any, **kwargs: Any) -> Any:
        _exclude(_KEY, True)
        try:
            # The call from Python was seen already; this is the inside of it.
            with _C.DisableTorchFunction():
                args, kwargs = cast(args, kwargs)
                return operation(*args, **kwargs)
        finally:
            _exclude(_KEY, False)

    return run


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _is_eligible(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and tensor.is_floating_point() and tensor.dtype != torch.float64


def _is_cached(tensor: torch.Tensor) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and torch.is_autocast_cache_enabled()
        and not torch.is_inference_mode_enabled()
    )


def _widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """``promote_type``.

    Raises:
        RuntimeError: a floating point type that is neither autocast's nor float32: as PyTorch would.
    """
    lower = torch.get_autocast_dtype("cuda")
    found = lower
    for arg in (*args, *kwargs.values()):
        for tensor in arg if isinstance(arg, list) else (arg,):
            if not isinstance(tensor, torch.Tensor) or not _is_eligible(tensor):
                continue
            if torch.float32 in (found, tensor.dtype):
                found = torch.float32
            elif tensor.dtype != lower:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return found


def _dtype_position(name: str) -> int | None:
    """Where ``dtype`` stands among the arguments; None where it is a keyword."""
    arguments = _overload(name)._schema.arguments
    (found,) = [place for place, argument in enumerate(arguments) if argument.name == "dtype"]
    return None if arguments[found].kwarg_only else found


def _with_type(position: int | None) -> Cast:
    """Ask for a float32 result where no type is asked for; the cast is then a part of the operation."""

    def cast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        given = kwargs.get("dtype") if position is None or len(args) <= position else args[position]
        if given is not None or not _is_eligible(args[0]):
            return args, kwargs
        return args[:position], {**kwargs, "dtype": torch.float32}

    return cast


def _typed_norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The overload that takes a type needs every argument."""
    dtype = torch.float32 if _is_eligible(args[0]) else args[0].dtype
    missing = {1: (2,), 3: (False,)}.get(len(args), ())
    return (*args, *missing), {**kwargs, "dtype": dtype}


def _banned(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: use "
        "binary_cross_entropy_with_logits or BCEWithLogitsLoss"
    )
