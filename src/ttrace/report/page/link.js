// A tensor in the page's address: #tensor=step0/norm:output.0&in=isolated
function addressOf(comparison, id) {
  const readable = encodeURIComponent(id).replaceAll("%2F", "/").replaceAll("%3A", ":");
  return `#tensor=${readable}&in=${encodeURIComponent(comparison.name)}`;
}

// The tensor that the address names and the comparisons to look for it in, or null.
function addressed(data) {
  const said = new URLSearchParams(location.hash.slice(1)), id = said.get("tensor");
  if (!id) return null;
  const named = data.comparisons.findIndex((comparison) => comparison.name === said.get("in"));
  const others = data.comparisons.map((_, n) => n).filter((n) => n !== data.evidence_in);
  return { id, where: named < 0 ? [data.evidence_in, ...others] : [named] };
}

function writeAddress(comparison, id) {
  history.replaceState(null, "", addressOf(comparison, id));
}
