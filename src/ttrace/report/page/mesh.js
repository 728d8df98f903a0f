// Ranks as places in the mesh: their names, and a grid in which the wrong ones are filled.
const NAMED_RANKS = 8, DRAWN_RANKS = 256;  // chosen: what is read at a glance

const rankName = (data, rank) => data.mesh.names[rank] || `rank ${rank}`;

function ranksText(data, ranks) {
  if (ranks.length > 1 && ranks.length === data.mesh.names.length) return "all ranks";
  const names = ranks.slice(0, NAMED_RANKS).map((rank) => rankName(data, rank));
  const more = ranks.length - names.length;
  return names.join(", ") + (more ? ` and ${more} more` : "");
}

// Stages of a pipeline are columns; otherwise the last axis is, or the one before it where that is long. The other
// of the last two goes down, and there is a block for each place along the others.
function meshBlocks({ axes, sizes, coordinates, names }) {
  if (!axes.length) {
    const columns = Math.min(16, names.length);
    const cells = names.map((_, rank) => ({ rank, column: rank % columns, row: Math.floor(rank / columns) }));
    return { across: "", down: "", columns, rows: Math.ceil(names.length / columns), blocks: [{ title: "", cells }] };
  }
  const order = axes.map((_, n) => n), last = axes.length - 1, before = sizes[last - 1];
  const across = axes.includes("pp") ? axes.indexOf("pp") : before > 16 && before > sizes[last] ? last - 1 : last;
  const down = order.filter((n) => n !== across).pop();
  const others = order.filter((n) => n !== across && n !== down);
  const blocks = new Map();
  coordinates.forEach((place, rank) => {
    const title = others.map((n) => `${axes[n]}${place[n]}`).join(" ");
    if (!blocks.has(title)) blocks.set(title, { title, cells: [] });
    blocks.get(title).cells.push({ rank, column: place[across], row: down == null ? 0 : place[down] });
  });
  return { across: axes[across], down: down == null ? "" : axes[down], columns: sizes[across], rows: down == null ? 1 : sizes[down], blocks: [...blocks.values()] };
}

function meshPicture(data, { wrong, words }) {
  const grid = meshBlocks(data.mesh), bad = new Set(wrong);
  const isBad = (block) => block.cells.some(({ rank }) => bad.has(rank));
  const area = grid.columns * grid.rows, limit = Math.max(1, Math.floor(DRAWN_RANKS / area));
  const shown = [...grid.blocks.filter(isBad), ...grid.blocks.filter((block) => !isBad(block))].slice(0, limit);
  const ranks = shown.length * area, size = ranks > 128 ? 8 : ranks > 32 ? 14 : 20;
  const rest = grid.blocks.length - shown.length;
  return el("div", { class: "mesh", role: "img", "aria-label": `Mesh of ${data.mesh.names.length} ranks: ${words}` },
    shown.map((block) => el("figure", {}, block.title ? el("figcaption", {}, block.title) : null, meshBlock(data, grid, block, bad, size))),
    rest ? el("span", { class: "quiet" }, `and ${counted(rest, "more block")}`) : null);
}

function meshBlock(data, grid, block, bad, size) {
  const named = size === 20;  // room for the number of every row and column
  const left = grid.down ? (named ? 8 + 6 * `${grid.down}0`.length : 10 + 7 * grid.down.length) : 0, top = grid.across ? 14 : 0;
  const width = left + grid.columns * size, height = top + grid.rows * size;
  const label = (x, y, text) => svg("text", { class: "axis", x, y, "text-anchor": "middle" }, text);
  const count = (total, draw) => Array.from({ length: total }, (_, n) => draw(n));
  const labels = [
    grid.across && (named ? count(grid.columns, (n) => label(left + (n + 0.5) * size, 10, n ? String(n) : `${grid.across}0`)) : label(left + 6 + 4 * grid.across.length, 10, `${grid.across} →`)),
    grid.down && (named ? count(grid.rows, (n) => label(left / 2 - 1, top + n * size + 14, n ? String(n) : `${grid.down}0`)) : label(left / 2 - 1, top + 10, `${grid.down} ↓`)),
  ].flat().filter(Boolean);
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, labels,
    block.cells.map(({ rank, column, row }) => svg("rect", {
      class: bad.has(rank) ? "rank bad" : bad.size ? "rank" : "rank even", "data-rank": rank,
      x: left + column * size + 1, y: top + row * size + 1, width: size - 2, height: size - 2, rx: size / 8,
    }, svg("title", {}, `${rankName(data, rank)} (rank ${rank})`))));
}
