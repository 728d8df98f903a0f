// Numbers as people say them: 193,000x, not 1.93e+05.
const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
const counted = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

function number(value, digits = 3) {
  if (value == null) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 0.001 && size < 1e5) return String(Number(value.toPrecision(digits)));
  return value.toExponential(digits - 1).replace(/\.?0*e/, "e").replace("e+", "e");
}

const LARGE = [["trillion", 1e12], ["billion", 1e9], ["million", 1e6]];

// As report/numbers.py says it elsewhere in a report.
function times(ratio) {
  if (ratio == null) return "–";
  if (!Number.isFinite(ratio)) return "far beyond";
  if (ratio > 0 && ratio < 1e-3) return "below 0.001x";
  if (ratio < 10) return `${Number(ratio.toPrecision(2))}x`;
  const near = Number(ratio.toPrecision(3)), shown = Number(ratio.toPrecision(2));
  if (near < 1e6) return near < 100 ? `${near}x` : `${grouped(near)}x`;
  if (shown >= 1e15) return `10^${Math.floor(Math.log10(shown))} x`;
  const [name, size] = LARGE.find(([, least]) => shown >= least);
  return `${Number((shown / size).toPrecision(2))} ${name} x`;
}

// Of a tensor, in words; empty where it has no ratio.
// Nothing where the ratio is not what fails: replicas disagree, and one of them is right.
const ofTolerance = (comparison, i) => {
  const ratio = comparison.ratio[i];
  return ratio == null || (comparison.failed[i] && ratio <= 1) ? "" : `${times(ratio)} its tolerance`;
};

function short(ratio) {  // fits a cell
  if (!Number.isFinite(ratio)) return "∞";
  if (ratio < 10) return ratio.toFixed(1);
  if (ratio < 1000) return ratio.toFixed(0);
  const [digits, power] = ratio.toExponential(0).split("e+");
  return `${digits}e${power}`;
}

function percent(value, reference) {
  if (!Number.isFinite(value) || !Number.isFinite(reference) || reference === 0) return "–";
  const share = 100 * (value - reference) / Math.abs(reference);
  if (share === 0) return "equal";
  return `${share > 0 ? "+" : "−"}${number(Math.abs(share), 2)}%`;
}
