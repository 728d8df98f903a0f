// Making elements. Text of a user only ever becomes text nodes and attributes: no markup is parsed.
const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child != null && child !== ""));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// A head that begins with # is of a column of numbers. The first cell of a row is its name.
function table(caption, heads, rows) {
  const look = (column) => (heads[column].startsWith("#") ? "number" : null);
  const cell = (value, column) => (column
    ? el("td", { class: look(column) }, value)
    : el("th", { scope: "row" }, value));
  return el("table", { "aria-label": caption },
    el("thead", {}, el("tr", {}, heads.map((head, column) => el("th", { scope: "col", class: look(column) }, head.replace("#", ""))))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.mark }, row.cells.map(cell)))));
}

const pairs = (entries, name = "pairs") =>
  el("dl", { class: name }, entries.map(([title, ...told]) => el("div", {}, el("dt", {}, title), el("dd", {}, ...told))));

const fold = (title, ...children) => el("details", {}, el("summary", {}, title), ...children);

// What a screen reader says; the empty text first, so that the same words are said twice.
function say(text) {
  byId("said").textContent = "";
  byId("said").textContent = text;
}

function inView(node) {
  const box = node.getBoundingClientRect();
  if (box.top > innerHeight - 120 || box.bottom < 120) node.scrollIntoView({ block: "start" });
}
