// Parts that all views share.

const key = (kind, text) => el("span", { class: `key ${kind}` }, el("i"), text);

function tokenList(panel, plain) {
  const { trace, step, actions } = panel;
  const items = trace.places.map((place, index) => {
    const text = panel.text(place.token), legal = panel.wasLegal(index);
    const forced = actions.forcedAt(panel, index);
    const kinds = [index < trace.prompt ? "prompt" : "", index >= step ? "unread" : "", index === step - 1 ? "now" : "",
      forced ? "forced" : "", legal === false && index >= trace.prompt ? "illegal" : "", place.drafted ? "drafted" : ""];
    const surprise = place.log_probability === undefined ? null : -place.log_probability;
    const said = [`${visible(text)}, token ${index + 1}`, surprise === null ? "" : `${nats(surprise)}`,
      forced ? "forced" : "", place.drafted ? "drafted and accepted" : "", legal === false ? "not legal" : ""];
    return el("li", { class: kinds.filter(Boolean).join(" ") },
      el("button", { type: "button", tabindex: index === step - 1 ? "0" : "-1", "data-key": `${panel.model.name}-token-${index}`,
        "aria-current": index === step - 1 ? "step" : null, "aria-label": said.filter(Boolean).join(", "),
        title: said.slice(1).filter(Boolean).join(", "), "--w": surprise === null ? 0 : Math.min(1, surprise / 8).toFixed(3),
        onclick: () => actions.go(index + 1) }, plain ? text.replace(/\n/g, "⏎") || "∅" : visible(text)), plain && text.includes("\n") ? el("br") : null);
  });
  for (const token of trace.goal)
    items.push(el("li", { class: "goal" }, el("button", { type: "button", disabled: true, "aria-label": `goal ${panel.text(token)}` }, visible(panel.text(token)))));
  const drafted = trace.places.some((place) => place.drafted);
  const made = trace.places.length - trace.given;
  return el("section", { class: "part read" },
    el("h3", {}, plain ? "Text, darker where a token surprised the model" : "Tokens"),
    el("ol", { class: plain ? "tokens text" : "tokens" }, items),
    trace.passes !== null
      ? el("p", { class: "keys" }, key("true", drafted ? "underlined: drafted and accepted" : "no draft was accepted"),
        el("span", { class: "key" }, `${made} tokens in ${trace.passes} passes`)) : null);
}

function nextTokens(panel) {
  const { place, actions } = panel;
  if (panel.ended) return el("section", { class: "part next-token" }, el("h3", {}, "Next token"), el("p", { class: "note" }, "The model has ended the sequence."));
  const shown = place.next.slice(0, 8);
  const legal = place.next.filter(([token]) => panel.isLegal(token));
  for (const item of legal) if (!shown.includes(item) && shown.length < 12) shown.push(item);
  const known = place.legal !== undefined, truth = place.true_next !== undefined;
  const rows = shown.map((item) => {
    const [token, logp] = item, p = Math.exp(logp), text = visible(panel.text(token)), may = panel.isLegal(token);
    const real = truth ? place.true_next[place.next.indexOf(item)] : null;
    const said = `${text}, ${percent(p)}${truth ? `, truly ${percent(real)}` : ""}${may === null ? "" : may ? ", legal" : ", not legal"}`;
    const force = actions.canForce(panel);
    return el("tr", {},
      el("th", { scope: "row" }, force
        ? el("button", { type: "button", title: "make it the next token", "aria-label": `make ${said} the next token`, "data-key": `${panel.model.name}-next-${token}`,
          onclick: () => actions.force(panel, token) }, text)
        : el("span", { class: "name" }, text)),
      el("td", {}, el("div", { class: "bar", "--w": p.toFixed(4), "--t": truth ? real.toFixed(4) : 0 }, el("i"), truth ? el("u") : null)),
      el("td", { class: "value" }, percent(p)),
      known ? el("td", { class: `mark ${may ? "legal" : "illegal"}`, title: may ? "legal" : "not legal" }, may ? "✓" : "✗") : null);
  });
  return el("section", { class: "part next-token" }, el("h3", {}, "Next token"),
    el("table", { class: "next" }, el("tbody", {}, rows)),
    truth ? el("p", { class: "keys" }, key("", "model"), key("true", "truth")) : null);
}

function stateRows(panel) {
  const { model, place } = panel;
  if (!model.states || (!place.true && !place.read)) return null;
  const heading = el("h3", {}, "State, read off the model / true");
  if (!place.true) // the reading was not fitted to such positions: what it says there means nothing
    return el("section", { class: "part state" }, heading, el("p", { class: "note" }, "No state is known here. The reading was fitted where one is."));
  const truth = new Map(place.true || []), read = new Map(place.read || []);
  let names = [...new Set([...truth.keys(), ...read.keys()])];
  if (!model.planes.length) { // one true state of many: the likeliest, and the true one
    const certain = names.find((index) => truth.get(index) > 0.5), likely = names.sort((a, b) => (read.get(b) ?? 0) - (read.get(a) ?? 0)).slice(0, 4);
    names = certain === undefined || likely.includes(certain) ? likely : [...likely, certain];
  }
  const share = (value) => (value ?? 0).toFixed(2).replace("-0.00", "0.00"), width = (value) => Math.max(0, Math.min(1, value ?? 0)).toFixed(3);
  const rows = names.map((index) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "name" }, model.states[index])),
    el("td", {}, el("div", { class: "bar thin true", "--w": width(truth.get(index)) }, el("i")),
      place.read ? el("div", { class: "bar thin", "--w": width(read.get(index)) }, el("i")) : null),
    el("td", { class: "value" }, `${place.read ? `${share(read.get(index))} / ` : ""}${share(truth.get(index))}`)));
  const quality = model.reading ? `${model.reading.measure === "R2" ? "R²" : model.reading.measure} ${model.reading.quality.toFixed(2)} on other sequences` : "";
  return el("section", { class: "part state" }, heading,
    el("table", { class: "next" }, el("tbody", {}, rows)),
    el("p", { class: "keys" }, place.read ? key("", `read by least squares${quality ? `, ${quality}` : ""}`) : null, key("true", "truth")));
}

// Maps points to a drawing of the given width; y grows upwards.
function scaled(points, width, margin, most = 1) {
  const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
  const low = [Math.min(...xs), Math.min(...ys)], high = [Math.max(...xs), Math.max(...ys)];
  const size = Math.max(high[0] - low[0], (high[1] - low[1]) / most, 1e-9), k = (width - 2 * margin) / size;
  const height = (high[1] - low[1]) * k + 2 * margin, spare = (width - 2 * margin - (high[0] - low[0]) * k) / 2;
  return { k, height, to: ([x, y]) => [margin + spare + (x - low[0]) * k, height - margin - (y - low[1]) * k] };
}

// A marker that moves from where it was at the step before.
function moving(from, to, ...children) {
  const group = svg("g", { transform: `translate(${to[0]} ${to[1]})` }, children);
  if (from && !still() && group.animate)
    group.animate([{ transform: `translate(${from[0]}px, ${from[1]}px)` }, { transform: `translate(${to[0]}px, ${to[1]}px)` }], { duration: 220, easing: "ease-out" });
  return group;
}

const HUES = [212, 24, 150, 330, 48, 270, 100, 0, 185, 300];
const hue = (index) => `hsl(${HUES[index % HUES.length]} 62% 52%)`;
// The colour of an exact belief, which can be read on the background.
const ofBelief = (colour) => `color-mix(in oklab, ${colour} 75%, var(--ink))`;
// Points before the present one that a trail joins.
const TRAIL = 6;

function plane(panel) {
  const { model, trace, step } = panel;
  const cloud = model.plane.points, own = trace.places.map((place) => place.state), probe = model.plane.axes === "probe";
  const share = model.plane.share.map((value) => `${Math.round(100 * value)}%`).join(" and ");
  const title = probe ? "State on the probe's first two axes" : "State on its first two principal axes";
  if (!cloud.length) return null;
  const width = 320, map = scaled([...cloud, ...own], width, 14, 0.8), at = own.map(map.to), now = at[step - 1];
  const { labels, colours } = model.plane, few = labels && new Set(labels).size <= 11;
  const dots = cloud.map((point, index) => {
    const [x, y] = map.to(point);
    return svg("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 2 });
  });
  dots.forEach((dot, index) => {
    if (colours?.[index]) dot.style.fill = ofBelief(colours[index]);
    else if (few && labels[index] >= 0) dot.style.fill = hue(labels[index]);
  });
  const by = colours ? `coloured by the exact belief${model.planes.length > 1 ? ` about ${model.planes[0].name}` : ""}` : few ? "coloured by the true state" : "";
  const unknown = colours ? colours.includes("") : few && labels.includes(-1);
  const keys = [`held-out states${by ? `, ${by}` : ""}${unknown ? " (grey: no state is known there)" : ""}`, `line: the last ${TRAIL} tokens`, `${share} of the variance${probe ? " of what is read off it" : ""}`];
  const trail = at.slice(Math.max(0, step - TRAIL), step).map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ");
  return el("section", { class: "part plane" }, el("h3", {}, title),
    svg("svg", { viewBox: `0 0 ${width} ${map.height.toFixed(1)}`, role: "img", "aria-label": `the state among held-out ones, on axes with ${share} of the variance` },
      svg("g", { class: "cloud" }, dots), svg("polyline", { class: "trail", points: trail }),
      moving(at[step - 2], now, svg("circle", { class: "marker-read", r: 7 }))),
    el("p", { class: "keys" }, key("dot", "now"), el("span", { class: "key" }, keys.join("; "))));
}
