// How both runs were configured, side by side, and what was not captured.
function drawSettings(data) {
  const pick = (role) => data.runs.find((run) => run.role === role);
  const reference = pick("reference"), candidate = pick("candidate"), noisy = data.runs.filter((run) => run.role === "perturbed");
  byId("runs").hidden = !reference || !candidate;
  if (reference && candidate) {
    const mesh = (run) => Object.entries(run.mesh).map(([axis, size]) => `${axis} ${size}`).join(" × ") || "none";
    const said = (run) => ({ ...run.versions, ...run.facts });
    const names = [...new Set([...Object.keys(said(reference)), ...Object.keys(said(candidate))])];
    const lines = [
      ["trace", (run) => run.path], ["ranks", (run) => String(run.world_size)], ["mesh", mesh], ["dtype", (run) => run.dtypes.join(", ")],
      ["device", (run) => run.device], ["adapter", (run) => run.adapter], ["steps", (run) => String(run.steps)],
      ...names.map((name) => [name, (run) => said(run)[name] || "–"]),
    ].map(([name, value]) => {
      const pair = [value(reference), value(candidate)], differs = pair[0] !== pair[1] && name !== "trace";
      return { mark: differs ? "differs" : null, cells: [name, ...pair, differs ? "≠" : ""] };
    });
    const runs = noisy.map((run) => `${run.path} (noise seed ${run.noise_seed})`).join(", ");
    byId("settings").replaceChildren(table(["", "reference", "candidate", ""], lines),
      el("p", {}, el("b", {}, "Calibration: "), noisy.length ? `${noisy.length} perturbed reference run${noisy.length > 1 ? "s" : ""}: ${runs}` : "no perturbed reference; only exact equality could pass"));
  }
  const [fired, expected] = data.hooks;
  byId("missing").replaceChildren(
    el("p", {}, `Gradient hooks: ${fired} of ${expected} fired.`),
    ...(data.not_covered.length ? [] : [el("p", {}, "Every module was called, and nothing failed to be recorded.")]),
    ...data.not_covered.map(([what, names]) => el("details", { open: names.length < 6 }, el("summary", {}, `${what}: ${names.length}`),
      el("ul", {}, names.slice(0, 200).map((name) => el("li", { class: "mono" }, name)), names.length > 200 ? el("li", {}, `and ${names.length - 200} more`) : null))),
    ...data.notes.map((note) => el("p", {}, note)));
}
