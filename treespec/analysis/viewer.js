"use strict";
(() => {
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

  // --- the text -------------------------------------------------------------------

  function showPrompt() {
    const { id, category, lossless, finish, pieces, prefill, decode } = prompt();
    const facts = [category, many(pieces.length, "new token"), `ended by ${finish}`,
      `lossless: ${lossless}`, `first token ${ms(prefill)}, the rest ${ms(decode)}`];
    $("prompt-facts").textContent = facts.filter(Boolean).join(" · ");
    $("prompts").value = state.prompt;
    const box = $("text");
    box.replaceChildren(promptText(prompt().prompt));
    tokenSpans = pieces.map((piece) => append(make("bdi", "own"), piece, spanSign));
    box.append(...tokenSpans.slice(0, 1));
    spans = prompt().steps.map((tree, index) => {
      const span = make("span", "step future");
      span.title = `step ${tree.step}`;
      for (let place = 0; place < tree.num_committed; place++) {
        const token = tokenSpans[tree.start + place];
        token.className = place < tree.num_accepted ? "accepted" : "own";
        span.append(token);
      }
      span.addEventListener("click", () => go(index));
      box.append(span);
      return span;
    });
    $("slider").max = Math.max(0, spans.length - 1);
    showBars();
  }
  function promptText(text) {
    const box = make("span", "prompt");
    const chars = [...text];
    if (chars.length <= PROMPT_SHOWN) return append(box, text, spanSign);
    const more = make("button", "", `… all ${chars.length.toLocaleString("en")} characters of the prompt`);
    more.type = "button";
    more.addEventListener("click", () => {
      more.remove();
      box.replaceChildren();
      append(box, text, spanSign);
    });
    box.append(more, " ");
    return append(box, chars.slice(-PROMPT_SHOWN).join(""), spanSign);
  }
  function showText(before) {
    const [from, to] = [Math.min(before, state.step), Math.max(before, state.step)];
    for (let index = Math.max(0, from); index <= to && index < spans.length; index++) {
      spans[index].classList.toggle("future", index > state.step);
    }
    spans[before]?.classList.remove("now");
    const now = spans[state.step];
    if (!now) return;
    now.classList.add("now");
    const box = $("text"), place = now.offsetTop - box.offsetTop;
    if (place < box.scrollTop || place + now.offsetHeight > box.scrollTop + box.clientHeight - 8) {
      box.scrollTop = place + now.offsetHeight - box.clientHeight + 30;
    }
  }

  // --- the step -------------------------------------------------------------------

  function row(list, name, value, share, kind) {
    list.append(make("dt", "", name));
    if (share !== undefined) {
      const meter = make("div", `meter ${kind ?? ""}`), bar = make("i");
      bar.style.width = `${Math.min(1, Math.max(0, share ?? 0)) * 100}%`;
      meter.append(bar);
      list.append(meter);
    }
    const cell = make("dd", share === undefined ? "wide" : "");
    cell.append(value);
    list.append(cell);
  }
  function showStep() {
    const tree = step(), list = make("dl", "figures");
    const own = tree.next_kind ? `, 1 ${tree.next_kind}` : ", cut";
    const kept = tree.num_nodes
      ? `${tree.num_accepted} of ${many(tree.num_nodes, "draft")} accepted` : "nothing drafted";
    $("headline").replaceChildren(`Step ${tree.step} `, make("span", "dim", `${kept}${own}`));
    data.phases.forEach((name, place) => {
      const seconds = tree.times[place];
      row(list, name, ms(seconds), seconds / (tree.step_s || 1));
    });
    row(list, "step", ms(tree.step_s));
    row(list, "per token", ms(tree.step_s / Math.max(1, tree.num_committed)));
    list.append(make("div", "rule"));
    if (tree.reason !== null) row(list, "reason", tree.reason);
    const expected = [];
    if (tree.expected_accepted !== null) expected.push(`${tree.expected_accepted.toFixed(2)} accepted`);
    if (tree.expected_s !== null) expected.push(ms(tree.expected_s));
    if (expected.length) row(list, "forecast", expected.join(", "));
    row(list, "budget", `${tree.max_depth} deep, ${tree.max_width} wide, ${many(tree.max_nodes, "node")}`);
    row(list, "set by", tree.budget_by);
    row(list, "drafted", tree.num_candidates === tree.num_nodes
      ? `${tree.num_nodes}, none pruned` : `${tree.num_candidates}, ${tree.num_nodes} verified`);
    row(list, "draft forwards", String(tree.num_draft_forwards));
    row(list, "unread before", many(tree.num_unread, "token"));
    $("step-facts").replaceChildren(list);
  }

  // --- the tree -------------------------------------------------------------------

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

  // --- moving ---------------------------------------------------------------------

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

  // --- searching ------------------------------------------------------------------

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
    if (node > 0) choose(node);
    showMatches();
  }
  function showMatches() {
    const at = state.hits.findIndex((hit) => position(hit) === position(state));
    $("matches").textContent = !state.query ? ""
      : state.hits.length ? `${at + 1} of ${many(state.hits.length, "step")}` : "no match";
  }

  // --- keys and controls ----------------------------------------------------------

  function nextNode(direction) {
    const tree = step(), depths = depthsOf(tree.parents);
    const order = tree.tokens.map((_, node) => node)
      .sort((a, b) => tree.x[a] - tree.x[b] || depths[a] - depths[b]);
    const at = order.indexOf(state.node) + direction;
    const node = order[Math.max(0, Math.min(order.length - 1, at))];
    choose(node);
    nodeGroups[node].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  function toggleTheme() {
    const { dataset } = document.documentElement;
    dataset.theme = dataset.theme === "dark" ? "light" : "dark";
  }
  const KEYS = {
    ArrowLeft: () => { pause(); go(state.step - 1); },
    ArrowRight: () => { pause(); go(state.step + 1); },
    Home: () => { pause(); go(0); },
    End: () => { pause(); go(Infinity); },
    PageUp: () => { pause(); go(state.step - 10); },
    PageDown: () => { pause(); go(state.step + 10); },
    ArrowUp: () => nextNode(-1),
    ArrowDown: () => nextNode(1),
    j: () => goPrompt(state.prompt + 1),
    k: () => goPrompt(state.prompt - 1),
    n: () => nextHit(1),
    N: () => nextHit(-1),
    "/": () => { $("search").focus(); $("search").select(); },
    "?": () => $("help").showModal(),
    t: toggleTheme,
    " ": play,
  };
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    if (target === $("search")) {
      if (key === "Enter") nextHit(event.shiftKey ? -1 : 1);
      if (key === "Escape") target.blur();
      return;
    }
    const native = target.tagName === "SELECT" || (target === $("slider") && key.length > 1)
      || (target.tagName === "BUTTON" && (key === " " || key === "Enter"));
    const stepless = !prompt().steps.length && !"jk/?nNt".includes(key);
    if (native || stepless || !Object.hasOwn(KEYS, key)) return;
    event.preventDefault();
    KEYS[key]();
  });
  const clicks = {
    first: KEYS.Home, back: KEYS.ArrowLeft, forward: KEYS.ArrowRight, last: KEYS.End,
    play, theme: toggleTheme, "open-help": KEYS["?"],
  };
  for (const [id, act] of Object.entries(clicks)) {
    $(id).addEventListener("click", () => {
      if (prompt().steps.length || id === "theme" || id === "open-help") act();
    });
  }
  $("slider").addEventListener("input", (event) => { pause(); go(Number(event.target.value)); });
  $("prompts").addEventListener("change", (event) => goPrompt(Number(event.target.value)));
  const pointer = { x: NaN, y: NaN };
  const chooseAt = (event) => {
    const group = event.target.closest(".node");
    if (group && Number(group.dataset.node) !== state.node) choose(Number(group.dataset.node));
  };
  $("tree").addEventListener("pointermove", (event) => {
    // A tree that is drawn below a pointer at rest must not choose a node.
    if (event.clientX === pointer.x && event.clientY === pointer.y) return;
    [pointer.x, pointer.y] = [event.clientX, event.clientY];
    chooseAt(event);
  });
  $("tree").addEventListener("click", chooseAt);
  $("tree").addEventListener("focusin", chooseAt);
  let typing = null;
  $("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => search(event.target.value), 120);
  });
  let resizing = null;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => show(state.step));
  });

  // --- the start ------------------------------------------------------------------

  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("run-name").textContent = data.name;
  $("note").textContent = data.note;
  $("note").hidden = !data.note;
  $("facts").replaceChildren(...data.facts.map(([name, value]) => {
    const item = make("div");
    item.append(make("dt", "", name), make("dd", "", value));
    return item;
  }));
  $("prompts").replaceChildren(...data.prompts.map((item, place) => {
    const option = make("option", "", item.id);
    option.value = place;
    return option;
  }));
  $("meanings").replaceChildren(...data.kinds.map((kind, place) => {
    const item = make("li");
    item.append(make("b", "", data.marks[place]), ` ${kind}: ${MEANINGS[kind]}`);
    return item;
  }));
  const place = new URLSearchParams(location.hash.slice(1));
  const asked = (name) => Number.parseInt(place.get(name), 10) || 0;
  goPrompt(asked("prompt"), asked("step"));
})();
