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

function times(ratio) {
  if (ratio == null || Number.isNaN(ratio)) return "–";
  if (!Number.isFinite(ratio)) return "∞";
  if (ratio < 1) return `${number(ratio, 2)}x`;
  if (ratio < 10) return `${ratio.toFixed(1)}x`;
  const rounded = Number(ratio.toPrecision(3));
  if (rounded < 1e6) return `${grouped(rounded)}x`;
  if (rounded < 1e9) return `${rounded / 1e6} million x`;
  if (rounded < 1e12) return `${rounded / 1e9} billion x`;
  return `${number(rounded)}x`;
}

// Of a tensor, in words. Without an end: nothing at all was allowed.
function ofTolerance(ratio) {
  if (ratio == null || Number.isNaN(ratio)) return "";
  return Number.isFinite(ratio) ? `${times(ratio)} its tolerance` : "nothing may differ here";
}

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
