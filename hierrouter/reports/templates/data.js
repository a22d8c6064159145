// The page's data, unpacked: see explore.py.

const ARRAYS = { "<u1": Uint8Array, "<u2": Uint16Array, "<u4": Uint32Array, "<f8": Float64Array };

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  return bytes;
}

/** What stands in the page: JSON, compressed. */
async function inflated(base64) {
  const plain = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).text();
}

/** Numbers as they were packed, in an array of their type. */
const unpacked = ({ type, data }) => new ARRAYS[type](bytesOf(data).buffer);

/** Floats from their distinct values. */
function unpackedFloats({ values, code }) {
  const distinct = unpacked(values);
  return Float64Array.from(unpacked(code), (at) => distinct[at]);
}

function unpackedCalls(raw) {
  return {
    ...raw,
    score: unpackedFloats(raw.score),
    accuracy: unpackedFloats(raw.accuracy),
    tokensIn: unpacked(raw.tokensIn),
    tokensOut: unpacked(raw.tokensOut),
  };
}

/** The nodes of a tree that is not full; where queries differ, also which they have. */
function unpackedLayout(raw) {
  const shape = { states: raw.inner };
  for (const name of ["parent", "action", "draw", "route"]) shape[name] = unpacked(raw[name]);
  shape.size = shape.parent.length;
  if (!raw.weight) return shape;
  const lists = { ends: raw.ends.map(unpacked), routes: raw.routes.map(unpacked) };
  return { ...shape, ...lists, weight: unpackedFloats(raw.weight), judged: unpacked(raw.judged) };
}

/** A router with the node where each query ends, an array for each alpha. */
function unpackedRouter(raw, count) {
  if (raw.tokens) return { ...unpackedDrawn(raw, count), stop: raw.stop };
  const counts = unpacked(raw.counts), query = unpacked(raw.query), node = unpacked(raw.node);
  const ends = [];
  let now = Uint32Array.from(unpacked(raw.start)), at = 0;
  for (const count of counts) {
    if (count) now = now.slice();
    for (const last = at + count; at < last; at++) now[query[at]] = node[at];
    ends.push(now);
  }
  return { name: raw.name, note: raw.note, stop: raw.stop, ends };
}

/** A policy in expectation: its steps, and which of them holds at each alpha. */
function unpackedDrawn(raw, count) {
  const values = { accuracy: unpackedFloats(raw.accuracy), score: unpackedFloats(raw.quality) };
  const tokens = unpackedFloats(raw.tokens), end = unpacked(raw.end);
  const steps = end.length / count, { name, note } = raw;
  const calls = raw.calls && unpackedFloats(raw.calls);
  return { name, note, ...values, tokens, calls, end, steps, step: unpacked(raw.step) };
}

/** Everything the page knows; arrays over queries and nodes have a row of queries for each node. */
function readCache(text) {
  const raw = JSON.parse(text), dataset = unpacked(raw.queries.dataset), count = dataset.length;
  const sizes = new Array(raw.datasets.length + 1).fill(0);
  for (const number of dataset) sizes[number] += 1;
  sizes[raw.datasets.length] = dataset.length; // all of them
  const cache = {
    ...raw,
    ...treeShape(raw.models.length, raw.hops, raw.layout),
    ids: raw.queries.id,
    count,
    dataset,
    sizes,
    nodes: unpackedCalls(raw.nodes),
    direct: unpackedCalls(raw.direct),
    routers: raw.routers.map((one) => unpackedRouter(one, count)),
    brought: raw.brought.map((one) => unpackedRouter(one, count)),
    texts: new Map(Object.entries(raw.texts).map(([row, texts]) => [Number(row), texts])),
  };
  if (!cache.weight) return cache;
  const nodesOf = (query) => Array.from({ length: cache.size }, (_, node) => node)
    .filter((node) => hasNode(cache, node, query));
  return { ...cache, ...reachOf(cache), present: cache.ids.map((_, query) => nodesOf(query)) };
}

/** A function from a node to the answer there. */
function answersOf({ answers, which }) {
  const at = unpacked(which);
  return (node) => answers[at[node]];
}
