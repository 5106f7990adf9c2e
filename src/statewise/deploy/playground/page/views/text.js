// Text: the surprisal of each token; the text itself is drawn as the list of tokens.

views.text = {
  asked: "The models read a text token by token. Darker tokens surprised the model.",
  plainTokens: true, // the list of tokens is the text itself, without boxes
  draw(panel) {
    const { places, prompt } = panel.trace, height = 76, wide = Math.max(3, Math.min(14, 660 / places.length)), width = wide * places.length;
    const values = places.map((place) => place.log_probability === undefined ? 0 : -place.log_probability);
    const most = Math.max(4, ...values), y = (value) => height - (value / most) * (height - 6);
    const bars = places.map((place, index) => {
      const text = visible(panel.text(place.token)), kind = index === panel.step - 1 ? "now" : index < prompt ? "prompt" : "";
      return [svg("rect", { class: kind, x: index * wide + 0.5, width: wide - 1, y: y(values[index]), height: height - y(values[index]) }),
        svg("rect", { class: "hit", x: index * wide, width: wide, y: 0, height, onclick: () => panel.actions.go(index + 1) }, svg("title", {}, `${text}: ${nats(values[index])}`))];
    });
    const marks = [0, most / 2, most].map((value) => [svg("line", { class: "axis", x1: 0, x2: width, y1: y(value), y2: y(value) }),
      svg("text", { class: "small", x: width + 6, y: y(value) + 4 }, value.toFixed(value ? 1 : 0))]);
    const mean = values.slice(1).reduce((sum, value) => sum + value, 0) / Math.max(1, values.length - 1);
    return el("figure", { class: "part" }, el("h3", {}, "Surprisal of each token, in nats"),
      svg("svg", { class: "surprisal", viewBox: `0 -6 ${width + 34} ${height + 10}`, role: "img", "aria-label": `surprisal of ${places.length} tokens, ${mean.toFixed(2)} nats on average` }, marks, bars),
      el("p", { class: "keys" }, key("now", "now"), el("span", { class: "key" }, `pale: prompt; mean ${mean.toFixed(2)} nats`)));
  },
};
