// The tree of the step, and the chosen node.

const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();
function widthOf(text, font) {
  const key = font + text;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}
const mono = getComputedStyle(document.documentElement).getPropertyValue("--mono");
const FONT = `600 12.5px ${mono}`, SMALL = `10.5px ${mono}`;

function figuresOf(tree, node) {
  if (node === 0 || node > tree.draft.length) return "";
  const letter = data.sources.length > 1 ? `${sourceLetter(tree.source[node - 1])} ` : "";
  return `${letter}${short(tree.draft[node - 1])}→${short(tree.target[node - 1])}`;
}
const sourceLetter = (source) => LETTERS[source] ?? String(source);
function depthsOf(parents) {
  const depths = [];
  parents.forEach((parent, node) => depths.push(node ? depths[parent] + 1 : 0));
  return depths;
}
/** Place the tidy tree, drawn from left to right: a column is as wide as its labels. */
function placed(tree) {
  const depths = depthsOf(tree.parents), columns = [];
  const boxes = tree.tokens.map((token, node) => {
    const name = `${data.marks[tree.status[node]]} ${clip(label(token))}`;
    const shown = printed(name);
    const figures = figuresOf(tree, node);
    const small = figures ? widthOf(figures, SMALL) + 10 : 0;
    const width = widthOf(shown, FONT) + small + 2 * PAD;
    columns[depths[node]] = Math.max(columns[depths[node]] ?? 0, width);
    return { name, figures, width, depth: depths[node], y: MARGIN + (tree.x[node] + 0.5) * ROW };
  });
  const lefts = [MARGIN];
  columns.forEach((width) => lefts.push(lefts[lefts.length - 1] + width + GAP));
  boxes.forEach((box) => { box.left = lefts[box.depth]; });
  return boxes;
}
function showTree() {
  const tree = step(), boxes = placed(tree), svg = $("tree");
  const width = Math.max(...boxes.map((box) => box.left + box.width)) + MARGIN;
  const height = (Math.max(...tree.x) + 1) * ROW + 2 * MARGIN;
  const stage = $("stage");
  const scale = Math.min(1, Math.max(LEAST_SCALE, (stage.clientWidth - 12) / width));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", Math.round(width * scale));
  svg.setAttribute("height", Math.round(height * scale));
  edges = tree.parents.map((parent, node) => (node ? edge(tree, node, boxes[parent], boxes[node]) : null));
  nodeGroups = boxes.map((box, node) => nodeGroup(tree, node, box));
  const order = edges.slice(1).sort((a, b) => a.order - b.order).map((item) => item.path);
  svg.replaceChildren(...order, ...nodeGroups);
  showLegend(tree);
  choose(tree.next_kind ? tree.tokens.length - 1 : 0);
  stage.scrollLeft = 0;
  stage.scrollTop = boxes[0].y * scale - stage.clientHeight / 2;
  reveal(state.node);
}
/** Scroll the stage, and never the page, until a node is in sight. */
function reveal(node) {
  const stage = $("stage"), seen = stage.getBoundingClientRect();
  const at = nodeGroups[node].getBoundingClientRect();
  const beyond = (low, high, least, most) =>
    Math.min(low - least, 0) || Math.max(high - most, 0);
  stage.scrollLeft += beyond(at.left, at.right, seen.left, seen.right);
  stage.scrollTop += beyond(at.top, at.bottom, seen.top, seen.bottom);
}
function edge(tree, node, above, box) {
  const kind = kindOf(tree, node), start = above.left + above.width, bend = (start + box.left) / 2;
  const d = `M${start} ${above.y}C${bend} ${above.y} ${bend} ${box.y} ${box.left} ${box.y}`;
  const order = ["unreached", "rejected", "cut", "accepted", "bonus", "recovered"].indexOf(kind);
  return { order, path: draw("path", { class: `edge ${kind}`, d }) };
}
function nodeGroup(tree, node, box) {
  const kind = kindOf(tree, node), top = box.y - HEIGHT / 2;
  const hit = state.query && matches(tree.tokens[node]) ? " hit" : "";
  const group = draw("g", {
    class: `node ${kind}${hit}`, role: "button", tabindex: -1, "aria-label": told(tree, node),
  });
  const shape = { class: "pill", y: top, x: box.left, width: box.width, height: HEIGHT, rx: HEIGHT / 2 };
  const ring = {
    class: "ring", y: top - 3, x: box.left - 3, width: box.width + 6, height: HEIGHT + 6,
    rx: HEIGHT / 2 + 3,
  };
  group.append(draw("rect", ring), draw("rect", shape));
  group.append(append(draw("text", { x: box.left + PAD, y: box.y + 4.3 }), box.name, svgSign));
  if (box.figures) {
    group.append(draw("text", {
      class: "small", x: box.left + box.width - PAD, y: box.y + 3.8,
    }, box.figures));
  }
  group.dataset.node = node;
  return group;
}
function told(tree, node) {
  const words = [label(tree.tokens[node]), kindOf(tree, node)];
  if (node && node <= tree.draft.length) {
    words.push(`draft ${digits(tree.draft[node - 1])}`, `target ${digits(tree.target[node - 1])}`);
    words.push(`rank ${tree.ranks[node - 1]}`, data.sources[tree.source[node - 1]]);
  }
  return words.join(", ");
}
function choose(node) {
  const tree = step();
  nodeGroups[state.node]?.classList.remove("chosen");
  nodeGroups[state.node]?.setAttribute("tabindex", -1);
  edges.forEach((item) => item?.path.classList.remove("lit"));
  state.node = node;
  nodeGroups[node].classList.add("chosen");
  nodeGroups[node].setAttribute("tabindex", 0);
  for (let at = node; at > 0; at = tree.parents[at]) edges[at].path.classList.add("lit");
  showNode(tree, node);
}
function showNode(tree, node) {
  const kind = kindOf(tree, node), token = tree.tokens[node], list = make("dl", "figures");
  const head = append(make("div", "token"), label(token), spanSign);
  const verdict = make("p", "verdict", `${data.marks[tree.status[node]]} ${kind}: ${MEANINGS[kind]}`);
  if (node && node <= tree.draft.length) {
    const at = node - 1;
    row(list, "draft", digits(tree.draft[at]), tree.draft[at], "draft");
    row(list, "target", digits(tree.target[at]), tree.target[at]);
    list.append(make("div", "rule"));
    row(list, "path, drafted", digits(pathProb(tree, node)));
    const best = tree.optimal[tree.parents[node]];
    if (best !== undefined) row(list, "best rule keeps one", digits(best));
    row(list, "source", data.sources[tree.source[at]]);
    row(list, "rank", String(tree.ranks[at]));
  }
  row(list, "depth", String(depthsOf(tree.parents)[node]));
  row(list, "token id", String(data.ids[token]));
  $("node-facts").replaceChildren(head, verdict, list);
}
function pathProb(tree, node) {
  let prob = 1;
  for (let at = node; at > 0; at = tree.parents[at]) prob *= tree.draft[at - 1] ?? 1;
  return prob;
}
function showLegend(tree) {
  const items = data.kinds.map((kind, place) => [data.marks[place], kind, place])
    .filter(([, , place]) => tree.status.includes(place));
  if (data.sources.length > 1) {
    [...new Set(tree.source)].sort((a, b) => a - b)
      .forEach((source) => items.push([sourceLetter(source), data.sources[source]]));
  }
  if (tree.draft.length) items.push([".5→.9", " draft→target probability"]);
  $("legend").replaceChildren(...items.map(([mark, name]) => {
    const item = make("li");
    item.append(make("b", "", mark), ` ${name}`);
    return item;
  }));
}
