// What the reader can change: prices, models, dataset, router.

const FACTOR_STEPS = 10; // to ten times the price, and to a tenth

/** Every model with a price: those of the pool, then reference models. */
const pricedModels = (cache) => [...new Set([...cache.models, ...cache.direct.models])];

/** A slider for each price, and a box for each model of the pool; returns what sets them. */
function makePrices(cache, container, onChange) {
  const rows = pricedModels(cache).map((name, number) => priceRow(cache, name, number));
  container.replaceChildren(...rows.map(({ element }) => element));
  const changed = () => {
    const kept = rows.filter(({ box }) => box && box.checked);
    for (const { box, slider } of rows) {
      if (box) box.disabled = kept.length === 1 && box.checked;
      if (box) slider.disabled = !box.checked;
    }
    onChange({
      factors: new Map(rows.map(({ name, slider }) => [name, factorOf(slider)])),
      kept: cache.models.map((model) =>
        rows.find(({ name }) => name === model).box?.checked ?? true),
    });
  };
  for (const row of rows) {
    row.slider.addEventListener("input", () => (row.tell(), changed()));
    if (row.box) row.box.addEventListener("change", changed);
    row.tell();
  }
  return (steps, kept) => {
    for (const { name, box, slider, tell } of rows) {
      if (box) box.checked = !kept.length || kept.includes(name);
      slider.value = steps.get(name) ?? 0;
      tell();
    }
    changed();
  };
}

const factorOf = (slider) => 10 ** (Number(slider.value) / FACTOR_STEPS);

/** The step of a slider for a factor; NaN where it has none so near. */
function stepOf(factor) {
  const step = Math.round(FACTOR_STEPS * Math.log10(factor));
  const near = Math.abs(10 ** (step / FACTOR_STEPS) / factor - 1) < 0.01;
  return near && Math.abs(step) <= FACTOR_STEPS ? step : NaN;
}

function priceRow(cache, name, number) {
  const action = cache.models.indexOf(name), isFull = !cache.layout;
  const { nodes, direct } = cache;
  const rate = action >= 0 ? nodes.rate[action] : direct.rate[direct.models.indexOf(name)];
  const slider = make("input", {
    type: "range", min: -FACTOR_STEPS, max: FACTOR_STEPS, step: 1, value: 0, id: `price-${number}`,
    autocomplete: "off", "aria-label": `price of ${name}`,
  });
  const told = make("output", { kind: "rate", for: slider.id });
  const box = isFull && action >= 0
    ? make("input", { type: "checkbox", autocomplete: "off", id: `kept-${number}` })
    : null;
  if (box) box.checked = true;
  const label = box
    ? make("label", { for: box.id }, box, make("span", { text: name }))
    : make("span", { kind: "label", text: action < 0 ? `${name} (direct calls only)` : name });
  const tell = () => {
    const factor = factorOf(slider);
    const [rateIn, rateOut, , , perCall] = rate.map((value) => short(value * factor, 3));
    const perToken = rateIn === rateOut ? rateIn : `${rateIn} in, ${rateOut} out`;
    const text = Number(perCall) ? `${perToken}, ${perCall} a call` : perToken;
    told.textContent = factor === 1 ? text : `${text} (×${short(factor, 3)})`;
    slider.setAttribute("aria-valuetext", `${told.textContent} a token`);
  };
  return { name, slider, box, tell, element: make("div", { kind: "price" }, label, slider, told) };
}

/** A choice among texts; nothing to see where there is but one. */
function fillChoice(select, texts, chosen) {
  select.replaceChildren(...texts.map((text, number) => make("option", { value: number, text })));
  select.value = chosen;
  select.closest("label").hidden = texts.length < 2;
}
