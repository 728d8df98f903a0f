// Where in a tensor the difference lies, with the borders of shards; and how far it is in units in the last place.
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

function differenceMap(data, detail, shape, width) {
  const rows = detail.tiles.length, columns = rows ? detail.tiles[0].length : 0;
  if (!rows || !columns) return el("p", { class: "quiet" }, "It has no elements.");
  const height = Math.max(36, Math.min(0.75 * width, rows * 10, rows >= 8 ? 300 : 100));
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
    const names = shard.ranks.map((rank) => rankName(data, rank)).join(" + ");
    const text = `${names}${shard.microbatches.length === 1 && boxes.size > 1 && shard.microbatches[0] ? ` mb ${shard.microbatches[0]}` : ""}`;
    const label = pen.measureText(text).width + 8 < room ? text : shard.ranks.join("+");
    if (pen.measureText(label).width + 4 > room) continue;
    pen.strokeStyle = "#fffd"; pen.strokeText(label, box.left * across + 4, box.top * down + 3);
    pen.fillStyle = "#111"; pen.fillText(label, box.left * across + 4, box.top * down + 3);
  }
  const last = shape.length ? shape[shape.length - 1] : 1;
  const lead = shape.length > 1 ? `${shape.slice(0, -1).join(" × ")} rows` : "1 row";
  return el("div", {}, canvas, el("div", { class: "quiet" }, `${lead} down, ${last} columns across; error per element over what is allowed, same colours`));
}

function histogram(counts, width) {
  const height = 110, floor = height - 22, step = Math.min(40, width / counts.length);
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
  el("div", { class: "quiet" }, `${counted(total, "element")}, ${grouped(counts[0])} equal; heights are logarithmic`));
}
