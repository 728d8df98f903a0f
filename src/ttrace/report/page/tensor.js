// One tensor: its numbers, who holds what, where the difference lies, how far in ULP, its worst rows, its code.
function drawTensor(data, state) {
  const panel = byId("tensor"), { comparison, chosen: i } = state;
  if (i == null) {
    panel.replaceChildren(el("h3", {}, "One tensor"), el("p", { class: "quiet" }, "Choose a cell of the map, or a point of the charts, to see one tensor closely."));
    return;
  }
  const known = data.moduleOf.get(comparison.modulePath[i]), detail = comparison.details[i];
  const facts = [
    ["verdict", comparison.verdict[i].name],
    ["shape", `[${comparison.shape[i].join(", ")}] ${comparison.dtype[i]}`],
    ["relative error", `${number(comparison.relative[i])}, allowed ${number(comparison.allowed[i])}`],
    ["in machine epsilons", number(comparison.eps[i])],
    ["tolerance from", comparison.source[i]],
    ["wrong on", comparison.ranks[i].length ? ranksText(comparison.ranks[i]) : ""],
    ["code", known ? `${known.kind} ${known.source}` : ""],
    ["note", comparison.note[i]],
    ["looks like", detail ? detail.diagnosis : ""],
  ].filter(([, value]) => value);
  const judged = comparison.judged[i].map(([statistic, value, allowed, ratio, place]) => ({
    mark: real(ratio) > 1 ? "wrong" : null,
    cells: [place || statistic, number(real(value)), number(real(allowed)), number(real(ratio))],
  }));
  panel.replaceChildren(
    el("h3", { class: "mono", id: "tensor-name" }, comparison.id[i]),
    table(["", ""], facts.map((cells) => ({ cells }))),
    ...(judged.length ? [el("h3", {}, "Judged by"), table(["statistic", "#value", "#allowed", "#ratio"], judged)] : []),
    ...(detail ? closer(detail, comparison.shape[i]) : [el("p", { class: "quiet", id: "not-examined" }, notExamined(comparison, i))]));
  panel.scrollTop = 0;
}

function notExamined(comparison, i) {
  const why = comparison.failed[i] ? "It is not among the tensors that were read once more." : "It does not fail, so no more was read of it.";
  return `${why} Shards, differences and rows are drawn of the culprits' evidence, the first failures and what is undecided, 24 tensors at most.`;
}

function closer(detail, shape) {
  const held = detail.shards.map((shard) => ({
    mark: real(shard.ratio) > 1 || !shard.agrees ? "wrong" : null,
    cells: [shard.ranks.join(", "), shard.microbatches.join(", "), shard.role + (shard.agrees ? "" : ", disagrees"), holds(shard, shape), number(real(shard.ratio))],
  }));
  const sampled = detail.examined == null ? []
    : [el("p", { class: "quiet", id: "sampled" }, `Drawn from a sample: ${detail.examined.toLocaleString("en")} of its ${shape.reduce((a, b) => a * b, 1).toLocaleString("en")} elements, the worst among them.`)];
  const parts = [...sampled, el("h3", {}, "Difference, with the borders of shards"), differenceMap(detail, shape),
    el("h3", {}, "Who holds what"), shortened(held, 12, (rows) => table(["rank", "mb", "role", "holds", "#error / share"], rows))];
  if (detail.ulp.length) parts.push(el("h3", {}, "Distance in units in the last place"), histogram(detail.ulp));
  if (detail.rows.length) {
    parts.push(el("h3", {}, "Worst rows"), table(["row", "held by", "#error", "#reference"], detail.rows.map(([index, error, reference, ranks]) => ({
      cells: [index.length ? `(${index.join(", ")})` : "all", ranks.join(", "), number(real(error)), number(real(reference))],
    }))));
  }
  return parts;
}

function shortened(rows, limit, draw) {
  if (rows.length <= limit) return draw(rows);
  const rest = el("details", {}, el("summary", { class: "quiet" }, `${rows.length - limit} more`), draw(rows.slice(limit)));
  return el("div", {}, draw(rows.slice(0, limit)), rest);
}

function holds(shard, shape) {
  return `[${shard.runs.map((runs, dim) => {
    if (runs.length === 1 && runs[0][0] === 0 && runs[0][1] === shape[dim]) return ":";
    return runs.map(([start, length]) => `${start}:${start + length}`).join("|") || "nothing";
  }).join(", ")}]`;
}

// Which shard of the cover holds each cell, found at the cell's middle.
function owners(shards, shape, rows, columns) {
  const sizes = shape.length ? shape : [1], leading = sizes.slice(0, -1);
  const height = leading.reduce((a, b) => a * b, 1), width = sizes[sizes.length - 1];
  const cover = shards.map((shard, n) => ({ shard, n })).filter(({ shard }) => shard.role === "shard" || shard.role === "sum");
  const inside = (runs, index) => runs.some(([start, length]) => index >= start && index < start + length);
  return Array.from({ length: rows }, (_, row) => {
    let flat = Math.floor((row + 0.5) * height / rows);
    const index = [];
    for (let dim = leading.length - 1; dim >= 0; dim--) { index[dim] = flat % leading[dim]; flat = Math.floor(flat / leading[dim]); }
    const here = cover.filter(({ shard }) => index.every((value, dim) => inside(shard.runs[dim], value)));
    return Array.from({ length: columns }, (_, column) => {
      const middle = Math.floor((column + 0.5) * width / columns);
      const found = here.find(({ shard }) => !shard.runs.length || inside(shard.runs[shard.runs.length - 1], middle));
      return found ? found.n : -1;
    });
  });
}

function differenceMap(detail, shape) {
  const rows = detail.tiles.length, columns = rows ? detail.tiles[0].length : 0;
  if (!rows || !columns) return el("p", { class: "quiet" }, "It has no elements.");
  const width = 400, height = Math.max(36, Math.min(300, rows * 10, rows >= 8 ? 300 : 100));
  const canvas = el("canvas", { role: "img", class: "difference", "aria-label": "Root mean square of the error in every part of the tensor" });
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio; canvas.height = height * ratio;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const across = width / columns, down = height / rows;
  const unit = real(detail.allowed_rms) || real(detail.reference_rms) * 1e-6 || 1;
  detail.tiles.forEach((line, row) => line.forEach((value, column) => {
    pen.fillStyle = colour(value == null ? LOWEST : value / 10 - Math.log10(unit));  // tenths of a power of ten
    pen.fillRect(column * across, row * down, across + 0.5, down + 0.5);
  }));
  const held = owners(detail.shards, shape, rows, columns);
  const boxes = new Map();
  pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
  pen.lineWidth = 1.2;
  pen.beginPath();
  held.forEach((line, row) => line.forEach((owner, column) => {
    if (column && owner !== line[column - 1]) { pen.moveTo(column * across, row * down); pen.lineTo(column * across, (row + 1) * down); }
    if (row && owner !== held[row - 1][column]) { pen.moveTo(column * across, row * down); pen.lineTo((column + 1) * across, row * down); }
    if (owner < 0) return;
    if (!boxes.has(owner)) boxes.set(owner, { top: row, left: column, bottom: row, right: column });
    const box = boxes.get(owner);
    // The first block of a shard that holds several is where its label goes.
    if (row <= box.bottom + 1 && column <= box.right + 1) { box.bottom = Math.max(box.bottom, row); box.right = Math.max(box.right, column); }
  }));
  pen.stroke();
  pen.font = "600 10.5px system-ui, sans-serif"; pen.textBaseline = "top"; pen.lineWidth = 3;
  for (const [owner, box] of boxes) {
    const shard = detail.shards[owner], room = (box.right - box.left + 1) * across;
    if ((box.bottom - box.top + 1) * down < 13) continue;
    const text = `rank ${shard.ranks.join("+")}${shard.microbatches.length === 1 && boxes.size > 1 && shard.microbatches[0] ? ` mb ${shard.microbatches[0]}` : ""}`;
    const label = pen.measureText(text).width + 8 < room ? text : shard.ranks.join("+");
    if (pen.measureText(label).width + 4 > room) continue;
    pen.strokeStyle = "#fffd"; pen.strokeText(label, box.left * across + 4, box.top * down + 3);
    pen.fillStyle = "#111"; pen.fillText(label, box.left * across + 4, box.top * down + 3);
  }
  const last = shape.length ? shape[shape.length - 1] : 1;
  const lead = shape.length > 1 ? `${shape.slice(0, -1).join(" × ")} rows` : "1 row";
  return el("div", {}, canvas, el("div", { class: "quiet" }, `${lead} down, ${last} columns across; error per element over what is allowed, same colours`));
}

function histogram(counts) {
  const width = 400, height = 110, floor = height - 22, step = Math.min(40, width / counts.length);
  const top = Math.log10(1 + Math.max(...counts));
  const total = counts.reduce((a, b) => a + b, 0);
  const name = (n) => (n === 0 ? "0" : n === 1 ? "1" : n < 5 ? `${2 ** (n - 1)}–${2 ** n - 1}` : `2^${n - 1}`);
  return el("div", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Histogram of the error in ULP" },
    counts.map((count, n) => {
      const tall = count ? Math.max(2, Math.log10(1 + count) / top * (floor - 4)) : 0;
      return svg("rect", { class: n > 8 ? "bar far" : "bar", x: n * step + 1, y: floor - tall, width: Math.max(1, step - 2), height: tall },
        svg("title", {}, `${count} of ${total} elements are ${name(n)} units off`));
    }),
    counts.map((count, n) => (step > 28 || n % 4 === 0 ? svg("text", { class: "axis", x: n * step + step / 2, y: height - 9, "text-anchor": "middle" }, name(n)) : null))),
  el("div", { class: "quiet" }, `${total} elements, ${counts[0]} equal; heights are logarithmic`));
}
