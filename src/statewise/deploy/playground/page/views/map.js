// Rides through a city: the streets near the ride, the way so far, legal turns, and where the model thinks it is.

views.map = {
  asked: "A ride through a city of one-way streets: origin, destination, then turns. The model has seen turns alone, never the map.",
  draw(panel) {
    const { scene, places, texts } = panel.trace, { model, step, actions } = panel;
    if (!scene.crossings) return null;
    const number = new Map(Object.entries(scene.crossings).map(([id, [name]]) => [name, Number(id)]));
    const map = scaled(Object.values(scene.crossings).map(([, x, y]) => [x, y]), 400, 24, 0.95);
    const at = (id) => { const found = scene.crossings[id]; return found ? map.to([found[1], found[2]]) : null; };
    const name = (id) => scene.crossings[id]?.[0] ?? "";
    const stood = places.map((place, index) => {
      const certain = index >= 1 && place.true?.find(([, weight]) => weight > 0.5);
      return certain ? number.get(model.states[certain[0]]) : undefined;
    });
    const now = stood[step - 1], way = stood.slice(1, step).filter((id) => id !== undefined);
    const ridden = new Set(way.slice(1).map((id, index) => `${way[index]} ${id}`));
    const streets = scene.streets.map(([begin, end]) => {
      const [[x1, y1], [x2, y2]] = [at(begin), at(end)];
      return svg("line", { class: ridden.has(`${begin} ${end}`) ? "street ride" : "street", x1, y1, x2, y2 });
    });
    const both = new Set(scene.streets.map(([begin, end]) => `${begin} ${end}`));
    const arrows = scene.streets.filter(([begin, end]) => !both.has(`${end} ${begin}`)).map(([begin, end]) => {
      const [[x1, y1], [x2, y2]] = [at(begin), at(end)], angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI;
      return svg("path", { class: "one-way", d: "M-4 -4 L4 0 L-4 4 Z", transform: `translate(${(x1 + x2) / 2} ${(y1 + y2) / 2}) rotate(${angle.toFixed(1)})` });
    });
    streets.sort((a, b) => a.classList.contains("ride") - b.classList.contains("ride"));
    const crossings = Object.keys(scene.crossings).map((id) => { const [cx, cy] = at(id); return svg("circle", { class: "crossing", cx, cy, r: 2 }, svg("title", {}, name(id))); });
    const read = places[step - 1].true ? places[step - 1].read || [] : []; // else the reading was not fitted to such positions
    const maybe = read.map(([index, weight]) => {
      const point = at(number.get(model.states[index]));
      return point && weight > 0.02 ? svg("circle", { class: "maybe", cx: point[0], cy: point[1], r: 3 + 9 * Math.sqrt(Math.min(1, weight)) }, svg("title", {}, `${model.states[index]}: ${weight.toFixed(2)}`)) : null;
    });
    const turns = now === undefined ? [] : scene.streets.filter(([begin]) => begin === now).map(([, end, token]) => {
      const p = panel.probability(token), [a, b] = [at(now), at(end)], size = Math.hypot(b[0] - a[0], b[1] - a[1]), part = Math.min(1, 24 / size);
      const tip = [a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part], along = [(b[0] - a[0]) / size, (b[1] - a[1]) / size], out = [a[0] + along[0] * 52, a[1] + along[1] * 40];
      const text = texts[token] ?? "";
      const act = actions.canForce(panel) ? () => actions.force(panel, token) : null;
      return svg("g", {}, svg("line", { class: "turn", x1: a[0], y1: a[1], x2: tip[0], y2: tip[1], "stroke-width": (1.5 + 8 * p).toFixed(1) }),
        svg("text", { class: "p halo", x: out[0], y: out[1] + 4, "text-anchor": "middle" }, `${text} ${percent(p)}`),
        act ? svg("line", { class: "turn-hit", x1: a[0], y1: a[1], x2: out[0], y2: out[1], "data-key": `${model.name}-turn-${token}`, ...asButton(`turn ${text} towards ${name(end)}, ${percent(p)}`, act) }) : null);
    });
    const flag = (id, text) => { const [x, y] = at(id); return [svg("circle", { class: "marker-true", cx: x, cy: y, r: 9 }), svg("text", { class: "small halo", x, y: y - 13, "text-anchor": "middle" }, `${text} ${name(id)}`)]; };
    const ready = step >= panel.trace.prompt, lost = ready && now === undefined && !panel.ended;
    const here = at(now), before = at(stood[step - 2]);
    const said = lost ? "the ride has left the streets" : ready ? `the ride is at ${name(now)}` : "the ride has not begun";
    const drawing = svg("svg", { viewBox: `0 0 400 ${map.height.toFixed(1)}`, role: "group", "aria-label": `map; ${said}` }, streets, arrows, crossings,
      flag(scene.origin, "from"), flag(scene.destination, "to"), maybe, here ? turns : null,
      here ? moving(before, here, svg("circle", { class: "marker-read ride", r: 6 })) : null);
    return el("figure", { class: "part" }, drawing,
      lost ? el("p", { class: "note warn" }, "An illegal turn: no street leads there, so the true crossing is no longer defined.") : null,
      el("p", { class: "keys" }, key("ride", "the ride"), key("ring", "from, to"), key("maybe", "where the state says it is"), el("span", { class: "key" }, "blue lines: probability of each legal turn; arrows: one-way")));
  },
};
