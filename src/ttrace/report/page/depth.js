// Relative error against execution order, with the tolerance as a band, on canvas.
const EDGE = { left: 46, right: 10, top: 8, bottom: 34 };

function depthCharts(data, state, open) {
  const charts = data.charts.map(({ title, groups }) => {
    const canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": `${title}: error against depth. Arrow keys move from tensor to tensor, Enter opens.` });
    const chart = { title, groups, canvas, points: [], at: -1 };
    canvas.addEventListener("mousemove", (event) => hover(chart, event));
    canvas.addEventListener("mouseleave", () => { chart.at = -1; hideTip(canvas); draw(chart); });
    canvas.addEventListener("click", () => chart.at >= 0 && open(chart.points[chart.at].i));
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20 }[event.key];
      if (step) {
        event.preventDefault();
        chart.at = Math.max(0, Math.min(chart.points.length - 1, chart.at + step));
        draw(chart);
        const box = canvas.getBoundingClientRect(), point = chart.points[chart.at];
        if (!point) return;
        tip(canvas, point, box.left + point.x, box.top + point.y);
        say(`${state.comparison.id[point.i]}, ${told(point.i)}`);
      } else if (event.key === "Enter" && chart.at >= 0) open(chart.points[chart.at].i);
    });
    canvas.addEventListener("blur", () => hideTip(canvas));
    return chart;
  });
  byId("charts").replaceChildren(...charts.map((chart) => el("figure", {}, el("figcaption", {}, chart.title), chart.canvas)));

  function update() {
    const { comparison, matches } = state;
    byId("depth").hidden = false;
    for (const chart of charts) {
      // What is read before the step has no place in the order of execution.
      const shown = data.kinds.map((kind) => chart.groups.includes(kind.group) && !kind.is_before_step);
      chart.points = [];
      for (let i = 0; i < comparison.count; i++) {
        if (matches[i] && shown[comparison.kind[i]] && comparison.relative[i] != null) chart.points.push({ i });
      }
      chart.at = -1;
      chart.canvas.parentNode.hidden = !chart.points.length;
      draw(chart);
    }
    byId("depth").hidden = charts.every((chart) => !chart.points.length);
  }

  function range(points) {
    let low = 0, high = -8;
    for (const { i } of points) {
      for (const value of [state.comparison.relative[i], state.comparison.allowed[i]]) {
        if (!(value > 0) || !Number.isFinite(value)) continue;
        low = Math.min(low, Math.log10(value));
        high = Math.max(high, Math.log10(value));
      }
    }
    return [Math.max(-12, Math.floor(low)), Math.ceil(high + 0.2)];
  }

  function draw(chart) {
    const { canvas, points } = chart, { comparison } = state;
    const width = canvas.parentNode.clientWidth - 18, height = 230, ratio = devicePixelRatio || 1;
    if (width <= 0) return;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue(name).trim();
    pen.scale(ratio, ratio);
    pen.font = "10px system-ui, sans-serif";
    const [low, high] = range(points);
    const x = (n) => EDGE.left + (points.length > 1 ? n / (points.length - 1) : 0.5) * (width - EDGE.left - EDGE.right);
    const y = (value) => {
      const log = value > 0 ? Math.min(high, Math.log10(value)) : low;
      return EDGE.top + (high - Math.max(low, log)) / (high - low) * (height - EDGE.top - EDGE.bottom);
    };
    const floor = height - EDGE.bottom;
    // The band: what rounding explains. The highest of a pixel where several points share it.
    pen.fillStyle = ink("--band");
    const half = points.length > 1 ? Math.max(0.5, (x(1) - x(0)) / 2) : 8, tops = new Map();
    points.forEach(({ i }, n) => {
      const at = half > 0.5 ? x(n) : Math.round(x(n)), top = y(comparison.allowed[i] || 0);
      if (!(tops.get(at) <= top)) tops.set(at, top);
    });
    for (const [at, top] of tops) pen.fillRect(at - half, top, 2 * half + 0.4, floor - top);
    pen.strokeStyle = ink("--line"); pen.fillStyle = ink("--quiet"); pen.lineWidth = 1;
    const every = Math.max(1, Math.ceil((high - low) / 7));
    for (let power = low; power <= high; power += every) {
      const at = Math.round(y(10 ** power)) + 0.5;
      pen.globalAlpha = 0.6; pen.beginPath(); pen.moveTo(EDGE.left, at); pen.lineTo(width - EDGE.right, at); pen.stroke(); pen.globalAlpha = 1;
      pen.textAlign = "right"; pen.fillText(`1e${power}`, EDGE.left - 5, at + 3);
    }
    names(chart, pen, x, floor, width);
    canvas.dataset.labels = chart.labels.join("\n");  // for tests
    const wrong = ink("--bad"), right = ink("--accent");
    points.forEach((point, n) => { point.x = x(n); point.y = y(comparison.relative[point.i]); });
    for (const part of [false, true]) {
      const taken = new Uint8Array(Math.ceil(width) * height);  // a point over a point is not seen
      pen.fillStyle = part ? wrong : right;
      pen.globalAlpha = part ? 0.95 : 0.6;
      for (const point of points) {
        if (comparison.failed[point.i] !== part) continue;
        const pixel = Math.floor(point.y) * Math.ceil(width) + Math.floor(point.x);
        if (taken[pixel]) continue;
        taken[pixel] = 1;
        // Wrong ones are larger squares: shape tells them apart without colour. Circles take long to draw.
        if (part) pen.fillRect(point.x - 2, point.y - 2, 4, 4);
        else if (points.length > 5000) pen.fillRect(point.x - 1, point.y - 1, 2, 2);
        else { pen.beginPath(); pen.arc(point.x, point.y, 1.7, 0, 7); pen.fill(); }
      }
    }
    pen.globalAlpha = 1;
    const marked = chart.at >= 0 ? points[chart.at] : points.find((point) => point.i === state.chosen);
    if (marked) { pen.strokeStyle = ink("--ink"); pen.lineWidth = 1.5; pen.beginPath(); pen.arc(marked.x, marked.y, 5.5, 0, 7); pen.stroke(); }
  }

  // The first two parts of a path; further on in the same one, what follows them. Neighbours differ.
  function names(chart, pen, x, floor, width) {
    chart.labels = [];
    let free = EDGE.left, last = null, begun = null, shown = null;
    chart.points.forEach(({ i }, n) => {
      const path = state.comparison.modulePath[i], isSame = path === last;
      last = path;
      if (isSame || x(n) < free) return;  // before measuring: that is what takes long
      const words = (path || data.root).split("."), begin = words.slice(0, 2).join(".");
      const name = begin === begun ? words.slice(2).join(".") : begin;
      if (!name || name === shown) return;
      const label = name.length > 18 ? `${name.slice(0, 17)}…` : name, length = pen.measureText(label).width;
      if (x(n) + length > width) return;
      [begun, shown, free] = [begin, name, x(n) + length + 14];
      chart.labels.push(label);
      pen.textAlign = "left";
      pen.fillText(label, x(n), floor + 15);
      pen.fillRect(x(n), floor, 1, 5);
    });
    pen.textAlign = "center";
    pen.fillText("execution order →", width / 2, floor + 29);
  }

  function hover(chart, event) {
    const box = chart.canvas.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    let best = -1, nearest = 900;  // within 30 pixels
    chart.points.forEach((point, n) => {
      const distance = (point.x - left) ** 2 + (point.y - top) ** 2;
      if (distance < nearest) { nearest = distance; best = n; }
    });
    if (best !== chart.at) { chart.at = best; draw(chart); }
    chart.canvas.style.cursor = best >= 0 ? "pointer" : "default";
    if (best < 0) hideTip(chart.canvas); else tip(chart.canvas, chart.points[best], event.clientX, event.clientY);
  }

  function told(i) {
    const { comparison } = state;
    return `relative error ${number(comparison.relative[i])}, allowed ${number(comparison.allowed[i])}; ${[comparison.verdict[i].name, ofTolerance(comparison, i)].filter(Boolean).join(", ")}`;
  }

  function tip(canvas, { i }, left, top) {
    tipAt(canvas, left + 12, top + 14, el("div", { class: "mono" }, state.comparison.id[i]), told(i));
  }

  addEventListener("resize", () => charts.forEach(draw));
  return { update, draw: () => charts.forEach(draw) };
}
