// The tree of routes, as hierrouter_cache/layout.py.

const SEPARATOR = ">";

/**
 * How many nodes there are with a decision due, and in all; parent, action, draw and children of
 * each. Without a layout the tree has each model at each hop.
 */
function treeShape(models, hops, layout) {
  let states = 0;
  for (let depth = 0; depth < hops; depth++) states += models ** depth;
  const full = { states, size: states + models ** hops };
  const shape = layout ? unpackedLayout(layout) : full;
  const nodes = Array.from({ length: shape.size }, (_, node) => node);
  shape.parent ??= nodes.map((node) => Math.floor((node - 1) / models));
  shape.action ??= nodes.map((node) => (node - 1) % models);
  shape.draw ??= nodes.map(() => 0);
  shape.route ??= nodes;
  shape.children = nodes.map(() => []);
  for (const node of nodes.slice(1)) shape.children[shape.parent[node]].push(node);
  return shape;
}

const parentOf = (cache, node) => cache.parent[node];
const actionOf = (cache, node) => cache.action[node];

/** Whether a query has a node; a log need not have all of them. */
const hasNode = (cache, node, query) =>
  !cache.weight || cache.weight[node * cache.count + query] > 0;

/** Which draw of its call a node is, and how likely; empty where the query has no other one. */
function drawName(cache, node, query) {
  const share = cache.weight ? cache.weight[node * cache.count + query] : 1;
  return share < 1 ? `draw ${cache.draw[node] + 1}, ${(100 * share).toFixed(0)}%` : "";
}

/** Nodes from the first call to `node`. */
function wayTo(cache, node) {
  const way = [];
  for (let at = node; at > 0; at = parentOf(cache, at)) way.unshift(at);
  return way;
}

/** `first>second`, and `>first` where there is one call. */
function routeName(cache, node) {
  const names = wayTo(cache, node).map((at) => cache.models[actionOf(cache, at)]);
  return (names.length === 1 ? SEPARATOR : "") + names.join(SEPARATOR);
}

/** Where a policy ends: a route, or one of the direct calls, which are numbered after the nodes. */
const endName = (cache, end) =>
  end < cache.size ? routeName(cache, end) : `direct call of ${cache.direct.models[end - cache.size]}`;

/**
 * The nodes at which an episode can end without a call of a model that was dropped. Where queries
 * differ in their nodes or draws: the routes that all of them have.
 */
function endingsOf(cache, kept, stop) {
  if (cache.routes) return [...cache.routes[Number(stop)]];
  const found = [];
  for (let node = stop ? 1 : cache.states; node < cache.size; node++) {
    if (wayTo(cache, node).every((at) => kept[actionOf(cache, at)])) found.push(node);
  }
  return found;
}
