// The page: what is asked, the traces, the step, and the panels.

// Groups of models that are shown side by side, one group at a time; null: the server says which.
const recorded = JSON.parse(byId("recorded").textContent);
const KEY = "statewise-key";
// `fields`: what the traces shown were asked with; `asked`: the last request of each model; `waiting`: those without an
// answer; `arriving`: the promise of traces that will replace all; `waits`: the group whose models the server loads; `leftOut`: models that it cannot show.
const page = { groups: [], group: null, models: [], traces: new Map(), forced: new Map(), step: 1, playing: null, fields: null, asked: new Map(), waiting: new Set(), arriving: null, recording: null, waits: null, leftOut: {} };

// Whether the server answers for the models shown; otherwise their traces are recorded.
const live = () => page.group.live;

// The server

async function request(path, body) {
  const headers = { "content-type": "application/json" }, stored = sessionStorage.getItem(KEY);
  if (stored) headers.authorization = `Bearer ${stored}`;
  let answer;
  try {
    answer = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  } catch {
    throw new Error("The server does not answer: it may have been stopped. Start it again, then choose Trace.");
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok && content) return content;
  const error = new Error(content?.error?.message ?? `The server answered with status ${answer.status}.`);
  error.status = answer.status;
  throw error;
}

function say(error) {
  byId("error").hidden = !error;
  byId("error").textContent = error ? error.message : "";
}

// What is asked

const chosen = () => page.models.filter((model) => byId("models").querySelector(`[data-model="${CSS.escape(model.name)}"]`).checked);
const viewOf = (model) => views[model.view] ?? views.tokens;

const typed = () => ({ prompt: byId("prompt").value, goal: byId("goal").value.trim() ? byId("goal").value : null, max_tokens: Number(byId("limit").value),
  temperature: Number(byId("temperature").value), seed: Number(byId("seed").value) });

function wish(model, fields, forced) {
  return { ...fields, model: model.name, forced: forced?.tokens ?? [], goal: model.goal ? fields.goal : null,
    max_tokens: Math.max(fields.max_tokens, forced?.tokens.length ?? 0), top: model.top };
}

// Traces of some models that replace those shown of them, with the tokens that are forced; `at` is the step to show
// afterwards, null: where the prompt ends. Nothing happens while traces arrive that replace all.
const trace = (models, how) => page.arriving ? undefined : ask(models, how);

// Traces of what is typed now: once they are there, they replace all others.
function restart() {
  const arriving = ask(chosen(), { anew: true }).finally(() => { if (page.arriving === arriving) page.arriving = null; });
  page.arriving = arriving;
  return arriving;
}

async function ask(models, { at = null, anew = false, forced = null } = {}) {
  const mine = {}, fields = anew || !page.fields ? typed() : page.fields;
  if (anew) page.asked.clear();
  for (const model of models) page.asked.set(model.name, mine);
  const current = () => models.every((model) => page.asked.get(model.name) === mine);
  stop();
  page.waiting.add(mine);
  byId("panels").setAttribute("aria-busy", "true");
  try {
    const found = !live() ? models.map((model) => page.recording.traces[model.name])
      : await Promise.all(models.map((model) => request("/v1/trace", wish(model, fields, forced))));
    if (!current()) return;
    say(null);
    if (anew) {
      page.forced.clear();
      page.traces.clear();
    }
    if (anew) page.fields = fields;
    models.forEach((model, index) => {
      page.traces.set(model.name, found[index]);
      if (forced) page.forced.set(model.name, forced);
      else page.forced.delete(model.name);
    });
  } catch (error) {
    if (!current()) return;
    if (error.status === 401) return askKey();
    say(error);
    return;
  } finally {
    page.waiting.delete(mine);
    if (!page.waiting.size) byId("panels").removeAttribute("aria-busy");
  }
  const shown = chosen().map((model) => page.traces.get(model.name)).filter(Boolean);
  if (shown.length) page.step = at ?? opening(shown)[0];
  render();
}

// The step to begin with: where the models' next tokens differ most after the same tokens, if a token follows: after
// the last one of a task nothing is predicted. Where they hardly differ, or there is one model, the end of the prompt,
// or the first token if the prompt is all. Also by how much they differ, at least 0.1.
function opening(traces) {
  const [first] = traces, usual = first.prompt < first.places.length ? first.prompt : 1;
  const last = Math.min(...traces.map((found) => found.places.length));
  let best = usual, most = 0.1;
  for (let step = 1; step < last; step++) {
    const places = traces.map((found) => found.places[step - 1]);
    if (places.some((place) => place.token !== places[0].token)) break;
    if (step < usual) continue;
    const apart = Math.max(...places.flatMap((one, index) => places.slice(index + 1).map((other) => variation(one.next, other.next))));
    if (apart > most) [best, most] = [step, apart];
  }
  return best === usual && traces.length > 1 ? [beliefsApart(traces, last) ?? usual, most] : [best, most];
}

// The step where the beliefs read off the models differ most in their distance from the exact ones; null: none is known.
function beliefsApart(traces, last) {
  const gap = ({ true_at: exact, read_at: read }) => exact && read ? Math.max(...exact.map((point, index) => Math.hypot(point[0] - read[index][0], point[1] - read[index][1]))) : NaN;
  let best = null, most = 0.1;
  for (let step = 1; step <= last; step++) {
    const gaps = traces.map((found) => gap(found.places[step - 1])), apart = Math.max(...gaps) - Math.min(...gaps);
    if (apart > most) [best, most] = [step, apart];
  }
  return best;
}

// What a panel may ask for

const actions = {
  go(step) { stop(); page.step = step; render(); },
  canForce: (panel) => live() && panel.step >= panel.trace.prompt && panel.step < panel.model.context && !panel.ended,
  force(panel, token) {
    const { model, trace: found } = panel, before = page.forced.get(model.name), place = panel.step;
    const tokens = found.places.slice(found.prompt, place).map((one) => one.token);
    const places = new Set([...(before?.places ?? [])].filter((one) => one < place));
    return trace([model], { at: place + 1, forced: { tokens: [...tokens, token], places: places.add(place) } });
  },
  forcedAt: (panel, place) => page.forced.get(panel.model.name)?.places.has(place) ?? false,
  canChoose: (panel) => actions.canForce(panel) || (live() && mode() === "goal"),
  choose(panel, token) {
    if (mode() !== "goal") return actions.canForce(panel) ? actions.force(panel, token) : undefined;
    byId("goal").value = panel.text(token);
    return restart();
  },
};
const mode = () => document.querySelector("#mode input:checked").value;

// The panels

function drawPanel(model) {
  const found = page.traces.get(model.name);
  if (!found) return null;
  const panel = new Panel(model, found, page.step, actions), view = viewOf(model), forced = page.forced.get(model.name);
  const plain = Boolean(view.plainTokens), drawn = view.draw(panel);
  const notes = [];
  if (page.fields?.goal && !model.goal && live()) notes.push(el("p", { class: "note warn" }, "This model cannot condition on a goal; it was traced without one."));
  if (forced) notes.push(el("p", { class: "note" }, `Forced: ${[...forced.places].map((place) => visible(panel.text(found.places[place].token))).join(", ")}. `,
    el("button", { type: "button", class: "plain", "data-key": `${model.name}-undo`, onclick: () => trace([model]) }, "Undo")));
  return el("article", { "aria-label": model.name, "data-model-panel": model.name },
    el("header", {}, el("h2", {}, el("i", { class: "swatch", "--own": model.colour }), model.name), el("span", { class: "kind" }, `${model.objective} on ${model.backbone}`)),
    notes,
    el("div", { class: plain || !drawn ? "body" : "body beside" }, drawn,
      el("div", { class: "rest" }, tokenList(panel, plain), el("div", { class: "two" }, nextTokens(panel), stateRows(panel), plane(panel)))));
}

function statusOf(model) {
  const found = page.traces.get(model.name);
  if (!found) return null;
  const panel = new Panel(model, found, page.step, actions);
  if (panel.ended) return `${model.name} has ended`;
  const best = panel.place.next.slice(0, 2).map(([token, logp]) => `${visible(panel.text(token))} ${percent(Math.exp(logp))}`);
  return `${model.name}: next ${best.join(", ")}`;
}

function render() {
  const focus = document.activeElement?.getAttribute?.("data-key");
  const models = chosen(), last = Math.max(1, ...models.map((model) => page.traces.get(model.name)?.places.length ?? 1));
  page.step = Math.max(1, Math.min(page.step, last));
  byId("panels").replaceChildren(...models.map(drawPanel).filter(Boolean));
  byId("panels").classList.toggle("several", models.length > 1);
  byId("form").hidden = models.length < 2;
  byId("steps").hidden = !byId("panels").children.length;
  byId("slider").max = last;
  byId("slider").value = page.step;
  byId("count").textContent = `${page.step} of ${last}`;
  byId("slider").setAttribute("aria-valuetext", `token ${page.step} of ${last}`);
  byId("previous").disabled = page.step <= 1;
  byId("next").disabled = page.step >= last;
  const one = page.traces.get(models[0]?.name), at = one && one.places[Math.min(page.step, one.places.length) - 1];
  byId("status").textContent = at ? [`Token ${page.step} of ${last}, ${visible(one.texts[at.token])}`, ...models.map(statusOf)].filter(Boolean).join(". ") + "." : "";
  byId("mode").hidden = !live() || !models.some((model) => viewOf(model).choosesGoal && model.goal);
  for (const now of document.querySelectorAll("ol.tokens > .now")) {
    const list = now.parentElement;
    list.scrollTop = now.offsetTop - (list.clientHeight - now.offsetHeight) / 2;
  }
  if (tour.outlined) outline(tour.outlined);
  if (focus) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

// Steps

function naming(id, sign, name) {
  byId(id).textContent = sign;
  byId(id).setAttribute("aria-label", name);
  byId(id).title = `${name} (space)`;
}
function stop() {
  clearInterval(page.playing);
  page.playing = null;
  byId("play").setAttribute("aria-pressed", "false");
  naming("play", "▶", "Play");
}
function play() {
  if (page.playing) return stop();
  if (page.step >= Number(byId("slider").max)) page.step = 0;
  page.playing = setInterval(() => {
    if (page.step >= Number(byId("slider").max)) return stop();
    page.step += 1;
    render();
  }, 800);
  byId("play").setAttribute("aria-pressed", "true");
  naming("play", "❚❚", "Pause");
}
const step = (by) => { stop(); page.step += by; render(); };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("steps").hidden) return;
  const name = event.target.tagName, typing = name === "TEXTAREA" || name === "SELECT" || (name === "INPUT" && event.target.type !== "checkbox");
  if (typing) return;
  const act = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => step(-Infinity), End: () => step(Infinity) }[event.key]
    ?? (event.key === " " && name !== "BUTTON" && name !== "INPUT" && event.target.getAttribute("role") !== "button" ? play : null);
  if (!act) return;
  event.preventDefault();
  act();
});

// From the beginning

function fill(index) {
  if (!live()) {
    page.recording = page.group.recordings[index];
    byId("goal").value = "";
    return;
  }
  const example = page.models[0].examples[index];
  byId("prompt").value = example.prompt;
  byId("limit").value = example.limit;
}

function askKey() {
  byId("key-form").hidden = false;
  byId("ask").hidden = true;
  if (sessionStorage.getItem(KEY)) say(new Error("The server did not accept the key."));
  byId("key").focus();
}

// Held-out prompts of the group that is shown, and the fields for prompts of one's own if the server answers.
function offer() {
  const [model] = page.models;
  const prompts = (live() ? model.examples : page.group.recordings).map((one) => one.prompt);
  byId("examples").replaceChildren(...prompts.map((text, index) => el("option", { value: index }, `${index + 1}. ${shortened(visible(text))}`)));
  byId("about").textContent = page.group.about ?? `Task ${model.task}`;
  byId("source").textContent = live() ? "" : page.waits === page.group ? "Recorded traces, until the server has loaded the models."
    : `Recorded traces of held-out prompts.${recorded.live === undefined ? " With a server, prompts can be typed and tokens chosen." : ""}`;
  byId("own").hidden = !live();
  byId("temperature").value = model.temperature;
  for (const field of document.querySelectorAll(".live")) field.hidden = !live();
  byId("goal-field").hidden = !live() || !page.models.some((one) => one.goal);
}

// A model of the group is shown or hidden.
async function choose(model, shown) {
  while (page.arriving) await page.arriving;
  return page.traces.has(model.name) || !shown ? render() : trace([model], { at: page.step });
}

// Groups, a tab for each

function boxes() {
  byId("models").replaceChildren(byId("models").firstElementChild, ...page.models.map((model) => el("label", {},
    el("input", { type: "checkbox", "data-model": model.name, checked: true, onchange: (event) => choose(model, event.target.checked) }), model.name)),
    ...Object.entries(page.leftOut).map(([name, why]) => el("p", { class: "note warn" }, `${name} cannot be shown: ${why}`)));
  byId("models").hidden = page.models.length < 2 && !Object.keys(page.leftOut).length;
}

function show(group) {
  page.group = group;
  page.models = group.models;
  for (const tab of byId("tabs").children) {
    tab.setAttribute("aria-selected", String(tab.group === group));
    tab.tabIndex = tab.group === group ? 0 : -1;
  }
  closeTour();
  boxes();
  offer();
  fill(0);
  page.traces.clear();
  byId("panels").replaceChildren();
  return restart();
}

function makeTabs() {
  byId("tabs").replaceChildren(...page.groups.map((group) => {
    const tab = el("button", { type: "button", role: "tab", "aria-controls": "panels", onclick: () => show(group) }, group.name ?? group.models[0].task);
    tab.group = group;
    return tab;
  }));
  byId("tabs").hidden = page.groups.length < 2;
}
byId("tabs").addEventListener("keydown", (event) => {
  const all = [...byId("tabs").children], by = { ArrowLeft: -1, ArrowRight: 1 }[event.key], place = all.indexOf(event.target);
  if (!by || place < 0) return;
  event.preventDefault();
  event.stopPropagation();
  const other = all[(place + by + all.length) % all.length];
  other.focus();
  other.click();
});

const shortened = (text) => text.length > 90 ? `${text.slice(0, 88)}…` : text;

// What the server has: models by the sequences that they read, or those of the group that is shown already.
function connected(described) {
  page.leftOut = described.left_out ?? {};
  const by = new Map();
  for (const model of described.models) by.set(model.sequences, [...(by.get(model.sequences) ?? []), model]);
  if (!recorded) {
    page.groups = [...by.values()].map((models) => ({ models, live: true }));
    return;
  }
  const group = page.waits;
  page.waits = null;
  group.models = described.models;
  group.live = true;
  if (page.group !== group) return;
  const shown = new Set(chosen().map((model) => model.name)), index = byId("examples").value;
  page.models = group.models;
  boxes();
  for (const box of byId("models").querySelectorAll("input")) box.checked = shown.has(box.dataset.model);
  offer();
  byId("examples").value = index;
  fill(Number(index));
  page.fields = typed();
  render();
}

async function begin() {
  byId("key-form").hidden = true;
  if (recorded && !page.group) {
    page.groups = recorded.groups ?? [recorded];
    page.waits = page.groups[recorded.live] ?? null;
    begun();
  }
  if (recorded && !page.waits) return;
  try {
    connected(await request("/v1/trace"));
  } catch (error) {
    byId("loading").hidden = true;
    if (error.status === 401) return askKey();
    byId("key-form").hidden = !sessionStorage.getItem(KEY);
    return say(error);
  }
  say(null);
  if (!recorded) begun();
}

// Shows the first group.
function begun() {
  byId("ask").hidden = false;
  makeTabs();
  const arriving = show(page.groups[0]);
  arriving.finally(() => {
    byId("loading").hidden = true;
    if (page.traces.size) offerTour();
  });
}

byId("examples").addEventListener("change", () => { fill(Number(byId("examples").value)); restart(); });
byId("ask").addEventListener("submit", (event) => { event.preventDefault(); restart(); });
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); restart(); }
});
byId("slider").addEventListener("input", () => { stop(); page.step = Number(byId("slider").value); render(); });
byId("previous").addEventListener("click", () => step(-1));
byId("next").addEventListener("click", () => step(1));
byId("play").addEventListener("click", play);
for (const choice of document.querySelectorAll("#mode input")) choice.addEventListener("change", render);
byId("own").addEventListener("click", () => byId("own").setAttribute("aria-expanded", String(byId("ask").classList.toggle("own"))));
byId("form").addEventListener("click", () => {
  const whole = byId("panels").classList.toggle("whole");
  byId("form").setAttribute("aria-pressed", String(whole));
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!/^[!-~]+$/.test(key)) return say(new Error("A key holds printable ASCII characters only, no spaces."));
  sessionStorage.setItem(KEY, key);
  begin();
});
begin();
