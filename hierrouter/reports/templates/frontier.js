// Mean quality over mean cost: routes, curves over alpha, and where each policy is now.

const MARGIN = { top: 12, right: 14, bottom: 44, left: 52 };
const LOG_FROM_RATIO = 10;
const LABEL_ROOM = 64; // pixels between two marks of an axis

/** From values to pixels, and the values worth a mark. */
function linearScale(low, high, from, to) {
  const span = high - low || 1, rough = (span * LABEL_ROOM) / Math.abs(to - from);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((times) => times * power >= rough) ?? 10);
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  return {
    at: (value) => from + ((value - low) / span) * (to - from),
    marks: Array.from({ length: Math.max(count, 0) }, (_, i) => (first + i) * step),
  };
}

function logScale(low, high, from, to) {
  const span = Math.log(high / low) || 1, marks = [];
  const at = (value) => from + (Math.log(value / low) / span) * (to - from);
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
    for (const times of [1, 2, 5]) {
      const value = times * 10 ** power;
      const free = !marks.length || Math.abs(at(value) - at(marks.at(-1))) >= LABEL_ROOM;
      if (value >= low && value <= high && free) marks.push(value);
    }
  }
  return { at, marks };
}

const LOOKS = [ // from the lowest layer to the highest
  "route", "single", "reference", "random", "informed", "fixed", "oracle", "brought", "router",
];
const MOST_NODES = 200; // of larger trees only fixed routes that no other one beats; see explore.py

/** Everything that is drawn, as points {cost, quality} with names and looks. */
function frontierOf(cache, priced, scene, column, shown) {
  const figures = (sums) => figuresOf(cache, sums, scene.alpha, column);
  const point = ({ key, name, sums }) => {
    const look = LOOKS.includes(key) ? key : "brought";
    return { ...figures(sums), name, look, label: look === "router" ? "HierRouter" : name };
  };
  const routes = priced.routes.map(({ name, sums }) => ({ ...figures(sums), name, look: "route" }));
  const fixed = bestFixed(cache, priced, scene, column);
  const best = fixed ? [{ ...fixed, key: "fixed" }] : [];
  const single = policiesOf(priced, scene).filter(({ key }) => key !== "fixed");
  const points = [...single, ...best].filter(({ key }) => shown(key)).map(point);
  if (shown("route")) points.push(...(cache.size > MOST_NODES ? unbeaten(routes) : routes));
  return {
    points: points.sort((a, b) => LOOKS.indexOf(a.look) - LOOKS.indexOf(b.look)),
    curves: priced.curves
      .filter(({ key }) => shown(key))
      .map(({ look, sums }) => ({ look, points: sums.map(figures) })),
    alpha: scene.alpha,
    level: shown("equal") ? figures((scene.router ?? scene.oracle).sums).reward : NaN,
  };
}

/** The points of which none is both as cheap and better. */
function unbeaten(points) {
  let most = -Infinity;
  return points
    .toSorted((a, b) => a.cost - b.cost || b.quality - a.quality)
    .filter(({ quality }) => quality > most && ((most = quality), true));
}

const SIZES = {
  route: 4, fixed: 8, single: 5, reference: 6, random: 5, informed: 6, oracle: 7, router: 10,
  brought: 7,
};
const SQUARE = "M-1-1H1V1H-1Z";
const CROSS = "M-1-.4L-.4-1L0-.6L.4-1L1-.4L.6 0L1 .4L.4 1L0 .6L-.4 1L-1 .4L-.6 0Z";
const SHAPES = {
  single: SQUARE,
  reference: "M0-1.2L1.2 0L0 1.2L-1.2 0Z",
  random: CROSS,
  informed: CROSS,
  brought: "M0-1.1L1 .8H-1Z",
  oracle: "M-.35-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
  router: "M0-1L.27-.33L.95-.31L.42.13L.59.81L0 .42L-.59.81L-.42.13L-.95-.31L-.27-.33Z",
};

function mark({ look, name, cost, quality, reward }, x, y) {
  const shape = SHAPES[look]
    ? makeSvg("path", { d: SHAPES[look], transform: `translate(${x} ${y}) scale(${SIZES[look]})` })
    : makeSvg("circle", { cx: x, cy: y, r: SIZES[look] });
  shape.setAttribute("class", `mark ${look}`);
  const told = `${name}: Q ${quality.toFixed(3)}, C ${short(cost)}, R ${reward.toFixed(3)}`;
  shape.append(makeSvg("title", {}, told));
  return shape;
}

/** Draw anew, as wide as the place it has; costs along a logarithm where `logarithmic` says so. */
function drawFrontier(svg, found, logarithmic, unit) {
  const width = svg.parentElement.clientWidth, height = Math.min(430, Math.max(300, width * 0.62));
  const all = [...found.points, ...found.curves.flatMap(({ points }) => points)];
  if (!all.length) return svg.querySelector("g").replaceChildren();
  const costs = all.map(({ cost }) => cost), qualities = all.map(({ quality }) => quality);
  const low = Math.min(...costs), high = Math.max(...costs), pad = (high - low) * 0.05;
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
  const log = logarithmic && low > 0;
  const x = log
    ? logScale(low / 1.15, high * 1.15, MARGIN.left, right)
    : linearScale(Math.max(0, low - pad), high + pad, MARGIN.left, right);
  const [least, most] = [Math.min(...qualities), Math.max(...qualities)];
  const air = (most - least) * 0.06 || 0.05;
  const y = linearScale(least - air, most + air, bottom, MARGIN.top);
  const layers = [axes(x, y, { width, right, bottom }, unit)];
  layers.push(equalLine(found, x, y, low, high, bottom));
  layers.push(...found.curves.map(({ look, points }) => curve(points, x, y, look)));
  const placed = found.points.map((point) => [point, x.at(point.cost), y.at(point.quality)]);
  layers.push(...placed.map((one) => mark(...one)), ...labels(placed, right, bottom));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.querySelector("g").replaceChildren(...layers);
}

/** Names beside the marks, the most telling first, as far as there is room for them. */
function labels(placed, edge, bottom) {
  const boxes = placed
    .filter(([{ look }]) => look !== "route")
    .map(([{ look }, x, y]) => boxAt(x - SIZES[look], y - SIZES[look], 2 * SIZES[look], 2 * SIZES[look]));
  const found = [];
  for (const [{ look, label }, x, y] of placed.toReversed()) {
    if (!label) continue;
    const text = label.length > LONGEST_LABEL ? `${label.slice(0, LONGEST_LABEL - 1)}…` : label;
    const width = text.length * LETTER, away = SIZES[look] + 4;
    const places = [
      ["start", away, 4], ["end", -away, 4], ["middle", 0, -away], ["middle", 0, away + 9],
      ["start", away, -away], ["start", away, away + 9], ["end", -away, away + 9],
    ];
    for (const [anchor, right, down] of places) {
      const left = x + right - width * ANCHORS[anchor], base = y + down;
      const box = boxAt(left, base - 10, width, 13);
      const inside = left >= MARGIN.left && box.right <= edge && box.top >= 0 && base < bottom;
      if (!inside || boxes.some((other) => touches(box, other))) continue;
      boxes.push(box);
      found.push(
        makeSvg("text", { x: x + right, y: base, "text-anchor": anchor, class: "label" }, text));
      break;
    }
  }
  return found;
}

const ANCHORS = { start: 0, middle: 0.5, end: 1 };
const LETTER = 6.6; // pixels, about as wide as one of a label is
const LONGEST_LABEL = 24;
const boxAt = (left, top, width, height) => ({ left, top, right: left + width, bottom: top + height });
const touches = (a, b) =>
  a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

function axes(x, y, { width, right, bottom }, unit) {
  const group = makeSvg("g", { class: "axes" });
  const line = (x1, y1, x2, y2, kind) =>
    group.append(makeSvg("line", { x1, y1, x2, y2, class: kind }));
  const label = (text, at, anchor) =>
    group.append(makeSvg("text", { ...at, "text-anchor": anchor }, text));
  for (const value of y.marks) {
    line(MARGIN.left, y.at(value), right, y.at(value), "grid");
    label(short(value, 3), { x: MARGIN.left - 8, y: y.at(value) + 4 }, "end");
  }
  for (const value of x.marks) {
    line(x.at(value), bottom, x.at(value), MARGIN.top, "grid");
    label(short(value, 3), { x: x.at(value), y: bottom + 17 }, "middle");
  }
  line(MARGIN.left, bottom, right, bottom, "axis");
  line(MARGIN.left, bottom, MARGIN.left, MARGIN.top, "axis");
  const centre = (MARGIN.left + width) / 2, turned = `translate(13 ${(MARGIN.top + bottom) / 2})`;
  label(`mean cost C (${unit})`, { x: centre, y: bottom + 37 }, "middle");
  label("mean quality Q", { x: 0, y: 0, transform: `${turned} rotate(-90)` }, "middle");
  return group;
}

const pathThrough = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x} ${y}`).join("");

function curve(points, x, y, look) {
  const d = pathThrough(points.map(({ cost, quality }) => [x.at(cost), y.at(quality)]));
  return makeSvg("path", { d, class: `curve ${look}-curve` });
}

/** Where R is that of the router, or of the oracle, at this alpha. */
function equalLine({ level, alpha }, x, y, low, high, bottom) {
  const points = Array.from({ length: 60 }, (_, at) => {
    const cost = low + ((high - low) * at ** 2) / 59 ** 2;
    return [x.at(cost), y.at(level + alpha * cost)];
  }).filter(([, at]) => at >= MARGIN.top && at <= bottom);
  return makeSvg("path", { d: pathThrough(points), class: "curve equal" });
}

/** Whether costs are far enough apart for a logarithm. */
function spreadWide(priced) {
  const costs = [...priced.routes, ...priced.calls].map(({ sums }) => sums.cost.at(-1));
  const low = Math.min(...costs);
  return low > 0 && Math.max(...costs) / low > LOG_FROM_RATIO;
}
