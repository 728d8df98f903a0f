// One tab for each comparison; arrow keys go from one to the next.
function tabBar(titles, choose) {
  const node = byId("tabs"), panel = byId("compared");
  const tabs = titles.map(([value, title, told], n) => el("button", {
    type: "button", role: "tab", id: `tab-${value}`, "aria-controls": "compared", onclick: () => choose(value),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const to = event.key === "Home" ? 0 : event.key === "End" ? titles.length - 1 : step ? (n + step + titles.length) % titles.length : null;
      if (to == null) return;
      event.preventDefault();
      choose(titles[to][0]);
      tabs[to].focus();
    },
  }, el("b", {}, title), ` ${told}`));
  node.hidden = titles.length < 2;
  if (titles.length > 1) {
    fill(node, { role: "tablist", "aria-label": "Comparison" }, tabs);
    panel.setAttribute("role", "tabpanel");
  }
  return (value) => titles.forEach(([other], n) => {
    tabs[n].setAttribute("aria-selected", String(other === value));
    tabs[n].tabIndex = other === value ? 0 : -1;
    if (other === value && titles.length > 1) panel.setAttribute("aria-labelledby", tabs[n].id);
  });
}
