// From the compressed text in the page to columns of numbers and names.
const RUNS = ["whole step", "isolated run"];  // what the comparisons are of, in their order

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

// Once, and only for a comparison that is looked at. A kind stays its number in data.kinds.
function prepare(data, comparison) {
  const { tables } = comparison;
  if (comparison.count != null) return;
  comparison.count = comparison.step.length;
  for (const name of ["ratio", "eps", "relative", "allowed"]) comparison[name] = comparison[name].map(real);
  comparison.modulePath = comparison.module.map((i) => tables.module[i]);
  comparison.id = comparison.modulePath.map((path, i) => tables.before[comparison.step[i]] + path + tables.after[comparison.after[i]]);
  for (const name of ["step", "dtype", "source"]) comparison[name] = comparison[name].map((i) => tables[name][i]);
  comparison.verdict = comparison.verdict.map((i) => data.verdicts[i]);
  comparison.byId = new Map(comparison.id.map((id, i) => [id, i]));
  comparison.failed = comparison.verdict.map((verdict) => verdict.is_failure);
  comparison.tree = buildTree(data, comparison);
  // What the answer names is marked in every comparison.
  const named = data.cards.flatMap((card) => card.evidence).map(({ id }) => comparison.byId.get(id));
  comparison.named = new Set(named.filter((i) => i != null));
}

// How bad a tensor is, to choose the worst of a cell: failures without a ratio come first.
function badness(comparison, i) {
  const ratio = comparison.ratio[i];
  if (comparison.failed[i] && !(ratio > 1)) return Infinity;
  if (comparison.verdict[i].is_undecided) return 1;
  return ratio == null || Number.isNaN(ratio) ? 0 : ratio;
}

// A verdict without a sign is drawn by its ratio; what stands for something below it is paler.
function cellLook(comparison, i, isSum) {
  const { is_failure: failed, sign } = comparison.verdict[i], ratio = comparison.ratio[i];
  const drawn = (log) => (isSum ? pale(colour(log)) : colour(log));
  if (failed) {
    const background = drawn(sign ? HIGHEST : Math.log10(Math.max(ratio, 1.0001)));
    return { text: sign || short(ratio), background, ink: inkOn(background) };
  }
  if (sign) return { text: sign, background: "transparent", ink: "inherit" };
  if (!ratio) return { text: "·", background: "transparent", ink: "var(--quiet)" };
  return { text: "", background: drawn(Math.log10(ratio)), ink: "inherit" };
}
