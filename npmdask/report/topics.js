/* Topics: a circle or a name chooses one; its words by relevance, lambda log p(word | topic) + (1 - lambda) log lift
   (Sievert and Shirley 2014); a word shows in which topics it occurs. Without JavaScript the map and the cards stay. */
(() => {
  "use strict";
  const MOST = 30;
  const make = (tag, facts = {}, ...inside) => {
    const made = Object.assign(document.createElement(tag), facts);
    made.append(...inside);
    return made;
  };
  const percent = (share) => `${Number((100 * share).toPrecision(2))} %`;

  function browse(holder, number) {
    const { topics, words } = JSON.parse(holder.querySelector("script").textContent);
    const circles = [...holder.querySelectorAll("g[data-topic]")];
    const of = topics.map(() => []);
    words.forEach(([word, all, inside]) => inside.forEach(([topic, p]) => of[topic].push({ word, all, p, inside })));
    let chosen = 0, pressed = null;

    const choice = make("select", { id: `topic-${number}` }, ...topics.map(([name, share], at) => make("option", { value: at }, `${name} (${percent(share)} of all words)`)));
    const slider = make("input", { id: `lambda-${number}`, type: "range", min: 0, max: 1, step: 0.05, value: 0.6 });
    const level = make("output", { htmlFor: slider.id });
    const list = make("ol"), status = make("p", { className: "status" });
    status.setAttribute("role", "status");

    const shade = (word) => circles.forEach((circle) => {
      const topic = Number(circle.dataset.topic), found = word && word.inside.find(([t]) => t === topic);
      circle.classList.toggle("chosen", topic === chosen);
      circle.firstElementChild.nextElementSibling.style.fillOpacity = word ? 0.04 + 0.86 * (found ? found[1] * topics[topic][1] / word.all : 0) : "";
    });
    const tell = (word) => {
      shade(word);
      status.textContent = word ? `“${word.word}” is ${percent(word.all)} of all words: ${word.inside.map(([t, p]) => [p * topics[t][1] / word.all, topics[t][0]]).sort((a, b) => b[0] - a[0]).slice(0, 5).map(([share, name]) => `${percent(share)} in topic ${name}`).join(", ")}.` : "Point at a word, or press it, to see in which topics it occurs.";
    };
    function show() {
      const at = Number(slider.value), share = topics[chosen][1];
      const relevance = ({ p, all }) => Number((at * Math.log(p) + (1 - at) * Math.log(p / all)).toFixed(4));
      const best = of[chosen].map((word) => [relevance(word), word]).sort((a, b) => b[0] - a[0] || b[1].p - a[1].p).slice(0, MOST).map(([, word]) => word);
      const most = Math.max(...best.map((word) => word.all));
      level.textContent = at.toFixed(2);
      choice.value = String(chosen);
      pressed = null;
      list.replaceChildren(...best.map((word) => {
        const button = make("button", { type: "button" }, word.word), all = make("i"), mine = make("i", { className: "mine" }), here = Math.min(1, word.p * share / word.all);
        all.style.width = `${100 * word.all / most}%`;
        mine.style.width = `${100 * here * word.all / most}%`;
        button.setAttribute("aria-pressed", "false");
        button.onclick = () => {
          const again = pressed === word;
          list.querySelectorAll("button").forEach((other) => other.setAttribute("aria-pressed", "false"));
          pressed = again ? null : word;
          button.setAttribute("aria-pressed", String(!again));
          tell(pressed);
        };
        button.onfocus = () => tell(word);
        button.onblur = () => tell(pressed);
        const row = make("li", {}, button, make("span", { className: "share" }, all, mine), make("span", {}, percent(here)));
        row.onmouseenter = () => tell(word);
        row.onmouseleave = () => tell(pressed);
        return row;
      }));
      tell(null);
    }
    const choose = (topic) => { chosen = topic; show(); };
    choice.onchange = () => choose(Number(choice.value));
    slider.oninput = show;
    circles.forEach((circle) => { circle.onclick = () => choose(Number(circle.dataset.topic)); });

    const key = make("p", { className: "key" }, "Bars: how often a word occurs in all topics; the dark part, and the number: how much of that is in this topic.");
    holder.append(make("div", { className: "words" },
      make("p", {}, make("label", { htmlFor: choice.id }, "Topic "), choice),
      make("p", {}, make("label", { htmlFor: slider.id }, "Rank words by (λ) "), make("span", { className: "ends" }, "what is special"), slider, make("span", { className: "ends" }, "what is frequent"), " ", level),
      key, status, list));
    holder.classList.add("alive");
    show();
  }

  document.querySelectorAll(".topics").forEach((holder, number) => { try { browse(holder, number); } catch (error) { console.error(error); } });
})();
