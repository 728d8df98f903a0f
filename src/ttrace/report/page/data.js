// From the compressed text in the page to columns of numbers and names.
const real = (value) => (value == null ? null : Number(value === "inf" ? Infinity : value === "nan" ? NaN : value));

async function load() {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress the data: use one from 2023 or later");
  const letters = atob(byId("data").textContent.trim()), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  data.moduleOf = new Map(data.modules.map(([path, kind, source]) => [path, { kind, source }]));
  return data;
}

// Once, and only for a comparison that is looked at.
function prepare(comparison) {
  const { tables } = comparison;
  if (comparison.count != null) return;
  comparison.count = comparison.step.length;
  for (const name of ["ratio", "eps", "relative", "allowed"]) comparison[name] = comparison[name].map(real);
  for (const name of ["kind", "verdict", "dtype", "source"]) comparison[name] = comparison[name].map((i) => tables[name][i]);
  comparison.modulePath = comparison.module.map((i) => tables.module[i]);
  comparison.id = comparison.step.map((step, i) => {
    const call = comparison.call[i] ? `#${comparison.call[i]}` : "";
    const slot = comparison.slot[i] ? `.${comparison.slot[i]}` : "";
    return `step${step}/${comparison.modulePath[i]}${call}:${comparison.kind[i]}${slot}`;
  });
  comparison.searched = comparison.id.map((id) => id.toLowerCase());
  comparison.byId = new Map(comparison.id.map((id, i) => [id, i]));
  comparison.failed = comparison.verdict.map((verdict) => !["pass", "extra", "undecided"].includes(verdict));
  comparison.tree = buildTree(comparison);
}

// How bad a tensor is, to choose the worst of a cell: failures without a ratio come first.
function badness(comparison, i) {
  const ratio = comparison.ratio[i];
  if (comparison.failed[i] && !(ratio > 1)) return Infinity;
  if (comparison.verdict[i] === "undecided") return 1;
  return ratio == null || Number.isNaN(ratio) ? 0 : ratio;
}

const SIGNS = { conflict: "!", missing: "∅", incomplete: "∅", nonfinite: "NaN", shape: "⊥", undecided: "?", extra: "+" };

function cellLook(comparison, i) {
  const verdict = comparison.verdict[i], ratio = comparison.ratio[i];
  if (verdict === "mismatch") {
    const background = colour(Math.log10(Math.max(ratio, 1.0001)));
    return { text: short(ratio), background, ink: inkOn(background) };
  }
  if (comparison.failed[i]) {
    const background = colour(HIGHEST);
    return { text: SIGNS[verdict] || "!", background, ink: inkOn(background) };
  }
  if (verdict in SIGNS) return { text: SIGNS[verdict], background: "transparent", ink: "inherit" };
  if (!ratio) return { text: "·", background: "transparent", ink: "var(--quiet)" };
  return { text: "", background: colour(Math.log10(ratio)), ink: "inherit" };
}
