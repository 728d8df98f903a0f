"""JUnit XML: one test case for every module and part, for the test tab of a CI system.

Enters: a CheckResult. Leaves: XML text. A failing case says the headline first.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from ttrace.core.ids import display_module
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, TensorResult, Verdict
from ttrace.report import overall, view, wording
from ttrace.report.catalogue.sentences import Line
from ttrace.report.wording import line, mesh_of
from ttrace.text import inert, inert_line

_SHOWN = 20  # chosen: a CI system shows the message in a small box


def render(result: CheckResult) -> str:
    """A suite with a case for every culprit and for every module that was compared."""
    modules: dict[str, list[TensorResult]] = {}
    for tensor in result.tensors:
        modules.setdefault(tensor.id.module, []).append(tensor)
    suite = ET.Element("testsuite", name="ttrace")
    mesh = mesh_of(result)
    for cause in view.root_causes(result):
        case = _case(suite, "culprit", cause.place)
        lines = [cause.reason, *(f"{e.id}: {e.sentence}" for e in cause.evidence)]
        _add(case, "failure", overall.headline(result), lines)
    accepted = overall.said_of_accepted(result)
    for module, tensors in modules.items():
        _judge(_case(suite, "module", display_module(module)), tensors, accepted, mesh)
    if result.lost:
        _add(_case(suite, "ttrace", "everything was seen"), "failure", overall.headline(result), [])
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("errors", "0")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, "unicode") + "\n"


def _case(suite: ET.Element, group: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"ttrace.{group}", name=inert(name))


def _judge(
    case: ET.Element, tensors: list[TensorResult], accepted: tuple[str, ...], mesh: Mesh
) -> None:
    """Say of a module what is worst: tensors that fail, are undecided, or are accepted."""
    total = len(tensors)
    if failed := [t for t in tensors if t.verdict.is_failure]:
        wrong = line(Line.WRONG, count=len(failed), total=total)
        _add(case, "failure", wrong, _lines(failed, mesh))
    elif unsure := [t for t in tensors if t.verdict is Verdict.UNDECIDED]:
        undecided = line(Line.SOME_UNDECIDED, count=len(unsure), total=total)
        _add(case, "skipped", undecided, _lines(unsure, mesh))
    elif allowed := [t for t in tensors if t.verdict is Verdict.ACCEPTED]:
        words = line(Line.IS_ACCEPTED, count=len(allowed), total=total)
        _add(case, "skipped", words, [*accepted, *_lines(allowed, mesh)])


def _add(case: ET.Element, tag: str, message: str, lines: list[str]) -> None:
    # Nothing that XML forbids is left in what is inert.
    ET.SubElement(case, tag, message=inert(message)).text = "\n".join(map(inert_line, lines))


def _lines(tensors: list[TensorResult], mesh: Mesh) -> list[str]:
    more = [f"and {len(tensors) - _SHOWN} more"] if len(tensors) > _SHOWN else []
    return [*(f"{t.id}: {wording.evidence_sentence(t, mesh)}" for t in tensors[:_SHOWN]), *more]
