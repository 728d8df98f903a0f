// How sure it is: what noise explains, what is allowed, and the error, on one logarithmic line.
const MIN_SPAN = 2;  // chosen, in powers of ten: what is hardly beyond its tolerance must look so

function sureBar({ noise, allowed, error }) {
  const [quiet, limit, found] = [noise, allowed, error].map(real);
  if (!(limit > 0)) return null;
  const far = Number.isFinite(found) ? found : limit * 1e6, top = Math.max(far, limit);
  const low = Math.log10(quiet > 0 ? Math.min(quiet, limit) : limit / 10), span = Math.max(MIN_SPAN, Math.log10(top) - low);
  const at = (value) => 2 + 96 * Math.min(1, Math.max(0, (Math.log10(value) - low) / span));
  const part = (name, from, to) => svg("rect", { class: name, x: `${from}%`, y: 18, width: `${Math.max(0, to - from)}%`, height: 8 });
  const mark = (name, where) => svg("rect", { class: `mark ${name}`, x: `${where}%`, y: 14, width: 2, height: 16 });
  const word = (where, y, anchor, text) => svg("text", { x: `${where}%`, y, "text-anchor": anchor }, text);
  const middle = at(limit), end = at(far), side = middle > 75 ? "end" : middle < 25 ? "start" : "middle";
  const told = { noise: quiet > 0 ? `noise ${number(quiet, 2)}` : "", allowed: `tolerance ${number(limit, 2)}`, error: Number.isFinite(found) ? `error ${number(found, 2)}` : "error not finite" };
  // Under the end of the bar, or beside it where noise needs that room.
  const last = end > 60 ? word(end, 43, "end", told.error) : svg("text", { x: `${Math.max(middle, end) + 3}%`, y: 26 }, told.error);
  return svg("svg", { class: "sure", height: 46, role: "img", "aria-label": `${Object.values(told).filter(Boolean).join(", ")}, relative to the reference, on a logarithmic scale` },
    part("within", 0, middle), part("beyond", middle, end),
    quiet > 0 ? mark("", at(quiet)) : null, mark("", middle), mark("beyond", end),
    word(middle, 10, side, told.allowed), quiet > 0 ? word(at(quiet), 43, "start", told.noise) : null, last);
}
