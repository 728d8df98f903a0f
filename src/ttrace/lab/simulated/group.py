"""The process group of a simulated rank: what gloo's would give, from tensors in the same memory.

It takes the place of gloo's class where ranks are simulated, so that frameworks which ask for the
name of the backend do what they do with gloo. A call returns at once; whoever waits for it lets
others have their turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ttrace.lab.simulated import exchanges
from ttrace.lab.simulated.exchanges import Do
from ttrace.lab.simulated.meetings import GroupRank, Meetings, Pending
from ttrace.lab.simulated.turns import Wait

_Tensors = Sequence[torch.Tensor]
_CPU = torch.device("cpu")
# Their stubs have overloads that torch itself does not call.
_Work: Any = dist.Work
_ProcessGroup: Any = dist.ProcessGroup


class SimulatedWork(_Work):  # type: ignore[misc]
    """What a collective returns: it is done when all ranks have come."""

    def __init__(self, meetings: Meetings, pending: Pending, value: Any) -> None:
        super().__init__()
        self._meetings, self._pending, self._value = meetings, pending, value

    def wait(self, timeout: Any = None) -> bool:
        self._meetings.turns.wait(Wait(self._pending.is_over, self._pending.say))
        return True

    def is_completed(self) -> bool:
        return self._pending.is_done

    def is_success(self) -> bool:
        return self._pending.is_done

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._value

    def get_future(self) -> torch.futures.Future[Any]:
        """Done: C++ waits for futures without giving others a turn."""
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._value)
        return future


class _Received(SimulatedWork):
    """The same of a tensor that is awaited, which knows who sent it."""

    def __init__(self, meetings: Meetings, receipt: Any, value: Any) -> None:
        super().__init__(meetings, receipt.pending, value)
        self._receipt = receipt

    def _source_rank(self) -> int:
        return int(self._receipt.came_from)


class SimulatedGroup(_ProcessGroup):  # type: ignore[misc]
    """Of one rank; `meetings` is set by who simulates, in a class of his own."""

    meetings: ClassVar[Meetings]
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def __init__(self, store: Any, rank: int, size: int, timeout: Any = None) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self.options = SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=timeout)

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """For C++ alone, which would ask gloo's own class for more; `get_backend` says gloo."""
        return "simulated"

    @property
    def group_name(self) -> str:
        return str(self.options.group_name)

    def name(self) -> str:
        return "gloo"

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> SimulatedGroup:
        return self

    def _set_sequence_number_for_group(self) -> None:
        """Meetings count."""

    def _start_coalescing(self, device: torch.device) -> None:
        """Calls may go out one by one."""

    def _end_coalescing(self, device: torch.device) -> SimulatedWork:
        return SimulatedWork(self.meetings, Pending("coalescing", is_done=True), [])

    def allreduce(self, tensors: _Tensors, opts: Any = None) -> SimulatedWork:
        return self._meet("all_reduce", tensors, exchanges.all_reduce(_op(opts)), tensors)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> SimulatedWork:
        return self._meet("all_reduce", tensors, exchanges.all_reduce(_op(opts)), tensors)

    def reduce(self, tensors: _Tensors, opts: Any) -> SimulatedWork:
        do = exchanges.reduce(_op(opts), opts.rootRank)
        return self._meet("reduce", tensors, do, tensors)

    def broadcast(self, tensors: _Tensors, opts: Any) -> SimulatedWork:
        return self._meet("broadcast", tensors, exchanges.broadcast(opts.rootRank), tensors)

    def allgather(self, outputs: Any, inputs: _Tensors, opts: Any = None) -> SimulatedWork:
        return self._meet("all_gather", (outputs[0], inputs[0]), exchanges.all_gather, outputs[0])

    def all_gather_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> SimulatedWork:
        parts = self._parts(output)
        return self._meet("all_gather", (parts, given), exchanges.all_gather, [output])

    def all_gather_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> SimulatedWork:
        pairs = zip(outputs, inputs, strict=True)
        return [self.all_gather_single(*pair) for pair in pairs][-1]

    def gather(self, outputs: Any, inputs: _Tensors, opts: Any) -> SimulatedWork:
        into = outputs[0] if outputs else []
        return self._meet("gather", (into, inputs[0]), exchanges.gather(opts.rootRank), into)

    def scatter(self, outputs: _Tensors, inputs: Any, opts: Any) -> SimulatedWork:
        parts = inputs[0] if inputs else []
        do = exchanges.scatter(opts.rootRank)
        return self._meet("scatter", (outputs[0], parts), do, outputs)

    def reduce_scatter(self, outputs: _Tensors, inputs: Any, opts: Any = None) -> SimulatedWork:
        do = exchanges.reduce_scatter_list(_op(opts))
        return self._meet("reduce_scatter", (outputs[0], inputs[0]), do, outputs)

    def reduce_scatter_single(
        self, output: torch.Tensor, given: torch.Tensor, opts: Any = None
    ) -> SimulatedWork:
        do = exchanges.reduce_scatter(_op(opts))
        return self._meet("reduce_scatter", (output, given), do, [output])

    def reduce_scatter_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> SimulatedWork:
        pairs = zip(outputs, inputs, strict=True)
        return [self.reduce_scatter_single(*pair, opts) for pair in pairs][-1]

    def alltoall(self, outputs: _Tensors, inputs: _Tensors, opts: Any = None) -> SimulatedWork:
        return self._meet("all_to_all", (outputs, inputs), exchanges.all_to_all, outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        output_sizes: Sequence[int] | None = None,
        input_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> SimulatedWork:
        pair = self._parts(output, output_sizes), self._parts(given, input_sizes)
        return self._meet("all_to_all", pair, exchanges.all_to_all, [output])

    def barrier(self, opts: Any = None) -> SimulatedWork:
        return self._meet("barrier", (), exchanges.nothing, [])

    def send(self, tensors: _Tensors, receiver: int, tag: int) -> SimulatedWork:
        exchanges.require_cpu(tensors)
        self.meetings.send(self._member(), receiver, tag, tensors)
        return SimulatedWork(self.meetings, Pending("send", is_done=True), list(tensors))

    def recv(self, tensors: _Tensors, sender: int, tag: int) -> SimulatedWork:
        return self._receive(tensors, sender, tag)

    def recv_anysource(self, tensors: _Tensors, tag: int) -> SimulatedWork:
        return self._receive(tensors, None, tag)

    # Before torch 2.13 they had other names.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _receive(self, tensors: _Tensors, sender: int | None, tag: int) -> SimulatedWork:
        exchanges.require_cpu(tensors)
        receipt = self.meetings.receive(self._member(), sender, tag, tensors)
        return _Received(self.meetings, receipt, list(tensors))

    def _parts(
        self, tensor: torch.Tensor, sizes: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        if sizes:
            return list(tensor.detach().split(list(sizes)))
        return list(tensor.detach().chunk(self.size()))

    def _member(self) -> GroupRank:
        ranks = self.options.global_ranks_in_group or range(self.size())
        return GroupRank(self.options.group_name, tuple(ranks), self._rank)

    def _meet(self, what: str, given: Any, do: Do, value: Any) -> SimulatedWork:
        exchanges.require_cpu(given)
        pending = self.meetings.come(self._member(), what, given, do)
        return SimulatedWork(self.meetings, pending, list(value))


def _op(opts: Any) -> Any:
    """SUM where nobody says; those that carry a factor are none that gloo knows."""
    op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    return getattr(op, "op", op)
