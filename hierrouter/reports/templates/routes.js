// Index arithmetic of the tree of routes, as hierrouter_cache/tree.py.

const SEPARATOR = ">";

/** How many nodes there are with a decision due, and in all. */
function treeShape(models, hops) {
  let states = 0;
  for (let depth = 0; depth < hops; depth++) states += models ** depth;
  return { states, size: states + models ** hops };
}

const childOf = (cache, node, action) => node * cache.models.length + action + 1;
const parentOf = (cache, node) => Math.floor((node - 1) / cache.models.length);
const actionOf = (cache, node) => (node - 1) % cache.models.length;

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

/** The nodes at which an episode can end without a call of a model that was dropped. */
function endingsOf(cache, kept, stop) {
  const found = [];
  for (let node = stop ? 1 : cache.states; node < cache.size; node++) {
    if (wayTo(cache, node).every((at) => kept[actionOf(cache, at)])) found.push(node);
  }
  return found;
}
