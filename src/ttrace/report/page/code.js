// Lines of the user's code around a call.
function codeLines({ file, line, function: name, first, lines }) {
  const margins = lines.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
  const margin = margins.length ? Math.min(...margins) : 0;
  return el("div", { class: "lines mono", tabindex: 0, role: "group", "aria-label": `${name || "Code"}, ${file} line ${line}` },
    lines.map((text, n) => el("div", { class: first + n === line ? "line here" : "line" },
      el("span", { class: "line-number", "aria-hidden": "true" }, String(first + n)),
      el("code", {}, text.slice(margin) || " "))));
}

function codeExcerpt(excerpt) {
  return el("figure", { class: "code" },
    el("figcaption", {}, el("b", { class: "mono" }, `${excerpt.file}:${excerpt.line}`), excerpt.function ? ` in ${excerpt.function}` : null),
    codeLines(excerpt));
}

function drawCode(excerpts) {
  const [own, ...others] = [...excerpts].sort((a, b) => b.own - a.own);
  if (!own) return null;
  const more = others.map((other) => fill(fold(`called from there: ${other.file}:${other.line}`, codeLines(other)), { class: "long" }, []));
  return el("div", { class: "excerpts" }, own.own ? codeExcerpt(own) : fold(`framework code: ${own.file}:${own.line}`, codeLines(own)), ...more);
}
