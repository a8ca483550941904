"""Small programs under autocast, run on a phantom's CUDA or on meta tensors, and the operations that each came to.

``python autocast_programs.py cuda|meta OUT.json`` writes, for each program, its operations in order with the types and
shapes of their results, and the deaths of what they allocated.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = sys.argv[1]
HALF = torch.bfloat16
_READ = torch.ops.aten._local_scalar_dense.default


class Log(TorchDispatchMode):
    """Writes down the operations on one device since :meth:`begin`."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out: Any
        if func is _READ and args[0].is_meta:
            out = 0.0 if args[0].is_floating_point() else 0
        else:
            out = func(*args, **(kwargs or {}))
        results = [item for item in (out if isinstance(out, tuple | list) else [out]) if isinstance(item, torch.Tensor)]
        if all(result.device.type == DEVICE for result in results) and func is not torch.ops.aten.lift_fresh.default:
            for result in results:
                self._watch(result.untyped_storage())
            self.rows.append([str(func), *([str(result.dtype), list(result.shape)] for result in results)])
        return out

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._numbers:
            return
        self._count += 1
        self._numbers[key] = self._count
        weakref.finalize(storage, self._died, key, self.rows, self._count)

    def _died(self, key: int, rows: list[Any], number: int) -> None:
        if rows is self.rows:  # what was made before the program began is not its own
            del self._numbers[key]
            rows.append(f"{number} dies")


LOG = Log()
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def autocast(dtype: torch.dtype = HALF, **options: Any) -> Any:
    return torch.autocast(DEVICE, dtype=dtype, **options)


def ids() -> torch.Tensor:
    return torch.ones((2, 16), dtype=torch.int64, device=DEVICE)


def qwen2(attention: str = "eager") -> Any:
    import transformers

    make: Any = transformers.Qwen2Config
    config = make(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
    )
    with torch.device(DEVICE):
        return transformers.Qwen2ForCausalLM(config).train()


def gpt2() -> Any:
    import transformers

    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # another operation on a GPU
    sizes = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
    make: Any = transformers.GPT2Config
    config = make(
        **sizes, **no_dropout, attn_implementation="eager", bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"
    )
    with torch.device(DEVICE):
        return transformers.GPT2LMHeadModel(config).train()


def loss(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids(), labels=ids(), use_cache=False).loss
    return found


def step(model: Any, dtype: torch.dtype = HALF, **options: Any) -> None:
    LOG.begin()
    with autocast(dtype, **options):
        found = loss(model)
    found.backward()


@program
def weights_in_float32() -> None:
    step(qwen2())


@program
def half_precision() -> None:
    step(qwen2(), torch.float16)


@program
def no_cache_of_weights() -> None:
    step(qwen2(), cache_enabled=False)


@program
def attention_step_by_step() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        step(qwen2("sdpa"))


@program
def layer_norms() -> None:
    step(gpt2())


def recomputing(model: Any, reentrant: bool) -> Any:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


@program
def checkpointed() -> None:
    step(recomputing(qwen2(), reentrant=False))


@program
def checkpointed_layer_norms() -> None:
    step(recomputing(gpt2(), reentrant=False))


@program
def checkpointed_reentrant() -> None:
    model = recomputing(qwen2(), reentrant=True)
    model.enable_input_require_grads()
    step(model)


def lora(base: torch.dtype) -> None:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    step(peft.get_peft_model(qwen2().to(base), config))


@program
def lora_on_float32() -> None:
    lora(torch.float32)


@program
def lora_on_bfloat16() -> None:
    lora(HALF)


@program
def first_cast_without_gradient() -> None:
    model = qwen2()
    LOG.begin()
    with autocast():
        for gradient in (False, True, False):
            with torch.set_grad_enabled(gradient):
                found = loss(model)
            if gradient:
                found.backward()  # under autocast


@program
def inference_mode() -> None:
    model = qwen2()
    LOG.begin()
    with autocast(), torch.inference_mode():
        model(input_ids=ids(), use_cache=True)
        model(input_ids=ids(), use_cache=True)


@program
def nested() -> None:
    one, other = (torch.nn.Linear(8, 8, device=DEVICE) for _ in range(2))
    x = torch.ones(4, 8, device=DEVICE)
    LOG.begin()
    with autocast():
        found = [one(x)]
        with torch.amp.autocast(DEVICE, enabled=False):
            found.append(one(x).exp())
        with autocast(torch.float16):
            found.append(other(x))
        with autocast(cache_enabled=False):
            found.append(one(x))
        found.append(one(x))
    sum(item.sum() for item in found).backward()
    autocast()(one)(x)


def accelerated(precision: str, **optimizer: Any) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(mixed_precision=precision)
    model = qwen2()
    model, steps = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer))
    LOG.begin()
    for _ in range(2):
        accelerator.backward(loss(model))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad()


@program
def accelerate_bfloat16() -> None:
    accelerated("bf16", foreach=True)


@program
def accelerate_float16_scales_the_loss() -> None:
    accelerated("fp16", foreach=True)


@program
def accelerate_float16_fused() -> None:
    accelerated("fp16", fused=True)


FUNCTIONS = """
y.acos() y.asin() y.cosh() y.erfinv() y.exp() torch.expm1(y) y.log() y.log10() y.log2() y.log1p() y.reciprocal()
y.rsqrt() y.sinh() y.tan() y**2 2**y y**y torch.pow(y,x) y.square() y.sqrt() y.sigmoid() y.mean() y.var() y.exp_()
F.softplus(y) F.softmax(y,-1) torch.softmax(y,-1) y.softmax(-1) F.log_softmax(y,dim=-1)
F.softmax(y,-1,dtype=torch.float32) y.softmax(-1,dtype=y.dtype) y.sum() y.sum(-1) y.sum(-1,keepdim=True) i.sum()
y.prod() y.prod(0) y.cumsum(0) y.cumprod(0) y.sum(dtype=y.dtype) y.sum(0,dtype=torch.float64) d.sum() d.softmax(-1)
y.norm() y.norm(2) y.norm(dim=0) torch.norm(y,2,1,True) y.norm(2,-1,dtype=torch.float32) d.norm()
torch.linalg.vector_norm(y) torch.linalg.matrix_norm(y) torch.linalg.norm(y) F.normalize(y) torch.nuclear_norm(x)
F.layer_norm(y,(4,)) F.layer_norm(y,(4,),v,v) F.group_norm(c,2) torch.logsumexp(y,-1) torch.renorm(h,2,0,1.)
F.cross_entropy(y,i) F.cross_entropy(y,i,label_smoothing=.1) F.cross_entropy(y,y) F.nll_loss(y,i) F.mse_loss(y,y)
F.l1_loss(y,x) F.smooth_l1_loss(y,y) F.huber_loss(y,y) F.kl_div(y,h,reduction="batchmean") F.cosine_similarity(y,y)
F.binary_cross_entropy_with_logits(y,y) F.margin_ranking_loss(v,v,w) F.triplet_margin_loss(y,y,y)
F.soft_margin_loss(y,h) F.hinge_embedding_loss(y,y) F.poisson_nll_loss(y,y) F.gaussian_nll_loss(y,y,y)
F.cosine_embedding_loss(y,y,w) F.binary_cross_entropy(y,y) F.multi_margin_loss(h,i)
x@x torch.mm(x,y) torch.bmm(b,b) torch.matmul(b,x) x.matmul(x) x.addmm(x,x) torch.addmm(v,x,x) x.addmm_(x,x)
torch.baddbmm(b,b,b) torch.addbmm(x,b,b) torch.mv(x,v) torch.addmv(v,x,v) torch.addr(x,v,v) torch.ger(v,v)
torch.einsum("ij,jk->ik",x,x) torch.chain_matmul(x,x,x) torch.linalg.multi_dot([x,x,x]) F.linear(x,x,v) F.prelu(x,u)
torch.linalg.vecdot(x,x) F.bilinear(x,x,b3) torch.addcmul(x,y,y) torch.addcdiv(x,y,y) torch.atan2(x,y)
torch.cross(b3[0,:3],y[:3,:].t()[:,:3].t(),dim=0) torch.dot(v,w) torch.vdot(v,w) torch.tensordot(x,y,1)
x.scatter_add(0,i[None],y) x.scatter_add(0,i[None],x) torch.index_put(x,(i,),x) x.index_put((i,),y)
torch.cat([x,y]) torch.stack([x,y]) x+y x*y torch.where(x>0,x,y) F.gelu(y) F.silu(y)
F.embedding(i,x) torch.outer(v,v) torch.cdist(y,y) torch.dist(y,y) F.pdist(y) F.interpolate(p,scale_factor=2)
F.interpolate(p,scale_factor=2,mode="bilinear") F.grid_sample(q,g) d@d torch.mm(x.view(4,4),x.view(4,4))
torch.mm(k,k) torch.mm(k,k.t()) torch.mm(k.detach(),k) torch.mm(k[:4],k) x.half()@y torch.addcmul(x.half(),y,y)
F.multi_head_attention_forward(b,b,b,4,2,torch.cat([x,x,x]),None,None,None,False,0.0,x,None)
"""


@program
def functions() -> None:
    def full(*shape: int, dtype: torch.dtype = torch.float32, gradient: bool = True) -> torch.Tensor:
        return torch.ones(*shape, dtype=dtype, device=DEVICE).requires_grad_(gradient)

    for expression in FUNCTIONS.split():
        names = {
            "x": full(4, 4) * 1,
            "y": full(4, 4, dtype=HALF) * 1,
            "h": full(4, 4, dtype=HALF, gradient=False),
            "d": full(4, 4, dtype=torch.float64),
            "i": torch.zeros(4, dtype=torch.int64, device=DEVICE),
            "u": full(1),
            "v": full(4),
            "w": full(4, dtype=HALF),
            "b": full(2, 4, 4),
            "b3": full(3, 4, 4),
            "c": full(2, 4, 3, dtype=HALF),
            "p": full(1, 2, 4, 4, dtype=HALF),
            "q": full(1, 2, 4, 4),
            "g": full(1, 4, 4, 2, dtype=HALF),
            "k": torch.nn.Parameter(full(4, 4)),
        }
        LOG.rows.append(expression)
        try:
            with autocast():
                out = eval(expression, {"torch": torch, "F": functional}, names)
            if isinstance(out, torch.Tensor) and out.requires_grad:
                out.backward(torch.ones_like(out))
        except RuntimeError as error:
            LOG.rows.append(type(error).__name__)
        out = None


@contextlib.contextmanager
def emulated() -> Iterator[None]:
    from nooom.profiler.known_values import KnownValues
    from nooom.profiler.simulator.autocast import CudaAutocast
    from nooom.profiler.simulator.patches import patched

    os.environ["ACCELERATE_TORCH_DEVICE"] = "meta"
    with patched(), CudaAutocast(), KnownValues("meta"):
        yield


def main() -> None:
    gc.disable()  # what dies of it would die at another time on each side
    found = {}
    with emulated() if DEVICE == "meta" else contextlib.nullcontext():
        for name, function in PROGRAMS.items():
            gc.collect()
            with LOG:
                LOG.begin()
                function()
                found[name] = LOG.rows
                LOG.begin()
    with open(sys.argv[2], "w") as file:
        json.dump(found, file)


main()
