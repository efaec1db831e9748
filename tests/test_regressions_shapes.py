"""Shapes, dtypes and layouts at which other sharded trainers fell over; each test is one story."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import thinwire as tw
from small_models import make_model, train
from thinwire.errors import ConfigError
from thinwire.recipes import parse_recipe
from world import run_world

INT8 = "qsdp:compute=fp32:min_numel=0:exact=none:weights=int8/128:grads=int8/128"
INT8_DDP = "ddp:grads=int8/128:min_numel=0:exact=none"
LOSSLESS = "qsdp:compute=fp32:exact=*"
LOSSLESS_REPLICA = "thin:compute=fp32:replica=rank/fp32:exact=*"


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return getattr(tensor, "full_tensor", lambda: tensor)()


class Bag(nn.Module):
    """Parameters of given shapes; the gradient of each is twice itself plus the input."""

    def __init__(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.params = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((p * (p + x)).sum() for p in self.params)
        return total


SHARDED_SHAPES = ((8, 96), (96, 8), (1024, 40), (1601, 8), (2305,), (3,), (1, 2305), (1,))
ALL_SHAPES = (*SHARDED_SHAPES, (), (0, 4), (7,), (9, 8, 2, 1), (32001,), (50257,))


def shapes_body(rank: int, size: int, text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one module on purpose
        model = tw.shard(Bag(shapes), parse_recipe(text))
    for _ in range(3):  # DDP regroups after the first pass
        model.zero_grad()
        backward(model(torch.tensor(0.5 + rank)))
    for parameter, plain in zip(model.parameters(), Bag(shapes).parameters(), strict=True):
        grad, expected = whole(parameter.grad), 2 * plain.detach() + 0.5 + (size - 1) / 2
        assert grad.shape == plain.shape
        if plain.numel():
            # weights, W gradients and their mean are each rounded to 1/127 of a block's maximum
            peak = 2 * plain.detach().abs().max() + 0.5 + size
            assert (grad - expected).abs().max() <= 3 * peak / 127
    assert tw.ledger(model)["ratio"] is not None
    for entry in tw.ledger(model)["collectives"]:
        assert entry["name"] == "agreement" or set(entry["formats"]) == {"int8/128"}


@pytest.mark.parametrize("size", [2, 3, 6])
def test_every_shape_trains_under_ddp(size: int) -> None:
    """Scalars, empty parameters and odd sizes, cut evenly whatever their rows."""
    run_world(shapes_body, size, INT8_DDP, ALL_SHAPES)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_every_shape_trains_sharded(size: int) -> None:
    """LoRA's (8, d) leaves some of six ranks without a row; (1601, d) the last of four short."""
    run_world(shapes_body, size, INT8, SHARDED_SHAPES)


def replica_shapes_body(rank: int, size: int) -> None:
    """The replica keeps its place when some ranks have no rows to send."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = tw.shard(Bag(SHARDED_SHAPES), parse_recipe(LOSSLESS_REPLICA))
    plain = Bag(SHARDED_SHAPES)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    for _ in range(3):
        for module, optimizer in zip((model, plain), optimizers, strict=True):
            backward(module(torch.tensor(0.5)))
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(whole(ours.detach()), theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("per_host", [1, 3])
def test_every_shape_is_kept_in_a_replica(per_host: int) -> None:
    run_world(replica_shapes_body, 6, ranks_per_host=per_host)


def unshardable_body(rank: int, size: int) -> None:
    warnings.simplefilter("ignore")  # one module on purpose
    with pytest.raises(ConfigError, match=r"params\.1 has no dimension.*shape \[1\]"):
        tw.shard(Bag(((4, 4), ())), parse_recipe(INT8))
    with pytest.raises(ConfigError, match=r"params\.1 .* no elements"):
        tw.shard(Bag(((4, 4), (0, 4))), parse_recipe(INT8))
    model = Bag(((4, 4), (0, 4)))
    model.params[1].requires_grad_(False)
    backward(tw.shard(model, parse_recipe(INT8))(torch.tensor(1.0)))


def test_what_fsdp_cannot_shard_is_refused_when_it_is_wrapped() -> None:
    """FSDP2 has no shards of a scalar, and fails in backward on a parameter without elements."""
    run_world(unshardable_body, 2)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def images(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(2, 6, 5, 5, generator=generator)


def expected_convolution(size: int) -> list[Tensor]:
    plain = Convolutions()
    for rank in range(size):
        backward(plain(images(rank)).square().mean() / size)
    return [whole(p.grad) for p in plain.parameters()]


def channels_last_body(rank: int, size: int, text: str) -> None:
    model = Convolutions().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = tw.shard(model, parse_recipe(text))
    for _ in range(2):
        model.zero_grad()
        x = images(rank).to(memory_format=torch.channels_last)
        backward(model(x).square().mean())
    for parameter, expected in zip(model.parameters(), expected_convolution(size), strict=True):
        assert torch.allclose(whole(parameter.grad), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("text", ["ddp:grads=int8/128:exact=*", LOSSLESS, LOSSLESS_REPLICA])
def test_convolutions_in_channels_last(text: str) -> None:
    """Weights whose elements do not lie in the order of their indices."""
    run_world(channels_last_body, 2, text)


def tied_body(rank: int, size: int) -> None:
    """An embedding that is also the head is one parameter: sent once, equal in both places."""
    model = tw.shard(make_model(), parse_recipe(LOSSLESS_REPLICA))
    train(model, rank, 2)
    assert model.get_parameter("head.weight") is model.get_parameter("embed.weight")
    numel = sum(p.numel() for p in model.parameters())
    books = {entry["name"]: entry for entry in tw.ledger(model)["collectives"]}
    sent = books["reduce_scatter"]["within_bytes"] + books["reduce_scatter"]["across_bytes"]
    # two ranks send half the gradient in fp32 each; odd rows make the other's half smaller
    assert 0.9 <= sent / (2 * numel / 2 * 4) <= 1.0 + 0.1


def test_tied_embeddings_are_sent_once() -> None:
    run_world(tied_body, 2)


class Adapted(nn.Module):
    """A frozen matrix with a low-rank update beside it, as LoRA has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(48, 48, bias=False)]).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(8, 48) / 7)
        self.up = nn.Parameter(torch.randn(48, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks[0](x) + x @ self.down.T @ self.up.T
        return out


def adapted_body(rank: int, size: int) -> None:
    plain = Adapted()
    inputs = [torch.randn(4, 48, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    for x in inputs:
        backward(plain(x).square().mean() / size)
    for text in (LOSSLESS, LOSSLESS_REPLICA, "zeropp:compute=fp32:exact=*"):
        model = tw.shard(Adapted(), parse_recipe(text))
        for _ in range(2):
            model.zero_grad()
            backward(model(inputs[rank]).square().mean())
        frozen = [p for p in model.parameters() if not p.requires_grad]
        assert [p.grad for p in frozen] == [None]
        for name in ("down", "up"):
            grad, expected = whole(getattr(model, name).grad), getattr(plain, name).grad
            assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-6)


def test_low_rank_adapters_on_six_ranks() -> None:
    """Eight rows on six ranks: two each for four of them, none for the others."""
    run_world(adapted_body, 6, ranks_per_host=3)


class Buffers(nn.Module):
    """Buffers of every dtype that a norm, a mask or a counter has."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        for dtype in (torch.float16, torch.bfloat16, torch.bool, torch.int64):
            self.register_buffer(
                f"seen_{dtype}".replace(".", "_"), torch.full((3,), rank == 0).to(dtype)
            )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


def buffers_body(rank: int, size: int) -> None:
    model = tw.shard(Buffers(rank), parse_recipe(INT8_DDP))
    backward(model(torch.ones(2, 8)).sum())
    for buffer in model.buffers():
        assert torch.all(buffer == 1)  # those of rank 0


def test_buffers_of_every_dtype_are_left_to_ddp() -> None:
    run_world(buffers_body, 2)


def two_dimensions_body(rank: int, size: int, text: str) -> list[list[float]]:
    runs = []
    for compressed in (False, True):
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        model = make_model()
        for module in (*model.blocks, model):
            fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy())
        if compressed:
            tw.compress(model, parse_recipe(text))
        runs.append(train(model, rank, 5))
    return runs


@pytest.mark.parametrize("text", [LOSSLESS, LOSSLESS_REPLICA])
def test_replicated_shards(text: str) -> None:
    """A mesh of two dimensions (HSDP): gathers and reductions stay within a group of shards.

    FSDP2's own all-reduce is not compressed, which a recipe must accept.
    """
    text = f"{text}:strict=false"
    for stock, ours in run_world(two_dimensions_body, 4, text, ranks_per_host=2):
        assert ours == stock


# every block by itself; how few launches there are otherwise, test_sharding_blocks tells
ALONE = "group_bytes=0"


def collectives_body(rank: int, size: int, text: str) -> dict[str, int]:
    model = tw.shard(make_model(), parse_recipe(text))
    train(model, rank, 1)
    before = {e["name"]: e["calls"] for e in tw.ledger(model)["collectives"]}
    train(model, rank, 1)
    after = {e["name"]: e["calls"] for e in tw.ledger(model)["collectives"]}
    return {name: calls - before.get(name, 0) for name, calls in after.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # three modules; blocks are gathered again in backward, the root is not
        (f"{LOSSLESS}:{ALONE}", {"all_gather": 5, "reduce_scatter": 3}),
        (f"zero2:compute=fp32:grads=int8/128:{ALONE}", {"all_gather": 3, "reduce_scatter": 3}),
        (f"{LOSSLESS_REPLICA}:{ALONE}", {"all_gather": 3, "reduce_scatter": 3, "agreement": 1}),
        ("zero1", {"all_gather": 3, "reduce_scatter": 3}),
        ("zero3", {"all_gather": 5, "reduce_scatter": 3}),
        # with one rank per host nothing is resharded, so nothing is gathered again
        (f"zeropp:{ALONE}", {"all_gather": 3, "reduce_scatter": 3}),
        (f"thin:{ALONE}", {"all_gather": 3, "reduce_scatter": 3, "agreement": 1}),
        # one bucket
        ("ddp", {"all_reduce": 1}),
        (INT8_DDP, {"all_gather": 1, "reduce_scatter": 1}),
    ],
)
def test_the_number_of_collectives_is_as_designed(text: str, expected: dict[str, int]) -> None:
    for calls in run_world(collectives_body, 2, text):
        assert calls == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # hpZ's second gathers, the root's too, stay within the host, and count all the same
        (f"zeropp:{ALONE}", {"all_gather": 3 + 3, "reduce_scatter": 3}),
        # two hops count as one reduction
        (f"thin:{ALONE}", {"all_gather": 3, "reduce_scatter": 3, "agreement": 1}),
        (
            f"thin:replica=host/bf16:{ALONE}",
            {"all_gather": 3 + 5, "reduce_scatter": 3, "agreement": 1},
        ),
        # within the host as zero3; across, for each unit a reduction and a gather of its result
        (f"hsdp:{ALONE}", {"all_gather": 5 + 3, "reduce_scatter": 3 + 3}),
        ("zero3:hybrid=true", {"all_gather": 5, "reduce_scatter": 3, "all_reduce": 3}),
    ],
)
def test_the_number_of_collectives_on_two_levels(text: str, expected: dict[str, int]) -> None:
    for calls in run_world(collectives_body, 4, text, ranks_per_host=2):
        assert calls == expected
