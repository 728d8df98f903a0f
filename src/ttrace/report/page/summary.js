// Verdict, what to look at first, culprits with their evidence.
function drawSummary(data, open) {
  const heading = byId("headline");
  heading.className = ["good", "bad", "unsure"][data.exit_code];
  if (data.look_first) byId("first").replaceChildren(el("b", {}, "Look first at "), data.look_first);
  byId("counts").textContent = [data.counts, data.consequences].filter(Boolean).join(". ");
  byId("culprits").hidden = !data.findings.length;
  byId("findings").replaceChildren(...data.findings.slice(0, 50).map((finding) => el("li", {},
    el("span", { class: "where" }, `${finding.where}, ${finding.part}`),
    finding.source ? el("code", { class: "quiet" }, `  ${finding.class} ${finding.source}`) : null,
    el("div", {}, finding.reason),
    el("ul", {}, finding.evidence.map((evidence) => el("li", {},
      el("button", { class: "link mono", type: "button", onclick: () => open(data.evidence_in, evidence.id) }, evidence.id),
      ` ${evidence.sentence}`,
      evidence.rows.length ? `; worst rows ${evidence.rows.join(" ")}` : null))),
    finding.more ? el("div", { class: "quiet" }, `and ${finding.more} more tensors`) : null)));
}
