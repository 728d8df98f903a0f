// The model as a tree by kinds of tensors. Only the rows in sight are elements, so 10,000 tensors are no more than 40.
const ROW = 21;

function buildTree(data, comparison) {
  const root = { name: data.root, path: "", depth: 0, children: new Map(), own: [], order: Infinity };
  for (let i = 0; i < comparison.count; i++) {
    let node = root;
    root.order = Math.min(root.order, i);
    if (comparison.modulePath[i]) {
      let path = "";
      for (const name of comparison.modulePath[i].split(".")) {
        path = path ? `${path}.${name}` : name;
        if (!node.children.has(name)) node.children.set(name, { name, path, depth: node.depth + 1, children: new Map(), own: [], order: Infinity });
        node = node.children.get(name);
        // What is read before the step does not tell the order of execution.
        node.order = Math.min(node.order, data.kinds[comparison.kind[i]].is_before_step ? comparison.count + i : i);
      }
    }
    node.own.push(i);
  }
  const settle = (node) => {
    node.children = [...node.children.values()].sort((a, b) => a.order - b.order);
    node.children.forEach(settle);
  };
  settle(root);
  return root;
}

function heatMap(data, state, open) {
  const heat = byId("heat"), rowsNode = byId("rows");
  let kinds = [], starts = new Set(), rows = [], cursor = { row: 0, column: 0 }, frame = 0;
  const folded = new Set();

  function columns(comparison) {
    const present = new Set(comparison.kind);
    const shown = data.kinds.map((_, kind) => kind).filter((kind) => present.has(kind));
    const groups = data.groups.map((name) => [name, shown.filter((kind) => data.kinds[kind].group === name)]).filter(([, all]) => all.length);
    kinds = groups.flatMap(([, all]) => all);
    starts = new Set(groups.slice(1).map(([, all]) => all[0]));
    heat.parentNode.style.setProperty("--kinds", kinds.length);
    byId("columns").replaceChildren(el("span", { class: "name" }, "module, in execution order"),
      ...groups.map(([name, all]) => el("span", { class: "group" }, el("b", {}, name),
        el("div", {}, all.map((kind) => el("span", {}, data.kinds[kind].title))))));
  }

  // The worst matching tensor of every kind, of a node itself and of all below it.
  function measure(node, matches) {
    node.cells = {}; node.sums = {}; node.seen = 0;
    for (const i of node.own) if (matches[i]) {
      node.seen += 1;
      worse(node.cells, state.comparison.kind[i], i);
    }
    Object.assign(node.sums, node.cells);
    for (const child of node.children) {
      measure(child, matches);
      node.seen += child.seen;
      for (const kind in child.sums) worse(node.sums, kind, child.sums[kind]);
    }
  }

  function worse(cells, kind, i) {
    if (!(kind in cells) || badness(state.comparison, i) > badness(state.comparison, cells[kind])) cells[kind] = i;
  }

  function update() {
    const { comparison, matches } = state;
    measure(state.tree, matches);
    rows = [];
    const visit = (node) => {
      if (!node.seen) return;
      rows.push(node);
      if (!folded.has(node.path)) node.children.forEach(visit);
    };
    visit(state.tree);
    rowsNode.style.height = `${rows.length * ROW}px`;
    heat.setAttribute("aria-rowcount", rows.length);
    const wrong = matches.reduce((sum, match, i) => sum + (match && comparison.failed[i]), 0);
    byId("matches").textContent = `${state.matching} of ${comparison.count} tensors, ${wrong} wrong`;
    cursor.row = Math.min(cursor.row, Math.max(0, rows.length - 1));
    draw();
  }

  function cell(node, kind, column, row) {
    const shown = folded.has(node.path) || !node.own.length ? node.sums : node.cells;
    const i = shown[kind];
    const classes = ["cell", starts.has(kind) ? "start" : "", cursor.row === row && cursor.column === column && document.activeElement === heat ? "at" : ""];
    if (i == null) return el("span", { class: classes.join(" "), role: "gridcell", id: `cell-${row}-${column}` });
    if (i === state.chosen) classes.push("chosen");
    if (shown === node.sums && !node.own.includes(i)) classes.push("sum");
    const look = cellLook(state.comparison, i);
    const title = `${state.comparison.id[i]}\n${state.comparison.verdict[i].name}, error / tolerance ${number(state.comparison.ratio[i])}`;
    const made = el("button", { class: classes.join(" "), type: "button", tabindex: -1, role: "gridcell", id: `cell-${row}-${column}`, title, "data-tensor": i,
      "aria-label": title, onclick: () => { cursor = { row, column }; open(i); } }, look.text);
    made.style.background = look.background;
    made.style.color = look.ink;
    return made;
  }

  function draw() {
    const first = printing ? 0 : Math.max(0, Math.floor(heat.scrollTop / ROW) - 4);
    const last = printing ? Math.min(rows.length, 400) : Math.min(rows.length, first + Math.ceil(heat.clientHeight / ROW) + 8);
    const made = [];
    for (let row = first; row < last; row++) {
      const node = rows[row], known = data.moduleOf.get(node.path);
      const fold = node.children.length
        ? el("button", { class: "fold", type: "button", tabindex: -1, "aria-label": "fold", onclick: () => toggle(node) }, folded.has(node.path) ? "▸" : "▾")
        : el("span", { class: "fold" });
      const name = el("div", { class: "name", role: "rowheader", title: node.path || data.root }, fold,
        el("span", { class: node.own.length ? null : "folder" }, node.name),
        known && known.kind ? el("span", { class: "class" }, known.kind) : null);
      name.style.paddingLeft = `${6 + node.depth * 12}px`;
      const line = el("div", { class: "row", role: "row", "aria-level": node.depth + 1, "aria-rowindex": row + 1, "aria-expanded": node.children.length ? String(!folded.has(node.path)) : null },
        name, kinds.map((kind, column) => cell(node, kind, column, row)));
      line.style.top = `${row * ROW}px`;
      made.push(line);
    }
    rowsNode.replaceChildren(...made);
    byId("columns").style.paddingRight = `${heat.offsetWidth - heat.clientWidth}px`;
    heat.setAttribute("aria-activedescendant", `cell-${cursor.row}-${cursor.column}`);
  }

  function toggle(node) {
    if (!folded.delete(node.path)) folded.add(node.path);
    update();
  }

  function move(down, right) {
    cursor = { row: Math.max(0, Math.min(rows.length - 1, cursor.row + down)), column: Math.max(0, Math.min(kinds.length - 1, cursor.column + right)) };
    const top = cursor.row * ROW;
    if (top < heat.scrollTop) heat.scrollTop = top;
    if (top + ROW > heat.scrollTop + heat.clientHeight) heat.scrollTop = top + ROW - heat.clientHeight;
    draw();
  }

  const page = () => Math.floor(heat.clientHeight / ROW) - 1;
  const keys = {
    ArrowDown: () => move(1, 0), ArrowUp: () => move(-1, 0), ArrowRight: () => move(0, 1), ArrowLeft: () => move(0, -1),
    PageDown: () => move(page(), 0), PageUp: () => move(-page(), 0), Home: () => move(-rows.length, 0), End: () => move(rows.length, 0),
    " ": () => rows[cursor.row] && rows[cursor.row].children.length && toggle(rows[cursor.row]),
    Enter: () => { const found = byId(`cell-${cursor.row}-${cursor.column}`); if (found && found.dataset.tensor) open(Number(found.dataset.tensor)); },
  };
  heat.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  heat.addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); });
  heat.addEventListener("focus", draw);
  heat.addEventListener("blur", draw);
  addEventListener("resize", draw);

  function foldLayers() {
    if (folded.size) folded.clear();
    else {
      const visit = (node) => { if (/^\d+$/.test(node.name) && node.children.length) folded.add(node.path); node.children.forEach(visit); };
      visit(state.tree);
    }
    byId("fold").textContent = folded.size ? "Unfold all" : "Fold layers";
    update();
  }

  function reveal(i) {
    const row = rows.findIndex((node) => Object.values(node.cells).includes(i) || node.own.includes(i));
    if (row < 0) return;
    cursor = { row, column: Math.max(0, kinds.indexOf(state.comparison.kind[i])) };
    if (row * ROW < heat.scrollTop || (row + 2) * ROW > heat.scrollTop + heat.clientHeight) heat.scrollTop = row * ROW - heat.clientHeight / 3;
    draw();
  }

  return { columns, update, draw, foldLayers, reveal };
}
