// The page's data, unpacked: see payload.py and packing.py.

const ARRAYS = { "<u1": Uint8Array, "<u2": Uint16Array, "<u4": Uint32Array, "<f8": Float64Array };

/** Numbers as they were packed, in an array of their type. */
function unpacked({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ARRAYS[type](bytes.buffer);
}

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

/** A router with the node where each query ends, an array for each alpha. */
function unpackedRouter(raw) {
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

/** Everything the page knows; arrays over queries and nodes have a row of queries for each node. */
function readCache(text) {
  const raw = JSON.parse(text), dataset = unpacked(raw.queries.dataset);
  const sizes = new Array(raw.datasets.length + 1).fill(0);
  for (const number of dataset) sizes[number] += 1;
  sizes[raw.datasets.length] = dataset.length; // all of them
  return {
    ...raw,
    ...treeShape(raw.models.length, raw.hops),
    ids: raw.queries.id,
    count: dataset.length,
    dataset,
    sizes,
    nodes: unpackedCalls(raw.nodes),
    direct: unpackedCalls(raw.direct),
    routers: raw.routers.map(unpackedRouter),
    texts: new Map(Object.entries(raw.texts).map(([row, texts]) => [Number(row), texts])),
  };
}
