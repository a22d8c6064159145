// What routes cost and are worth: the arithmetic of hierrouter.evaluate, to the same bit.

const SMALLEST_GAP = 0.005; // of a smaller one no share is told, see bounds.py

/** Cost of calls; with one rate for both, tokens are added first. */
function callCost(tokensIn, tokensOut, [rateIn, rateOut, perCall], calls = 1) {
  const cost = rateIn === rateOut
    ? rateIn * (tokensIn + tokensOut)
    : rateIn * tokensIn + rateOut * tokensOut;
  return perCall ? cost + perCall * calls : cost;
}

/** float64[nodes * queries]: C, the cost of all calls from the root to each node. */
function costsOfNodes(cache, rates) {
  const { count, nodes, size } = cache, total = new Float64Array(size * count);
  for (let node = 1; node < size; node++) {
    const rate = rates[actionOf(cache, node)];
    const here = node * count, before = parentOf(cache, node) * count;
    for (let query = 0; query < count; query++) {
      const at = here + query;
      total[at] = total[before + query] + callCost(nodes.tokensIn[at], nodes.tokensOut[at], rate);
    }
  }
  return total;
}

/** float64[direct models * queries]: cost of each direct call. */
function costsOfDirect(cache, rates) {
  const { direct, count } = cache;
  return Float64Array.from(direct.tokensIn, (tokensIn, at) =>
    callCost(tokensIn, direct.tokensOut[at], rates[Math.floor(at / count)]));
}

/** float64[nodes]: mean C at each node on the train fold, for one of its columns. */
function meanCosts(cache, column, rates) {
  const total = new Float64Array(cache.size);
  for (let node = 1; node < cache.size; node++) {
    const rate = rates[actionOf(cache, node)];
    total[node] =
      total[parentOf(cache, node)] + callCost(column.tokensIn[node], column.tokensOut[node], rate);
  }
  return total;
}

/** The ending with the highest reward of each query; ties: lower cost, then lower node. */
function bestEndings(cache, cost, alpha, endings) {
  const { count, nodes } = cache, best = new Uint32Array(count).fill(endings[0]);
  const reward = new Float64Array(count).fill(-Infinity), paid = new Float64Array(count);
  for (const node of endings) {
    const here = node * count;
    for (let query = 0; query < count; query++) {
      const price = cost[here + query], worth = nodes.score[here + query] - alpha * price;
      if (worth > reward[query] || (worth === reward[query] && price < paid[query])) {
        best[query] = node;
        reward[query] = worth;
        paid[query] = price;
      }
    }
  }
  return best;
}

/**
 * Of a route: Q, accuracy and C of each query, in the mean over the draws of its calls. What has
 * ended on the way is part of it. As RouteMeans in hierrouter.evaluation.
 */
function routeMeans(cache, cost, route) {
  const { count, nodes } = cache, on = new Set([...wayTo(cache, route)].map((at) => cache.route[at]));
  const means = { score: nodes.score, accuracy: nodes.accuracy, cost };
  const found = Object.fromEntries(Object.keys(means).map((key) => [key, new Float64Array(count)]));
  for (let node = 1; node < cache.size; node++) {
    const number = cache.route[node];
    if (!on.has(number)) continue;
    for (let query = 0; query < count; query++) {
      const at = node * count + query, share = cache.reach[at];
      if (!share || (number !== cache.route[route] && !cache.dead[at])) continue;
      for (const key of Object.keys(means)) found[key][query] += share * means[key][at];
    }
  }
  return found;
}

/** float64[nodes * queries]: how likely each node is once its calls are made; and dead ends. */
function reachOf(cache) {
  const { count, weight, size } = cache, reach = new Float64Array(size * count).fill(1);
  const dead = new Uint8Array(size * count);
  for (let node = 0; node < size; node++) {
    for (let query = 0; query < count; query++) {
      const at = node * count + query;
      if (node) reach[at] = reach[cache.parent[node] * count + query] * weight[at];
      dead[at] = !cache.children[node].some((child) => weight[child * count + query] > 0);
    }
  }
  return { reach, dead };
}

/**
 * The oracle that knows which draw of each call comes: how often each node is the best end of a
 * query, as clairvoyant_endings in bounds.py. From the worst end up: the probability that the best
 * end is none that is better.
 */
function clairvoyantEnds(cache, cost, alpha, ends, query) {
  const { count, nodes, weight, parent, children, action } = cache;
  const place = (node) => node * count + query;
  const worth = (node) => nodes.score[place(node)] - alpha * cost[place(node)];
  const present = cache.present[query];
  const ranked = present.filter((node) => ends[place(node)]).sort(
    (a, b) => worth(a) - worth(b) || cost[place(b)] - cost[place(a)] || b - a);
  const below = new Map(), open = new Set(ranked);
  const update = (node) => {
    const called = new Map();
    for (const child of children[node]) {
      const share = weight[place(child)];
      if (share) called.set(action[child], (called.get(action[child]) ?? 0) + share * below.get(child));
    }
    let product = open.has(node) ? 0 : 1;
    for (const value of called.values()) product *= value;
    below.set(node, product);
  };
  for (const node of present.toReversed()) update(node); // sorted by depth: children come first
  let before = below.get(0);
  return ranked.map((node) => {
    open.delete(node);
    for (let at = node; at >= 0; at = at ? parent[at] : -1) update(at);
    const share = below.get(0) - before;
    before = below.get(0);
    return [node, share];
  });
}

/** Q, accuracy and C of that oracle on each query, and where it likeliest ends. */
function clairvoyant(cache, cost, alpha, stop) {
  const { count, nodes } = cache, ends = cache.ends[Number(stop)];
  const found = { score: new Float64Array(count), accuracy: new Float64Array(count) };
  const paid = new Float64Array(count), likeliest = new Uint32Array(count);
  for (let query = 0; query < count; query++) {
    let most = -1;
    for (const [node, share] of clairvoyantEnds(cache, cost, alpha, ends, query)) {
      const at = node * count + query;
      found.score[query] += share * nodes.score[at];
      if (share) found.accuracy[query] += share * nodes.accuracy[at];
      paid[query] += share * cost[at];
      if (share > most) [most, likeliest[query]] = [share, node];
    }
  }
  return { ...found, cost: paid, ends: likeliest };
}

/** The same of means: the fixed route that is best on one column of the train fold. */
function bestRoute(column, costs, alpha, endings) {
  const worth = (node) => column.score[node] - alpha * costs[node];
  return endings.reduce((best, node) => {
    const more = worth(node) - worth(best);
    return more > 0 || (more === 0 && costs[node] < costs[best]) ? node : best;
  });
}

/**
 * Sums of Q, accuracy and C by dataset, all queries last; `at` says where a query's values are.
 * Answers that nothing judges have no accuracy (NaN): `judged` counts the others.
 */
function tally(cache, values, cost, at) {
  const { count, dataset } = cache, every = cache.datasets.length;
  const sums = [0, 1, 2, 3].map(() => new Float64Array(every + 1));
  for (let query = 0; query < count; query++) {
    const here = at(query), column = dataset[query];
    const right = values.accuracy[here], isJudged = !Number.isNaN(right);
    const found = [values.score[here], isJudged ? right : 0, cost[here], Number(isJudged)];
    for (let which = 0; which < 4; which++) {
      sums[which][column] += found[which];
      sums[which][every] += found[which];
    }
  }
  return { quality: sums[0], accuracy: sums[1], cost: sums[2], judged: sums[3] };
}

/** The tally of one that is drawn anew for each query from several. */
function meanTally(tallies) {
  const mean = (key) =>
    tallies[0][key].map((_, column) =>
      tallies.reduce((sum, one) => sum + one[key][column], 0) / tallies.length);
  const judged = mean("judged");
  return { quality: mean("quality"), accuracy: mean("accuracy"), cost: mean("cost"), judged };
}

/** Means over the queries of one column: Q, accuracy, C, and R = Q - alpha * C. */
function figuresOf(cache, sums, alpha, column) {
  const n = cache.sizes[column];
  const quality = sums.quality[column] / n, cost = sums.cost[column] / n;
  const judged = sums.judged[column];
  const accuracy = judged ? sums.accuracy[column] / judged : null;
  return { quality, accuracy, cost, reward: quality - alpha * cost };
}

/** Share of the gap from fixed route to oracle that is closed; null where the gap is noise. */
function gapClosed(router, fixed, oracle) {
  const gap = oracle - fixed;
  return gap >= SMALLEST_GAP ? (router - fixed) / gap : null;
}
