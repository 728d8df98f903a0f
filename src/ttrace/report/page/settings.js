// How both runs were configured: what differs; and what was captured, and what was not.
const LISTED = 200;  // chosen: names of one list

function drawSettings(data) {
  const { differ, same, noise } = data.configuration, surprising = differ.filter(([, , , how]) => how === "differs").length;
  const isTold = differ.length || same.length;
  byId("runs").hidden = !isTold;
  if (!isTold) return;
  byId("runs-told").textContent = surprising ? `${counted(surprising, "unexpected difference")}` : differ.length ? "only what is expected differs" : "nothing differs";
  byId("settings").replaceChildren(
    differ.length ? table("What differs", ["setting", "reference", "candidate", "how"], [...differ].sort((a, b) => (a[3] === "differs" ? 0 : 1) - (b[3] === "differs" ? 0 : 1)).map(([name, reference, candidate, how]) => ({
      mark: how === "differs" ? "differs" : "calm", cells: [name, reference, candidate, how === "differs" ? "≠ differs" : how],
    }))) : el("p", {}, "Nothing differs."),
    el("p", {}, el("b", {}, "Noise: "), noise),
    same.length ? fold(`${counted(same.length, "setting")} ${same.length === 1 ? "is" : "are"} the same`, table("What is the same", ["setting", "both runs"], same.map((cells) => ({ cells })))) : "");
}

function drawCoverage(data) {
  const [fired, expected] = data.hooks, whole = !data.not_covered.length && fired === expected;
  const hooks = fired === expected ? `All ${counted(expected, "gradient hook")} fired.` : `${grouped(fired)} of ${counted(expected, "gradient hook")} fired.`;
  byId("coverage-told").textContent = whole ? "everything" : data.not_covered.map(([what, names]) => `${what}: ${names.length}`).join("; ");
  byId("captured").replaceChildren(
    el("p", {}, sentences(data.cards.length ? [data.counts, data.nearness, data.covered] : [])),
    el("p", {}, hooks, data.not_covered.length ? "" : " Every module was called, and nothing failed to be recorded."),
    ...data.not_covered.map(([what, names]) => {
      const list = fold(`${what}: ${names.length}`,
        el("ul", {}, names.slice(0, LISTED).map((name) => el("li", { class: "mono" }, name)), names.length > LISTED ? el("li", {}, `and ${counted(names.length - LISTED, "more name")}`) : null));
      list.open = names.length < 6;
      return list;
    }),
    ...data.notes.map((note) => el("p", {}, note)));
}
