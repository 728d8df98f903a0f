// Colours of log10(error / tolerance): blue below, deeper the nearer, warm above, with a step at the tolerance itself.
// Blue against orange is told apart with every common colour blindness; numbers stand in the cells too.
const dark = matchMedia("(prefers-color-scheme: dark)");
const ramps = {
  light: {
    below: [[142, 178, 212], [198, 216, 233], [238, 243, 247]],
    above: [[253, 216, 178], [246, 163, 103], [222, 101, 55], [168, 45, 30], [98, 14, 22]],
  },
  dark: {
    below: [[64, 112, 164], [47, 78, 108], [36, 44, 53]],
    above: [[101, 65, 38], [150, 82, 38], [204, 103, 49], [240, 142, 84], [255, 196, 158]],
  },
};
const LOWEST = -3, HIGHEST = 6;  // chosen: beyond them nothing more is to be seen
const ramp = () => (dark.matches && !printing ? ramps.dark : ramps.light);
let printing = false;

function between(stops, share) {
  const place = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  return stops[index].map((low, part) => Math.round(low + (stops[index + 1][part] - low) * (place - index)));
}

function colour(log) {
  const parts = log > 0
    ? between(ramp().above, log / HIGHEST)
    : between(ramp().below, log / LOWEST);
  return `rgb(${parts.join(",")})`;
}

function inkOn(background) {
  const [r, g, b] = background.match(/\d+/g).map(Number);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1d2126" : "#fff";
}

function drawLegend(data) {
  const stops = [-3, -2, -1, -0.01, 0.01, 1, 2, 3, 4, 5, 6];
  const signs = data.verdicts.filter((verdict) => verdict.meaning).map((verdict) => `${verdict.sign} ${verdict.meaning}`);
  byId("legend").replaceChildren(
    "error / tolerance: 0.001",
    el("span", { class: "ramp" }, stops.map((log) => {
      const box = el("i");
      box.style.background = colour(log);
      if (log === 0.01) box.style.borderLeft = "2px solid var(--ink)";
      return box;
    })),
    ["1e6", "· equal", ...signs].join("   "));
}
