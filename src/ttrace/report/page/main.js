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

// The comparison in which the answer is comes first. Counted before anything is prepared.
function comparisonTabs(data) {
  const titles = ["Whole step: how it spreads", "Isolated run: what is wrong by itself"];
  const wrong = data.comparisons.map((comparison) => comparison.verdict.reduce((sum, verdict) => sum + data.verdicts[verdict].is_failure, 0));
  return data.comparisons.map((_, n) => [n, titles[n], `${grouped(wrong[n])} wrong`]).sort(([a], [b]) => (b === data.evidence_in) - (a === data.evidence_in));
}

function start(data) {
  const state = { number: 0, comparison: null, tree: null, matches: [], matching: 0, chosen: null };
  byId("failed").hidden = true;
  document.querySelector("main").hidden = false;
  const heat = heatMap(data, state, choose), depth = depthCharts(data, state, choose);
  const search = byId("search"), show = byId("show"), step = byId("step");
  const markTab = tabBar(comparisonTabs(data), other);

  function options(node, entries) {
    node.replaceChildren(...entries.map(([value, text]) => el("option", { value }, text)));
    node.hidden = entries.length < 2;
  }
  options(show, [["all", "all tensors"], ["wrong", "wrong"], ["undecided", "undecided"]]);

  function switchTo(n) {
    state.number = n;
    state.comparison = data.comparisons[n];
    prepare(data, state.comparison);
    state.tree = state.comparison.tree;
    state.chosen = null;
    markTab(n);
    const steps = [...new Set(state.comparison.step)];
    options(step, steps.length > 1 ? [["", "all steps"], ...steps.map((value) => [value, `step ${value}`])] : [["", "all steps"]]);
    heat.columns(state.comparison);
  }

  function filter() {
    const { comparison } = state, words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = step.value === "" ? null : Number(step.value), wrong = show.value === "wrong", unsure = show.value === "undecided";
    if (words.length && !comparison.searched) comparison.searched = comparison.id.map((id) => id.toLowerCase());
    state.matching = 0;
    state.matches = comparison.id.map((_, i) => {
      const match = (wanted === null || comparison.step[i] === wanted) && (!wrong || comparison.failed[i]) &&
        (!unsure || comparison.verdict[i].is_undecided) && words.every((word) => comparison.searched[i].includes(word));
      state.matching += match;
      return match;
    });
    heat.update();
    depth.update();
  }

  function showTensor() {
    const { comparison, chosen } = state, n = 1 - state.number;
    const elsewhere = data.comparisons.length > 1 && chosen != null
      ? el("button", { type: "button", class: "link", onclick: () => { other(n); byId("tensor").focus({ preventScroll: true }); } }, `See it in the ${RUNS[n]}`) : null;
    drawTensor(data, state, elsewhere);
    if (chosen != null) byId("tensor").setAttribute("aria-label", `One tensor: ${comparison.id[chosen]}`);
  }

  function choose(i) {
    state.chosen = i;
    showTensor();
    heat.draw();
    depth.draw();
    inView(byId("tensor"));
    writeAddress(state.comparison, state.comparison.id[i]);
    say(`Opened ${state.comparison.id[i]}`);
  }

  // Whether it is there. All steps stay in sight where no step is to be looked at first.
  function openById(n, id) {
    if (state.comparison !== data.comparisons[n]) switchTo(n);
    const i = state.comparison.byId.get(id);
    if (i == null) return false;
    search.value = ""; show.value = "all";
    step.value = step.hidden || data.exit_code === 0 ? "" : state.comparison.step[i];
    state.chosen = i;
    filter();
    heat.reveal(i);
    showTensor();
    return true;
  }

  function openEvidence(n, id) {
    if (!openById(n, id)) return;
    inView(byId("tensor"));
    writeAddress(state.comparison, id);
    say(`Opened ${id}`);
  }

  // The same tensor in another comparison, where it is there too.
  function other(n) {
    if (n === state.number) return;
    const id = state.chosen == null ? null : state.comparison.id[state.chosen];
    switchTo(n);
    if (id != null && openById(n, id)) return writeAddress(state.comparison, id);
    filter();
    showTensor();
  }

  function openAddress() {
    const asked = addressed(data);
    if (!asked) return false;
    if (asked.where.some((n) => openById(n, asked.id))) return true;
    byId("failed").textContent = `This report has no tensor ${asked.id}.`;
    byId("failed").hidden = false;
    return false;
  }

  function openFirst() {
    switchTo(data.evidence_in);
    const first = data.cards.length && data.cards[0].evidence.length ? data.cards[0].evidence[0].id : null;
    if (!state.comparison.count) { filter(); showTensor(); } else openById(data.evidence_in, state.comparison.byId.has(first) ? first : worst(state.comparison));
    if (data.exit_code === 0) byId("heat").scrollTop = 0;  // nothing to reveal: the model from its beginning
  }

  function clear() {
    search.value = ""; show.value = "all"; step.value = "";
    filter();
    search.focus();
  }

  let pause = 0, close = () => {};
  search.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(filter, 60); });
  for (const node of [show, step]) node.addEventListener("change", filter);
  byId("clear").addEventListener("click", clear);
  byId("fold").addEventListener("click", heat.foldLayers);
  addEventListener("hashchange", () => { byId("failed").hidden = true; if (openAddress()) inView(byId("tensor")); });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); search.focus(); }
    if (event.key === "Escape" && document.activeElement === search) { search.value = ""; filter(); }
  });
  const again = () => { drawLegend(data); heat.draw(); depth.draw(); showTensor(); };
  dark.addEventListener("change", again);
  const paper = (isPaper) => { printing = isPaper; document.documentElement.classList.toggle("printing", isPaper); again(); };
  addEventListener("beforeprint", () => { paper(true); drawPrinted(data, state, heat); close = openFolds(); });
  addEventListener("afterprint", () => { paper(false); byId("printed").replaceChildren(); close(); });

  drawGlossary(data);
  drawAnswer(data, openEvidence);
  drawSettings(data);
  drawCoverage(data);
  drawLegend(data);
  byId("spread-title").textContent = data.exit_code === 1 ? "Where it starts and how it spreads" : "Every tensor";
  if (!openAddress()) openFirst();
  document.documentElement.dataset.ready = String(Math.ceil(performance.now()));  // for tests
}

load().then(start).catch((error) => {
  byId("failed").hidden = false;
  byId("failed").textContent = `The report cannot be shown: ${error.message}`;
  throw error;
});
