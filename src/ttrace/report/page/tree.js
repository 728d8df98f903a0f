// The model as a tree, and the worst matching tensor of every kind in it.
function buildTree(data, comparison) {
  const made = (name, path, depth, parent) => ({ name, path, depth, parent, children: new Map(), own: [], order: Infinity });
  const root = made(data.root, "", 0, null), nodes = new Map([["", root]]);
  const find = (path) => {
    const known = nodes.get(path);
    if (known) return known;
    const cut = path.lastIndexOf("."), parent = find(cut < 0 ? "" : path.slice(0, cut));
    const node = made(path.slice(cut + 1), path, parent.depth + 1, parent);
    parent.children.set(node.name, node);
    nodes.set(path, node);
    return node;
  };
  for (let i = 0; i < comparison.count; i++) {
    const own = find(comparison.modulePath[i]);
    own.own.push(i);
    // What is read before the step does not tell the order of execution.
    const order = data.kinds[comparison.kind[i]].is_before_step ? comparison.count + i : i;
    for (let node = own; node; node = node.parent) node.order = Math.min(node.order, order);
  }
  for (const node of nodes.values()) node.children = [...node.children.values()].sort((a, b) => a.order - b.order);
  comparison.nodes = nodes;
  return root;
}

// A tensor that the answer names stands for its cell; otherwise the worst one does.
function worse(comparison, cells, kind, i) {
  const other = cells[kind];
  if (other == null) cells[kind] = i;
  else if (comparison.named.has(other)) return;
  else if (comparison.named.has(i) || badness(comparison, i) > badness(comparison, other)) cells[kind] = i;
}

// Of a node itself and of all below it.
function measure(comparison, node, matches) {
  node.cells = {}; node.seen = 0; node.wrong = 0;
  for (const i of node.own) if (matches[i]) {
    node.seen += 1;
    node.wrong += comparison.failed[i];
    worse(comparison, node.cells, comparison.kind[i], i);
  }
  node.sums = { ...node.cells };
  for (const child of node.children) {
    measure(comparison, child, matches);
    node.seen += child.seen;
    node.wrong += child.wrong;
    for (const kind in child.sums) worse(comparison, node.sums, kind, child.sums[kind]);
  }
}

const isLayer = (node) => /^\d+$/.test(node.name) && node.children.length > 0;
