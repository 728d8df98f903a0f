// Making elements. Text of a user only ever becomes text nodes and attributes: no markup is parsed.
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== ""));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function table(heads, rows) {
  const cell = (tag) => (value, column) =>
    el(tag, { class: heads[column].startsWith("#") ? "number" : null }, value);
  const titles = heads.map((head) => head.replace("#", ""));
  return el("table", {},
    heads.some((head) => head) ? el("thead", {}, el("tr", {}, titles.map(cell("th")))) : null,
    el("tbody", {}, rows.map((row) => el("tr", { class: row.mark }, row.cells.map(cell("td"))))));
}

function number(value, digits = 3) {
  if (value == null) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 0.001 && size < 1e5) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1).replace(/\.?0*e/, "e").replace("e+", "e");
}

function short(value) {  // fits a cell
  if (!Number.isFinite(value)) return "∞";
  if (value < 10) return value.toFixed(1);
  if (value < 1000) return value.toFixed(0);
  const [digits, power] = value.toExponential(0).split("e+");
  return `${digits}e${power}`;
}

const ranksText = (ranks) => (ranks.length === 1 ? "rank " : "ranks ") + ranks.slice(0, 16).join(", ") + (ranks.length > 16 ? " …" : "");
