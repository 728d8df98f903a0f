// The answer: where it is wrong, what the mistake is, how sure that is, on which ranks, and what to do next.
const MORE_CARDS = 50;  // chosen: nobody reads further

function drawAnswer(data, open) {
  const [first, ...others] = data.cards, heading = byId("headline");
  heading.className = ["good", "bad", "unsure"][data.exit_code];
  // Where a card says the place and how sure it is, the heading says the outcome alone.
  if (first) heading.textContent = data.headline.split(/[:(]/)[0].trim();
  byId("counts").textContent = sentences(first ? [data.follow_on || data.counts] : [data.counts, data.nearness, data.covered]);
  byId("actions").replaceChildren(copyButton(data.exit_code ? "Copy as issue" : "Copy as Markdown", "the report as Markdown", data.issue));
  byId("answer").hidden = !first;
  if (!first) return;
  byId("answer").replaceChildren(drawCard(data, first, open), ...(others.length ? [
    fold(counted(others.length, "more root cause"),
      el("ol", { class: "others", start: 2 }, others.slice(0, MORE_CARDS).map((card) => el("li", {},
        later(el("span", {}, el("b", { class: "mono" }, card.where), card.phase ? `, ${card.phase}` : null, `: ${card.badge}, ${card.sure}`), () => drawCard(data, card, open))))),
      others.length > MORE_CARDS ? el("p", { class: "quiet" }, `and ${counted(others.length - MORE_CARDS, "more place")}`) : null),
  ] : []));
}

const sentences = (parts) => parts.filter(Boolean).map((part) => `${part[0].toUpperCase()}${part.slice(1).replace(/\.$/, "")}.`).join(" ");

// Drawn when it is opened.
function later(title, draw) {
  const node = fold(title);
  node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(draw()); });
  return node;
}

function drawCard(data, card, open) {
  const code = drawCode(card.code);
  return el("article", { class: `card grade-${card.grade}` },
    el("div", { class: "halves" },
      pairs([["Where", ...where(card)], ["What", ...what(card)], ["How sure", ...sure(card)], ...(card.ranks.words ? [["Ranks", ranks(data, card)]] : [])], "facts"),
      el("div", {}, code, pairs([["Next", ...next(card)]], "facts"))),
    evidence(data, card, open));
}

const where = (card) => [
  el("div", {}, el("b", { class: "place mono" }, card.where), card.phase ? `, ${card.phase}` : null),
  card.class || card.source ? el("div", { class: "quiet" }, card.class, card.class && card.source ? " · " : null, card.source ? el("code", {}, card.source) : null) : null,
  card.places.length ? fold(`all ${card.places.length} places`, el("p", { class: "mono" }, card.places.join(", "))) : null,
];

const what = (card) => [
  el("span", { class: card.known ? "badge" : "badge unknown" }, card.badge),
  card.looks ? el("div", {}, card.looks) : null,
  card.expected ? el("div", { class: "calm" }, card.expected) : null,
];

// The grade is a badge of its own: it is not said again.
const sure = (card) => [
  el("span", { class: "grade" }, card.grade), card.sure === card.grade ? null : ` ${card.sure.replace(`${card.grade}: `, "")}`,
  card.bar ? sureBar(card.bar) : null,
];

const ranks = (data, card) => el("div", { class: "ranks" },
  data.mesh.names.length > 1 ? meshPicture(data, card.ranks) : null, el("span", {}, card.ranks.words));

const next = (card) => [
  card.look_for ? el("div", {}, card.look_for) : null,
  ...card.commands.map(([title, command]) => el("div", { class: "command" },
    el("span", { class: "quiet" }, title), el("code", {}, command), copyButton("Copy", title, command))),
];

function evidence(data, card, open) {
  const total = card.evidence.length + card.more;
  return fold(total ? `Evidence: ${counted(total, "tensor")}` : "Why",
    el("p", {}, card.reason),
    el("ul", { class: "evidence" }, card.evidence.map((one) => el("li", {},
      el("button", { class: "link mono", type: "button", onclick: () => open(data.evidence_in, one.id) }, one.id),
      ` ${one.sentence}`, one.rows.length ? `; worst rows ${one.rows.join(" ")}` : null, one.note ? `; ${one.note}` : null))),
    card.more ? el("p", { class: "quiet" }, `and ${counted(card.more, "more tensor")}`) : null);
}
