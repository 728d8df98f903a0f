// The map: modules down, kinds of tensors across. Only the rows in sight are elements, so 10,000 tensors are no more than 40.
const ROW = 22;

function heatMap(data, state, open) {
  const heat = byId("heat"), rowsNode = byId("rows"), head = byId("columns");
  let kinds = [], starts = new Set(), rows = [], cursor = { row: 0, column: 0 }, frame = 0;
  const folded = new Set();

  function columns(comparison) {
    const present = new Set(comparison.kind);
    const shown = data.kinds.map((_, kind) => kind).filter((kind) => present.has(kind));
    const groups = data.groups.map((name) => [name, shown.filter((kind) => data.kinds[kind].group === name)]).filter(([, all]) => all.length);
    kinds = groups.flatMap(([, all]) => all);
    starts = new Set(groups.slice(1).map(([, all]) => all[0]));
    heat.style.setProperty("--kinds", kinds.length);
    heat.style.setProperty("--gaps", starts.size);
    heat.setAttribute("aria-colcount", kinds.length + 1);
    head.replaceChildren(
      el("div", { class: "row", role: "row" }, el("span", { class: "name" , role: "columnheader" }, "module"),
        groups.map(([name, all], n) => {
          const group = el("b", { class: n ? "group start" : "group", role: "columnheader", "aria-colspan": all.length }, name);
          group.style.flexGrow = all.length;
          return group;
        })),
      el("div", { class: "row", role: "row" }, el("span", { class: "name", role: "columnheader" }, "in execution order"),
        kinds.map((kind) => el("span", { class: starts.has(kind) ? "kind start" : "kind", role: "columnheader", title: data.terms[data.kinds[kind].name.replaceAll("_", " ")] }, data.kinds[kind].title))));
  }

  function update() {
    const { comparison, matches, tree } = state;
    measure(comparison, tree, matches);
    rows = [];
    const visit = (node) => {
      if (!node.seen) return;
      rows.push(node);
      if (!folded.has(node.path)) node.children.forEach(visit);
    };
    visit(tree);
    rowsNode.style.height = `${rows.length * ROW}px`;
    heat.setAttribute("aria-rowcount", rows.length + 2);
    heat.hidden = !rows.length;
    byId("nothing").hidden = rows.length > 0 || !comparison.count;
    byId("none").hidden = comparison.count > 0;
    byId("toolbar").hidden = byId("legend").hidden = !comparison.count;
    byId("matches").textContent = `${grouped(state.matching)} of ${grouped(comparison.count)} tensors, ${grouped(tree.wrong)} wrong`;
    byId("fold").hidden = ![...comparison.nodes.values()].some(isLayer);
    byId("fold").textContent = layersToFold().length ? "Fold layers" : "Unfold all";
    cursor.row = Math.min(cursor.row, Math.max(0, rows.length - 1));
    draw();
  }

  const cellsOf = (node) => (folded.has(node.path) || !node.own.length ? node.sums : node.cells);
  const inCell = (row, column) => (rows[row] ? cellsOf(rows[row])[kinds[column]] : null);

  function describe(i) {
    const { comparison } = state;
    return [comparison.id[i], comparison.verdict[i].name, ofTolerance(comparison, i), comparison.named.has(i) ? "named in the answer" : ""].filter(Boolean).join(", ");
  }

  function cell(node, kind, column, row) {
    const i = cellsOf(node)[kind], { comparison } = state;
    const isAt = cursor.row === row && cursor.column === column;
    const classes = ["cell", starts.has(kind) && "start"];
    const id = isAt ? "cell-at" : null;
    if (i == null) return el("span", { class: classes.filter(Boolean).join(" "), role: "gridcell", id });
    const isSum = comparison.modulePath[i] !== node.path, look = cellLook(comparison, i, isSum);
    classes.push(i === state.chosen && (!isSum || folded.has(node.path)) && "chosen", comparison.named.has(i) && "named", isSum && "sum");
    const label = look.text ? `${describe(i)}, shown as ${look.text}` : describe(i);
    const made = el("span", { class: classes.filter(Boolean).join(" "), role: "gridcell", id, "data-tensor": i, "aria-label": label, "aria-selected": String(i === state.chosen),
      onmouseenter: () => tell(i), onclick: () => { cursor = { row, column }; heat.focus({ preventScroll: true }); open(i); } }, look.text);
    made.style.background = look.background;
    made.style.color = look.ink;
    return made;
  }

  function line(row) {
    const node = rows[row], known = data.moduleOf.get(node.path), isOpen = !folded.has(node.path);
    const name = el("div", { class: "name", role: "rowheader", title: node.path || data.root },
      node.children.length
        ? el("span", { class: "fold", "aria-hidden": "true", onclick: () => { cursor.row = row; heat.focus({ preventScroll: true }); toggle(node); } }, isOpen ? "▾" : "▸")
        : el("span", { class: "fold" }),
      el("span", { class: node.own.length ? null : "folder" }, node.name),
      known && known.kind ? el("span", { class: "class" }, known.kind) : null);
    name.style.paddingLeft = `${4 + Math.min(node.depth, 8) * 11}px`;
    const made = el("div", { class: "row", role: "row", "aria-level": node.depth + 1, "aria-rowindex": row + 3, "aria-expanded": node.children.length ? String(isOpen) : null },
      name, kinds.map((kind, column) => cell(node, kind, column, row)));
    made.style.top = `${row * ROW}px`;
    return made;
  }

  const room = () => heat.clientHeight - head.offsetHeight;

  function draw() {
    // Where there are fewer rows than before, it is not yet scrolled back to them.
    const top = Math.min(heat.scrollTop, Math.max(0, rows.length * ROW - room()));
    const first = Math.max(0, Math.floor(top / ROW) - 4);
    const last = Math.min(rows.length, first + Math.ceil(room() / ROW) + 8);
    rowsNode.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, n) => line(first + n)));
    if (byId("cell-at")) heat.setAttribute("aria-activedescendant", "cell-at");
    else heat.removeAttribute("aria-activedescendant");
  }

  // What a mouse over a cell or the keyboard's place in the map says, in sight.
  function tell(i) { byId("at").textContent = i == null ? "" : describe(i); }

  function toggle(node) {
    if (!folded.delete(node.path)) folded.add(node.path);
    update();
  }

  function move(down, right) {
    cursor = { row: Math.max(0, Math.min(rows.length - 1, cursor.row + down)), column: Math.max(0, Math.min(kinds.length - 1, cursor.column + right)) };
    const top = cursor.row * ROW;
    if (top < heat.scrollTop) heat.scrollTop = top;
    if (top + ROW > heat.scrollTop + room()) heat.scrollTop = top + ROW - room();
    draw();
    sideways();
    tell(inCell(cursor.row, cursor.column));
  }

  // The names stay at the left: a cell must not be behind them.
  function sideways() {
    const node = byId("cell-at");
    if (!node) return;
    const box = node.getBoundingClientRect(), frame = heat.getBoundingClientRect(), names = head.querySelector(".name").offsetWidth;
    if (box.right > frame.left + heat.clientWidth) heat.scrollLeft += box.right - frame.left - heat.clientWidth;
    if (box.left < frame.left + names) heat.scrollLeft -= frame.left + names - box.left;
  }

  const page = () => Math.floor(room() / ROW) - 1;
  const keys = {
    ArrowDown: () => move(1, 0), ArrowUp: () => move(-1, 0), ArrowRight: () => move(0, 1), ArrowLeft: () => move(0, -1),
    PageDown: () => move(page(), 0), PageUp: () => move(-page(), 0), Home: () => move(-rows.length, 0), End: () => move(rows.length, 0),
    " ": () => rows[cursor.row] && rows[cursor.row].children.length && toggle(rows[cursor.row]),
    Enter: () => { const i = inCell(cursor.row, cursor.column); if (i != null) open(i); },
  };
  heat.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  heat.addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); });
  // Not drawn again: a cell that is pressed must be there when it is let go.
  heat.addEventListener("focus", () => tell(inCell(cursor.row, cursor.column)));
  heat.addEventListener("blur", () => tell(null));
  heat.addEventListener("mouseleave", () => tell(null));
  addEventListener("resize", draw);

  const layersToFold = () => [...state.comparison.nodes.values()].filter((node) => isLayer(node) && !folded.has(node.path));

  function foldLayers() {
    const layers = layersToFold();
    if (layers.length) layers.forEach((node) => folded.add(node.path));
    else folded.clear();
    update();
  }

  // Whatever is folded above it is opened.
  function reveal(i) {
    const { comparison } = state, own = comparison.nodes.get(comparison.modulePath[i]);
    let hidden = 0;
    for (let node = own; node; node = node.parent) hidden += folded.delete(node.path);
    if (hidden) update();
    const row = rows.indexOf(own);
    if (row < 0) return;
    cursor = { row, column: Math.max(0, kinds.indexOf(comparison.kind[i])) };
    if (row * ROW < heat.scrollTop || (row + 2) * ROW > heat.scrollTop + room()) heat.scrollTop = row * ROW - room() / 3;
    draw();
    sideways();
  }

  return { columns, update, draw, foldLayers, reveal, rows: () => rows, kinds: () => kinds, cellsOf };
}
