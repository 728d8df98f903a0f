"""JUnit XML: one test case for every module and part, for the test tab of a CI system.

Enters: a CheckResult. Leaves: XML text. A failing case says the headline first.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ttrace.core.ids import display_module
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report import overall, scope, view, wording
from ttrace.report.caveats import CAVEATS, Caveat
from ttrace.report.ranks import mesh_of
from ttrace.report.wording import line
from ttrace.report.words import Line
from ttrace.text import inert, inert_line

_SHOWN = 20  # chosen: a CI system shows the message in a small box


def render(result: CheckResult) -> str:
    """A suite with a case for every culprit and for every module that was compared."""
    modules: dict[str, list[TensorResult]] = {}
    for tensor in result.tensors:
        modules.setdefault(tensor.id.module, []).append(tensor)
    suite = ET.Element("testsuite", name="ttrace")
    failures = skipped = 0
    mesh = mesh_of(result)
    for cause in view.root_causes(result):
        case = _case(suite, "culprit", cause.place)
        lines = [cause.reason, *(f"{e.id}: {e.sentence}" for e in cause.evidence)]
        _add(case, "failure", overall.headline(result), lines)
        failures += 1
    for module, tensors in modules.items():
        case = _case(suite, "module", display_module(module))
        failed = [tensor for tensor in tensors if tensor.verdict.is_failure]
        unsure = [tensor for tensor in tensors if tensor.verdict is Verdict.UNDECIDED]
        if failed:
            wrong = line(Line.WRONG, count=len(failed), total=len(tensors))
            _add(case, "failure", wrong, _lines(failed, mesh))
            failures += 1
        elif unsure:
            undecided = line(Line.SOME_UNDECIDED, count=len(unsure), total=len(tensors))
            _add(case, "skipped", undecided, _lines(unsure, mesh))
            skipped += 1
        elif accepted := [t for t in tensors if t.verdict is Verdict.ACCEPTED]:
            words = CAVEATS[Caveat.IS_ACCEPTED].format(count=len(accepted), total=len(tensors))
            _add(case, "skipped", words, [*scope.said_of_accepted(result), *_lines(accepted, mesh)])
            skipped += 1
    if result.lost:
        _add(_case(suite, "ttrace", "everything was seen"), "failure", overall.headline(result), [])
        failures += 1
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("skipped", str(skipped))
    suite.set("errors", "0")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, "unicode") + "\n"


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"ttrace.{group}", name=inert(name))


def _add(case: ET.Element, tag: str, message: str, lines: list[str]) -> None:
    # Nothing that XML forbids is left in what is inert.
    ET.SubElement(case, tag, message=inert(message)).text = "\n".join(map(inert_line, lines))


def _lines(tensors: list[TensorResult], mesh: Mesh) -> list[str]:
    more = [f"and {len(tensors) - _SHOWN} more"] if len(tensors) > _SHOWN else []
    return [*(f"{t.id}: {wording.evidence_sentence(t, mesh)}" for t in tensors[:_SHOWN]), *more]
