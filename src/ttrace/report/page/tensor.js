// One tensor: its numbers, its worst values, who holds what, where the difference lies, its code.
function drawTensor(data, state, otherwise) {
  const panel = byId("tensor"), { comparison, chosen: i } = state;
  if (i == null) {
    panel.replaceChildren(el("h3", {}, "One tensor"), el("p", { class: "quiet" }, "Choose a cell of the map, or a point of the charts, to see one tensor closely."));
    return;
  }
  const detail = comparison.details[i], width = Math.max(200, Math.min(440, panel.clientWidth - 30));
  panel.replaceChildren(
    el("h3", { class: "mono", id: "tensor-name" }, comparison.id[i]),
    el("p", { class: comparison.failed[i] ? "ruled wrong" : "ruled" },
      explained(data, comparison.verdict[i].name), ofTolerance(comparison, i) ? `, ${ofTolerance(comparison, i)}` : ""),
    ...(otherwise ? [el("p", { class: "quiet" }, "in the ", explained(data, RUNS[state.number]), ". ", otherwise)] : []),
    pairs(tensorFacts(data, comparison, i)),
    ...values(data, detail),
    ...judgedBy(data, comparison.judged[i]),
    ...(detail ? closer(data, detail, comparison.shape[i], width) : [el("p", { class: "quiet", id: "not-examined" }, notExamined(comparison, i))]));
  panel.scrollTop = 0;
}

function tensorFacts(data, comparison, i) {
  const known = data.moduleOf.get(comparison.modulePath[i]), detail = comparison.details[i], kind = data.kinds[comparison.kind[i]];
  return [
    ["kind", explained(data, kind.name.replaceAll("_", " "), kind.title)],
    ["shape", `[${comparison.shape[i].join(", ")}] ${comparison.dtype[i]}`],
    ["relative error", [comparison.relative[i], comparison.allowed[i]].filter((value) => value != null).map((value) => number(value)).join(", allowed ")],
    [explained(data, "eps", "machine epsilons"), comparison.eps[i] == null ? "" : number(comparison.eps[i])],
    [explained(data, "tolerance", "tolerance from"), comparison.source[i]],
    ["wrong on", comparison.ranks[i].length ? ranksText(data, comparison.ranks[i]) : ""],
    ["code", known ? `${known.kind} ${known.source.replace(/^.*site-packages\//, "")}` : ""],
    ["note", comparison.note[i]],
    ["looks like", detail ? detail.diagnosis : ""],
    ["nearest pattern", detail && !detail.diagnosis ? detail.nearest : ""],
  ].filter(([, value]) => value && value !== "–");
}

// The values themselves: of a scalar one line a rank, of others the worst elements.
function values(data, detail) {
  if (!detail) return [];
  if (detail.scalars.length) {
    const reference = detail.elements.length ? real(detail.elements[0][1]) : null;
    const rows = detail.scalars.map(([rank, value]) => ({
      cells: [rankName(data, rank), number(real(value), 7), percent(real(value), reference)],
    }));
    if (reference != null) rows.unshift({ cells: ["reference", number(reference, 7), ""] });
    return [el("h3", {}, "Value on every rank"), shortened(rows, 17, (shown) => table("Value on every rank", ["rank", "#value", "#difference"], shown))];
  }
  if (!detail.elements.length) return [];
  return [el("h3", {}, "Worst elements"), table("Worst elements", ["element", "#reference", "#candidate", "held by"], detail.elements.map(([index, reference, candidate, holders]) => ({
    cells: [index.length ? `(${index.join(", ")})` : "all", number(real(reference), 4), number(real(candidate), 4), ranksText(data, holders)],
  })))];
}

function judgedBy(data, judged) {
  if (!judged.length) return [];
  return [el("h3", {}, "Judged by"), table("Judged by", ["statistic", "#value", "#allowed", "#ratio"], judged.map(([statistic, value, allowed, ratio, place]) => ({
    mark: real(ratio) > 1 ? "wrong" : null,
    cells: [[explained(data, statistic), place && place !== statistic ? ` ${place.replace(statistic, "").trim()}` : ""], number(real(value)), number(real(allowed)), times(real(ratio))],
  })))];
}

function notExamined(comparison, i) {
  const why = comparison.failed[i] ? "It is not among the tensors that were read once more." : "It does not fail, so no more was read of it.";
  return `${why} Shards, differences and rows are drawn of the culprits' evidence, the first failures and what is undecided, 24 tensors at most.`;
}

function closer(data, detail, shape, width) {
  const held = detail.shards.map((shard) => ({
    mark: real(shard.ratio) > 1 || !shard.agrees ? "wrong" : null,
    cells: [ranksText(data, shard.ranks), shard.microbatches.join(", "), shard.role + (shard.agrees ? "" : ", disagrees"), holds(shard, shape), times(real(shard.ratio))],
  }));
  const sampled = detail.examined == null ? []
    : [el("p", { class: "quiet", id: "sampled" }, `Drawn from a sample: ${grouped(detail.examined)} of its ${grouped(shape.reduce((a, b) => a * b, 1))} elements, the worst among them.`)];
  const drawn = [...sampled, el("h3", {}, "Difference, with the borders of shards"), differenceMap(data, detail, shape, width),
    el("h3", {}, "Who holds what"), shortened(held, 12, (rows) => table("Who holds what", ["rank", "microbatch", "role", "holds", "#error / share"], rows))];
  if (detail.ulp.length) drawn.push(el("h3", {}, "Distance in ", explained(data, "ulp", "units in the last place")), histogram(detail.ulp, width));
  if (detail.rows.length) {
    drawn.push(el("h3", {}, "Worst rows"), table("Worst rows", ["row", "held by", "#error", "#reference"], detail.rows.map(([index, error, reference, holders]) => ({
      cells: [index.length ? `(${index.join(", ")})` : "all", ranksText(data, holders), number(real(error)), number(real(reference))],
    }))));
  }
  return drawn;
}

function shortened(rows, limit, draw) {
  if (rows.length <= limit) return draw(rows);
  return el("div", {}, draw(rows.slice(0, limit)), fold(`${rows.length - limit} more`, draw(rows.slice(limit))));
}

function holds(shard, shape) {
  return `[${shard.runs.map((runs, dim) => {
    if (runs.length === 1 && runs[0][0] === 0 && runs[0][1] === shape[dim]) return ":";
    return runs.map(([start, length]) => `${start}:${start + length}`).join("|") || "nothing";
  }).join(", ")}]`;
}
