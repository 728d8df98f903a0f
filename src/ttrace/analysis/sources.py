"""Sources: the traces of a check, each opened once and passed to every stage.

Enters: folders of traces. Leaves: a Source for each, with its records, a reader of its bytes, its
batch, and what a report says of the run. Traces that cannot be compared are refused here.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ttrace.analysis.batch import (
    EMPTY_BATCH,
    Batch,
    Batches,
    ModelInputs,
    RowsOf,
    Strand,
    own_batch,
    read_model_inputs,
)
from ttrace.analysis.recipes import Codes
from ttrace.core.evidence import RunFacts
from ttrace.core.ids import Kind
from ttrace.core.mesh import Mesh
from ttrace.core.record import Code, ModuleInfo, Summary
from ttrace.core.results import Coverage
from ttrace.errors import CannotCompare
from ttrace.text import list_first, list_ranks
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.store import PathOrUrl


class Source:
    """One trace: its records, its bytes, and what they say of its batch, each read once."""

    def __init__(self, role: str, trace: Trace, spans: SpanReader) -> None:
        self.role = role  # reference, candidate, perturbed reference, repeated reference
        self.trace = trace
        self.spans = spans
        self._batches: dict[tuple[Strand, RowsOf], Batch] = {}

    @functools.cached_property
    def model_inputs(self) -> Mapping[Strand, ModelInputs]:
        return read_model_inputs(self.trace, self.spans)

    def inputs_of(self, strand: Strand) -> ModelInputs:
        return self.model_inputs.get(strand, ModelInputs())

    def batch_by(self, strand: Strand, choice: RowsOf) -> Batch:
        """The batch in the order that this trace itself gives it, of the rows of one input."""
        if (strand, choice) not in self._batches:
            rows = self.inputs_of(strand).rows(choice)
            self._batches[strand, choice] = own_batch(self.trace, rows, max(choice.dim, 0))
        return self._batches[strand, choice]

    def batch_of(self, strand: Strand) -> Batch:
        """The batch by the input that most likely tells samples apart."""
        choices = self.inputs_of(strand).choices()
        return self.batch_by(strand, choices[0]) if choices else EMPTY_BATCH

    @property
    def batches(self) -> Batches:
        return {strand: self.batch_of(strand) for strand in self.model_inputs}

    @property
    def summaries(self) -> list[Summary]:
        return [rank.summary for rank in self.trace.ranks.values() if rank.summary is not None]

    @property
    def faults(self) -> tuple[str, ...]:
        """What could not be recorded."""
        return tuple(dict.fromkeys(fault for s in self.summaries for fault in s.faults))

    @property
    def updated_by_hand(self) -> bool:
        return any(summary.updated_by_hand for summary in self.summaries)

    @property
    def rounds_updates(self) -> bool:
        """Whether an optimizer rounds by chance; a run with noise tells."""
        return any(summary.rounds_updates for summary in self.summaries)

    @property
    def notes(self) -> list[str]:
        notes: list[str] = []
        for _, rank in sorted(self.trace.ranks.items()):
            notes += [*rank.notes, *(rank.summary.notes if rank.summary else ())]
        return list(dict.fromkeys(notes))

    @property
    def never_called(self) -> set[str]:
        """Modules that no rank called, though some have them."""
        idle = {path for summary in self.summaries for path in summary.never_called}
        return idle - self.called

    @property
    def called(self) -> set[str]:
        return {id_.module for id_ in self.trace.by_id() if id_.kind in (Kind.INPUT, Kind.OUTPUT)}

    def coverage(self, reference: Source) -> Coverage:
        """What of this run was seen, and what only the reference tells."""
        return Coverage(
            modules=len(self.modules),
            never_called=tuple(sorted(self.never_called)),
            hooks_expected=sum(s.hooks_expected for s in self.summaries),
            hooks_fired=sum(s.hooks_fired for s in self.summaries),
            unfired=tuple(sorted({id_ for s in self.summaries for id_ in s.unfired})),
            faults=self.faults,
            reference_faults=reference.faults,
            candidate_only=tuple(sorted(reference.never_called & self.called)),
        )

    @functools.cached_property
    def facts(self) -> RunFacts:
        trace = self.trace
        ranks = [rank.info for _, rank in sorted(trace.ranks.items())]
        examples = trace.records.examples()
        dtypes = {example.dtype for example in examples if example.id.kind is Kind.PARAM}
        role = self.role.split()[0]
        steps = max((summary.steps for summary in self.summaries), default=len(trace.steps))
        return RunFacts.of(role, str(trace.path), ranks, steps, sorted(dtypes))

    @property
    def mesh(self) -> Mesh:
        return self.facts.placed

    @property
    def code(self) -> dict[int, Code]:
        """What every rank tells of its program."""
        ranks = sorted(self.trace.ranks.items())
        return {rank: found.summary.code for rank, found in ranks if found.summary is not None}

    @property
    def modules(self) -> tuple[ModuleInfo, ...]:
        """Of all ranks: in a pipeline each holds a part of the model."""
        ranks = sorted(self.trace.ranks.items())
        return tuple({m.path: m for _, rank in ranks for m in rank.info.modules}.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers by which a sum and a mean may be mistaken for each other."""
        ranks = self.trace.ranks.values()
        sizes = {axis: size for axis, (_, size) in next(iter(ranks)).info.axes.items()}
        microbatches = {example.microbatch for example in self.trace.records.examples()}
        return sizes | {"ranks": self.trace.world_size, "microbatches": len(microbatches)}


@contextmanager
def opened(*paths: tuple[str, PathOrUrl | str]) -> Iterator[list[Source]]:
    """Every (role, folder) as a source, its files open until the end."""
    traces = [(role, Trace.open(path)) for role, path in paths]
    with ExitStack() as stack:
        yield [
            Source(role, trace, stack.enter_context(SpanReader(trace.path)))
            for role, trace in traces
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All traces of one check."""

    reference: Source
    candidate: Source
    perturbed: Sequence[Source]
    repeated: Sequence[Source]

    @property
    def codes(self) -> tuple[Codes, Codes]:
        """By module, of the reference, as its runs with noise tell, and of the candidate."""
        noisy = (source.trace.codes for source in self.perturbed)
        expected = next((found for found in noisy if found is not None), None)
        return expected, self.candidate.trace.codes


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the search for cycles, while very many values are made that all stay.

    A trace of many ranks is millions of objects without a cycle among them. The collector would
    look at all of them again and again: a third of the time of a check, and it finds nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def comparable(
    reference: PathOrUrl | str,
    candidate: PathOrUrl | str,
    perturbed: Sequence[PathOrUrl | str],
    repeated: PathOrUrl | str | None,
) -> Iterator[Sources]:
    """The traces of one check, open until the end; those that cannot be compared are refused."""
    again = [] if repeated is None else [("repeated reference", repeated)]
    noisy = [("perturbed reference", path) for path in perturbed]
    paths = (("reference", reference), ("candidate", candidate), *noisy, *again)
    with no_collection(), opened(*paths) as found:
        sources = Sources(
            reference=found[0],
            candidate=found[1],
            perturbed=found[2 : 2 + len(noisy)],
            repeated=found[2 + len(noisy) :],
        )
        _require_comparable(sources)
        yield sources


def _require_comparable(sources: Sources) -> None:
    reference, candidate = sources.reference, sources.candidate
    perturbed, repeated = sources.perturbed, sources.repeated
    for source in (reference, candidate, *perturbed, *repeated):
        _require_whole(source)
    for source in (reference, candidate, *repeated):
        if {rank.info.noise_seed for rank in source.trace.ranks.values()} != {None}:
            raise CannotCompare(
                f"{source.trace.path} was given as the {source.role} but was recorded with noise, "
                "which changes its numbers; give it with --perturbed, or record the run without "
                "`--noise-seed`"
            )
    for source in perturbed:
        if None in {rank.info.noise_seed for rank in source.trace.ranks.values()}:
            raise CannotCompare(
                f"{source.trace.path} was given as a perturbed reference but was recorded without "
                "noise; record it with `ttrace run --noise-seed N`"
            )
    left, right = reference.trace, candidate.trace
    if left.steps != right.steps:
        raise CannotCompare(
            f"the reference {left.path} has steps {list(left.steps)}, the candidate "
            f"{right.path} has {list(right.steps)}; record the same ones (--steps, --skip)"
        )
    # The root's tensors have the same ids in all models; they count where there is nothing else.
    sides = _modules(left), _modules(right)
    common = sides[0] & sides[1] if all(sides) else set(left.by_id()) & set(right.by_id())
    if not common:
        raise CannotCompare(
            f"no module of {left.path} is in {right.path}: {_some_modules(left)} against "
            f"{_some_modules(right)}; are they the same model?"
        )


def _require_whole(source: Source) -> None:
    role, trace = source.role, source.trace
    if trace.missing_ranks:
        raise CannotCompare(
            f"the {role} {trace.path} has no trace of {list_ranks(trace.missing_ranks)} of "
            f"{trace.world_size}; every rank must write into the same folder: run it again on a "
            "file system that all ranks share"
        )
    unfinished = [rank for rank, found in sorted(trace.ranks.items()) if found.summary is None]
    if unfinished:
        raise CannotCompare(
            f"{list_ranks(unfinished)} of the {role} {trace.path} did not come to the end "
            "of the last step: the run was killed, failed, or its disk was full; look at its log, "
            "then run it again (`ttrace show` reads what was recorded)"
        )
    if not trace.by_id():
        why = next(iter(source.faults), "no step ran inside `with tracer.step():`")
        raise CannotCompare(f"the {role} {trace.path} holds no tensor: {why}")


def _modules(trace: Trace) -> set[str]:
    return {id_.module for id_ in trace.by_id() if id_.module}


def _some_modules(trace: Trace) -> str:
    modules = sorted(_modules(trace)) or ["only the model itself"]
    return list_first(modules, 3)
