// From step to step, from prompt to prompt, from match to match.

function showBars() {
  const { steps } = prompt(), svg = $("bars");
  const tallest = Math.max(1, ...steps.map((tree) => tree.num_committed));
  svg.setAttribute("viewBox", `0 0 ${Math.max(1, steps.length - 1)} ${tallest}`);
  const size = Math.min(0.8, steps.length * 0.02);
  let kept = "", own = "", hits = "";
  const bar = (at, base, height) =>
    `M${at - size / 2} ${tallest - base}v${-height}h${size}v${height}z`;
  steps.forEach((tree, at) => {
    if (tree.num_accepted) kept += bar(at, 0, tree.num_accepted);
    if (tree.next_kind) own += bar(at, tree.num_accepted, 1);
  });
  state.hits.filter((hit) => hit.prompt === state.prompt)
    .forEach((hit) => { hits += bar(hit.step, -0.12 * tallest, 0.08 * tallest); });
  svg.replaceChildren(draw("path", { class: "kept", d: kept }), draw("path", { class: "own", d: own }),
    draw("path", { class: "hits", d: hits }));
}
function show(before) {
  const { steps } = prompt();
  if (!steps.length) {
    $("headline").textContent = "No steps: the text is one token long";
    ["step-facts", "node-facts", "tree", "legend"].forEach((id) => $(id).replaceChildren());
    $("place").textContent = "no steps";
    return;
  }
  showText(before);
  showStep();
  showTree();
  $("slider").value = state.step;
  $("slider").setAttribute("aria-valuetext", $("headline").textContent);
  $("place").textContent = `step ${state.step} of ${steps.length - 1}`;
  remember();
}
function go(target) {
  const most = prompt().steps.length - 1, before = state.step;
  state.step = Math.max(0, Math.min(most, target));
  show(before);
}
function goPrompt(target, at = 0) {
  pause();
  state.prompt = Math.max(0, Math.min(data.prompts.length - 1, target));
  state.step = Math.max(0, Math.min(prompt().steps.length - 1, at));
  showPrompt();
  markText();
  for (let index = 0; index < state.step; index++) spans[index].classList.remove("future");
  show(state.step);
}
let waiting = null;
function remember() {
  clearTimeout(waiting); // browsers slow a page down that writes its address too often
  waiting = setTimeout(() => {
    history.replaceState(null, "", `#prompt=${state.prompt}&step=${state.step}`);
  }, 300);
}
function pause() {
  clearTimeout(state.timer);
  state.timer = null;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-label", "Play");
}
function play() {
  if (state.timer !== null) return pause();
  if (state.step >= prompt().steps.length - 1) go(0);
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-label", "Pause");
  const next = () => {
    if (state.step >= prompt().steps.length - 1) return pause();
    state.timer = setTimeout(() => { go(state.step + 1); next(); }, Math.max(30, step().step_s * 1000));
  };
  next();
}

const plain = (text) => text.replaceAll("␣", " ").replaceAll("␊\n", "␊").toLowerCase();
let wanted = new Set();
const matches = (token) => wanted.has(token);
function search(query) {
  state.query = query;
  state.hits = [];
  wanted = new Set();
  if (query) {
    const sought = plain(query), id = /^#\d+$/.test(query) ? Number(query.slice(1)) : null;
    data.labels.forEach((text, token) => {
      if (id === data.ids[token] || (id === null && plain(text).includes(sought))) wanted.add(token);
    });
    data.prompts.forEach((item, place) => searchPrompt(item, place, sought));
  }
  markText();
  showBars();
  if (query && state.hits.length) return nextHit(0);
  show(state.step);
  showMatches();
}
function searchPrompt(item, place, sought) {
  const steps = new Map();
  const note = (index, token) => {
    if (!steps.has(index)) steps.set(index, []);
    if (token !== undefined) steps.get(index).push(token);
  };
  const ends = [];
  let text = "";
  item.pieces.forEach((piece) => { text += plain(piece); ends.push(text.length); });
  let token = 0, index = 0;
  for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + 1)) {
    while (ends[token] <= at) token++;
    while (index + 1 < item.steps.length && item.steps[index + 1].start <= token) index++;
    if (!item.steps.length) break;
    for (let last = token; last === token || ends[last - 1] < at + sought.length; last++) {
      note(index, last);
    }
  }
  item.steps.forEach((tree, number) => {
    if (tree.tokens.slice(1).some(matches)) note(number);
  });
  [...steps.keys()].sort((a, b) => a - b)
    .forEach((number) => state.hits.push({ prompt: place, step: number, tokens: steps.get(number) }));
}
function markText() {
  tokenSpans.forEach((span) => span.classList.remove("hit"));
  state.hits.filter((hit) => hit.prompt === state.prompt)
    .forEach((hit) => hit.tokens.forEach((token) => tokenSpans[token]?.classList.add("hit")));
}
const position = (hit) => hit.prompt * 1e7 + hit.step;
/** Go to the next match: 0 allows the step shown, 1 and -1 do not. */
function nextHit(direction) {
  if (!state.hits.length) return;
  const here = position(state), { hits } = state;
  const found = direction < 0
    ? hits.findLast((hit) => position(hit) < here) ?? hits[hits.length - 1]
    : hits.find((hit) => position(hit) >= here + direction) ?? hits[0];
  if (found.prompt === state.prompt) go(found.step);
  else goPrompt(found.prompt, found.step);
  const node = step().tokens.findIndex((token, place) => place && matches(token));
  if (node > 0) {
    choose(node);
    reveal(node);
  }
  showMatches();
}
function showMatches() {
  const at = state.hits.findIndex((hit) => position(hit) === position(state));
  $("matches").textContent = !state.query ? ""
    : state.hits.length ? `${at + 1} of ${many(state.hits.length, "step")}` : "no match";
}
