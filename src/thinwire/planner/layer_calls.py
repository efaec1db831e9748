"""The collectives of one layer under one recipe, byte by byte as one rank's ledger counts them.

W ranks sit on H hosts of R; rank h * R + l has place l on host h. A slot is what one rank holds of
the layer.

    gather            ring: (W - 1) slots to the successor; rounds over gloo where every host has
                      one rank: the own slot to every other rank
    reduce            rounds: every other rank's slot, to that rank
    reduce, two hops  within the host: H slots to each of R - 1; across: one to each of H - 1
    delta             across: the own slot to each of H - 1; within: H slots to each of R - 1
    all-reduce        rounds: as reduce, then the own slot of the result to every other rank;
                      of matrices that travel as factors twice, for their left and right factors
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thinwire.formats import WireFormat, parse_format
from thinwire.planner.algorithms import exchange, ring, rounds, spread
from thinwire.planner.averaged import Averaged
from thinwire.planner.call import Call, CodecWork, Sent
from thinwire.planner.gradient_formats import priced_gradients
from thinwire.planner.group import Group
from thinwire.planner.payload import Payloads, Piece, row_pieces, slot_payloads
from thinwire.planner.workload import DTYPE_BYTES, Layer, Parameter
from thinwire.recipe import Recipe
from thinwire.rules import FormatRule

__all__ = ["LayerCalls"]

AGREEMENT_BYTES = 8  # one int64 a unit
CASTS = {name: parse_format(name) for name in DTYPE_BYTES}


class LayerCalls:
    """Makes the calls of one layer.

    Args:
        layer: as one tensor-parallel rank holds it; what its first index says about ``exact``
            holds for all of the run.
        recipe: what travels in which format.
        group: the data-parallel ranks.
        rank: whose ledger it is, within the group.
        stock_passes: how often PyTorch's own reduce-scatter sends its input round.
    """

    def __init__(
        self, layer: Layer, recipe: Recipe, group: Group, rank: int, stock_passes: int
    ) -> None:
        self.layer = layer
        self._recipe = recipe
        self._group = group
        self._rank = rank
        self._stock_passes = stock_passes
        self.slot_numel = sum(
            row_pieces(parameter.shape, group.size) for parameter in layer.parameters
        )
        self._whole = float(group.size * self.slot_numel)
        self._names = tuple(layer.parameter_names(layer.start))
        self._exact = [
            recipe.travels_exactly(name, parameter.shape)
            for name, parameter in zip(self._names, layer.parameters, strict=True)
        ]

    def gather(self) -> Call:
        """All-gather of every rank's shard."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            slot_bytes = self.slot_numel * DTYPE_BYTES[recipe.compute]
            return ring("all_gather", group, self._rank, slot_bytes, copied=self._whole)
        rule = recipe.weight_rule
        slot_bytes = self._row_payloads(rule, recipe.compute).slot_bytes
        call = ring(
            "all_gather",
            group,
            self._rank,
            slot_bytes,
            payload_bytes=(group.size + 1) * slot_bytes,
            work=(
                *self._work("encode", rule, self.slot_numel),
                *self._work("decode", rule, self._whole),
            ),
            copied=self._whole,
        )
        return replace(call, algorithm="rounds") if self._gathers_in_rounds else call

    @property
    def _gathers_in_rounds(self) -> bool:
        """As ``thinwire.comm.exchange.gather_rows`` decides."""
        over_gloo = self._stock_passes > 1  # only gloo's own reduce-scatter passes twice
        return over_gloo and (self._group.per_host == 1 or self._group.size == 2)

    def gather_within(self) -> Call:
        """hpZ's second gather: what was decoded before, among the ranks of a host, as it is."""
        group = self._group
        unit_numel = group.size * self.slot_numel // group.per_host
        unit_bytes = unit_numel * DTYPE_BYTES[self._recipe.compute]
        return ring("all_gather", group.within, self._rank, unit_bytes, copied=self._whole)

    def delta(self) -> tuple[Call, ...]:
        """What brings a resident replica up to date: each owner's delta to all who keep its row."""
        group, rule = self._group, self._recipe.weight_rule
        payloads = self._row_payloads(rule, "fp32")
        own = payloads.between(self._rank, self._rank + 1)
        same_place = payloads.of_place(self._rank % group.per_host, group.per_host)
        is_split = (self._recipe.replica or "").startswith("host")
        kept = self._whole / group.per_host if is_split else self._whole
        work = (
            *self._work("encode", rule, self.slot_numel),
            *self._work("decode", rule, kept),
        )
        calls = []
        if group.is_across:
            held = own + same_place
            calls.append(spread("all_gather", group.across, own, payload_bytes=held))
        if group.per_host > 1 and not is_split:
            held = payloads.total_bytes + same_place
            calls.append(spread("all_gather", group.within, same_place, payload_bytes=held))
        # the codecs work once, however many hops there are
        return tuple(
            replace(call, work=work, copied_elements=kept) if call is calls[0] else call
            for call in calls
        )

    def read_split_replica(self) -> Call:
        """A gather served by the ranks of a host, each of which keeps a part of the replica."""
        group, fmt = self._group, self._recipe.resident_format
        assert fmt is not None  # only such a replica is read
        kept_bytes = group.hosts * self.slot_numel * fmt.bits // 8
        held = group.per_host * kept_bytes
        call = spread("all_gather", group.within, kept_bytes, payload_bytes=held)
        return replace(call, copied_elements=2 * self._whole)

    def reduce_scatter(self) -> tuple[Call, ...]:
        """Reduce-scatter of gradients, in one hop or in two."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            return (self._stock_reduce(),)
        rule = priced_gradients(recipe)
        if recipe.hybrid:
            rule = self._inner_rule  # what crosses hosts is averaged afterwards
        elif recipe.reduces_within and group.per_host > 1:
            if group.is_across:
                return self._two_hops(self._inner_rule, rule)
            rule = self._inner_rule
        payloads = self._row_payloads(rule, "fp32")
        work = self._summing(rule, self._whole)
        return (exchange(group, self._rank, payloads, work, copied=self._whole),)

    def reduce_within(self) -> tuple[Call, ...]:
        """The first of two hops by itself."""
        return self._two_hops(self._inner_rule, priced_gradients(self._recipe))[:1]

    @property
    def _inner_rule(self) -> FormatRule:
        return self._recipe.grad_rule_within or FormatRule(CASTS["fp32"])

    def _stock_reduce(self) -> Call:
        """PyTorch's own reduce-scatter, in the dtype of the gradients."""
        group, passes = self._group, self._stock_passes
        unit_bytes = self.slot_numel * DTYPE_BYTES[self._recipe.grads]
        return ring(
            "reduce_scatter",
            group,
            self._rank,
            unit_bytes,
            passes=passes,
            # an all-reduce inside works on a copy of its input
            payload_bytes=group.size * unit_bytes if passes > 1 else 0.0,
            copied=self._whole,
        )

    def all_reduce(self) -> tuple[Call, ...]:
        """DDP's reduction: one ring, or an exchange and a gather of the encoded result."""
        recipe, group = self._recipe, self._group
        if recipe.is_uncompressed:
            unit_bytes = self.layer.numel * DTYPE_BYTES[recipe.grads] / group.size
            return (ring("all_reduce", group, self._rank, unit_bytes, passes=2),)
        rule, whole = priced_gradients(recipe), float(self.layer.numel)

        named = zip(self._names, self.layer.parameters, self._exact, strict=True)
        averaged = Averaged.of(named, rule, group.size)
        if not averaged.factored:
            return self._there_and_back(averaged.first, self._codec_work(rule), copied=whole)
        # a matrix becomes its left factor, which is averaged with all else, then its right one
        left, *rest = self._there_and_back(averaged.first, ((), ()), copied=whole)
        return (
            replace(left, factored=tuple(averaged.factored)),
            *rest,
            *self._there_and_back(averaged.second, ((), ()), copied=0.0),
        )

    def _codec_work(self, rule: FormatRule) -> tuple[tuple[CodecWork, ...], tuple[CodecWork, ...]]:
        """What codecs do for a reduction, and for the gather of its result."""
        whole, share = float(self.layer.numel), self.layer.numel / self._group.size
        reduce = self._summing(rule, whole)
        return reduce, (*self._work("encode", rule, share), *self._work("decode", rule, whole))

    def _there_and_back(
        self,
        pieces: list[Piece],
        work: tuple[tuple[CodecWork, ...], tuple[CodecWork, ...]],
        *,
        copied: float,
    ) -> tuple[Call, ...]:
        """An exchange of slices, and a gather of their encoded sums."""
        group, payloads = self._group, slot_payloads(pieces, self._group.size)
        reduce = exchange(group, self._rank, payloads, work[0], copied=copied)
        own_bytes = payloads.between(self._rank, self._rank + 1)
        across_bytes = (group.size - group.per_host) * own_bytes
        inner_bytes = (group.per_host - 1) * own_bytes
        gather = replace(
            reduce,
            name="all_gather",
            sent=Sent(inner_bytes, across_bytes),
            egress_bytes=group.per_host * across_bytes,
            inner_bytes=inner_bytes,
            payload_bytes=own_bytes + payloads.total_bytes,
            work=work[1],
        )
        return reduce, gather

    def of_slot(self, group: Group, rank: int) -> LayerCalls:
        """The calls of what this rank holds of the layer, among ranks that hold the same.

        Args:
            group: the ranks with this place on every host.
            rank: within that group.
        """
        size = self._group.size
        shares = []
        for parameter in self.layer.parameters:
            numel = row_pieces(parameter.shape, size)
            if not self._recipe.is_uncompressed:  # our own collectives leave padding out
                numel = max(0, min(numel, parameter.numel - self._rank * numel))
            shares.append(replace(parameter, shape=(numel,), split=None))
        layer = replace(self.layer, parameters=tuple(shares))
        calls = LayerCalls(layer, self._recipe, group, rank, self._stock_passes)
        calls._exact = self._exact  # which a parameter's own shape decides
        return calls

    def agreement(self, units: int) -> Call:
        """The ranks' agreement on what each of a model's units needs: a number for each."""
        group = self._group
        sent_bytes = round(2 * (group.size - 1) / group.size * AGREEMENT_BYTES * units)
        unit_bytes = sent_bytes / max(1, 2 * (group.size - 1))
        return ring("agreement", group, self._rank, unit_bytes, passes=2)

    def _two_hops(self, inner: FormatRule, outer: FormatRule) -> tuple[Call, ...]:
        """Within the host first, then across (arXiv 2306.10209, section 3.3).

        In the first hop a rank sends each neighbour the slots of all ranks that have its place; in
        the second it sends each of those its slot.
        """
        group = self._group
        within, across = self._row_payloads(inner, "fp32"), self._row_payloads(outer, "fp32")
        places, place = group.per_host, self._rank % group.per_host
        to_place, to_hosts = within.of_place(place, places), across.of_place(place, places)
        own = across.between(self._rank, self._rank + 1)
        whole, share = self._whole, self._whole / places
        return (
            rounds(
                "reduce_scatter",
                group.within,
                sent_bytes=within.total_bytes - to_place,
                message_bytes=within.of_place(0, places),
                payload_bytes=within.total_bytes + places * to_place,
                work=self._summing(inner, whole),
                copied=whole,
            ),
            rounds(
                "reduce_scatter",
                group.across,
                sent_bytes=to_hosts - own,
                message_bytes=across.slot_bytes,
                payload_bytes=2 * to_hosts,
                work=self._summing(outer, share),
            ),
        )

    def _summing(self, rule: FormatRule, numel: float) -> tuple[CodecWork, ...]:
        """What a reduction's codecs do: encode all that is sent, sum all that comes."""
        return (*self._work("encode", rule, numel), *self._work("sum", rule, numel))

    def _work(self, verb: str, rule: FormatRule, numel: float) -> tuple[CodecWork, ...]:
        """What each format of a rule takes of ``numel`` elements: its share of the layer."""
        if not rule.exceptions:
            return (CodecWork(verb, rule.usual, numel),)
        numels: dict[WireFormat, int] = {}
        for name, parameter in zip(self._names, self.layer.parameters, strict=True):
            fmt = rule.format_of(name)
            numels[fmt] = numels.get(fmt, 0) + parameter.numel
        whole = max(1, sum(numels.values()))
        return tuple(CodecWork(verb, fmt, numel * part / whole) for fmt, part in numels.items())

    def _row_payloads(self, rule: FormatRule, exact: str) -> Payloads:
        size = self._group.size
        return self._payloads(rule, exact, lambda parameter, _: row_pieces(parameter.shape, size))

    def _payloads(
        self, rule: FormatRule, exact: str, piece_numel: Callable[[Parameter, WireFormat], int]
    ) -> Payloads:
        pieces = []
        for name, parameter, is_exact in zip(
            self._names, self.layer.parameters, self._exact, strict=True
        ):
            chosen = CASTS[exact] if is_exact else rule.format_of(name)
            pieces.append(Piece(parameter.numel, piece_numel(parameter, chosen), chosen))
        return slot_payloads(pieces, self._group.size)
