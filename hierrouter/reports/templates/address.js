// All that is set on the page, as the end of its address and back.

/** The reader's settings that differ from those of a fresh page, and alpha and the query. */
function addressOf(cache, state, alpha) {
  const { choice } = state, view = new URLSearchParams({ alpha: String(alpha) });
  const add = (key, ...values) => values.forEach((value) => view.append(key, value));
  if (state.query !== null) add("query", nameOf(cache, state.query));
  if (state.column < cache.datasets.length) add("dataset", cache.datasets[state.column]);
  if (choice.router) add("router", cache.routers[choice.router].name);
  if (!choice.kept.every(Boolean)) add("models", ...cache.models.filter((_, at) => choice.kept[at]));
  for (const [name, factor] of choice.factors) {
    if (factor !== 1) add("price", `${name}:${short(factor, 3)}`);
  }
  add("without", ...state.without);
  if (state.order !== "regret") add("order", state.order);
  if (state.text) add("find", state.text);
  if (state.logarithmic !== state.spread) add("axis", state.logarithmic ? "logarithm" : "linear");
  return view;
}

/** What an address asks for, by key: a list of values each; and the texts that are none. */
function settingsIn(cache, address, keys) {
  const number = (text) => (text.trim() && Number(text) >= 0 ? Number(text) : NaN);
  const placeIn = (names) => (text) => names.indexOf(text);
  const taken = {
    alpha: (text) => (Number.isFinite(number(text)) ? number(text) : -1),
    query: (text) => cache.ids.findIndex((_, at) => nameOf(cache, at) === text),
    dataset: placeIn(cache.datasets),
    router: placeIn(cache.routers.map(({ name }) => name)),
    models: placeIn(cache.models),
    price: (text) => {
      const [, name, factor] = /^(.*):([^:]*)$/s.exec(text) ?? [], step = stepOf(number(factor ?? ""));
      return pricedModels(cache).includes(name) && !Number.isNaN(step) ? [name, step] : -1;
    },
    without: (text) => (keys.includes(text) ? text : -1),
    order: (text) => (Object.hasOwn(ORDERS, text) ? text : -1),
    find: (text) => text,
    axis: placeIn(["linear", "logarithm"]),
  };
  const found = Object.fromEntries(Object.keys(taken).map((key) => [key, []])), refused = [];
  for (const [key, text] of new URLSearchParams(new URL(address).hash.slice(1))) {
    const value = Object.hasOwn(taken, key) ? taken[key](text) : -1;
    if (value === -1) refused.push(`${key}=${text}`);
    else found[key].push(value);
  }
  return { found, refused };
}
