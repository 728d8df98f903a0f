// Buttons that copy a text, and say that they did.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (refused) {  // not every browser lends its clipboard to a file
    const box = el("textarea", { class: "unseen", "aria-hidden": "true", tabindex: -1 });
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    if (!done) throw refused;
  }
}

function copyButton(title, what, text) {
  const button = el("button", { type: "button", class: "copy", "aria-label": title === "Copy" ? `Copy: ${what}` : title });
  button.textContent = title;
  let pause = 0;
  button.addEventListener("click", async () => {
    const focused = document.activeElement;
    let told = "Copied";
    try { await copyText(text); } catch (refused) { told = "Not copied"; }
    focused.focus();
    button.textContent = told;
    say(`${told}: ${what}`);
    clearTimeout(pause);
    pause = setTimeout(() => { button.textContent = title; }, 1600);
  });
  return button;
}
