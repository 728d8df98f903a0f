// Verdict, what to look at first, culprits with their evidence.
function drawSummary(data, open) {
  const heading = byId("headline");
  heading.className = ["good", "bad", "unsure"][data.exit_code];
  if (data.look_first) byId("first").replaceChildren(el("b", {}, "Look first at "), data.look_first);
  byId("counts").textContent = [data.counts, data.follow_on, data.nearness, data.covered].filter(Boolean).join(". ");
  byId("culprits").hidden = !data.root_causes.length;
  byId("findings").replaceChildren(...data.root_causes.slice(0, 50).map((cause) => el("li", {},
    el("span", { class: "where" }, `${cause.where}, ${cause.phase}`),
    cause.source ? el("code", { class: "quiet" }, `  ${cause.class} ${cause.source}`) : null,
    el("div", {}, cause.reason),
    cause.places.length ? el("details", { class: "quiet" }, el("summary", {}, "all places"), cause.places.join(", ")) : null,
    el("ul", {}, cause.evidence.map((evidence) => el("li", {},
      el("button", { class: "link mono", type: "button", onclick: () => open(data.evidence_in, evidence.id) }, evidence.id),
      ` ${evidence.sentence}`,
      evidence.rows.length ? `; worst rows ${evidence.rows.join(" ")}` : null))),
    cause.more ? el("div", { class: "quiet" }, `and ${cause.more} more tensors`) : null)));
}
