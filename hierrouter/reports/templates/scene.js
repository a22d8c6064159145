// What there is to see: under chosen prices and models, and at one alpha.

const MOST_STEPS = 4e6; // of comparing endings for a curve; with more, it has fewer points

/** Rates of a list of models under the reader's factors. */
function ratesOf(names, rates, factors) {
  return rates.map(([rateIn, rateOut, , , perCall = 0], at) => {
    const factor = factors.get(names[at]) ?? 1;
    return [rateIn * factor, rateOut * factor, perCall * factor];
  });
}

/**
 * All that depends on prices, models and router, whatever alpha.
 * `choice`: factors by model, kept by action, router by number.
 */
function pricedScene(cache, choice) {
  const router = cache.routers[choice.router] ?? null;
  const rates = ratesOf(cache.models, cache.nodes.rate, choice.factors);
  const cost = costsOfNodes(cache, rates);
  const stop = router?.stop ?? false, endings = endingsOf(cache, choice.kept, stop);
  const scene = {
    cost,
    rates,
    endings,
    stop,
    router: choice.kept.every(Boolean) ? router : null,
    routes: endings.map((node) => ({
      name: routeName(cache, node),
      kind: "route",
      node,
      sums: sumsOfRoute(cache, cost, node),
    })),
    calls: directCalls(cache, choice),
    train: cache.train?.columns.map(
      (column) => column && { column, cost: meanCosts(cache, column, rates) },
    ),
    // What was asked about the whole pool says nothing of a smaller one.
    brought: choice.kept.every(Boolean) ? cache.brought : [],
    drawnCosts: new Map(
      [...cache.brought, ...cache.routers].map((one) => [one, costsOfDrawn(cache, one, choice)])),
  };
  return { ...scene, ...curvesOf(cache, scene) };
}

/** Sums of a fixed route: of a node, or in the mean over draws. */
function sumsOfRoute(cache, cost, node) {
  const { count } = cache;
  if (!cache.weight) return tally(cache, cache.nodes, cost, (query) => node * count + query);
  const means = routeMeans(cache, cost, node);
  return tally(cache, means, means.cost, (query) => query);
}

/** The best end of each query in hindsight: its values, and where it ends. */
function oracleAt(cache, priced, alpha) {
  const { count, nodes } = cache, { cost } = priced;
  if (cache.weight) {
    const { ends, ...found } = clairvoyant(cache, cost, alpha, priced.stop);
    return { ends, ...valuesAt(cache, found, found.cost, (query) => query) };
  }
  const ends = bestEndings(cache, cost, alpha, priced.endings);
  return { ends, ...valuesAt(cache, nodes, cost, (query) => ends[query] * count + query) };
}

/** Sums of what is worth, and Q, accuracy and C of each query; `place` says where they are. */
const valuesAt = (cache, values, cost, place) => ({
  sums: tally(cache, values, cost, place),
  at: (query) => [values.score, values.accuracy, cost].map((one) => one[place(query)]),
});

/** float64[steps * queries]: C of a policy in expectation; null of one that takes one route. */
function costsOfDrawn(cache, { tokens, calls, steps }, { factors }) {
  if (!tokens) return null;
  const { nodes, direct, models } = cache, size = steps * cache.count;
  const cost = new Float64Array(size);
  [...ratesOf(models, nodes.rate, factors), ...ratesOf(direct.models, direct.rate, factors)].forEach(
    (rate, caller) => {
      const tokensIn = 2 * caller * size, tokensOut = tokensIn + size;
      for (let at = 0; at < size; at++) {
        const made = calls ? calls[caller * size + at] : 0;
        cost[at] += callCost(tokens[tokensIn + at], tokens[tokensOut + at], rate, made);
      }
    },
  );
  return cost;
}

/** The direct calls that are left: of models kept, and of reference models. */
function directCalls(cache, choice) {
  const { direct, count } = cache;
  const cost = costsOfDirect(cache, ratesOf(direct.models, direct.rate, choice.factors));
  return direct.models
    .map((name, row) => {
      const kind = direct.inPool[row] ? "single" : "reference";
      return { key: kind, name, kind, ...valuesAt(cache, direct, cost, (q) => row * count + q) };
    })
    .filter(({ name }) => choice.kept[cache.models.indexOf(name)] ?? true);
}

/**
 * Oracle, router and what was brought along the grid of alphas, those that move; and how often
 * oracle and router take each route there.
 */
function curvesOf(cache, scene) {
  const { alphas, count } = cache, usage = new Float64Array(cache.size);
  const compared = cache.weight ? cache.size : scene.endings.length;
  const every = Math.ceil((alphas.length * count * compared) / MOST_STEPS);
  const grid = [...alphas.keys()].filter((at) => at % every === 0 || at === alphas.length - 1);
  const along = (key, look, policyAtPosition, counts) => {
    const sums = grid.map((at) => {
      const policy = policyAtPosition(at);
      if (counts) for (const node of policy.ends) usage[cache.route[node]] += 1;
      return policy.sums;
    });
    return { key, look, sums };
  };
  const best = (at) => oracleAt(cache, scene, alphas[at]);
  const at = (one) => (position) => policyAt(cache, scene, one, position);
  const curves = [along("oracle", "oracle", best, true)];
  if (scene.router) curves.push(along("router", "router", at(scene.router), true));
  for (const one of scene.brought) {
    const moves = one.ends && new Set(one.ends).size > 1;
    if (moves) curves.push(along(keyOf(one), "brought", at(one), false));
  }
  return { curves, usage };
}

/** All that depends on alpha, too. */
function sceneAt(cache, priced, position) {
  const { count } = cache, alpha = cache.alphas[position];
  const trained = priced.train ? trainChoices(cache, priced, alpha) : null;
  const ending = (key, name, kind, ends) => ({
    key, name, kind, ends,
    ...valuesAt(cache, cache.nodes, priced.cost, (query) => ends[query] * count + query),
  });
  const allAt = (node) => new Uint32Array(count).fill(node);
  // With draws, chance is one of those that were brought.
  const chance = cache.weight ? null : meanTally(priced.routes.map(({ sums }) => sums));
  const told = (one, kind, key) => ({
    key, name: one.name, kind, ...policyAt(cache, priced, one, position),
  });
  const scene = {
    alpha,
    position,
    oracle: { key: "oracle", name: "oracle", kind: "oracle", ...oracleAt(cache, priced, alpha) },
    router: priced.router && told(priced.router, "router", "router"),
    brought: priced.brought.map((one) => told(one, "baseline", keyOf(one))),
    fixed: trained && ending("fixed", "best fixed route (train)", "route", allAt(trained.overall)),
    byDataset:
      trained &&
      ending("informed", "best route per dataset", "baseline", everyDataset(cache, trained.choices)),
    random: chance && { key: "random", name: "random", kind: "baseline", sums: chance },
  };
  return { ...scene, regret: regretOf(scene) };
}

/** Keys are those of the legend. */
const keyOf = ({ name }) => `policy ${name}`;

/** A router, a policy of the reader's own or a baseline at one alpha: its ends and values. */
function policyAt(cache, priced, one, position) {
  const { count, nodes } = cache;
  if (!one.tokens) {
    const ends = one.ends[position];
    return { ends, ...valuesAt(cache, nodes, priced.cost, (query) => ends[query] * count + query) };
  }
  const first = one.step[position] * count, cost = priced.drawnCosts.get(one);
  return {
    ends: one.end.subarray(first, first + count),
    ...valuesAt(cache, one, cost, (query) => first + query),
  };
}

/** R of a policy on a query. */
function worthOf({ at }, query, alpha) {
  const [quality, , cost] = at(query);
  return quality - alpha * cost;
}

/** Every policy that is no fixed route, the learned one first. */
const policiesOf = (priced, scene) =>
  [scene.router, ...scene.brought, scene.oracle, scene.fixed, scene.byDataset, scene.random]
    .concat(priced.calls)
    .filter(Boolean);

/** The fixed route that is best on the train fold: over all, and for each dataset. */
function trainChoices(cache, priced, alpha) {
  const choose = ({ column, cost }) => bestRoute(column, cost, alpha, priced.endings);
  const overall = choose(priced.train.at(-1));
  const choices = priced.train.slice(0, -1).map((known) => (known ? choose(known) : overall));
  return { overall, choices };
}

const everyDataset = (cache, choices) =>
  Uint32Array.from(cache.dataset, (number) => choices[number]);

/** float64[queries]: what the router loses to the oracle; without one, the best fixed route. */
function regretOf({ oracle, alpha, ...scene }) {
  const blamed = blamedOf(scene);
  const lost = (_, query) => worthOf(oracle, query, alpha) - worthOf(blamed, query, alpha);
  return blamed ? Float64Array.from(oracle.ends, lost) : new Float64Array(oracle.ends.length);
}

/** Whose regret is told. */
const blamedOf = (scene) => scene.router ?? scene.fixed;

/**
 * The fixed route with the highest R on the queries of a column; the cheaper one on a tie.
 * Undefined if all queries have no route in common.
 */
function bestFixed(cache, priced, scene, column) {
  const worth = (route) => figuresOf(cache, route.sums, scene.alpha, column);
  return priced.routes.reduce((best, route) => {
    const here = worth(route), there = worth(best);
    const better =
      here.reward > there.reward || (here.reward === there.reward && here.cost < there.cost);
    return better ? route : best;
  }, priced.routes[0]);
}

/** Share of the gap that the router closes on a column; null without a router or a gap. */
function gapAt(cache, priced, scene, column) {
  if (!scene.router) return null;
  const fixed = bestFixed(cache, priced, scene, column);
  if (!fixed) return null;
  const [router, route, oracle] = [scene.router, fixed, scene.oracle].map(
    ({ sums }) => figuresOf(cache, sums, scene.alpha, column).reward,
  );
  return gapClosed(router, route, oracle);
}
