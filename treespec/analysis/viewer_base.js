// Data, state, and small helpers. The files viewer_*.js are one script, in this order:
// base, text, tree, moves, keys.

// Text only ever enters the page as text: through textContent, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const MEANINGS = {
  root: "the last token of the text; the tree grows below it",
  accepted: "drafted, and the target keeps it",
  rejected: "its parent was reached, another token was taken",
  unreached: "its parent is not on the accepted path",
  cut: "accepted, then cut by a stop or a length limit",
  bonus: "the target's own token, after a path that was accepted to its leaf",
  recovered: "the target's own token, after a rejection",
};
const ROW = 32, HEIGHT = 25, PAD = 10, GAP = 34, MARGIN = 6, LONGEST = 26;
const PROMPT_SHOWN = 260, LEAST_SCALE = 0.72;
const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const CONTROL = /([\u2400-\u2423]|⟨[0-9A-Fa-f+U ]+⟩)/;

const state = { prompt: 0, step: 0, node: 0, query: "", hits: [], timer: null };
let spans = [], tokenSpans = [], nodeGroups = [], edges = [];

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
/** Append text, with signs of what cannot be seen set back. */
function append(element, text, sign) {
  text.split(CONTROL).forEach((part, place) => {
    if (part) element.append(place % 2 ? sign(data.printed[part] ?? part) : part);
  });
  return element;
}
const spanSign = (part) => make("span", "control", part);
const svgSign = (part) => draw("tspan", { class: "control" }, part);
const printed = (text) => text.replace(/[\u2400-\u2421]/g, (sign) => data.printed[sign] ?? sign);

const prompt = () => data.prompts[state.prompt];
const step = () => prompt().steps[state.step];
const label = (token) => data.labels[token];
const kindOf = (tree, node) => data.kinds[tree.status[node]];
const clip = (text) => {
  const chars = [...text];
  if (chars.length <= LONGEST) return text;
  return chars.slice(0, 15).join("") + "…" + chars.slice(-10).join("");
};
const ms = (s) => {
  if (s === null) return "–";
  const value = s * 1000;
  if (value > 0 && value < 0.01) return "< 0.01 ms";
  return (value >= 100 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3))) + " ms";
};
const digits = (p) => {
  if (p === null) return "–";
  return p === 0 || p >= 0.001 ? p.toFixed(3) : p.toExponential(0);
};
const short = (p) => {
  if (p === null) return "–";
  if (p === 0 || p >= 0.01) return p.toFixed(2).replace(/^0/, "");
  return p >= 0.001 ? p.toFixed(3).replace(/^0/, "") : p.toExponential(0);
};
const many = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
