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
  return `rgb(${(log > 0 ? between(ramp().above, log / HIGHEST) : between(ramp().below, log / LOWEST)).join(",")})`;
}

const parts = (background) => background.match(/\d+/g).map(Number);

function pale(background) {
  const paper = dark.matches && !printing ? [26, 30, 35] : [255, 255, 255];
  return `rgb(${parts(background).map((part, n) => Math.round(0.5 * part + 0.5 * paper[n])).join(",")})`;
}

// Black or white, by which contrast is higher: at least 4.58 on any colour (WCAG's relative luminance).
function inkOn(background) {
  const [r, g, b] = parts(background).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

function drawLegend(data) {
  const stops = [-3, -2, -1, -0.01, 0.01, 1, 2, 3, 4, 5, 6];
  const signs = data.verdicts.filter((verdict) => verdict.meaning)
    .map((verdict) => el("span", {}, el("b", {}, verdict.sign), " ", explained(data, verdict.name, verdict.meaning)));
  byId("legend").replaceChildren(
    el("span", {}, explained(data, "error / tolerance"), " 0.001 ", el("span", { class: "ramp", role: "img", "aria-label": "from blue below the tolerance to red above it" }, stops.map((log) => {
      const box = el("i");
      box.style.background = colour(log);
      if (log === 0.01) box.style.borderLeft = "2px solid var(--ink)";
      return box;
    })), " 1,000,000"),
    el("span", {}, el("b", {}, "·"), " equal"),
    data.cards.length ? el("span", {}, el("i", { class: "cell named" }), " named above") : "",
    ...signs);
}
