// Hidden Markov processes: the exact belief, and that read off the state, moving token by token.

views.belief = {
  asked: "A hidden process writes symbols. The best that one can know of its hidden state is a belief, a probability of each state, which moves with every symbol: the green ring is the exact one, the blue dot the one read off the model.",
  draw(panel) {
    const { model } = panel;
    if (!model.planes.length) return null;
    return el("figure", { class: "part" }, model.planes.map((plane, index) => views.belief.plane(panel, plane, index)),
      el("p", { class: "keys" }, key("ring", "exact belief"), key("dot", "read off the state"),
        el("span", { class: "key" }, `dots: exact beliefs after held-out sequences${model.planes[0].kind === "axes" ? ", on their principal axes" : ""}; line: the last ${TRAIL} tokens`)));
  },
  plane(panel, { name, kind, frame, points, colours }, index) {
    const { model, trace, step } = panel;
    const from = (place, field) => trace.places[place]?.[field]?.[index];
    const every = trace.places.flatMap((place) => [place.true_at?.[index], place.read_at?.[index]]).filter(Boolean);
    const width = 360, map = scaled([...frame.flat(), ...every, ...points], width, 26, 0.85);
    const at = (place, field) => { const point = from(place, field); return point ? map.to(point) : null; };
    const lines = frame.map(([a, b]) => { const [[x1, y1], [x2, y2]] = [map.to(a), map.to(b)]; return svg("line", { class: "frame", x1, y1, x2, y2 }); });
    const dots = points.map((point, place) => {
      const [cx, cy] = map.to(point), dot = svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: points.length > 300 ? 1.4 : 2.6 });
      dot.style.fill = ofBelief(colours[place]);
      return dot;
    });
    const corners = kind === "simplex" ? frame.map(([corner], place) => {
      const [x, y] = map.to(corner);
      return svg("text", { class: "small", x: x + (place === 0 ? -4 : place === 1 ? 4 : 0), y: y + (place === 2 ? -8 : 16), "text-anchor": "middle" }, model.states[place]);
    }) : null;
    const trail = Array.from({ length: TRAIL }, (_, back) => at(step - TRAIL + back, "true_at")).filter(Boolean);
    const now = at(step - 1, "true_at"), read = at(step - 1, "read_at");
    const gap = now && read ? Math.hypot(...from(step - 1, "true_at").map((value, axis) => value - from(step - 1, "read_at")[axis])).toFixed(2) : null;
    return el("div", {}, name ? el("h3", {}, name) : null,
      svg("svg", { viewBox: `0 0 ${width} ${map.height.toFixed(1)}`, role: "img", "aria-label": `${name ? `${name}: ` : ""}${gap === null ? "the exact belief is not known here" : `belief read off the state, ${gap} from the exact one`}` },
        lines, corners, svg("g", { class: "cloud strong" }, dots),
        svg("polyline", { class: "trail", points: trail.map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ") }),
        now && read ? svg("line", { class: "gap", x1: now[0], y1: now[1], x2: read[0], y2: read[1] }) : null,
        now ? moving(at(step - 2, "true_at"), now, svg("circle", { class: "marker-true", r: 9 })) : null,
        read ? moving(at(step - 2, "read_at"), read, svg("circle", { class: "marker-read", r: 6.5 })) : null));
  },
};
