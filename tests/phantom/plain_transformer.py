"""Two plain transformers, trained by hand, and what the allocator does while they run.

A program: ``python plain_transformer.py RUNS OUT`` runs each of the JSON list RUNS in a process of its own and writes, for
each of its windows, the allocator's events and the memory's map at the end.  It needs torch's CUDA build and nothing of
nooom, so that it runs on hardware as it runs on a phantom.

Both are decoder language models: RMSNorm, rotary positions, causal attention, SwiGLU, a head of its own.  What a variable
holds on to, and how an expression is cut into operations, is in the order of the events as much as the arithmetic is.  So
the two are written out separately: ``small`` gives its values names and keeps them, ``large`` uses its names again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 10_000


class Spelling:
    """Two expressions of which torch 2.6 made other operations than later releases, and those operations spelled out."""

    as_in_2_6 = False

    def weight_times(self, weight: Tensor, x: Tensor) -> Tensor:
        """Of each row of ``x``.

        2.6 multiplies in the order that is written here, so that the features are the result's outermost axis in memory;
        later releases swap the factors where that makes the result contiguous.
        """
        if not self.as_in_2_6:
            return torch.einsum("oi,...i->...o", weight, x)
        product = torch.bmm(weight.unsqueeze(0), x.flatten(0, -2).T.unsqueeze(0))
        return product.view(-1, *x.shape[:-1]).movedim(0, -1)

    def last_position(self, logits: Tensor) -> Tensor:
        """In 2.6 each ``:`` is a slice, with a gradient of its own; in later releases it is nothing."""
        if not self.as_in_2_6:
            return logits[:, -1, :]
        last = logits.narrow(0, 0, logits.shape[0]).select(1, -1)
        return last.narrow(1, 0, last.shape[1])


SPELLING = Spelling()


class Model(nn.Module):
    """Of either kind: an embedding, blocks, a norm and a head."""

    def __init__(self, embedding: nn.Module, blocks: Iterable[nn.Module], norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embedding, self.blocks, self.norm, self.head = embedding, nn.ModuleList(blocks), norm, head

    def forward(self, ids: Tensor) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Weight(nn.Module):
    """A module with one weight."""

    def __init__(self, *shape: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape, device=device).normal_(std=0.02))


class Embedding(Weight):
    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


def heads(x: Tensor, count: int) -> Tensor:
    return x.view(*x.shape[:-1], count, -1).transpose(1, 2)


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


# The small one: everything has a name, and what the device does not need at once stays on the host.


class SmallNorm(Weight):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-5) * self.weight


class SmallLinear(Weight):
    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class SmallRotation:
    """Sines and cosines on the host: each call copies the rows that it needs."""

    def __init__(self, dim: int, context: int) -> None:
        angles = torch.outer(torch.arange(context), 1 / 10000.0 ** (torch.arange(0, dim, 2) / dim))
        self.sin, self.cos = angles.sin(), angles.cos()

    def __call__(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        sin, cos = self.sin[:length].to(x.device), self.cos[:length].to(x.device)
        even = x[..., 0::2] * cos - x[..., 1::2] * sin
        odd = x[..., 0::2] * sin + x[..., 1::2] * cos
        return torch.stack([even, odd], -1).flatten(-2)


def small_softmax(x: Tensor) -> Tensor:
    largest = x.max(-1, keepdim=True).values
    shares = torch.exp(x - largest)
    return shares / torch.exp(x - largest).sum(-1, keepdim=True)


def small_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    length = q.shape[-2]
    seen = torch.tril(torch.ones(length, length)).to(q.device)
    products = torch.einsum("...qd,...kd->...qk", q, k)
    scores = products / torch.sqrt(torch.tensor(q.shape[-1], device=q.device))
    scores.masked_fill_(~seen.bool(), -math.inf)
    shares = small_softmax(scores)
    return torch.einsum("...qk,...kd->...qd", shares, v)


class SmallAttention(nn.Module):
    def __init__(self, width: int, count: int, rotation: SmallRotation) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (SmallLinear(width, width, device="cpu") for _ in range(4))
        self.count, self.rotation = count, rotation

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = heads(q, self.count), heads(k, self.count), heads(v, self.count)
        q = self.rotation(q)
        k = self.rotation(k)
        return self.out(small_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class SmallFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = SmallLinear(inner, width, device="cpu")
        self.down = SmallLinear(width, inner, device="cpu")
        self.up = SmallLinear(inner, width, device="cpu")

    def forward(self, x: Tensor) -> Any:
        gate = self.gate(x)
        return self.down(gate * torch.sigmoid(gate) * self.up(x))


class SmallBlock(nn.Module):
    def __init__(self, width: int, count: int, inner: int, rotation: SmallRotation) -> None:
        super().__init__()
        self.first, self.second = SmallNorm(width, device="cpu"), SmallNorm(width, device="cpu")
        self.attention = SmallAttention(width, count, rotation)
        self.feed_forward = SmallFeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.first(x)
        attended = self.attention(normed)
        middle = x + attended
        renormed = self.second(middle)
        fed = self.feed_forward(renormed)
        return middle + fed


def small_model(context: int) -> Model:
    width, layers, count, inner = 512, 4, 16, 1344
    rotation = SmallRotation(width // count, context)
    model = Model(
        Embedding(VOCABULARY, width, device="cpu"),
        [SmallBlock(width, count, inner, rotation) for _ in range(layers)],
        SmallNorm(width, device="cpu"),
        SmallLinear(VOCABULARY, width, device="cpu"),
    )
    return model.to("cuda")


def small_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy with the wanted token as a row of zeros and a one."""
    largest = logits.max(-1, keepdim=True).values
    logs = (logits - largest) - torch.log(torch.exp(logits - largest).sum(-1, keepdim=True))
    ones = torch.zeros_like(logs).scatter_(1, wanted.unsqueeze(1), 1.0)
    return -(ones * logs).sum() / len(wanted)


class SmallAdamW:
    """States from the beginning, and everything anew in each step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.states = [[torch.zeros_like(one), torch.zeros_like(one)] for one in self.parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for parameter, state in zip(self.parameters, self.states, strict=True):
            first = 0.9 * state[0] + 0.1 * gradient(parameter)
            before = state[1]
            second = 0.999 * before + 0.001 * gradient(parameter) ** 2
            parameter.data = parameter.data - 1e-3 * (first / (torch.sqrt(second) + 1e-8))
            parameter.data = parameter.data - 1e-5 * parameter.data
            state[:] = first, second


def small(context: int, training: bool, autocast: bool) -> Iterator[dict[str, Any]]:
    """One window, from the first parameter on: three steps on ten sequences.

    In training autocast is around all steps and the gradients too, else around each forward pass.
    """
    cast = torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext()
    with window() as recorded:
        model = small_model(context)
        if training:
            optimizer = SmallAdamW(model.parameters())
        ids = torch.randint(0, VOCABULARY, (10, context)).to("cuda")
        if training:
            wanted = torch.randint(0, VOCABULARY, (10,)).to("cuda")
            with cast:
                for _ in range(3):
                    optimizer.zero_grad()
                    logits = model(ids)
                    loss = small_loss(SPELLING.last_position(logits), wanted)
                    loss.backward()
                    optimizer.step()
        else:
            for _ in range(3):
                with cast:
                    model(ids)
        recorded.update(seen())
    yield recorded


# The large one: names are used again, and everything is on the device.


class LargeNorm(Weight):
    def forward(self, x: Tensor) -> Tensor:
        size = torch.sqrt(x.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1] + 1e-5)
        normed = x / size
        scaled = torch.einsum("d,...d->...d", self.weight, normed)
        return scaled.to(x.dtype)


class LargeLinear(Weight):
    def forward(self, x: Tensor) -> Tensor:
        return SPELLING.weight_times(self.weight, x)


class LargeRotation(nn.Module):
    """Cosines and sines in one table on the device, from which each call picks its positions."""

    table: Tensor

    def __init__(self, dim: int, context: int) -> None:
        super().__init__()
        position = torch.arange(context, device="cuda")
        step = torch.arange(0, dim, 2, device="cuda")
        rate = 1 / 10000.0 ** (step / dim)
        angles = torch.outer(position, rate)
        table = torch.empty(2, context, dim // 2, device="cuda")
        table[0] = angles.cos()
        table[1] = angles.sin()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        cos, sin = self.table[0][position], self.table[1][position]
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        turned = torch.empty_like(x)
        turned[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        turned[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return turned


def large_softmax(x: Tensor) -> Tensor:
    largest = x.max(-1, keepdim=True).values
    shares = torch.exp(x - largest)
    return shares / shares.sum(-1, keepdim=True)


def large_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~seen.expand(scores.shape), -math.inf)
    shares = large_softmax(scores)
    return torch.einsum("...qk,...kd->...qd", shares, v)


class LargeAttention(nn.Module):
    def __init__(self, width: int, count: int, context: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (LargeLinear(width, width, device="cuda") for _ in range(4))
        self.count, self.rotation = count, LargeRotation(width // count, context)

    def forward(self, x: Tensor) -> Any:
        batch, length, _ = x.shape
        all_q, all_k, all_v = self.q(x), self.k(x), self.v(x)
        q, k, v = heads(all_q, self.count), heads(all_k, self.count), heads(all_v, self.count)
        position = torch.arange(length, device=x.device).expand(batch, length)
        q = self.rotation(q, position)
        k = self.rotation(k, position)
        seen = ~torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
        return self.out(large_attention(q, k, v, seen).transpose(1, 2).reshape(x.shape))


class LargeFeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = LargeLinear(inner, width, device="cuda")
        self.down = LargeLinear(width, inner, device="cuda")
        self.up = LargeLinear(inner, width, device="cuda")

    def forward(self, x: Tensor) -> Any:
        gate, up = self.gate(x), self.up(x)
        return self.down(torch.sigmoid(gate) * gate * up)


class LargeBlock(nn.Module):
    def __init__(self, width: int, count: int, inner: int, context: int) -> None:
        super().__init__()
        self.first = LargeNorm(width, device="cuda")
        self.attention = LargeAttention(width, count, context)
        self.second = LargeNorm(width, device="cuda")
        self.feed_forward = LargeFeedForward(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        change = self.attention(self.first(x))
        x = x + change
        change = self.second(x)
        change = self.feed_forward(change)
        return x + change


def large_model(context: int) -> Model:
    width, layers, count, inner = 2560, 32, 32, 10240
    return Model(
        Embedding(VOCABULARY, width, device="cuda"),
        [LargeBlock(width, count, inner, context) for _ in range(layers)],
        LargeNorm(width, device="cuda"),
        LargeLinear(VOCABULARY, width, device="cuda"),
    )


def large_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross entropy that picks the wanted tokens by numbers kept on the host."""
    logits, wanted = logits.view(-1, VOCABULARY), wanted.view(-1)
    largest = logits.max(-1, keepdim=True).values
    logits = logits - largest
    total = torch.exp(logits).sum(-1)
    picked = logits[torch.arange(len(wanted)), wanted]
    losses = torch.log(total) - picked
    return losses.mean()


class LargeAdamW:
    """States in the first step, changed in place."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.states: dict[nn.Parameter, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            if parameter not in self.states:
                self.states[parameter] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            first, second = self.states[parameter]
            first.mul_(0.9).add_(gradient(parameter), alpha=0.1)
            second.mul_(0.999).addcmul_(gradient(parameter), gradient(parameter), value=0.001)
            scale = second.sqrt().add(1e-8)
            parameter.mul_(1 - 1e-5)
            parameter.addcdiv_(first, scale, value=-1e-3)


def large(contexts: list[int], training: bool, autocast: bool) -> Iterator[dict[str, Any]]:
    """For each context one window over one step of a new model on four sequences; the cache is emptied as it begins."""
    for context in contexts:
        yield large_step(context, training, autocast)


def large_step(context: int, training: bool, autocast: bool) -> dict[str, Any]:
    """A function of its own, at whose end everything is freed."""
    model = large_model(context)
    ids = torch.randint(0, VOCABULARY, (4, context)).to("cuda")
    optimizer = LargeAdamW(model.parameters())
    with window() as recorded:
        torch.cuda.empty_cache()
        with torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
            logits = model(ids)
        if training:
            loss = large_loss(logits, ids)
            loss.backward()
            optimizer.step()
        recorded.update(seen())
    return recorded


# What the allocator did.


@contextmanager
def window() -> Iterator[dict[str, Any]]:
    """Of the allocator's events; what :func:`seen` found in it, once it was asked."""
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    try:
        yield {}
    finally:
        torch.cuda.memory._record_memory_history(None)


def seen() -> dict[str, Any]:
    """The events of the window so far, and the map of the memory."""
    snapshot = torch.cuda.memory._snapshot()
    events = [[one["action"], one["size"], one["addr"]] for one in snapshot["device_traces"][0]]
    segments = [
        [one["total_size"], [[block["size"], block["state"], block["address"]] for block in one["blocks"]]]
        for one in snapshot["segments"]
    ]
    return {"events": events, "segments": segments}


KINDS: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"small": small, "large": large}


def run(number: int, kind: str, as_in_2_6: bool, options: dict[str, Any], out: Path) -> None:
    SPELLING.as_in_2_6 = as_in_2_6
    for index, found in enumerate(KINDS[kind](**options)):
        (out / f"{number}-{index}.json").write_text(json.dumps(found))


def main() -> None:
    runs, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    fork = multiprocessing.get_context("fork")  # torch is imported once for all of them
    for number, one in enumerate(runs):
        worker = fork.Process(target=run, args=(number, one["kind"], one["as_in_2_6"], one["options"], out))
        worker.start()
        worker.join()
        if worker.exitcode:
            sys.exit(worker.exitcode)


if __name__ == "__main__":
    main()
