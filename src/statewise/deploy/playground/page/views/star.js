// Path-star graphs: the graph with arms around the start, the path as it is decoded, probabilities at the nodes.

views.star = {
  asked: "A star graph: arms that leave a start. The prompt lists its edges in any order, then the start and the goal. The model writes the path. The dashed ring marks the arm of the goal: to choose it, a model must look ahead.",
  choosesGoal: true, // a click on a node may make it the goal
  draw(panel) {
    const { scene, places, prompt, goal } = panel.trace;
    if (!scene.edges) return null;
    const arms = views.star.arms(scene);
    const own = arms.find((arm) => arm.includes(scene.goal)) || [];
    const length = Math.max(...arms.map((arm) => arm.length)), gap = Math.max(62, (arms.length > 4 ? 46 : 26) / Math.sin(Math.PI / Math.max(2, arms.length)));
    const angles = arms.map((_, index) => (2 * Math.PI * index) / arms.length - (arms.length === 2 ? 0 : Math.PI / 2));
    // The start's label is where no arm is, best below; those of an arm are on the side away from it.
    const apart = (angle) => Math.min(...angles.map((other) => 1 - Math.cos(angle - other)));
    const free = [2, 1, 3, 0, 4, 7, 5, 6].map((part) => (part * Math.PI) / 4).reduce((one, other) => apart(other) > apart(one) + 1e-6 ? other : one);
    const at = new Map([[scene.start, [0, 0]]]), beside = new Map([[scene.start, [Math.cos(free), Math.sin(free)]]]);
    arms.forEach((arm, index) => {
      const angle = angles[index], normal = [-Math.sin(angle), Math.cos(angle)];
      const towards = normal[0] * Math.cos(free) + normal[1] * Math.sin(free), side = towards > 0.01 || (towards > -0.01 && normal[0] < 0) ? -1 : 1;
      arm.forEach((node, place) => {
        at.set(node, [Math.cos(angle) * (gap + 58 * place), Math.sin(angle) * (gap + 58 * place)]);
        beside.set(node, normal.map((value) => side * value));
      });
    });
    const read = places.slice(prompt, panel.step).map((place) => place.token);
    const edges = scene.edges.map(([one, other]) => {
      const [a, b] = [at.get(one), at.get(other)];
      const taken = read.some((node, index) => index && ((read[index - 1] === one && node === other) || (read[index - 1] === other && node === one)));
      return svg("line", { class: taken ? "edge taken" : "edge", x1: a[0], y1: a[1], x2: b[0], y2: b[1] });
    });
    const shows = panel.step >= prompt && !panel.ended && panel.step < prompt + length + 1;
    const nodes = [...at].map(([node, point]) => views.star.node(panel, node, point, read.indexOf(node), own, shows, beside.get(node)));
    const reach = [...at.values()], pad = 46;
    const box = [0, 1].map((axis) => [Math.min(...reach.map((point) => point[axis])) - pad, Math.max(...reach.map((point) => point[axis])) + pad]);
    if (arms.length !== 2) box[0] = [box[0][0] - 22, box[0][1] + 34]; // labels beside upright arms
    const size = box.map(([low, high]) => high - low), tall = Math.max(size[1], 170);
    const drawing = svg("svg", { viewBox: `${box[0][0]} ${(box[1][0] + box[1][1] - tall) / 2} ${size[0]} ${tall}`, role: "group", "aria-label": "the graph" }, edges, nodes);
    const least = size[0] > 900 ? 0.5 : 0.62; // smaller nodes could not be read
    drawing.style.minWidth = `${size[0] * least}px`;
    drawing.style.maxWidth = `${size[0] * 1.3}px`;
    drawing.style.margin = "0 auto";
    drawing.style.maxHeight = `${Math.max(430, tall * least)}px`;
    const keys = el("p", { class: "keys" }, key("dot", "read"), key("arm", "arm of the goal"),
      el("span", { class: "key" }, shows ? "rings: probability of the next token" : "numbers: probability when chosen"));
    return el("figure", { class: "part" }, el("div", { class: "scroll" }, drawing), keys);
  },
  node(panel, node, [x, y], rank, own, shows, [right, below]) {
    const { scene, prompt, places } = panel.trace, { actions } = panel;
    const p = shows && rank < 0 ? panel.probability(node) : 0, start = node === scene.start;
    const place = prompt + rank, chosen = rank >= 0 ? Math.exp(places[place].log_probability) : null;
    const forced = rank >= 0 && actions.forcedAt(panel, place), wrong = rank >= 0 && panel.wasLegal(place) === false;
    const onArm = own.includes(node) || start, name = panel.text(node) === `token ${node}` ? String(node) : panel.text(node);
    const role = start ? "start" : node === panel.trace.goal[0] ? "goal set" : node === scene.goal ? "goal" : "";
    const said = [`node ${name}`, role, onArm && !start ? "on the arm of the goal" : "", forced ? "forced" : rank >= 0 ? `read, it had ${percent(chosen)}` : shows ? `next with ${percent(p)}` : ""];
    const act = actions.canChoose(panel) ? () => actions.choose(panel, node) : null;
    const turn = 2 * Math.PI * 19, current = rank >= 0 && place === panel.step - 1;
    const kinds = ["node", rank >= 0 ? "taken" : "", forced ? "forced" : "", wrong ? "wrong" : ""].filter(Boolean).join(" ");
    const value = rank >= 0 ? (forced ? "forced" : percent(chosen)) : p >= 0.005 ? percent(p) : "";
    return svg("g", { class: kinds, transform: `translate(${x} ${y})`, "data-node": name, "data-key": `${panel.model.name}-node-${node}`,
      "data-state": current ? "current" : rank >= 0 ? "read" : "unread", ...asButton(said.filter(Boolean).join(", "), act) },
      onArm && !start ? svg("circle", { class: "goal", r: 24.5 }) : null,
      p >= 0.005 ? svg("circle", { class: "rest", r: 19 }) : null,
      p >= 0.005 ? svg("circle", { class: "chance", r: 19, transform: "rotate(-90)", "stroke-dasharray": `${(turn * p).toFixed(1)} ${turn.toFixed(1)}` }) : null,
      svg("circle", { class: "disc", r: 15 }), svg("text", { class: "id" }, name),
      role || value ? svg("text", { class: "label halo", x: right * 31, y: below * 33 - (role && value ? (below > 0.3 ? 1 : below < -0.3 ? 13 : 7) : 0), "text-anchor": right > 0.5 ? "start" : right < -0.5 ? "end" : "middle" },
        role ? svg("tspan", { class: "role" }, role) : null,
        value ? svg("tspan", role ? { class: "p", x: right * 31, dy: 15 } : { class: "p" }, value) : null) : null);
  },
  // The nodes of each arm from the start on.
  arms(scene) {
    const after = new Map();
    for (const [one, other] of scene.edges) after.set(one, [...(after.get(one) || []), other]);
    return (after.get(scene.start) || []).map((node) => {
      const arm = [node];
      while (after.has(arm.at(-1)) && arm.length <= scene.edges.length) arm.push(after.get(arm.at(-1))[0]);
      return arm;
    });
  },
};
