// Words explained where they stand, by mouse and by keyboard; a list of all of them at the end.
const termId = (word) => `term-${word.replace(/[^\w-]/g, "-")}`;

let tipOwner = null;  // what the tip is of: only that hides it again

function tipAt(owner, left, top, ...children) {
  const node = byId("tip");
  tipOwner = owner;
  node.replaceChildren(...children);
  node.hidden = false;
  node.style.left = `${Math.max(8, Math.min(left, innerWidth - node.offsetWidth - 8))}px`;
  node.style.top = `${Math.min(top, innerHeight - node.offsetHeight - 8)}px`;
}

function hideTip(owner) {
  if (owner === tipOwner) byId("tip").hidden = true;
}

function explained(data, word, shown = word) {
  const text = data.terms[word];
  if (!text) return shown;
  const node = el("button", { type: "button", class: "term", "aria-describedby": termId(word) }, shown);
  const tell = () => {
    const box = node.getBoundingClientRect();
    tipAt(node, box.left, box.bottom + 6, text);
  };
  const follow = () => { if (!byId("tip").hidden) tell(); };  // to focus a word may scroll the page
  for (const event of ["mouseenter", "focus", "click"]) node.addEventListener(event, () => { tell(); addEventListener("scroll", follow, true); });
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, () => { hideTip(node); removeEventListener("scroll", follow, true); });
  return node;
}

function drawGlossary(data) {
  const words = Object.entries(data.terms);
  byId("words").hidden = !words.length;
  byId("glossary").replaceChildren(...words.map(([word, text]) =>
    el("div", {}, el("dt", {}, word.replaceAll("_", " ")), el("dd", { id: termId(word) }, text))));
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(tipOwner); });
}
