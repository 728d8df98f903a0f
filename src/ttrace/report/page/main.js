// Puts the parts together: one state, one function that changes what is shown, one that opens a tensor.
// What to open where no culprit says it: the first failure, or else what is nearest to its tolerance.
function worst(comparison) {
  let chosen = 0;
  for (let i = 0; i < comparison.count; i++) {
    if (comparison.failed[i]) return comparison.id[i];
    if (badness(comparison, i) > badness(comparison, chosen)) chosen = i;
  }
  return comparison.id[chosen];
}

function start(data) {
  const state = { comparison: null, tree: null, matches: [], matching: 0, chosen: null };
  byId("failed").hidden = true;
  document.querySelector("main").hidden = false;
  const heat = heatMap(data, state, choose), depth = depthCharts(data, state, choose);
  const search = byId("search"), show = byId("show"), step = byId("step"), which = byId("comparison");

  function options(node, entries) {
    node.replaceChildren(...entries.map(([value, text]) => el("option", { value }, text)));
    node.hidden = entries.length < 2;
  }
  options(which, data.comparisons.map((comparison, n) => [n, n ? "isolated run: root causes" : "whole step: how it spreads"]));
  options(show, [["all", "all tensors"], ["wrong", "wrong"], ["undecided", "undecided"]]);

  function switchTo(n) {
    state.comparison = data.comparisons[n];
    prepare(data, state.comparison);
    state.tree = state.comparison.tree;
    state.chosen = null;
    which.value = n;
    const steps = [...new Set(state.comparison.step)];
    options(step, steps.length > 1 ? [["", "all steps"], ...steps.map((value) => [value, `step ${value}`])] : [["", "all steps"]]);
    heat.columns(state.comparison);
  }

  function filter() {
    const { comparison } = state, words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = step.value === "" ? null : Number(step.value), wrong = show.value === "wrong", unsure = show.value === "undecided";
    state.matching = 0;
    state.matches = comparison.searched.map((id, i) => {
      const match = (wanted === null || comparison.step[i] === wanted) && (!wrong || comparison.failed[i]) &&
        (!unsure || comparison.verdict[i].is_undecided) && words.every((word) => id.includes(word));
      state.matching += match;
      return match;
    });
    heat.update();
    depth.update();
  }

  function choose(i) {
    state.chosen = i;
    drawTensor(data, state);
    heat.draw();
    depth.draw();
  }

  function openById(n, id) {
    if (state.comparison !== data.comparisons[n]) switchTo(n);
    const i = state.comparison.byId.get(id);
    if (i == null) return;
    search.value = ""; show.value = "all"; step.value = "";
    state.chosen = i;
    filter();
    heat.reveal(i);
    drawTensor(data, state);
  }

  let pause = 0;
  search.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(filter, 60); });
  for (const node of [show, step]) node.addEventListener("change", filter);
  which.addEventListener("change", () => { switchTo(Number(which.value)); filter(); drawTensor(data, state); });
  byId("fold").addEventListener("click", heat.foldLayers);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); }
    if (event.key === "Escape" && document.activeElement === search) { search.value = ""; filter(); }
  });
  const again = () => { drawLegend(data); heat.draw(); depth.draw(); drawTensor(data, state); };
  dark.addEventListener("change", again);
  addEventListener("beforeprint", () => { printing = true; again(); });
  addEventListener("afterprint", () => { printing = false; again(); });

  drawSummary(data, openById);
  drawSettings(data);
  drawLegend(data);
  byId("spread-title").textContent = data.exit_code === 0 ? "Every tensor" : "Where it starts and how it spreads";
  switchTo(0);
  const first = data.root_causes.length && data.root_causes[0].evidence.length ? data.root_causes[0].evidence[0].id : null;
  openById(0, state.comparison.byId.has(first) ? first : worst(state.comparison));
  if (data.exit_code === 0) byId("heat").scrollTop = 0;  // nothing to reveal: the model from its beginning
  if (state.chosen === null) { filter(); drawTensor(data, state); }
  document.documentElement.dataset.ready = String(Math.ceil(performance.now()));  // for tests
}

load().then(start).catch((error) => {
  byId("failed").hidden = false;
  byId("failed").textContent = `The report cannot be shown: ${error.message}`;
  throw error;
});
