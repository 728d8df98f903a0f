"""Mutated results: a result.json in which something is changed, in every form of report."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from attacks.fuzz.cases import Ran, guarded
from attacks.fuzz.mutations import REMOVED
from attacks.fuzz.values import instead_of
from ttrace.cli.results import fix_lines
from ttrace.core.results import CheckResult, compare_results
from ttrace.report import json_file
from ttrace.report.forms import FORMS, FileForm, LinesForm
from ttrace.report.json_file import read_result

_TENSORS = 4  # right, and as many wrong: what matters is that every field is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What stands at one place of a result instead."""

    place: list[Any]
    value: Any

    @property
    def about(self) -> str:
        return ".".join(str(key) for key in self.place if not isinstance(key, int))


def made() -> dict[str, Any]:
    """A failing result with everything that a result may have, as plain data."""
    from tests.support.made_results import made as made_result

    whole = made_result(1, wrong_layer=0)
    shown = [t for t in whole.tensors if t.verdict.is_failure][:_TENSORS]
    shown += [t for t in whole.tensors if not t.verdict.is_failure][:_TENSORS]
    small = replace(whole, tensors=tuple(shown), details=whole.details[:2])
    result = replace(small, isolation=small)
    data: dict[str, Any] = json.loads(json_file.render(result))
    return data


def edits(data: dict[str, Any]) -> st.SearchStrategy[Edit]:
    """Any edit of a result; long lists are represented by their first entries."""
    return st.sampled_from(list(_places([], data))).flatmap(_edit)


def run(data: dict[str, Any], edit: Edit) -> Ran:
    """Read the edited result, make every form of it, and compare it with the original."""
    text = json.dumps(_edited(data, edit))
    case = {"base": "result", **asdict(edit)}
    with tempfile.TemporaryDirectory(prefix="ttrace-fuzz-") as folder:
        file = Path(folder) / "result.json"
        file.write_text(text)
        found, violations = guarded(lambda: _report(file, data), case)
    return Ran(came_to="read" if found else "refused", violations=tuple(violations))


def _report(file: Path, data: dict[str, Any]) -> bool:
    result = read_result(file)
    for form in FORMS.values():
        if isinstance(form, FileForm):
            form.render(result).encode("utf-8")
        elif isinstance(form, LinesForm):
            form.write(result, "", io.StringIO())
        else:
            form.write(result, str(file.parent / form.name), io.StringIO())
    fix = compare_results(CheckResult.from_dict(data), result)
    list(fix_lines(fix, "before", "after"))
    return True


def _places(place: list[Any], value: Any) -> Iterator[tuple[list[Any], Any]]:
    yield place, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places([*place, key], inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value[:3]):
            yield from _places([*place, index], inner)


def _edit(place: tuple[list[Any], Any]) -> st.SearchStrategy[Edit]:
    keys, value = place
    others = st.one_of(st.just(REMOVED), instead_of(value), instead_of(value))
    return others.map(lambda other: Edit(place=keys, value=other))


def _edited(data: dict[str, Any], edit: Edit) -> Any:
    document = {"": json.loads(json.dumps(data))}
    *above, last = ["", *edit.place]
    holder: Any = document
    for key in above:
        holder = holder[key]
    if edit.value == REMOVED:
        del holder[last]
    else:
        holder[last] = edit.value
    return document.get("")
