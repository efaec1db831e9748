"""Error feedback: nothing is lost for good, nothing that is not finite is remembered."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from live_bytes import LiveBytes
from thinwire.errors import StateError
from thinwire.formats import parse_format
from thinwire.wire import Key, Packing, Payload, Segment, decode
from thinwire.wire.feedback import NO_FEEDBACK, ResidualPolicy, Residuals

BIASED = ["int2/32", "int4/128", "int4/128+bf16scale", "int8/64+asym", "e4m3", "e5m2", "bf16"]
BIASED += ["sign/32", "sign/64+hadamard", "topk=0.01", "topk=0.2", "log4/128", "log8/24+bf16scale"]
BIASED += ["int4/64+hadamard", "int4/64+clip=90", "log4/64+clip=90", "int3/64+levels"]
UNBIASED = ["int4/128+stochastic", "int3/32+shift"]


def packing_of(text: str, numel: int = 300, padding: int = 0) -> Packing:
    exact = Segment(5, parse_format("fp32"), "norm")
    return Packing([Segment(numel, parse_format(text), "weight", padding), exact])


def draw(packing: Packing, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(packing.numel, generator=generator) * 2.0 ** (step % 7 - 3)


def send(residuals: Residuals, packing: Packing, x: Tensor, step: int, part: str = "0") -> Tensor:
    """What a receiver decodes."""
    payload = torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    residuals.encode_into(packing, x, payload, Key(step=step), part)
    decoded = torch.empty(packing.numel)
    packing.decode_into(payload, decoded)
    return decoded


@pytest.mark.parametrize("text", BIASED + UNBIASED)
def test_what_was_sent_and_the_residual_are_the_inputs(text: str) -> None:
    packing, residuals = packing_of(text), Residuals()
    num_steps = 25
    total, sent, magnitude = (torch.zeros(300, dtype=torch.float64) for _ in range(3))
    for step in range(num_steps):
        x = draw(packing, step)
        decoded = send(residuals, packing, x, step)
        total += x[:300]
        sent += decoded[:300]
        (residual,) = residuals.state().values()
        magnitude += decoded[:300].abs() + 2 * residual.abs()
        assert torch.equal(decoded[300:], x[300:])  # fp32 is sent as it is
    # per step one rounded addition, which gives what is decoded and what is left over together, and
    # one rounded subtraction, which gives what is left over; twice half a unit in the last place
    assert torch.all((sent + residual - total).abs() <= 2 * 2.0**-24 * magnitude)
    assert residual.abs().max() > 0


def test_without_feedback_the_loss_adds_up() -> None:
    """A constant that rounds to zero never arrives, unless the residual carries it over."""
    packing = packing_of("int4/128")
    x = torch.zeros(packing.numel)
    x[0], x[1] = 7.0, 0.25  # one step of the block is 1
    plain, remembered = torch.zeros(packing.numel), torch.zeros(packing.numel)
    residuals = Residuals()
    payload = torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    for step in range(16):
        NO_FEEDBACK.encode_into(packing, x, payload, Key(step=step), "0")
        decoded = torch.empty(packing.numel)
        packing.decode_into(payload, decoded)
        plain += decoded
        remembered += send(residuals, packing, x, step)
    assert plain[1] == 0
    assert abs(remembered[1] - 16 * 0.25) <= 0.5  # all but half a step


def test_no_feedback_writes_the_packings_own_bytes() -> None:
    packing = packing_of("int4/128+stochastic")
    x = draw(packing, 0)
    ours, theirs = (torch.zeros(packing.wire_bytes, dtype=torch.uint8) for _ in range(2))
    NO_FEEDBACK.encode_into(packing, x, ours, Key(step=3), "0")
    packing.encode_into(x, theirs, Key(step=3))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("text", ["int4/128", "bf16"])
def test_what_is_not_finite_leaves_residuals_as_they_were(text: str, poison: float) -> None:
    packing, residuals = packing_of(text), Residuals()
    send(residuals, packing, draw(packing, 0), 0)
    before = residuals.state()["weight/0"].clone()
    x = draw(packing, 1)
    x[130] = poison
    assert not send(residuals, packing, x, 1).isfinite().all()  # the receivers see it
    after = residuals.state()["weight/0"]
    spoiled = slice(128, 256) if text == "int4/128" else slice(130, 131)
    assert torch.equal(after[spoiled], before[spoiled])
    assert after.isfinite().all()
    assert send(residuals, packing, draw(packing, 2), 2).isfinite().all()


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 200), min_size=1, max_size=4), steps=st.integers(1, 4))
def test_residuals_do_not_depend_on_how_parameters_share_a_buffer(
    sizes: list[int], steps: int
) -> None:
    fmt = parse_format("int4/32+stochastic")
    segments = [Segment(size, fmt, f"p{index}", padding=3) for index, size in enumerate(sizes)]
    together, apart = Residuals(), Residuals()
    for step in range(steps):
        whole = Packing(segments)
        x = draw(whole, step)
        send(together, whole, x, step)
        start = 0
        for segment in reversed(segments):
            single = Packing([segment])
            start += single.numel
            place = whole.starts[segments.index(segment)]
            send(apart, single, x[place : place + single.numel], step)
    assert together.state().keys() == apart.state().keys()
    for entry, residual in together.state().items():
        assert torch.equal(residual, apart.state()[entry])


def test_parts_do_not_share_a_residual_and_absent_parameters_keep_theirs() -> None:
    packing, residuals = packing_of("int4/128"), Residuals()
    send(residuals, packing, draw(packing, 0), 0, part="to 0")
    kept = residuals.state()["weight/to 0"].clone()
    send(residuals, packing, draw(packing, 1), 1, part="to 1")
    other = Packing([Segment(10, parse_format("int4/128"), "other")])
    send(residuals, other, draw(other, 2), 2, part="to 0")
    assert set(residuals.state()) == {"weight/to 0", "weight/to 1", "other/to 0"}
    assert torch.equal(residuals.state()["weight/to 0"], kept)


def test_a_format_that_loses_nothing_has_no_residual() -> None:
    residuals = Residuals()
    packing = packing_of("bf16")
    payload = torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    x = draw(packing, 0).bfloat16()
    residuals.encode_into(packing, x, payload, Key(), "0")
    assert residuals.held_bytes == 0
    send(residuals, packing, draw(packing, 0), 0)  # fp32 values in bf16 do lose something
    assert residuals.held_bytes == 300 * 4


def kept_in(text: str, *, average: float = 0.0, reset_every: int = 0) -> Residuals:
    policy = ResidualPolicy(format=parse_format(text), average=average, reset_every=reset_every)
    return Residuals(policy)


@pytest.mark.parametrize(
    ("text", "held_bytes", "half_step"),
    [
        ("bf16", 300 * 2, 2.0**-8),  # rounded to 8 significant bits
        # three blocks' scales and 300 codes; 127 levels up to the block's largest residual
        ("int8/128", 3 * 4 + 300, 1 / 254),
    ],
)
def test_narrow_residuals_take_less_memory_and_conserve_to_their_rounding(
    text: str, held_bytes: int, half_step: float
) -> None:
    packing, residuals, watched = packing_of("int4/128", padding=9), kept_in(text), Residuals()
    total, sent = (torch.zeros(300, dtype=torch.float64) for _ in range(2))
    bound = torch.zeros(300, dtype=torch.float64)
    for step in range(10):
        x = draw(packing, step)
        # what the residual would be without being rounded itself
        watched.load({"weight/0": values_of(residuals)})
        decoded = send(residuals, packing, x, step)[:300]
        assert torch.equal(decoded, send(watched, packing, x, step)[:300])
        total += x[:300]
        sent += decoded
        largest = watched.state()["weight/0"].abs()
        if text != "bf16":
            largest = torch.cat(
                [block.max().expand(len(block)) for block in torch.split(largest, 128)]
            )
        bound += half_step * 1.001 * largest.double()
    assert residuals.held_bytes == held_bytes
    missing = (sent + values_of(residuals) - total).abs()
    assert torch.all(missing <= bound + 1e-4)  # fp32 rounding is far below the residuals' own
    assert missing.max() > 0


def values_of(residuals: Residuals) -> Tensor:
    """The residual of ``weight``, part 0, in fp32."""
    kept = residuals.state().get("weight/0", torch.zeros(300))
    if kept.dtype != torch.uint8:
        return kept.float()
    fmt, shape = residuals.policy.format, torch.Size([300])
    return decode(Payload(bytes=kept, format=fmt, shape=shape, dtype=torch.float32))


def test_an_average_gives_the_new_loss_its_share_only() -> None:
    packing, averaged, plain = packing_of("int4/128"), kept_in("fp32", average=0.8), Residuals()
    for step in range(5):
        old = values_of(averaged).clone()
        plain.load({"weight/0": old})
        x = draw(packing, step)
        assert torch.equal(send(averaged, packing, x, step), send(plain, packing, x, step))
        lost = values_of(plain)
        # one rounded multiplication and one addition
        torch.testing.assert_close(
            values_of(averaged), 0.8 * old + 0.2 * lost, rtol=1e-6, atol=1e-7
        )


def test_residuals_return_to_zero_at_the_interval() -> None:
    packing, residuals = packing_of("int4/128"), kept_in("fp32", reset_every=4)
    for step in range(9):
        fresh = Residuals()
        x = draw(packing, step)
        is_as_fresh = torch.equal(send(residuals, packing, x, step), send(fresh, packing, x, step))
        assert is_as_fresh == (step % 4 == 0)


@pytest.mark.parametrize("text", ["fp32", "bf16", "int8/128"])
def test_a_step_taken_back_leaves_no_trace(text: str) -> None:
    policy = ResidualPolicy(format=parse_format(text), undoable=True)
    packing, steady, hesitant = packing_of("int4/128"), Residuals(policy), Residuals(policy)
    for step in range(4):
        for micro in range(2):  # a step may encode several times
            x = draw(packing, 10 * step + micro)
            ours = send(hesitant, packing, x, step)
            assert torch.equal(ours, send(steady, packing, x, step))
        for residuals in (steady, hesitant):
            residuals.commit()
        for micro in range(2):
            send(hesitant, packing, draw(packing, 100 * step + micro), step)
        hesitant.undo()
        hesitant.undo()  # nothing is under way
        assert torch.equal(hesitant.state()["weight/0"], steady.state()["weight/0"])
    assert steady.held_bytes == hesitant.held_bytes == 2 * steady.state()["weight/0"].nbytes


@pytest.mark.parametrize(
    ("text", "average", "copies"), [("fp32", 0.0, 2), ("int8/128", 0.0, 2), ("int8/128", 0.5, 3)]
)
def test_encoding_takes_copies_of_one_piece_not_of_the_buffer(
    text: str, average: float, copies: int
) -> None:
    numel, num_pieces = 2**14, 8
    packing = Packing(
        [Segment(numel, parse_format("int4/128"), f"p{index}") for index in range(num_pieces)]
    )
    residuals = kept_in(text, average=average)
    x, payload = draw(packing, 0), torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    residuals.encode_into(packing, x, payload, Key(), "0")
    with LiveBytes([x, payload, *residuals.state().values()]) as live:
        before = live.current
        residuals.encode_into(packing, x, payload, Key(step=1), "0")
    # a few numbers of four bytes decide whether all is finite
    assert copies * 4 * numel <= live.peak - before <= copies * 4 * numel + 64


def test_only_what_is_kept_can_be_taken_back() -> None:
    with pytest.raises(StateError, match="residual_undo=true"):
        Residuals().undo()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_carried_in_fp32_and_left_as_they_are(dtype: torch.dtype) -> None:
    packing, residuals = packing_of("int4/128"), Residuals()
    payload = torch.zeros(packing.wire_bytes, dtype=torch.uint8)
    for step in range(3):
        x = draw(packing, step).to(dtype)
        kept = x.clone()
        residuals.encode_into(packing, x, payload, Key(step=step), "0")
        assert torch.equal(x, kept)
    assert residuals.state()["weight/0"].dtype == torch.float32


@pytest.mark.parametrize("text", ["fp32", "bf16", "int8/128"])
def test_a_run_continues_from_its_state(text: str) -> None:
    packing, residuals = packing_of("int4/128"), kept_in(text)
    send(residuals, packing, draw(packing, 0), 0)
    resumed = kept_in(text)
    resumed.load({entry: tensor.clone() for entry, tensor in residuals.state().items()})
    assert torch.equal(resumed.state()["weight/0"], residuals.state()["weight/0"])
    x = draw(packing, 1)
    assert torch.equal(send(resumed, packing, x, 1), send(residuals, packing, x, 1))
    assert torch.equal(resumed.state()["weight/0"], residuals.state()["weight/0"])


def test_mistakes_are_named() -> None:
    residuals = Residuals()
    with pytest.raises(StateError, match="is no residual"):
        residuals.load({"weight": torch.zeros(3)})
    send(residuals, packing_of("int4/128"), draw(packing_of("int4/128"), 0), 0)
    resized = packing_of("int4/128", numel=200)
    with pytest.raises(StateError, match="attach compression again"):
        send(residuals, resized, draw(resized, 0), 0)
    for kept in (torch.zeros(299), torch.zeros(312, dtype=torch.uint8)):
        residuals.load({"weight/0": kept})
        with pytest.raises(StateError, match="is no residual of 300 elements in fp32"):
            send(residuals, packing_of("int4/128"), draw(packing_of("int4/128"), 0), 0)
