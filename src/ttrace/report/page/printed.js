// The map on paper: a table, so that its heads are on every page, and a word on what is left out.
const PRINTED_ROWS = 400;  // chosen: about ten pages

function drawPrinted(data, state, heat) {
  const rows = heat.rows(), kinds = heat.kinds();
  // What the answer names comes first, then what is wrong; all of it in the order of the map.
  const isNamed = (node) => Object.values(node.sums).some((i) => state.comparison.named.has(i));
  const urgency = new Map(rows.map((node) => [node, isNamed(node) ? 0 : node.wrong ? 1 : 2]));
  const chosen = new Set([...rows].sort((a, b) => urgency.get(a) - urgency.get(b)).slice(0, PRINTED_ROWS));
  const cut = rows.length > chosen.size ? `${grouped(chosen.size)} of ${grouped(rows.length)} rows are printed, those with a wrong tensor first. The page itself shows all.` : "";
  const cell = (node, kind) => {
    const i = heat.cellsOf(node)[kind];
    if (i == null) return el("td");
    const look = cellLook(state.comparison, i, state.comparison.modulePath[i] !== node.path), made = el("td", {}, look.text);
    made.style.background = look.background;
    made.style.color = look.ink;
    return made;
  };
  byId("printed").replaceChildren(
    el("p", { id: "printed-cut" }, cut),
    el("table", { class: "map" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "module"), kinds.map((kind) => el("th", { scope: "col" }, data.kinds[kind].title)))),
      el("tbody", {}, rows.filter((node) => chosen.has(node)).map((node) =>
        el("tr", {}, el("th", { scope: "row", class: "mono" }, node.path || data.root), kinds.map((kind) => cell(node, kind)))))));
}

// Folds are opened for paper, and closed again as they were. Returns what closes them.
function openFolds() {
  const closed = [...document.querySelectorAll("details:not([open])")].filter((node) => !node.matches(".long"));
  closed.forEach((node) => { node.open = true; });
  return () => closed.forEach((node) => { node.open = false; });
}
